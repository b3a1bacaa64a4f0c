"""Messages whose id a partition saw a short time ago are dropped, when that is asked for."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.partitions.message_dedup import Window
from headrace.config.broker import BrokerSettings
from headrace.errors import HeadraceError
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages.messages import Message, encode_send
from headrace.wire.iggy.primitives import Partitioning
from tests.unit.broker.fake_cluster import FakeCluster
from tests.unit.broker.harness import Client, Harness, opened

ON = BrokerSettings(deduplication=True)


async def send(client: Client, *messages: tuple[int, bytes], partition: int = 0) -> None:
    request = encode_send(
        "s",
        "t",
        Partitioning.to_partition(partition),
        [Message(payload, id=id_) for id_, payload in messages],
    )
    await client.call(c.SEND_MESSAGES, request)


async def stored(client: Client, partition: int = 0) -> list[bytes]:
    polled = await client.poll(count=1000, partition=partition)
    messages = polled.messages()
    assert [m.offset for m in messages] == list(range(len(messages)))
    return [bytes(m.payload) for m in messages]


async def prepared(h: Harness) -> Client:
    client = await h.root()
    await client.stream()
    await client.topic(partitions=2)
    return client


async def test_ids_are_taken_once_across_and_inside_batches() -> None:
    async with opened(settings=ON) as h:
        client = await prepared(h)
        await send(client, (1, b"a"), (2, b"b"), (1, b"a again"))
        await send(client, (3, b"c"), (2, b"b again"))
        await send(client, (1, b"a once more"))  # nothing of it is new, and that is fine
        assert await stored(client) == [b"a", b"b", b"c"]
        await send(client, (1, b"other partition"), partition=1)
        assert await stored(client, 1) == [b"other partition"]


async def test_a_large_batch_keeps_order_and_sizes() -> None:
    async with opened(settings=ON) as h:
        client = await prepared(h)
        await send(client, *((n, b"%d" % n * (n % 7)) for n in range(1, 100, 2)))
        await send(client, *((n, b"%d" % n * (n % 7)) for n in range(1, 101)))
        odd, even = range(1, 100, 2), range(2, 101, 2)
        assert await stored(client) == [b"%d" % n * (n % 7) for n in (*odd, *even)]


async def test_an_id_of_zero_never_counts() -> None:
    async with opened(settings=ON) as h:
        client = await prepared(h)
        await send(client, (0, b"x"), (0, b"x"))
        await send(client, (0, b"x"))
        assert await stored(client) == [b"x"] * 3


async def test_it_is_off_by_default() -> None:
    async with opened() as h:
        client = await prepared(h)
        await send(client, (1, b"a"), (1, b"a"))
        assert await stored(client) == [b"a", b"a"]


async def test_a_duplicate_is_not_acknowledged_before_its_original() -> None:
    async with opened(settings=ON) as h:
        client = await prepared(h)
        await send(client, (1, b"a"))
        h.cluster.gate.clear()
        original = asyncio.create_task(send(client, (2, b"b")))
        await asyncio.sleep(0.01)
        other = await h.root()
        duplicate = asyncio.create_task(send(other, (2, b"b")))
        await asyncio.sleep(0.02)
        assert not original.done()
        assert not duplicate.done()
        h.cluster.gate.set()
        await asyncio.gather(original, duplicate)
        assert await stored(client) == [b"a", b"b"]


async def test_what_was_lost_may_be_sent_again() -> None:
    """A batch that failed was never seen: sending it again stores it."""
    cluster = FakeCluster()
    async with opened(cluster, settings=ON) as h:
        client = await prepared(h)
        await send(client, (1, b"a"))
        name = next(n for n in cluster.names if n.startswith("p/"))
        kept = cluster.streams.pop(cluster.names[name])
        with pytest.raises(HeadraceError):
            await send(client, (2, b"b"))
        cluster.streams[kept.id] = kept
        await send(client, (2, b"b"))
        assert await stored(client) == [b"a", b"b"]


def test_the_window_is_bounded_in_entries_and_time() -> None:
    window = Window(entries_max=3, seconds=10)
    ids = [bytes([n]) * 16 for n in range(6)]
    window.add(ids[:2], 0.0)
    window.add(ids[2:4], 5.0)
    assert ids[0] not in window  # the oldest made room
    assert len(window) == 3
    window.expire(9.9)
    assert ids[1] in window
    window.expire(10.0)
    assert ids[1] not in window
    assert ids[2] in window
    window.expire(15.0)
    assert len(window) == 0
