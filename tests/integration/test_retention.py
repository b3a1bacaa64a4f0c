"""Retention on real segment files, and restarts that do not grow with history."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.broker.catalogue.state import Catalogue
from headrace.broker.partitions.offsets import LoggedOffsets
from headrace.client.iggy import IggyClient
from headrace.config.datanode import StorageSettings
from headrace.wire.iggy.errors import IggyError
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from tests.integration.broker_stack import DEVELOPMENT, Stack

MIB = 1 << 20
SEGMENT = StorageSettings(segment_bytes_max=MIB)
PAYLOAD = bytes(100_000)  # ten messages to a segment
ME = Consumer.single(1)
SNAPSHOT = 8 * 1024  # bytes of a log between two snapshots


@asynccontextmanager
async def started(folder: Path, **settings: object) -> AsyncIterator[Stack]:
    changed = msgspec.structs.replace(DEVELOPMENT, retention_interval_ms=100, **settings)
    stack = await Stack(str(folder), changed, SEGMENT).start()
    try:
        yield stack
    finally:
        await stack.stop()


async def send(client: IggyClient, topic: str, count: int) -> None:
    for _ in range(count):
        await client.send("s", topic, [Message(PAYLOAD)], partitioning=Partitioning.to_partition(0))


async def offsets(client: IggyClient, topic: str, strategy: Strategy) -> list[int]:
    polled = await client.poll("s", topic, partition=0, consumer=ME, strategy=strategy, count=1000)
    return [message.offset for message in polled.messages()]


async def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  nobody is told
            await asyncio.sleep(0.02)


def log_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("node/**/*.log"))


def start_of(stack: Stack, topic: str) -> int:
    found = stack.broker.broker.catalogue.topic("s", topic)
    log = stack.broker.broker.partitions.peek(found, found.partitions[0])
    return 0 if log is None else log.start_offset


async def test_size_and_expiry_remove_closed_segments_only(tmp_path: Path) -> None:
    async with started(tmp_path) as stack, await stack.connect() as client:
        await client.create_stream("s")
        await client.create_topic("s", "capped", max_size_bytes=3 * MIB)
        await client.create_topic("s", "brief", message_expiry_us=300_000)
        await client.create_topic("s", "kept")
        for topic in ("capped", "brief", "kept"):
            await send(client, topic, 55)
        await wait_until(lambda: start_of(stack, "capped") >= 25 and start_of(stack, "brief") == 50)
        capped = await client.get_topic("s", "capped")
        assert capped is not None
        assert 2 * MIB < capped.topic.size_bytes <= 3 * MIB
        first = await offsets(client, "capped", Strategy.first())
        assert first[0] == start_of(stack, "capped")
        assert first[0] % 10 == 0, "whole segments go"
        assert first[-1] == 54
        assert await offsets(client, "brief", Strategy.first()) == [50, 51, 52, 53, 54]
        assert len(await offsets(client, "kept", Strategy.first())) == 55
        # Who never read, asks for what is gone, or asks by an old offset gets the oldest retained.
        assert (await offsets(client, "brief", Strategy.next()))[0] == 50
        assert (await offsets(client, "brief", Strategy.offset(3)))[0] == 50
        assert await offsets(client, "brief", Strategy.last())
        assert log_bytes(tmp_path) < 14 * MIB, "the bytes are gone too"
        await send(client, "brief", 1)
        assert (await offsets(client, "brief", Strategy.first()))[-1] == 55


@pytest.mark.parametrize("waits", [True, False])
async def test_slow_consumers_hold_segments_only_if_asked_to(tmp_path: Path, waits: bool) -> None:
    async with (
        started(tmp_path, retention_waits_for_consumers=waits) as stack,
        await stack.connect() as client,
    ):
        await client.create_stream("s")
        await client.create_topic("s", "t")
        await send(client, "t", 35)
        await client.store_consumer_offset(ME, "s", "t", offset=13, partition=0)
        await client.update_topic("s", "t", "t", message_expiry_us=200_000)
        expected = 10 if waits else 30
        await wait_until(lambda: start_of(stack, "t") == expected)
        await asyncio.sleep(0.5)
        assert start_of(stack, "t") == expected
        # An offset below what is left: the next message is the oldest retained.
        assert (await offsets(client, "t", Strategy.next()))[0] == (14 if waits else 30)
        stored = await client.get_consumer_offset(ME, "s", "t", 0)
        assert stored is not None
        assert stored.stored_offset == 13
        if waits:
            await client.store_consumer_offset(ME, "s", "t", offset=29, partition=0)
            await wait_until(lambda: start_of(stack, "t") == 30)


async def test_delete_segments(tmp_path: Path) -> None:
    async with started(tmp_path) as stack, await stack.connect() as client:
        await client.create_stream("s")
        await client.create_topic("s", "t")
        await client.delete_segments("s", "t", partition=0, count=1)  # nothing there yet
        await send(client, "t", 35)
        await client.store_consumer_offset(ME, "s", "t", offset=3, partition=0)
        await client.delete_segments("s", "t", partition=0, count=2)
        assert (await offsets(client, "t", Strategy.first()))[0] == 20
        assert (await offsets(client, "t", Strategy.next()))[0] == 20
        await client.delete_segments("s", "t", partition=0, count=100)
        assert await offsets(client, "t", Strategy.first()) == [30, 31, 32, 33, 34]
        topic = await client.get_topic("s", "t")
        assert topic is not None
        assert topic.partitions[0].messages_count == 5
        with pytest.raises(IggyError):
            await client.delete_segments("s", "t", partition=1, count=1)
    async with started(tmp_path) as stack, await stack.connect() as client:
        assert await offsets(client, "t", Strategy.first()) == [30, 31, 32, 33, 34]


# -- restarts


async def test_a_restart_replays_a_snapshot_and_a_short_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand stored offsets and hundreds of topics come and go; a restart sees the result."""
    readers, rounds = 50, 200
    async with started(tmp_path, snapshot_bytes=SNAPSHOT) as stack:
        clients = [await stack.connect() for _ in range(readers)]
        await clients[0].create_stream("s")
        await clients[0].create_topic("s", "t")
        await clients[0].send(
            "s", "t", [Message(b"x") for _ in range(rounds)],
            partitioning=Partitioning.to_partition(0),
        )  # fmt: skip

        async def store(number: int, client: IggyClient) -> None:
            who = Consumer.single(number)
            for offset in range(rounds):
                await client.store_consumer_offset(who, "s", "t", offset=offset, partition=0)

        await asyncio.gather(*(store(n, client) for n, client in enumerate(clients)))
        for n in range(200):
            await clients[0].create_topic("s", f"brief {n}", partitions_count=3)
            await clients[0].delete_topic("s", f"brief {n}")
        broker = stack.broker.broker
        for state_log in broker.state_logs():
            await wait_until(lambda log=state_log: log.bytes_since_snapshot < SNAPSHOT)  # type: ignore[misc]
        for client in clients:
            await client.close()
    restored: list[str] = []
    for kind in (LoggedOffsets, Catalogue):
        monkeypatch.setattr(kind, "restore", _noting(kind, restored))
    async with started(tmp_path) as stack, await stack.connect() as client:
        assert sorted(restored) == ["Catalogue", "LoggedOffsets"]
        for state_log in stack.broker.broker.state_logs():
            assert state_log.bytes_since_snapshot < SNAPSHOT, "that much was replayed"
        for n in range(readers):
            stored = await client.get_consumer_offset(Consumer.single(n), "s", "t", 0)
            assert stored is not None
            assert stored.stored_offset == rounds - 1
        assert [topic.name for topic in await client.get_topics("s")] == ["t"]


def _noting(
    kind: type[LoggedOffsets] | type[Catalogue], restored: list[str]
) -> Callable[..., None]:
    restore = kind.restore

    def noting(self: Any, *snapshot: Any) -> None:
        restored.append(kind.__name__)
        restore(self, *snapshot)

    return noting
