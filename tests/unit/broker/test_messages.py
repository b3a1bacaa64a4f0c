"""Sending and polling through the dispatcher, on a cluster in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import xxhash

from headrace.config.broker import BrokerSettings
from headrace.errors import StorageError
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages.consumers import (
    DeleteConsumerOffset,
    GetConsumerOffset,
    StoreConsumerOffset,
)
from headrace.wire.iggy.messages.messages import FlushUnsavedBuffer, PolledMessages
from headrace.wire.iggy.messages.system import Empty
from headrace.wire.iggy.messages.topics import (
    DeletePartitions,
    DeleteSegments,
    DeleteStream,
    GetStream,
    GetTopic,
    PurgeTopic,
)
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from tests.unit.broker.fake_cluster import FakeCluster
from tests.unit.broker.harness import NOW_US, Client, code_of, opened


def payloads(polled: PolledMessages) -> list[bytes]:
    return [message.payload for message in polled.messages()]


def offsets(polled: PolledMessages) -> list[int]:
    return [message.offset for message in polled.messages()]


def numbered(first: int, count: int) -> list[bytes]:
    return [b"m%d" % n for n in range(first, first + count)]


async def filled(client: Client, batches: int = 4, size: int = 5) -> None:
    await client.stream()
    await client.topic()
    for batch in range(batches):
        await client.send(*numbered(batch * size, size))


async def test_offsets_are_dense_and_messages_come_back_stamped() -> None:
    async with opened() as h:
        client = await h.root()
        await filled(client)
        polled = await client.poll()
        assert offsets(polled) == list(range(20))
        assert payloads(polled) == numbered(0, 20)
        assert polled.current_offset == 19
        messages = polled.messages()
        assert {m.timestamp_us for m in messages} == {NOW_US}
        assert len({m.id for m in messages}) == 20
        assert 0 not in {m.id for m in messages}
        raw = bytes(b"".join(polled.slices))
        assert messages[0].checksum == xxhash.xxh3_64_intdigest(raw[8 : 64 + 2])


@pytest.mark.parametrize(
    ("strategy", "count", "expected"),
    [
        (Strategy.offset(0), 3, range(0, 3)),
        (Strategy.offset(7), 6, range(7, 13)),
        (Strategy.offset(19), 9, range(19, 20)),
        (Strategy.offset(20), 9, range(0)),
        (Strategy.offset(2**63), 9, range(0)),
        (Strategy.first(), 2, range(0, 2)),
        (Strategy.last(), 7, range(13, 20)),
        (Strategy.last(), 100, range(0, 20)),
        (Strategy.next(), 4, range(0, 4)),
        (Strategy.offset(0), 0, range(0)),
        (Strategy.timestamp(NOW_US), 100, range(0, 20)),
        (Strategy.timestamp(NOW_US + 1), 100, range(0)),
    ],
)
async def test_strategies(strategy: Strategy, count: int, expected: range) -> None:
    async with opened() as h:
        client = await h.root()
        await filled(client)
        polled = await client.poll(strategy, count)
        assert offsets(polled) == list(expected)
        assert polled.count == len(expected)


async def test_polling_by_time_finds_the_first_batch_of_that_microsecond() -> None:
    async with opened() as h:
        client = await h.root()
        await client.stream()
        await client.topic()
        for step in range(5):
            h.clock.now_us_ = NOW_US + step * 300  # several batches in one millisecond
            await client.send(*numbered(step * 2, 2))
        polled = await client.poll(Strategy.timestamp(NOW_US + 301))
        assert offsets(polled) == [4, 5, 6, 7, 8, 9]


async def test_time_never_goes_back_not_even_over_a_restart() -> None:
    cluster = FakeCluster()
    async with opened(cluster) as h:
        client = await h.root()
        await client.stream()
        await client.topic()
        h.clock.now_us_ = NOW_US + 5_000_001
        await client.send(b"a")
        h.clock.now_us_ = NOW_US
        await client.send(b"b")
    async with opened(cluster, epoch=2) as h:
        client = await h.root()
        await client.send(b"c")
        times = [m.timestamp_us for m in (await client.poll()).messages()]
        assert times == [NOW_US + 5_000_001] * 3


async def test_balanced_batches_take_turns_and_keys_stay_together() -> None:
    async with opened() as h:
        client = await h.root()
        await client.stream()
        await client.topic(partitions=3)
        for _ in range(4):
            await client.send(b"x", to=Partitioning.balanced())
        counts = [(await client.poll(partition=p)).count for p in range(3)]
        assert counts == [2, 1, 1]
        await client.send(b"k", b"l", to=Partitioning.by_key(b"customer-7"))
        chosen = xxhash.xxh32_intdigest(b"customer-7") % 3
        assert payloads(await client.poll(Strategy.last(), 2, partition=chosen)) == [b"k", b"l"]


async def test_a_large_send_becomes_several_batches_of_consecutive_offsets() -> None:
    async with opened(settings=BrokerSettings(batch_bytes_max=64 * 1024)) as h:
        client = await h.root()
        await client.stream()
        await client.topic()
        before = h.cluster.appends
        await client.send(*(bytes([n]) * 30_000 for n in range(10)))
        # 1 event, kept twice, assigns the partition its stream; 2 messages fit into one batch.
        assert h.cluster.appends - before == 7
        polled = await client.poll()
        assert offsets(polled) == list(range(10))
        assert [p[0] for p in payloads(polled)] == list(range(10))


async def test_a_poll_reply_is_bounded_but_never_starves() -> None:
    async with opened(settings=BrokerSettings(poll_bytes_max=64 * 1024)) as h:
        client = await h.root()
        await client.stream()
        await client.topic()
        for _ in range(4):
            await client.send(b"x" * 30_000)
        await client.send(b"y" * 200_000)
        assert offsets(await client.poll()) == [0, 1]
        assert offsets(await client.poll(Strategy.offset(2))) == [2, 3]
        assert offsets(await client.poll(Strategy.offset(4))) == [4]


async def test_nothing_is_acknowledged_or_shown_before_it_is_durable() -> None:
    async with opened() as h:
        client, other = await h.root(), await h.root()
        await filled(client, batches=1)
        h.cluster.gate.clear()
        sending = asyncio.create_task(client.send(b"late"))
        await asyncio.sleep(0.02)
        assert not sending.done()
        polled = await other.poll()
        assert polled.current_offset == 4
        assert polled.count == 5
        h.cluster.gate.set()
        await sending
        assert (await other.poll()).current_offset == 5


async def test_senders_on_many_connections_are_pipelined_in_order() -> None:
    async with opened() as h:
        clients = [await h.root() for _ in range(8)]
        await clients[0].stream()
        await clients[0].topic()

        async def send(client: Client, number: int) -> None:
            for round_ in range(10):
                await client.send(b"%d:%d" % (number, round_))

        await asyncio.gather(*(send(client, n) for n, client in enumerate(clients)))
        polled = await clients[0].poll(count=1000)
        assert offsets(polled) == list(range(80))
        for number in range(8):
            own = [p for p in payloads(polled) if p.startswith(b"%d:" % number)]
            assert own == [b"%d:%d" % (number, r) for r in range(10)]


async def test_refusals_have_the_numbers_clients_know() -> None:
    async with opened() as h:
        client = await h.root()
        await client.stream()
        await client.topic(partitions=1)
        await client.topic(name="empty", partitions=0)
        assert await code_of(client.send(b"x", stream="no")) == 1009
        assert await code_of(client.send(b"x", topic="no")) == 2010
        assert await code_of(client.send(b"x", to=Partitioning.to_partition(1))) == 3007
        assert await code_of(client.send(b"x", topic="empty")) == 3008
        assert await code_of(client.poll(stream=5)) == 1009
        assert await code_of(client.poll(partition=1)) == 3007
        assert await code_of(client.poll(consumer=Consumer.group("g"), partition=None)) == 5000
        assert await client.status(31_337) == 3
        assert await client.status(c.LIST_WINDOWS.code) == 3, "without its body"
        assert await client.status(c.POLL_MESSAGES.code, b"\x01") in (3, 82)
        # The connection goes on.
        await client.send(b"x")
        assert (await client.poll()).count == 1


async def test_an_unwritten_partition_is_empty_and_costs_no_log() -> None:
    async with opened() as h:
        client = await h.root()
        await client.stream()
        await client.topic(partitions=3)
        polled = await client.poll(partition=2)
        assert (polled.partition, polled.current_offset, polled.count) == (2, 0, 0)
        details = await client.call(c.GET_TOPIC, GetTopic("s", "t"))
        assert details is not None
        assert len(details.partitions) == 3
        assert not any(name.startswith("p/") for name in h.cluster.names)


# -- offsets


async def test_next_follows_the_stored_offset() -> None:
    async with opened() as h:
        client = await h.root()
        await filled(client)
        for _ in range(2):
            assert offsets(await client.poll(Strategy.next(), 3)) == [0, 1, 2]
        await client.poll(Strategy.next(), 3, commit=True)
        assert offsets(await client.poll(Strategy.next(), 3)) == [3, 4, 5]
        ann = Consumer.single("ann")
        assert offsets(await client.poll(Strategy.next(), 1, consumer=ann)) == [0]
        await client.call(c.STORE_CONSUMER_OFFSET, StoreConsumerOffset(ann, "s", "t", 0, 9))
        as_number = Consumer.single(xxhash.xxh32_intdigest(b"ann"))
        assert offsets(await client.poll(Strategy.next(), 1, consumer=as_number)) == [10]
        stored = await client.call(c.GET_CONSUMER_OFFSET, GetConsumerOffset(ann, "s", "t"))
        assert stored is not None
        assert (stored.partition, stored.current_offset, stored.stored_offset) == (0, 19, 9)


async def test_offset_refusals() -> None:
    async with opened() as h:
        client = await h.root()
        await filled(client, batches=1)
        me = Consumer.single(1)
        store = c.STORE_CONSUMER_OFFSET
        assert await code_of(client.call(store, StoreConsumerOffset(me, "s", "t", 0, 5))) == 4100
        assert await code_of(client.call(store, StoreConsumerOffset(me, "s", "t", 1, 0))) == 3007
        gone = StoreConsumerOffset(Consumer.group("g"), "s", "t", None, 0)
        assert await code_of(client.call(store, gone)) == 3022
        delete = DeleteConsumerOffset(me, "s", "t", 0)
        assert await code_of(client.call(c.DELETE_CONSUMER_OFFSET, delete)) == 3021
        await client.call(store, StoreConsumerOffset(me, "s", "t", 0, 4))
        await client.call(c.DELETE_CONSUMER_OFFSET, delete)
        assert await client.call(c.GET_CONSUMER_OFFSET, GetConsumerOffset(me, "s", "t")) is None
        missing = GetConsumerOffset(me, "no", "t")
        assert await client.call(c.GET_CONSUMER_OFFSET, missing) is None
        await client.topic(name="empty")
        empty = StoreConsumerOffset(me, "s", "empty", 0, 0)
        assert await code_of(client.call(store, empty)) == 4100


# -- restarts, purges, deletes


async def test_a_failed_log_is_opened_again() -> None:
    async with opened() as h:
        client = await h.root()
        await filled(client, batches=1)
        (log,) = h.broker.open_logs()
        log._owned._fail(StorageError("disk full for a moment"))
        assert offsets(await client.poll()) == [0, 1, 2, 3, 4]
        await client.send(b"after")
        assert payloads(await client.poll(Strategy.offset(5))) == [b"after"]
        assert not h.lost


async def test_snapshots_replace_the_log_they_cover() -> None:
    cluster = FakeCluster()
    async with opened(cluster, settings=BrokerSettings(snapshot_bytes=1024)) as h:
        client = await h.root()
        for n in range(30):
            await client.stream(f"stream-{n}")
        await client.topic("stream-3")
        await client.send(b"x", stream="stream-3")
        for _ in range(90):
            await client.poll(Strategy.first(), stream="stream-3", commit=True)
        log = h.broker._log
        await _until(lambda: log.snapshot_bytes > 0)
        await _until(lambda: h.broker.offset_logs.logs()[0].snapshot_bytes > 0)
        for state_log in (h.broker.offset_logs.logs()[0], log):
            await state_log.write_snapshot()  # the one before is kept until then
        assert cluster.named("s/catalogue").start > 10
        assert cluster.named("s/offsets").start > 10
        written = log.stream.next_offset
        await asyncio.sleep(2.2)  # two looks at the logs
        assert log.stream.next_offset == written, "it is not written again for nothing"
        assert log.snapshot_bytes > 1024, "though it is larger than what may stand between two"
        await client.stream("later")
        state = h.broker.catalogue.dump()
    async with opened(cluster, epoch=2) as h:
        assert h.broker.catalogue.dump() == state
        client = await h.root()
        assert (await client.poll(Strategy.next(), stream="stream-3")).count == 0


async def test_whoever_comes_first_after_a_change_of_leaders_waits() -> None:
    """For the data nodes, which learn a moment later where the sealed range ends."""
    cluster = FakeCluster()
    async with opened(cluster) as h:
        await filled(await h.root())
    async with opened(cluster) as h:
        client = await h.root()
        cluster.describes_refused = 2
        assert payloads(await client.poll()) == numbered(0, 20)
        assert cluster.describes_refused == 0
        await client.send(b"next")
        assert (await client.poll(Strategy.last(), 1)).current_offset == 20


async def test_a_fenced_offset_log_ends_leadership() -> None:
    cluster = FakeCluster()
    async with opened(cluster) as h:
        client = await h.root()
        await filled(client, batches=1)
        cluster.named("s/offsets").ranges[-1].epoch = 99
        assert await code_of(client.poll(Strategy.next(), commit=True)) == 8
        await _until(lambda: bool(h.lost))


async def test_everything_survives_a_restart_byte_for_byte() -> None:
    cluster = FakeCluster()
    async with opened(cluster) as h:
        client = await h.root()
        await filled(client)
        before = bytes(b"".join((await client.poll()).slices))
        await client.poll(Strategy.next(), 3, commit=True)
        state = h.broker.catalogue.dump()
    async with opened(cluster, epoch=2) as h:
        assert h.broker.catalogue.dump() == state
        client = await h.root()
        assert bytes(b"".join((await client.poll()).slices)) == before
        assert offsets(await client.poll(Strategy.next(), 1)) == [3]
        await client.send(b"after")
        assert payloads(await client.poll(Strategy.last(), 1)) == [b"after"]
        assert offsets(await client.poll()) == list(range(21))


async def test_an_older_broker_is_fenced_and_says_so() -> None:
    cluster = FakeCluster()
    async with opened(cluster) as old:
        stale = await old.root()
        await filled(stale, batches=1)
        async with opened(cluster, epoch=2) as new:
            client = await new.root()
            await client.send(b"new")
            assert await code_of(stale.send(b"old")) == 8
            assert await code_of(stale.send(b"old")) == 8
            assert old.lost
            assert payloads(await client.poll()) == [*numbered(0, 5), b"new"]
            assert await code_of(stale.stream("other")) == 8


async def test_offsets_beyond_a_shorter_log_are_clamped_at_open() -> None:
    cluster = FakeCluster()
    async with opened(cluster) as h:
        client = await h.root()
        await filled(client, batches=4)
        await client.poll(Strategy.next(), 20, commit=True)
        name = next(n for n in cluster.names if n.startswith("p/"))
    cluster.cut(name, 2)
    async with opened(cluster, epoch=2) as h:
        client = await h.root()
        stored = await client.call(
            c.GET_CONSUMER_OFFSET, GetConsumerOffset(Consumer.single(), "s", "t")
        )
        assert stored is not None
        assert stored.stored_offset == 9
        await client.send(b"new")
        assert payloads(await client.poll(Strategy.next())) == [b"new"]


async def test_purge_starts_again_at_zero_without_offsets() -> None:
    async with opened() as h:
        client = await h.root()
        await filled(client)
        await client.poll(Strategy.next(), 20, commit=True)
        (old,) = [name for name in h.cluster.names if name.startswith("p/")]
        await client.call(c.PURGE_TOPIC, PurgeTopic("s", "t"))
        assert (await client.poll()).count == 0
        await client.send(b"again")
        polled = await client.poll(Strategy.next())
        assert (payloads(polled), offsets(polled)) == ([b"again"], [0])
        await _until(lambda: old not in h.cluster.names)


async def test_logs_of_deleted_things_are_reclaimed_even_after_a_crash() -> None:
    cluster = FakeCluster()
    async with opened(cluster) as h:
        client = await h.root()
        await client.stream()
        await client.topic(partitions=2)
        for partition in range(2):
            await client.send(b"x", to=Partitioning.to_partition(partition))
        await client.call(c.DELETE_PARTITIONS, DeletePartitions("s", "t", 1))
        await _until(lambda: _logs(cluster) == 1)
        for task in list(h.broker._coordinating._tasks):
            if "reclaim" in task.get_name():
                task.cancel()
        await client.call(c.DELETE_STREAM, DeleteStream("s"))
        assert _logs(cluster) == 1
        assert await client.call(c.GET_STREAM, GetStream("s")) is None
    async with opened(cluster, epoch=2) as h:
        await _until(lambda: _logs(cluster) == 0)
        await _until(lambda: not h.broker.catalogue.doomed)


def _logs(cluster: FakeCluster) -> int:
    return sum(name.startswith("p/") for name in cluster.names)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # the broker works in the background
            await asyncio.sleep(0.005)


async def test_deleting_segments_trims_the_oldest_closed_ones() -> None:
    async with opened(FakeCluster(segment_batches=2)) as h:
        client = await h.root()
        await filled(client, batches=5, size=1)  # segments [0,2) [2,4) closed, [4,5) open
        await client.call(c.DELETE_SEGMENTS, DeleteSegments("s", "t", 0, 1))
        assert offsets(await client.poll(Strategy.first())) == [2, 3, 4]
        await client.call(c.DELETE_SEGMENTS, DeleteSegments("s", "t", 0, 9))
        assert offsets(await client.poll(Strategy.offset(0))) == [4]
        details = await client.call(c.GET_TOPIC, GetTopic("s", "t"))
        assert details is not None
        assert details.partitions[0].messages_count == 1
        assert details.partitions[0].current_offset == 4
        zero = DeleteSegments("s", "t", 0, 0)
        assert await code_of(client.call(c.DELETE_SEGMENTS, zero)) == 4030


async def test_flush_syncs_the_log() -> None:
    async with opened() as h:
        client = await h.root()
        await filled(client, batches=1)
        name = next(n for n in h.cluster.names if n.startswith("p/"))
        await client.call(c.FLUSH_UNSAVED_BUFFER, FlushUnsavedBuffer("s", "t", 0, True))
        assert h.cluster.named(name).syncs == 1


async def test_figures_follow_the_messages() -> None:
    cluster = FakeCluster()
    async with opened(cluster) as h:
        client = await h.root()
        await filled(client)
        details = await client.call(c.GET_STREAM, GetStream("s"))
        assert details is not None
        size = details.stream.size_bytes
        assert details.stream.messages_count == 20
        assert size > 20 * 66
        stats = await client.call(c.GET_STATS, Empty())
        assert (stats.messages_count, stats.messages_size_bytes) == (20, size)
        assert (stats.streams_count, stats.topics_count, stats.partitions_count) == (1, 1, 1)
        assert stats.clients_count == 1
    async with opened(cluster, epoch=2) as h:
        client = await h.root()
        again = await client.call(c.GET_STREAM, GetStream("s"))
        assert again == details


async def test_polls_of_one_connection_at_once_are_not_mixed_up() -> None:
    cluster = FakeCluster()
    async with opened(cluster) as h:
        client = await h.root()
        await client.stream()
        await client.topic(partitions=2)
        for partition in range(2):
            await client.send(b"%d" % partition, to=Partitioning.to_partition(partition))
    async with opened(cluster, epoch=2) as h:  # where the partitions have to be opened first
        client = await h.root()

        async def payload(partition: int) -> bytes:
            polled = await client.poll(Strategy.offset(0), partition=partition)
            return bytes(polled.messages()[0].payload)

        assert await payload(1) == b"1"
        both = await asyncio.gather(payload(0), payload(1))  # the second one is done first
        assert list(both) == [b"0", b"1"]
        assert [await payload(1), await payload(0)] == [b"1", b"0"]
