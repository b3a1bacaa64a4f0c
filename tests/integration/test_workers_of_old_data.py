"""A data directory of before there were shards is served by several workers."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from headrace.broker.catalogue import events
from headrace.broker.shards.offset_logs import OffsetLogs
from headrace.errors import UnavailableError
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from tests.integration.broker_stack import Stack
from tests.integration.test_workers_of_a_broker import spread, until
from tests.integration.worker_stack import WorkerStack

PARTITIONS = 40
GROUP = Consumer.group("g")


async def written_before(folder: Path) -> None:
    """By one process, with every partition in the first shard."""
    stack = await Stack(str(folder)).start()
    try:
        async with await stack.connect() as client:
            await client.create_stream("s")
            await client.create_topic("s", "t", partitions_count=PARTITIONS)
            broker = stack.broker.broker
            (topic,) = broker.catalogue.topics()
            moves = [(topic.uid, p.id, p.generation, 0) for p in topic.partitions]
            await broker.record(events.PartitionsMoved(moves))
            await client.create_group("s", "t", "g")
            for partition in range(PARTITIONS):
                to = Partitioning.to_partition(partition)
                sent = [Message(b"%d" % n) for n in range(5)]
                await client.send("s", "t", sent, partitioning=to)
                await client.store_consumer_offset(GROUP, "s", "t", partition=partition, offset=2)
            assert {p.shard for p in topic.partitions} == {0}
    finally:
        await stack.stop()


async def check(stack: WorkerStack, *, sent: int = 5, stored: int = 2) -> None:
    async with AsyncExitStack() as closing:
        clients = [
            await closing.enter_async_context(await stack.connect(number))
            for number in stack.workers
        ]
        for partition in range(PARTITIONS):
            client = clients[partition % len(clients)]
            polled = await client.poll("s", "t", partition=partition, strategy=Strategy.first())
            assert [bytes(m.payload) for m in polled.messages()] == [b"%d" % n for n in range(sent)]
            found = await client.get_consumer_offset(GROUP, "s", "t", partition)
            assert found is not None
            assert found.stored_offset == stored


async def write(stack: WorkerStack, number: int, payload: bytes, offset: int) -> None:
    async with await stack.connect(number) as client:
        for partition in range(PARTITIONS):
            to = Partitioning.to_partition(partition)
            await client.send("s", "t", [Message(payload)], partitioning=to)
            await client.store_consumer_offset(GROUP, "s", "t", partition=partition, offset=offset)


async def test_its_partitions_are_spread_with_what_they_hold(tmp_path: Path) -> None:
    await written_before(tmp_path)
    stack = await WorkerStack(str(tmp_path)).start()
    try:
        await until(lambda: spread(stack))
        (topic,) = stack.workers[0].broker.catalogue.topics()
        assert len({p.shard for p in topic.partitions}) == PARTITIONS
        leaders = Counter(
            number
            for number, worker in stack.workers.items()
            for p in topic.partitions
            if worker.broker.shards.leads(p.shard)
        )
        assert len(leaders) > 1, "more than one worker leads"
        await check(stack)
        await write(stack, 1, b"5", offset=4)
        await check(stack, sent=6, stored=4)
        (coordinator,) = [n for n, w in stack.workers.items() if w.broker.workers.coordinates]
        await stack.stop_worker(coordinator)
        await until(lambda: spread(stack))
        await check(stack, sent=6, stored=4)
    finally:
        await stack.stop()
    again = await Stack(str(tmp_path)).start()  # one process goes on with it, too
    try:
        async with await again.connect() as client:
            for partition in range(PARTITIONS):
                polled = await client.poll("s", "t", partition=partition, strategy=Strategy.first())
                assert polled.count == 6
                found = await client.get_consumer_offset(GROUP, "s", "t", partition)
                assert found is not None
                assert found.stored_offset == 4
    finally:
        await again.stop()


async def test_a_spread_that_was_cut_off_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written_before(tmp_path)
    copy = OffsetLogs.copy
    failed: list[int] = []

    async def cut_off(self: OffsetLogs, shards: list[int], *, epoch: int, replicas: int) -> None:
        if len(failed) < 2:
            failed.append(epoch)
            await copy(self, list(shards)[: 30 * len(failed)], epoch=epoch, replicas=replicas)
            raise UnavailableError("cut off")
        await copy(self, shards, epoch=epoch, replicas=replicas)

    monkeypatch.setattr(OffsetLogs, "copy", cut_off)
    stack = await WorkerStack(str(tmp_path)).start()
    try:
        await until(lambda: spread(stack))
        assert len(failed) == 2
        await check(stack)
    finally:
        await stack.stop()
