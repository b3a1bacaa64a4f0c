"""Hostile bytes against a live server process: it lives, its memory stays, others do not notice."""

from __future__ import annotations

import asyncio
import random
import struct
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from headrace.errors import UnavailableError
from headrace.net.addresses import parse_address
from headrace.net.sbp_channel import TcpChannel
from headrace.runtime.interfaces import Connection, Runtime
from headrace.runtime.system import system_runtime
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.flat import encode
from headrace.wire.sbp.frames import FRAME_BYTES_MAX, Frame, encode_frame
from headrace.wire.sbp.opcodes import TABLE, Code
from tests.unit.net.sbp_fixtures import append_request, fetch_request

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


class Target:
    def __init__(self, runtime: Runtime, process: asyncio.subprocess.Process, address: str) -> None:
        self.runtime = runtime
        self.process = process
        self.address = parse_address(address)

    async def connect(self) -> Connection:
        return await self.runtime.transport.connect(*self.address)

    async def channel(self) -> TcpChannel:
        return await TcpChannel.connect(
            self.runtime, *self.address, client_id="good", role=m.ClientRole.CUSTOMER
        )

    async def attack(self, *chunks: bytes) -> None:
        """Send, read until the server has nothing to say for a moment, hang up."""
        connection = await self.connect()
        try:
            for chunk in chunks:
                connection.write([chunk])
                await connection.drain()
            async with asyncio.timeout(0.05):
                while await connection.receive():
                    pass
        except (TimeoutError, UnavailableError):
            pass  # both are fine answers to garbage
        finally:
            connection.abort()
            await connection.wait_closed()

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
        return int(line.split()[1]) * 1024

    def peak_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1024


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.sbp_toy_server",
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        address = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()
        yield Target(system_runtime(), process, address)
        assert process.returncode is None, "the server went down"
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def head(
    length: int, *, header_bytes: int = 0, magic: int = 23, opcode: int = Code.APPEND
) -> bytes:
    return struct.pack(">IBHBII", length, magic, opcode, 0, 1, 1 << 24 | header_bytes)


GOOD = b"".join(encode_frame(Frame(Code.APPEND, 0, 1, encode(append_request(0)), b"batch")))


def flipped(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 0xFF
    return bytes(changed)


MALFORMED: dict[str, Callable[[], list[bytes]]] = {
    "oversize": lambda: [head(FRAME_BYTES_MAX + 1)],
    "largest length there is": lambda: [head(0xFFFFFFFF)],
    "zero length": lambda: [bytes(20)],
    "length 15": lambda: [head(15) + bytes(4)],
    "truncated": lambda: [GOOD[:-3]],
    "wrong magic": lambda: [head(16, magic=0x18) + bytes(4)] * 2,
    "wrong checksum": lambda: [flipped(GOOD, -1)] * 2,
    "header longer than the frame": lambda: [head(100, header_bytes=0xFFFFFF) + bytes(88)],
    "promises 16 MiB, sends nothing": lambda: [head(FRAME_BYTES_MAX)],
    "http": lambda: [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"],
    "tls": lambda: [bytes.fromhex("16030100c8010000c40303") + bytes(200)],
    "empty header": lambda: [b"".join(encode_frame(Frame(c, 0, 1))) for c in TABLE],
    "response nobody asked for": lambda: [b"".join(encode_frame(Frame(Code.FETCH, 3, 1)))],
    "vector of four billion": lambda: [
        b"".join(encode_frame(Frame(Code.FETCH, 0, 1, _huge_vector())))
    ],
}


def _huge_vector() -> bytes:
    data = bytearray(encode(fetch_request(1)))
    position = data.index(struct.pack("<I", 1), 30)
    struct.pack_into("<I", data, position, 0xFFFFFFFF)
    return bytes(data)


async def test_malformed_frames_cost_nobody_else_anything(target: Target) -> None:
    good = await target.channel()
    for make in MALFORMED.values():
        await target.attack(*make())
        await good.call(Code.APPEND, append_request(0), [b"batch"], timeout=5)
    await good.close()


async def test_random_and_mutated_bytes(target: Target) -> None:
    generator = random.Random(23)
    good = await target.channel()
    samples = [GOOD, b"".join(encode_frame(Frame(Code.FETCH, 0, 9, encode(fetch_request(10)))))]
    for _ in range(60):
        sample = bytearray(b"".join(generator.choices(samples, k=3)))
        for _ in range(generator.randrange(1, 8)):
            sample[generator.randrange(len(sample))] = generator.randrange(256)
        await target.attack(bytes(sample), generator.randbytes(generator.randrange(200)))
    await good.call(Code.APPEND, append_request(0), [b"batch"], timeout=5)
    await good.close()


async def test_promised_bytes_take_no_memory(target: Target) -> None:
    """A hundred connections that each promise a frame of 16 MiB and send a little of it."""
    good = await target.channel()
    await good.ping()
    before = target.resident_bytes()
    connections = [await target.connect() for _ in range(100)]
    for connection in connections:
        connection.write([head(FRAME_BYTES_MAX), bytes(10_000)])
    await asyncio.sleep(0.3)
    await good.call(Code.APPEND, append_request(0), [b"batch"], timeout=5)
    assert target.resident_bytes() - before < 24 * MIB
    for connection in connections:
        connection.abort()
        await connection.wait_closed()
    await good.close()


async def test_a_flood_that_never_reads_stops_itself(target: Target) -> None:
    """A hundred megabytes of PINGs, and nobody takes the PONGs: the server stops reading."""
    good = await target.channel()
    await good.ping()
    before = target.peak_bytes()
    flood = await target.connect()
    for stream_id in range(1, 400):
        flood.write(encode_frame(Frame(Code.PING, 0, stream_id, b"", bytes(MIB // 4))))
    await asyncio.sleep(0.5)
    await good.call(Code.FETCH, fetch_request(100), timeout=5)
    assert target.peak_bytes() - before < 16 * MIB
    flood.abort()
    await flood.wait_closed()
    await good.close()
