"""The client's half of dialect C: one identity and its numbers, over any number of connections.

`Conversation` is what outlives a connection. A request whose answer did not come is sent again as
it was: `encode` gives it its number, `again` the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import RemoteProtocolError
from headrace.wire.iggy.classic_frames import RESPONSE_BYTES_MAX, ResponseFrame
from headrace.wire.iggy.fields import Buffer
from headrace.wire.iggy.vsr import frames as vsr


class Conversation:
    """Numbers what changes something: 1, 2, 3, ... Reads carry the number to come."""

    def __init__(self, client: bytes) -> None:
        """`client` is 16 random bytes."""
        self.client = client
        self.session = 0
        self._next = 1
        self._last: list[Buffer] = []

    def on_registered(self, session: int) -> None:
        self.session = session

    def encode(self, code: int, pieces: Sequence[Buffer]) -> list[Buffer]:
        if code in vsr.LOGIN_CODES:
            return vsr.encode_request(self._head(vsr.REGISTER, 0, 0, pieces), code, pieces)
        operation = vsr.OPERATION_OF.get(code, vsr.READ)
        number = self._next
        if operation == vsr.READ:
            head = vsr.Head(vsr.READ, number, self.session, self.client)
            return vsr.encode_request(head, code, pieces)
        self._next += 1
        head = self._head(operation, number, self.session, pieces)
        self._last = vsr.encode_request(head, code, pieces)
        return self._last

    def again(self) -> list[Buffer]:
        """The last request that changes something, as it was."""
        return self._last

    def _head(
        self, operation: int, number: int, session: int, pieces: Sequence[Buffer]
    ) -> vsr.Head:
        if operation >= vsr.SEND:
            return vsr.Head(operation, number, session, self.client)
        checksum = vsr.body_checksum(b"".join(pieces))
        return vsr.Head(operation, number, session, self.client, checksum)


class VsrReplyDecoder:
    """Bytes in, replies out. One above the limit is a RemoteProtocolError."""

    def __init__(self, *, response_bytes_max: int = RESPONSE_BYTES_MAX) -> None:
        self._bytes_max = vsr.HEADER_BYTES + response_bytes_max
        self._pending = bytearray()

    @property
    def buffered_bytes(self) -> int:
        return len(self._pending)

    def feed(self, data: Buffer) -> list[ResponseFrame]:
        frames: list[ResponseFrame] = []
        self._pending += data
        while len(self._pending) >= vsr.HEADER_BYTES:
            size = vsr.frame_bytes(self._pending)
            if not vsr.HEADER_BYTES <= size <= self._bytes_max:
                raise RemoteProtocolError("reply of a bad length", length=size)
            if len(self._pending) < size:
                break
            reply = vsr.decode_reply(bytes(self._pending[:size]))
            del self._pending[:size]
            frames.append(ResponseFrame(reply.status, reply.payload))
        return frames
