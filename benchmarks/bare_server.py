"""The limits for `broker_send_poll`: uvloop servers of the same framing that do the I/O alone.

| `written` | a group of frames is written to a file off the loop, then answered           |
| `synced`  | the same, and synced with fdatasync before the answer                        |
| `inline`  | each frame is written on the loop: a write that has to wait stops everything |
| `polled`  | a frame is answered at once with a reply from memory                         |

Frames are neither looked at nor checked, in classic framing or dialect C's, which is answered in
its own. One process serves all, each on a port of its own.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable
from typing import cast

from headrace.wire.iggy.vsr.frames import READ, Head, encode_reply

RESPONSE = struct.Struct("<II")
OK = RESPONSE.pack(0, 0)

_LENGTH = struct.Struct("<I")
_SIZE_AT = 48


def ok(frame: bytearray) -> bytes:
    """The answer to a frame, in its framing."""
    return OK if any(frame[:4]) else OK_C


def reply_c(length: int) -> bytes:
    """The header of a reply of so many bytes, in dialect C's framing."""
    return OK_C[:_SIZE_AT] + _LENGTH.pack(256 + length) + OK_C[_SIZE_AT + _LENGTH.size :]


OK_C = bytes(encode_reply(Head(READ, 1, 1, b"c" * 16), 0)[0])


class Framed(asyncio.Protocol):
    """Cuts what arrives into frames, one request at a time on each connection."""

    def __init__(self, server: BareServer) -> None:
        self._server = server
        self._frame = bytearray()
        self._wanted = 0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._server.connections += 1

    def data_received(self, data: bytes) -> None:
        frame = self._frame
        frame += data
        if not self._wanted and len(frame) >= _LENGTH.size:
            self._wanted = _LENGTH.size + int(_LENGTH.unpack_from(frame)[0])
            if self._wanted == _LENGTH.size:  # dialect C; its header does not come in two pieces
                self._wanted = int(_LENGTH.unpack_from(frame, _SIZE_AT)[0])
        if self._wanted and len(frame) == self._wanted:
            self._frame, self._wanted = bytearray(), 0
            self._server.on_frame(self.transport, frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections -= 1
        if not self._server.connections:
            self._server.on_idle()


class BareServer:
    def __init__(self) -> None:
        self.connections = 0

    def on_frame(self, transport: asyncio.Transport, frame: bytearray) -> None:
        raise NotImplementedError

    def on_idle(self) -> None:
        """A round is over: start it again with an empty file, as the broker does."""


class Inline(BareServer):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.file = os.open(path, os.O_CREAT | os.O_WRONLY)
        self.end = 0

    def on_frame(self, transport: asyncio.Transport, frame: bytearray) -> None:
        self.end += os.pwrite(self.file, frame, self.end)
        transport.write(ok(frame))

    def on_idle(self) -> None:
        os.ftruncate(self.file, 0)
        self.end = 0


class Grouped(Inline):
    """Group commit in a dozen lines: what waits is written, and synced, together."""

    def __init__(self, path: str, *, sync: bool) -> None:
        super().__init__(path)
        self._sync = sync
        self._waiting: list[tuple[asyncio.Transport, bytearray]] = []
        self._task: asyncio.Task[None] | None = None

    def on_frame(self, transport: asyncio.Transport, frame: bytearray) -> None:
        self._waiting.append((transport, frame))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._commit())

    async def _commit(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            group, self._waiting = self._waiting, []
            await loop.run_in_executor(None, self._write, [frame for _, frame in group])
            for transport, frame in group:
                transport.write(ok(frame))
        self._task = None

    def _write(self, frames: list[bytearray]) -> None:
        self.end += os.pwritev(self.file, frames, self.end)
        if self._sync:
            os.fdatasync(self.file)


class Polled(BareServer):
    """Answers with one reply after the other: as many bytes of memory as the broker reads from."""

    def __init__(self) -> None:
        super().__init__()
        self._replies: list[bytes] = []
        self._next = 0

    def on_frame(self, transport: asyncio.Transport, frame: bytearray) -> None:
        """A request is `u32 length, u32 code 0, u32 bytes of a reply, u32 replies`; the code is 256
        for replies in dialect C's framing."""
        if len(frame) == 16 and not frame[4]:
            size, count = RESPONSE.unpack_from(frame, 8)
            head = reply_c(size) if frame[5] else RESPONSE.pack(0, size)
            self._replies = [head + os.urandom(size) for _ in range(count)]
            transport.write(OK)
            return
        self._next = (self._next + 1) % len(self._replies)
        transport.write(self._replies[self._next])


NAMES = ("written", "synced", "inline", "polled")


async def serve(folder: str, until: Callable[[], object]) -> None:
    """Prints the ports in the order of NAMES; serves until `until` returns in a thread."""
    loop = asyncio.get_running_loop()
    servers = (
        Grouped(f"{folder}/written", sync=False),
        Grouped(f"{folder}/synced", sync=True),
        Inline(f"{folder}/inline"),
        Polled(),
    )
    listeners = [
        await loop.create_server(lambda server=server: Framed(server), "127.0.0.1", 0)  # type: ignore[misc]
        for server in servers
    ]
    print(*(listener.sockets[0].getsockname()[1] for listener in listeners), flush=True)
    await loop.run_in_executor(None, until)
    for listener in listeners:
        listener.close()
