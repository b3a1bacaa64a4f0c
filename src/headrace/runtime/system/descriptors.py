"""Sockets between two owners: connections that pass from one process to another on one machine.

A descriptor travels in a datagram over a unix socket (SCM_RIGHTS), with a token that says which
connection it is; what else is to be told about the connection goes another way. While it travels
the kernel holds it, so the peer of the connection notices nothing: a FIN is sent when the last
descriptor of a socket is closed, and the sender keeps its own until it knows better.

The paths of unix sockets may be as long as any other path, although an address has 108 bytes: a
longer one is reached through the folder's descriptor.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from headrace.errors import ConfigError, UnavailableError
from headrace.runtime.interfaces import TOKEN_BYTES

ADDRESS_BYTES_MAX = 107
UNCLAIMED_MAX = 64
"""Descriptors that wait to be taken; one more puts out the oldest."""
UNCLAIMED_SECONDS = 5.0
"""Then nobody will: whoever posted one died before it told of it."""
_ONE = array.array("i", [0]).itemsize


@contextmanager
def short_address(path: str) -> Iterator[str]:
    """A name for `path` that fits into an address of a unix socket, as long as this is open."""
    if len(os.fsencode(path)) <= ADDRESS_BYTES_MAX:
        yield path
        return
    folder, name = os.path.split(path)
    held = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{held}/{name}"
    finally:
        os.close(held)


def bind_unix(path: str, kind: socket.SocketKind) -> socket.socket:
    """A socket at `path`, for this user alone; one that an earlier process left is replaced."""
    bound = socket.socket(socket.AF_UNIX, kind)
    try:
        bound.setblocking(False)
        with suppress(FileNotFoundError):
            os.unlink(path)
        with short_address(path) as address:
            bound.bind(address)
        os.chmod(path, 0o600)
    except OSError as error:
        bound.close()
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise ConfigError(f"cannot listen on unix:{path}: {reason}") from error
    return bound


class SystemDetached:
    """A Detached that holds a descriptor of its own."""

    def __init__(self, descriptor: int, received: bytes = b"") -> None:
        self.descriptor = descriptor
        self.received = received

    def take(self) -> socket.socket:
        """Becomes the owner: nothing is left here to release."""
        if self.descriptor < 0:
            raise UnavailableError("the connection was given away")
        taken = socket.socket(fileno=self.descriptor)
        self.descriptor = -1
        taken.setblocking(False)
        return taken

    def release(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def abort(self) -> None:
        if self.descriptor < 0:
            return
        with self.take() as ended, suppress(OSError):
            ended.shutdown(socket.SHUT_RDWR)  # of the socket, whoever else has a descriptor of it

    def __del__(self) -> None:
        self.release()


class SystemInbox:
    """An Inbox on a datagram socket: a message is a token and one descriptor."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._unclaimed: dict[bytes, SystemDetached] = {}
        self._socket = bind_unix(path, socket.SOCK_DGRAM)
        self._identity = identity_of(path)
        self._loop = asyncio.get_running_loop()
        # Taken off as they come: the kernel queues few datagrams, and holds up who sends more.
        self._loop.add_reader(self._socket.fileno(), self._receive)

    def take(self, token: bytes) -> SystemDetached | None:
        self._receive()
        return self._unclaimed.pop(token, None)

    def close(self) -> None:
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        remove_own(self.path, self._identity)
        for detached in self._unclaimed.values():
            detached.release()
        self._unclaimed.clear()

    def _receive(self) -> None:
        while True:
            try:
                token, ancillary, _, _ = self._socket.recvmsg(
                    TOKEN_BYTES, socket.CMSG_SPACE(_ONE), socket.MSG_CMSG_CLOEXEC
                )
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # closed
                return
            for descriptor in _descriptors(ancillary):
                self._keep(token, SystemDetached(descriptor))

    def _keep(self, token: bytes, detached: SystemDetached) -> None:
        if len(token) != TOKEN_BYTES or token in self._unclaimed:
            detached.release()
            return
        while len(self._unclaimed) >= UNCLAIMED_MAX:
            self._unclaimed.pop(next(iter(self._unclaimed))).release()
        self._unclaimed[token] = detached
        self._loop.call_later(UNCLAIMED_SECONDS, self._expire, token)

    def _expire(self, token: bytes) -> None:
        detached = self._unclaimed.pop(token, None)
        if detached is not None:
            detached.release()


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return found.tolist()


def post(path: str, token: bytes, detached: SystemDetached) -> bool:
    """False when the inbox is full at the moment; UnavailableError when nobody has one there."""
    if detached.descriptor < 0:
        raise UnavailableError("the connection was given away")
    rights = array.array("i", [detached.descriptor])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        try:
            with short_address(path) as address:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
                sender.sendmsg([token], ancillary, 0, address)
        except BlockingIOError:
            return False
        except OSError as error:
            reason = os.strerror(error.errno).lower() if error.errno else str(error)
            raise UnavailableError(f"cannot hand a connection to unix:{path}: {reason}") from error
    return True


def identity_of(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def remove_own(path: str, identity: tuple[int, int]) -> None:
    """Unless a successor has bound the path meanwhile."""
    with suppress(OSError):
        if identity_of(path) == identity:
            os.unlink(path)
