"""Many connections, topics and partitions on one `headrace up`: what they cost, and a restart.

The small size runs always; the sizes that are promised (1,000 connections, 1,000 topics, 10,000
partitions, every one of them written to) run under `make soak`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.client.iggy import IggyClient
from headrace.net.addresses import parse_address
from headrace.runtime.system import system_runtime
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Partitioning
from tests.integration.server import Server, running

SETTINGS = "[advanced.storage]\nidle_file_ms = 1000\n"
SENDERS = 32
RESTART_SECONDS_MAX = 10.0
BUSY_SECONDS_MAX = 60.0  # the same where other tests run beside it
STATS_SECONDS_MAX = 10.0
THREADS_MAX = 64
CONTROL_CONNECTIONS_MAX = 4  # of the control plane, which the broker counts like any other
FILES_MAX = 64  # sockets, logs, SQLite: whatever is open with nothing stored at all
MIB = 1 << 20


@dataclass(frozen=True)
class Size:
    connections: int
    topics: int
    partitions: int
    written_every: int
    """One partition in so many has messages."""
    rss_max: int

    @property
    def written(self) -> int:
        return len(range(0, self.topics * self.partitions, self.written_every))


SMALL = Size(200, 100, 10, 5, 200 * MIB)
FULL = Size(1000, 1000, 10, 1, 400 * MIB)


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(pid: int) -> int:
    """Regular files: sockets and pipes belong to connections."""
    count = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            count += os.readlink(entry).startswith("/")
    return count


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@asynccontextmanager
async def connected(server: Server, count: int = 1) -> AsyncIterator[list[IggyClient]]:
    runtime, address = system_runtime(), parse_address(server.addresses["iggy"])
    clients: list[IggyClient] = []

    async def connect() -> None:
        clients.append(await IggyClient.connect(runtime, *address, timeout=60))

    try:
        await asyncio.gather(*(connect() for _ in range(count)))
        yield clients
    finally:
        await asyncio.gather(*(client.close() for client in clients))


async def create(client: IggyClient, size: Size) -> None:
    await client.create_stream("s")
    for number in range(size.topics):
        made = await client.create_topic("s", f"t{number}", partitions_count=size.partitions)
        assert len(made.partitions) == size.partitions


async def write(clients: list[IggyClient], size: Size) -> None:
    places = iter(range(0, size.topics * size.partitions, size.written_every))

    async def send(client: IggyClient) -> None:
        for place in places:
            topic, partition = divmod(place, size.partitions)
            to = Partitioning.to_partition(partition)
            await client.send("s", topic, [Message(b"x" * 100)], partitioning=to)

    await asyncio.gather(*map(send, clients))


async def check_stored(server: Server, size: Size) -> float:
    """Everything is there; returns how long GET_STATS took."""
    async with connected(server) as (client,):
        await client.login("iggy", "iggy")
        started = time.monotonic()
        stats = await client.get_stats()
        took = time.monotonic() - started
        assert stats.topics_count == size.topics
        assert stats.partitions_count == size.topics * size.partitions
        assert stats.messages_count == size.written
        last = size.topics - 1
        polled = await client.poll("s", last, partition=0)
        assert polled.count == 1
    return took


def wait_for_few_files(pid: int, seconds: float = 10.0) -> int:
    deadline = time.monotonic() + seconds
    while open_files(pid) > FILES_MAX and time.monotonic() < deadline:
        time.sleep(0.1)
    return open_files(pid)


async def run(server: Server, size: Size) -> list[str]:
    """Returns what it measured."""
    report: list[str] = []

    def note(what: str, started: float) -> float:
        took = time.monotonic() - started
        pid = server.process.pid
        report.append(
            f"{what}: {took:.2f} s, {rss(pid) / MIB:.0f} MiB,"
            f" {open_files(pid)} files, {threads(pid)} threads"
        )
        return took

    async with connected(server, SENDERS) as clients:
        for client in clients:
            await client.login("iggy", "iggy")
        started = time.monotonic()
        await create(clients[0], size)
        # Nothing is made for a partition until it is used: a topic is one event of the catalogue.
        limit = 10 + size.topics * 0.01 if size is FULL else BUSY_SECONDS_MAX
        assert note("topics created", started) < limit
        started = time.monotonic()
        await write(clients, size)
        note("first message to each partition that gets one", started)
    started = time.monotonic()
    async with connected(server, size.connections) as clients:
        await asyncio.gather(*(client.ping() for client in clients))
        note(f"{size.connections} connections", started)
        async with connected(server) as (one,):
            await one.login("iggy", "iggy")
            others = (await one.get_stats()).clients_count - size.connections - 1
            assert others in range(CONTROL_CONNECTIONS_MAX + 1)
    pid = server.process.pid
    assert wait_for_few_files(pid) <= FILES_MAX, "idle partitions keep files open"
    assert threads(pid) <= THREADS_MAX
    assert rss(pid) <= size.rss_max
    for how in (server.kill, server.stop):
        how()
        started = time.monotonic()
        server.start()
        took = note(f"started after {how.__name__}", started)
        assert took < (RESTART_SECONDS_MAX if size is FULL else BUSY_SECONDS_MAX), report
        assert await check_stored(server, size) < STATS_SECONDS_MAX
        note("figures told", started)
        assert wait_for_few_files(server.process.pid) <= FILES_MAX
        assert threads(server.process.pid) <= THREADS_MAX
        assert rss(server.process.pid) <= size.rss_max
    return report


@pytest.mark.parametrize(
    "size", [SMALL, pytest.param(FULL, marks=[pytest.mark.soak, pytest.mark.timeout(900)])],
    ids=["small", "full"],
)  # fmt: skip
async def test_idle_partitions_cost_next_to_nothing(tmp_path: Path, size: Size) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(SETTINGS)
    with running(tmp_path / "server", arguments=("--dev", "--config", str(settings))) as server:
        for line in await run(server, size):
            print(line)
