"""Consumers' offsets by shard: in one log at first, in logs of their own once they are divided."""

from __future__ import annotations

from headrace.broker.catalogue import events
from headrace.broker.partitions.offsets import DELETED, Place, StoredOffset
from headrace.wire.iggy.primitives import Partitioning, Strategy
from tests.unit.broker.fake_cluster import FakeCluster
from tests.unit.broker.harness import Client, Harness, opened


async def _filled(h: Harness, partitions: int) -> Client:
    client = await h.root()
    await client.stream()
    await client.topic(partitions=partitions)
    for partition in range(partitions):
        await client.send(b"a", b"b", b"c", to=Partitioning.to_partition(partition))
    return client


async def _divide(h: Harness) -> None:
    shards = list(range(1, h.broker.catalogue.shards))
    await h.broker.offset_logs.copy(shards, epoch=1, replicas=1)
    await h.broker.record(events.OffsetsDivided(shards))


async def _commit(client: Client, partition: int, count: int) -> None:
    await client.poll(Strategy.next(), count, partition=partition, commit=True)


async def _next(client: Client, partition: int) -> int:
    return (await client.poll(Strategy.next(), partition=partition)).count


async def test_partitions_of_a_topic_are_in_different_shards() -> None:
    async with opened() as h:
        client = await _filled(h, 8)
        (topic,) = h.broker.catalogue.topics()
        assert len({partition.shard for partition in topic.partitions}) == 8
        await client.topic(name="u")
        (first, second) = h.broker.catalogue.topics()
        assert first.partitions[0].shard != second.partitions[0].shard


async def test_undivided_offsets_are_in_one_log() -> None:
    cluster = FakeCluster()
    async with opened(cluster) as h:
        client = await _filled(h, 3)
        for partition in range(3):
            await _commit(client, partition, partition + 1)
        assert h.broker.offset_logs.led() == [0]
    async with opened(cluster, epoch=2) as h:
        client = await h.root()
        assert [await _next(client, partition) for partition in range(3)] == [2, 1, 0]


async def test_divided_offsets_survive_restarts_and_snapshots() -> None:
    cluster = FakeCluster()
    async with opened(cluster) as h:
        client = await _filled(h, 3)
        for partition in range(3):
            await _commit(client, partition, 1)
        await _divide(h)
    async with opened(cluster, epoch=2) as h:
        client = await h.root()
        assert [await _next(client, partition) for partition in range(3)] == [2, 2, 2]
        await _commit(client, 1, 1)
        (topic,) = h.broker.catalogue.topics()
        shard = topic.partitions[1].shard
        log = dict(zip(h.broker.offset_logs.led(), h.broker.offset_logs.logs(), strict=True))
        await log[shard].write_snapshot()
        await log[0].write_snapshot()  # knows nothing of the others any more
        await _commit(client, 2, 2)
    async with opened(cluster, epoch=3) as h:
        client = await h.root()
        assert [await _next(client, partition) for partition in range(3)] == [2, 1, 0]


async def test_dividing_twice_changes_nothing() -> None:
    cluster = FakeCluster()
    async with opened(cluster) as h:
        client = await _filled(h, 2)
        await _commit(client, 0, 1)
        await h.broker.offset_logs.copy(range(1, 64), epoch=1, replicas=1)  # and then it crashed
        await _commit(client, 0, 1)
        await _divide(h)
    async with opened(cluster, epoch=2) as h:
        assert await _next(await h.root(), 0) == 1


async def test_a_released_shard_takes_its_offsets_along() -> None:
    cluster = FakeCluster()
    async with opened(cluster) as h:
        client = await _filled(h, 2)
        await _commit(client, 0, 1)
        await _commit(client, 1, 1)
        await _divide(h)
    async with opened(cluster, epoch=2) as h:
        (topic,) = h.broker.catalogue.topics()
        gone, kept = topic.partitions
        assert await h.broker.offset_logs.release(gone.shard)
        places = {entry.place for entry in h.broker.offsets.entries()}
        assert places == {Place(topic.uid, kept.id, kept.generation)}
        await h.broker.offset_logs.open(gone.shard, epoch=3, clean=True, replicas=1)
        assert await _next(await h.root(), 0) == 2


async def test_what_was_deleted_between_two_attempts_to_divide_stays_deleted() -> None:
    cluster = FakeCluster()
    async with opened(cluster) as h:
        client = await _filled(h, 2)
        for partition in range(2):
            await _commit(client, partition, 1)
        await h.broker.offset_logs.copy(range(1, 64), epoch=1, replicas=1)  # and then it crashed
        (entry, _) = h.broker.offsets.entries()
        await h.broker.offset_logs.store([StoredOffset(entry.place, entry.reader, DELETED)])
        await _divide(h)
    async with opened(cluster, epoch=2) as h:
        client = await h.root()
        assert [await _next(client, partition) for partition in range(2)] == [3, 2]
