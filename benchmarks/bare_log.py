"""The limits for `log_append` and `log_fetch`: uvloop servers that move the same bytes alone.

* append: a group of frames is written to a file off the loop and synced, then answered; with two
  others of its kind, frames are passed on as they come, and answered when one of them has too
* catch-up: a request names a position and a size; it is read off the loop and sent
* tail: whoever has asked for it gets each frame once it is synced

Frames are SBP's in their first twelve bytes: length, and an id that the answer repeats. Nothing is
decoded or checked. `python -m benchmarks.bare_log FOLDER [PORT...]` serves one, with PORTs as its
others, until its standard input ends.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from dataclasses import dataclass
from typing import cast

from headrace.process.startup.serving import SWITCH_INTERVAL_SECONDS
from headrace.runtime.system import run as run_loop

LENGTH = struct.Struct(">I")
HEAD = struct.Struct(">IBHBI")  # length, magic, opcode, flags, id
APPEND, READ, FOLLOW = 1, 2, 3  # opcodes
PLACE = struct.Struct(">QI")  # position and size of a READ
_ANSWER_BYTES = 20
_END = 3  # flags of a response


def answer_head(number: int, payload_bytes: int) -> bytes:
    length = _ANSWER_BYTES - 4 + payload_bytes
    return HEAD.pack(length, 23, APPEND, _END, number) + bytes(_ANSWER_BYTES - HEAD.size)


class Framed(asyncio.Protocol):
    """Cuts what arrives into frames."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._partial = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        partial = self._partial
        partial += data
        while len(partial) >= LENGTH.size:
            total = LENGTH.unpack_from(partial)[0] + LENGTH.size
            if len(partial) < total:
                return
            if len(partial) == total:
                frame, partial = partial, bytearray()
            else:
                frame = partial[:total]
                del partial[:total]
            self._partial = partial
            self.on_frame(frame)

    def on_frame(self, frame: bytearray) -> None:
        raise NotImplementedError


@dataclass(eq=False)
class Waiting:
    """An append: answered when the file and, with others, one of them has it."""

    transport: asyncio.Transport
    number: int
    missing: int

    def on_stored(self) -> None:
        self.missing -= 1
        if not self.missing:
            self.transport.write(answer_head(self.number, 0))


class Other(Framed):
    """A connection to a node that stores copies; its answers come in order."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Waiting] = []

    def on_frame(self, frame: bytearray) -> None:
        self.waiting.pop(0).on_stored()


class Node:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_RDWR)
        self._end = 0
        self._queue: list[tuple[Waiting, bytearray]] = []
        self._task: asyncio.Task[None] | None = None
        self.others: list[Other] = []
        self.followers: list[tuple[asyncio.Transport, int]] = []

    def append(self, transport: asyncio.Transport, frame: bytearray) -> None:
        number = HEAD.unpack_from(frame)[4]
        waiting = Waiting(transport, number, 2 if self.others else 1)
        for other in self.others:
            other.waiting.append(waiting)
            other.transport.write(frame)
        self._queue.append((waiting, frame))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._commit())

    async def _commit(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue:
            group, self._queue = self._queue, []
            await loop.run_in_executor(None, self._write, [frame for _, frame in group])
            for waiting, frame in group:
                waiting.on_stored()
                for transport, number in self.followers:
                    transport.write(answer_head(number, len(frame)))
                    transport.write(frame)
        self._task = None

    def _write(self, frames: list[bytearray]) -> None:
        self._end += os.pwritev(self._file, frames, self._end)
        os.fdatasync(self._file)

    async def read(self, transport: asyncio.Transport, frame: bytearray) -> None:
        number = HEAD.unpack_from(frame)[4]
        position, size = PLACE.unpack_from(frame, HEAD.size)
        loop = asyncio.get_running_loop()
        data = await loop.run_in_executor(None, os.pread, self._file, size, position)
        transport.write(answer_head(number, len(data)))
        transport.write(data)


class Serving(Framed):
    def __init__(self, node: Node) -> None:
        super().__init__()
        self._node = node
        self._tasks: set[asyncio.Task[None]] = set()

    def on_frame(self, frame: bytearray) -> None:
        kind, number = HEAD.unpack_from(frame)[2], HEAD.unpack_from(frame)[4]
        if kind == READ:
            task = asyncio.get_running_loop().create_task(self._node.read(self.transport, frame))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif kind == FOLLOW:
            self._node.followers.append((self.transport, number))
        else:
            self._node.append(self.transport, frame)

    def connection_lost(self, exc: Exception | None) -> None:
        followers = self._node.followers
        self._node.followers = [each for each in followers if each[0] is not self.transport]


async def serve(folder: str, others: list[int]) -> None:
    loop = asyncio.get_running_loop()
    node = Node(f"{folder}/bare")
    for port in others:
        node.others.append((await loop.create_connection(Other, "127.0.0.1", port))[1])
    listener = await loop.create_server(lambda: Serving(node), "127.0.0.1", 0)
    print(listener.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    listener.close()


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    run_loop(serve(sys.argv[1], [int(port) for port in sys.argv[2:]]))
