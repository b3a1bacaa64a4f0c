"""Figures of partitions that nobody has opened: asked for in bulk, once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.broker.partitions import stored_sizes
from headrace.broker.partitions.retention import enforce
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages.system import Empty
from headrace.wire.iggy.messages.topics import DeleteTopic, GetStream, GetTopic
from headrace.wire.iggy.primitives import Partitioning
from tests.unit.broker.fake_cluster import FakeCluster
from tests.unit.broker.harness import Client, opened


async def fill(client: Client, topic: str, partitions: int, **options: int) -> None:
    await client.topic(name=topic, partitions=partitions + 1, **options)
    for partition in range(partitions):
        for n in range(partition + 1):
            await client.send(b"%d" % n, topic=topic, to=Partitioning.to_partition(partition))


def epochs(cluster: FakeCluster) -> set[int]:
    """Of the streams behind partitions: a new one means that somebody opened it."""
    return {s.ranges[-1].epoch for s in cluster.streams.values() if s.name.startswith("p/")}


async def test_a_restarted_broker_tells_figures_without_opening_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stored_sizes, "STREAMS_PER_REQUEST", 3)
    cluster = FakeCluster(segment_batches=2)
    async with opened(cluster) as h:
        root = await h.root()
        await root.stream()
        await fill(root, "t", 7)
        before = await root.call(c.GET_TOPIC, GetTopic("s", "t"))
        stats = await root.call(c.GET_STATS, Empty())
    async with opened(cluster, epoch=2) as h:
        root = await h.root()
        after = await root.call(c.GET_TOPIC, GetTopic("s", "t"))
        assert before is not None
        assert after is not None
        assert after.topic == before.topic
        for one, other in zip(after.partitions, before.partitions, strict=True):
            assert replace(one, segments_count=0) == replace(other, segments_count=0)
        assert [p.messages_count for p in after.partitions] == [1, 2, 3, 4, 5, 6, 7, 0]
        assert [p.segments_count for p in after.partitions] == [1, 1, 2, 2, 3, 3, 4, 1]
        again = await root.call(c.GET_STATS, Empty())
        assert again.messages_count == stats.messages_count == 28
        assert again.messages_size_bytes == stats.messages_size_bytes > 0
        details = await root.call(c.GET_STREAM, GetStream("s"))
        assert details is not None
        assert details.stream.messages_count == 28
        asked = cluster.describes
        await root.call(c.GET_STATS, Empty())
        assert cluster.describes == asked, "what nobody opened is asked for once"
        assert epochs(cluster) == {1}, "looking is not opening"
        await root.send(b"new", to=Partitioning.to_partition(0))
        assert epochs(cluster) == {1, 2}
        topic = await root.call(c.GET_TOPIC, GetTopic("s", "t"))
        assert topic is not None
        assert topic.partitions[0].messages_count == 2
        await root.call(c.DELETE_TOPIC, DeleteTopic("s", "t"))
        assert (await root.call(c.GET_STATS, Empty())).messages_count == 0


async def test_retention_opens_only_what_it_trims() -> None:
    cluster = FakeCluster(segment_batches=2)
    async with opened(cluster) as h:
        root = await h.root()
        await root.stream()
        await fill(root, "t", 5, expiry=1_000_000)
    async with opened(cluster, epoch=2) as h:
        assert await enforce(h.broker) == 0
        assert epochs(cluster) == {1}
        h.clock.now_us_ += 1_000_000
        # Of 1 to 5 batches, two to a segment: the first two partitions have no closed segment.
        assert await enforce(h.broker) == 3
        opened_now = [s.name for s in cluster.streams.values() if s.ranges[-1].epoch == 2]
        assert sum(name.startswith("p/") for name in opened_now) == 3
        assert await enforce(h.broker) == 3, "opening sealed their last segments, old as well"
        assert await enforce(h.broker) == 0


async def test_the_next_offset_is_told_alike_of_open_and_of_other_partitions() -> None:
    cluster = FakeCluster(segment_batches=2)
    async with opened(cluster) as h:
        root = await h.root()
        await root.stream()
        await fill(root, "t", 4)
    async with opened(cluster, epoch=2) as h:
        root = await h.root()
        topic = h.broker.catalogue.topic("s", "t")
        pairs = [(topic, partition) for partition in topic.partitions]
        for opens in (False, True):
            if opens:  # which seals them: all that they hold may be deleted now
                for pair in pairs[:4]:
                    log = await h.broker.partitions.get(*pair)
                    await log.trim(log.next_offset)
            details = await root.call(c.GET_TOPIC, GetTopic("s", "t"))
            assert details is not None
            figures = await h.broker.partitions.figures(pairs)
            held = [0 if one is None else one.messages_count for one in figures]
            assert held == ([0] * 5 if opens else [1, 2, 3, 4, 0])
            assert [0 if one is None else one.next_offset for one in figures] == [1, 2, 3, 4, 0]
            assert [0 if one is None else one.start_offset for one in figures] == (
                [1, 2, 3, 4, 0] if opens else [0] * 5
            )
            # An only message that was deleted is the one case that the protocol cannot tell.
            first = 0 if opens else 1
            assert [one.next_offset for one in details.partitions] == [first, 2, 3, 4, 0]
