"""TCP between the roles of a cluster, cut at will.

Each role is reached through a port of the proxy. The proxy finds out which role a connection comes
from (by the process that owns its other end), so it can isolate a role both ways: bytes of its
connections then stay where they are, as in a network that drops them, and flow on when it heals.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from tests import proxies

OUTSIDE = "outside"  # clients, and whoever else is no role
_CHUNK_BYTES = 1 << 16


class FaultProxy:
    def __init__(self, pids: Callable[[], Mapping[str, int]]) -> None:
        """`pids` gives the process of each role that runs."""
        self._pids = pids
        self._servers: list[asyncio.Server] = []
        self._isolated: dict[str, frozenset[str]] = {}
        self._changed = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()

    async def add(self, name: str, port: int) -> int:
        """A port that leads to the role's own."""

        async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            try:
                await self._serve(name, port, reader, writer)
            except asyncio.CancelledError:
                return  # by `close`: asyncio's streams would report it as an error
            finally:
                self._connections.discard(task)
                writer.close()

        server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def isolate(self, name: str, *, but_from: str = "") -> None:
        """Nothing reaches it and it reaches nobody, except those named."""
        self._isolated[name] = frozenset({but_from})
        self._change()

    def heal(self) -> None:
        self._isolated.clear()
        self._change()

    async def close(self) -> None:
        await proxies.close(self._servers, self._connections)

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _is_cut(self, source: str, target: str) -> bool:
        return any(
            other not in self._isolated[name]
            for name, other in ((source, target), (target, source))
            if name in self._isolated
        )

    async def _serve(
        self, target: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        # In a thread: with many sockets open it takes a while, and others must not wait for it.
        peer = writer.get_extra_info("peername")[1]
        source = await asyncio.to_thread(_owner, peer, dict(self._pids()))
        try:
            while self._is_cut(source, target):
                await self._changed.wait()
            upstream, downstream = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        pumps = [
            asyncio.create_task(self._pump(source, target, reader, downstream)),
            asyncio.create_task(self._pump(source, target, upstream, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in (writer, downstream):  # both before anything is waited for: see `close`
                end.close()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in (writer, downstream):
                with suppress(OSError):
                    await end.wait_closed()

    async def _pump(
        self,
        source: str,
        target: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                while self._is_cut(source, target):
                    await self._changed.wait()
                writer.write(data)
                await writer.drain()


def _owner(port: int, pids: Mapping[str, int]) -> str:
    """The role whose process has the connection from that port."""
    inode = _inode(port)
    for name, pid in pids.items():
        folder = Path(f"/proc/{pid}/fd")
        with suppress(OSError):
            for each in folder.iterdir():
                with suppress(OSError):
                    if os.readlink(each) == f"socket:[{inode}]":
                        return name
    return OUTSIDE


def _inode(port: int) -> str:
    wanted = f":{port:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(wanted) and fields[9] != "0":
            return fields[9]
    return ""
