"""Root of the error taxonomy.

An instance carries its data as keyword arguments and builds its text from them. One table per
protocol turns these classes into status codes, at the edge; domain code mentions no wire code.
"""

from typing import ClassVar


class HeadraceError(Exception):
    """Everything this project raises on purpose."""

    retryable: ClassVar[bool] = False

    def __init__(self, message: str = "", /, **data: object) -> None:
        self.message = message or type(self).__name__
        self.data = data
        super().__init__(message)

    def __str__(self) -> str:
        if not self.data:
            return self.message
        fields = ", ".join(f"{name}={value!r}" for name, value in self.data.items())
        return f"{self.message} ({fields})"


class WireError(HeadraceError):
    """Bytes that do not follow the protocol."""


class LocalProtocolError(WireError):
    """We tried to send something illegal."""


class RemoteProtocolError(WireError):
    """The peer sent something illegal."""


class RequestError(HeadraceError):
    """The caller's fault: repeating the same request cannot help."""


class NotFoundError(RequestError): ...


class AlreadyExistsError(RequestError): ...


class InvalidArgumentError(RequestError): ...


class UnauthenticatedError(RequestError): ...


class UnauthorizedError(RequestError): ...


class TooLargeError(RequestError): ...


class OffsetOutOfRangeError(RequestError):
    """Below the trimmed start, or outside a sealed range."""


class LostRecordsError(OffsetOutOfRangeError):
    """Records that were lost, and given up by an operator; the stream goes on at `resumed`."""

    @property
    def resumed(self) -> int:
        found = self.data.get("resumed")
        assert isinstance(found, int)
        return found


class StateError(HeadraceError):
    """True for now: the same request may succeed later or elsewhere."""

    retryable = True


class NotLeaderError(StateError): ...


class FencedError(StateError):
    """A higher writer epoch exists. Never retried: this writer is over."""

    retryable = False


class SealedError(StateError):
    """The range takes no more appends; the next range of the stream does."""


class RangeNotFoundError(StateError):
    """This node does not host that range."""


class MissingRecordsError(RangeNotFoundError):
    """Records that no living node has: others may come back with them, or they are lost."""


class OffsetOverflowError(StateError):
    """The offset is not written yet."""


class UnexpectedOffsetError(StateError):
    """An owned append whose expected offset is not the next offset of the range."""

    retryable = False


class NotEnoughNodesError(StateError): ...


class ThrottledError(StateError): ...


class UnavailableError(StateError):
    """The peer cannot be reached, or went away before it answered: the outcome is unknown."""


class OutcomeUnknownError(StateError):
    """The request was sent to another broker, and no answer came: it may have taken effect. Only
    a request that is applied once however often it comes may be sent again."""

    retryable = False


class DeadlineError(StateError):
    """The deadline passed; the operation may still take effect."""


class StorageError(HeadraceError):
    """The disk failed us. The log it happened on stops."""


class CorruptionError(StorageError):
    """Stored bytes are not what was synced."""

    def span(self, offset: int) -> tuple[int, int]:
        """The damaged offsets around `offset`, as far as whoever met them knows."""
        start, end = self.data.get("start"), self.data.get("end")
        if isinstance(start, int) and isinstance(end, int) and start <= offset < end:
            return start, end
        return offset, offset + 1


class DiskFullError(StorageError): ...


class ShareFullError(DiskFullError):
    """The disk has room, but what may be taken of it without a credential is used up."""


class FormatError(StorageError):
    """The data directory was written by a newer version, or is not ours."""


class LockedError(StorageError):
    """Another process holds the data directory."""


class ConfigError(HeadraceError):
    """Refuse to start; exit code 2."""
