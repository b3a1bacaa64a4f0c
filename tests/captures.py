"""Captures of our own traffic: a proxy that keeps the bytes of a real session, and pcap files of
them whose TCP segments are cut where it hurts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import dpkt

from headrace.cli.decode.explaining import Side
from tests import proxies

_CHUNK_BYTES = 1 << 16
_SEQUENCES = 1 << 32
_MTU_BYTES = 60_000


@dataclass
class Recorded:
    """One connection: who said what, in order."""

    port: int
    """Of the server, in the capture."""
    pieces: list[tuple[Side, bytes]] = field(default_factory=list)

    def add(self, side: Side, *data: bytes) -> Self:
        self.pieces += [(side, each) for each in data]
        return self


class RecordingProxy:
    """TCP to a server, written down. `port` is where the capture says that it listens."""

    def __init__(self, host: str, target: int, port: int) -> None:
        self._host, self._target, self._port = host, target, port
        self.recorded: list[Recorded] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.listening: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await proxies.close([self._server], self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        kept = Recorded(self._port)
        self.recorded.append(kept)
        with suppress(asyncio.CancelledError, ConnectionError):
            onward, to_server = await asyncio.open_connection(self._host, self._target)
            try:
                await asyncio.gather(
                    _pass(reader, to_server, kept, Side.CLIENT),
                    _pass(onward, writer, kept, Side.SERVER),
                )
            finally:
                to_server.close()
                writer.close()


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: Recorded, side: Side
) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        kept.pieces.append((side, data))
        writer.write(data)
        await writer.drain()
    writer.close()


def write_pcap(
    path: Path, connections: Sequence[Recorded], *, seed: int = 0, segment_bytes_max: int = 40
) -> None:
    """The connections one after the other, each in segments of 1 to `segment_bytes_max` bytes; a
    piece above 4,000 bytes in larger ones. Some segments are sent twice. The very first one has a
    few bytes more: by them the umbilical is known."""
    rng = random.Random(seed)
    with path.open("wb") as file:
        writer = dpkt.pcap.Writer(file)
        for number, connection in enumerate(connections):
            _write(writer, connection, 40_000 + number, rng, segment_bytes_max)


def _write(
    writer: dpkt.pcap.Writer, connection: Recorded, port: int, rng: random.Random, most: int
) -> None:
    ends = {Side.CLIENT: (b"\x7f\0\0\1", port), Side.SERVER: (b"\x7f\0\0\2", connection.port)}
    at = {Side.CLIENT: _SEQUENCES - 16, Side.SERVER: 1000}

    def send(side: Side, sequence: int, data: bytes, flags: int = dpkt.tcp.TH_ACK) -> None:
        other = Side.SERVER if side is Side.CLIENT else Side.CLIENT
        (source, sport), (target, dport) = ends[side], ends[other]
        tcp = dpkt.tcp.TCP(
            sport=sport, dport=dport, seq=sequence, ack=at[other], flags=flags, data=data
        )
        ip = dpkt.ip.IP(src=source, dst=target, p=dpkt.ip.IP_PROTO_TCP, data=tcp)
        ip.len = len(ip)
        writer.writepkt(bytes(dpkt.ethernet.Ethernet(data=ip)))

    for side, flags in ((Side.CLIENT, dpkt.tcp.TH_SYN), (Side.SERVER, 0x12)):
        send(side, at[side], b"", flags)
        at[side] = (at[side] + 1) % _SEQUENCES
    for side, piece in connection.pieces:
        data = piece
        while data:
            size = rng.randint(1, most if len(piece) < 4000 else _MTU_BYTES)
            if (side, piece) == connection.pieces[0] and data is piece:
                size += 3
            part, data = data[:size], data[size:]
            for _ in range(rng.choice((1, 1, 1, 2))):
                send(side, at[side], part)
            at[side] = (at[side] + len(part)) % _SEQUENCES
