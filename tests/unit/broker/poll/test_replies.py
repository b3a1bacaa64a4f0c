"""What polls make of stored messages: right wherever they begin, bounded, and nobody's memory
changes under a reply that is still on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec
import pytest

from headrace.broker.partitions.partition import Slice
from headrace.broker.poll.readahead import batches_of, index_of, messages_of
from headrace.broker.poll.recent_sends import MemoryAtHand, is_free
from headrace.broker.poll.replies import ReplyCache
from headrace.wire.iggy import batch
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.fields import Buffer
from headrace.wire.iggy.messages import topics
from headrace.wire.iggy.messages.messages import (
    Message,
    PolledMessages,
    PollMessages,
    decode_messages,
    encode_send,
)
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from headrace.wire.iggy.vsr import batch as vsr_batch
from headrace.wire.iggy.vsr.frames import Lent
from headrace.wire.iggy.vsr.reply import decode_batches
from headrace.wire.sbp import records
from tests.unit.broker.harness import QUICK, opened
from tests.unit.broker.test_dialect_c import Peer, logged_in, topic_of
from tests.unit.wire.iggy.vsr_by_hand import by_hand, of


def stored(
    messages: list[Message], base_offset: int = 0, *, framed: bool = True, skip: int = 0
) -> Slice:
    """What is read of a SEND in dialect C (or of a publisher's), from a message of it on."""
    area, starts, *_ = vsr_batch.decode_batch(memoryview(by_hand(messages)), len(messages))
    batch.stamp(area, starts, base_offset=base_offset, timestamp_us=77, new_ids=bytes, summed=False)
    body: list[Buffer] = [area, batch.build_index(starts)]
    header = records.encode_header(
        base_offset=base_offset,
        body=body,
        record_count=len(messages),
        attributes=records.RECORDS_IGGY
        | records.INDEXED
        | records.UNSUMMED
        | (records.FRAMED if framed else 0),
        base_timestamp=0,
        max_timestamp=0,
    )
    (found,) = batches_of([[memoryview(piece) for piece in (header, *body)]])
    count = len(messages) - skip
    piece = batch.slice_batch(messages_of(found), index_of(found), skip, count)
    return Slice(base_offset + skip, count, len(piece), [piece], [found], full=True, unsummed=True)


def joined(slices: Iterable[Slice]) -> Slice:
    first, *others = slices
    for other in others:
        assert other.first == first.first + first.count
        first = Slice(
            first.first,
            first.count + other.count,
            first.bytes + other.bytes,
            first.pieces + other.pieces,
            first.stored + other.stored,
            unsummed=True,
        )
    return first


def decoded(found: Slice) -> list[Message]:
    return [message for piece in found.pieces for message in decode_messages(piece)]


def read(pieces: Sequence[Buffer]) -> list[Message]:
    return [
        message
        for area in decode_batches(memoryview(b"".join(pieces)))
        for message in decode_messages(area)
    ]


# --- through the dispatcher -----------------------------------------------------------------------


SENDS = [1, 1, 1, 40, 3, 700, 1, 17, 16, 300, 2]


def payloads_of(count: int, salt: int) -> list[bytes]:
    if salt % 3 == 0:
        return [bytes([n % 251]) * 90 for n in range(count)]
    return [bytes([n % 251]) * ((n * 13 + salt) % 120) for n in range(count)]


@pytest.mark.parametrize("read_before", [False, True])
@pytest.mark.parametrize("poll_cache_bytes_max", [0, 40_000, 64 << 20])
async def test_messages_read_the_same_wherever_a_poll_begins(
    poll_cache_bytes_max: int, read_before: bool
) -> None:
    """Whether or not the frames of short SENDs are kept for who reads already."""
    settings = msgspec.structs.replace(QUICK, poll_cache_bytes_max=poll_cache_bytes_max)
    async with opened(settings=settings) as harness:
        peer, classic = await logged_in(harness), await harness.root()
        await topic_of(peer)
        if read_before:
            assert await poll(peer, 0, 1) == []
        for salt, count in enumerate(SENDS):
            if salt % 4 == 2:
                await classic.send(*payloads_of(count, salt))
            else:
                await peer.send(*payloads_of(count, salt), first=1 + 1000 * salt)
        total = sum(SENDS)
        expected = (await classic.poll(count=10_000)).messages()
        assert [message.offset for message in expected] == list(range(total))
        for count in (1, 9, 100, 701, 10_000):
            for offset in range(0, total, 1 if count == 9 else 53):
                for _ in range(3):  # made, kept, found
                    found = await poll(peer, offset, count)
                    assert found == expected[offset : offset + count]
                older = await classic.poll(Strategy.offset(offset), count)
                assert older.messages() == expected[offset : offset + count]
                assert [m.checksum for m in older.messages()] == [
                    m.checksum for m in expected[offset : offset + count]
                ]
            assert harness.broker.poll_caches.bytes <= poll_cache_bytes_max


async def poll(peer: Peer, offset: int, count: int) -> list[Message]:
    """Checksums are verified when it is decoded."""
    request = PollMessages(Consumer.single(), "s", "t", 0, Strategy.offset(offset), count)
    found: PolledMessages = await peer.call(c.POLL_MESSAGES, request)
    messages = found.messages()
    assert found.count == len(messages)
    return messages


@pytest.mark.parametrize("origins", ["one", "far apart"])
@pytest.mark.parametrize("count", [3, 40])
async def test_ids_that_the_server_gives(count: int, origins: str) -> None:
    """They are part of what a frame's checksum covers."""
    async with opened() as harness:
        peer, classic = await logged_in(harness), await harness.root()
        await topic_of(peer)
        messages = [Message(b"x" * 200, id=n % 2 * (n + 1)) for n in range(count)]
        there = Partitioning.to_partition(0)
        await peer.call(c.SEND_MESSAGES, encode_send("s", "t", there, messages))
        if origins == "far apart":
            older = [
                Message(b"x" * 200, id=100 + n, origin_timestamp_us=n * 10**11)
                for n in range(count)
            ]
            await classic.call(c.SEND_MESSAGES, encode_send("s", "t", there, older))
        found = await poll(peer, 0, 1000)
        assert found == (await classic.poll(count=1000)).messages()
        assert len({message.id for message in found}) == len(found)
        assert all(message.id for message in found)


async def test_a_send_that_becomes_several_batches() -> None:
    settings = msgspec.structs.replace(QUICK, batch_bytes_max=64 * 1024)
    async with opened(settings=settings) as harness:
        peer, classic = await logged_in(harness), await harness.root()
        await topic_of(peer)
        messages = [
            Message(bytes([n % 251]) * 500, id=1 + n, origin_timestamp_us=10**15 + n * 7 % 100)
            for n in range(400)
        ]
        request = encode_send("s", "t", Partitioning.to_partition(0), messages)
        await peer.call(c.SEND_MESSAGES, request)
        expected = (await classic.poll(count=1000)).messages()
        assert [m.origin_timestamp_us for m in expected] == [
            m.origin_timestamp_us for m in messages
        ]
        for offset in (0, 1, 115, 116, 117, 399):
            assert await poll(peer, offset, 1000) == expected[offset:]


async def test_a_send_of_which_some_were_there() -> None:
    settings = msgspec.structs.replace(QUICK, deduplication=True)
    async with opened(settings=settings) as harness:
        peer, classic = await logged_in(harness), await harness.root()
        await topic_of(peer)
        await peer.send(*(b"%d" % n * 50 for n in range(100)))
        await peer.send(*(b"%d" % n * 50 for n in range(100)), first=51)
        await peer.send(*(b"%d" % n * 50 for n in range(100)), first=51)
        expected = (await classic.poll(count=1000)).messages()
        assert [message.id for message in expected] == list(range(1, 151))
        assert await poll(peer, 0, 1000) == expected
        assert await poll(peer, 99, 1000) == expected[99:]


async def test_a_reply_has_the_frames_that_came() -> None:
    async with opened() as harness:
        peer = await logged_in(harness)
        await topic_of(peer)
        assert harness.broker.poll_caches.replies.bytes == 0
        await peer.send(*(b"x" * 100 for _ in range(100)))
        assert harness.broker.poll_caches.replies.bytes > 100 * 148
        await peer.send(b"short")
        log = harness.broker.partitions.opened()[0][1]
        found = await log.read(0, 100, bytes_max=1 << 20)
        header, frames = harness.broker.poll_caches.replies.batches(log.serial, 0, found)
        assert len(header) == 256
        assert isinstance(frames, memoryview)
        assert isinstance(frames.obj, bytes), "as it was received"
        assert [m.payload for m in read([header, frames])] == [b"x" * 100] * 100


async def test_short_sends_are_kept_while_there_are_readers() -> None:
    async with opened() as harness:
        peer = await logged_in(harness)
        await topic_of(peer)
        converted = harness.broker.poll_caches.replies
        await peer.send(*(b"a" * 100 for _ in range(10)))
        assert converted.bytes == 0, "nobody reads"
        assert await poll(peer, 10, 1) == []
        for number in range(1, 6):
            await peer.send(*(b"b" * 100 for _ in range(10)), first=100 * number)
        assert converted.bytes > 5 * (256 + 10 * 148)
        await peer.send(b"c" * 2000, first=600)  # a single one is not: that would not pay
        await peer.send(*(b"d" * 100 for _ in range(10)), first=700)
        log = harness.broker.partitions.opened()[0][1]
        found = await log.read(3, 1000, bytes_max=1 << 20)
        pieces = converted.batches(log.serial, 0, found)
        begun, kept, single, again = pieces
        assert [m.payload for m in read([begun])] == [b"a" * 100] * 7
        assert len(kept) == 5 * (256 + 10 * 148), "one piece"
        assert [m.payload for m in read([single])] == [b"c" * 2000]
        assert [m.payload for m in read([again])] == [b"d" * 100] * 10
        assert [m.offset for m in read(pieces)] == list(range(3, 71))
        before = b"".join(pieces)
        await peer.send(*(b"e" * 100 for _ in range(10)), first=800)
        assert b"".join(pieces) == before, "it grows behind what was handed out"


# --- memory ---------------------------------------------------------------------------------------


def test_memory_is_lent_again_when_nobody_views_it() -> None:
    at_hand = MemoryAtHand()
    first = at_hand.take(10_000)
    second = at_hand.take(10_000)
    assert first.obj is not second.obj
    memory = first.obj
    assert isinstance(memory, bytearray)
    assert not is_free(memory)
    part = first[5:10]
    del first
    assert at_hand.take(10_000).obj is not memory, "a part of it is still viewed"
    del part
    assert is_free(memory)
    again = [at_hand.take(9_000) for _ in range(3)]
    assert any(view.obj is memory for view in again)
    assert {len(view) for view in again} == {9_000}
    assert at_hand.take(4_000).obj is not memory
    held = [at_hand.take(50_000) for _ in range(100)]
    assert len({id(view.obj) for view in held}) == 100
    assert len(at_hand.take(10 << 20)) == 10 << 20


def test_what_is_read_once_is_not_kept() -> None:
    converted = ReplyCache(1 << 20)
    piece = stored(of(100, "equal"))
    first = converted.batches(1, 0, piece)
    assert converted.bytes == 0
    (second,) = converted.batches(1, 0, piece)
    assert converted.bytes == len(second)
    assert converted.batches(1, 0, piece)[0] is second
    assert read(first) == read([second]) == decoded(piece)
    (again,) = converted.summed(1, piece)
    (summed,) = converted.summed(1, piece)
    assert again == summed
    assert converted.bytes == len(second) + len(summed)
    assert converted.summed(1, piece)[0] is summed


def test_a_reply_on_its_way_is_left_alone() -> None:
    converted = ReplyCache(1 << 20)
    pieces = [stored(of(100, "equal"), 100 * n) for n in range(50)]
    replies = [converted.batches(1, 0, piece) for piece in pieces]
    for reply, piece in zip(replies, pieces, strict=True):
        assert read(reply) == decoded(piece)


def test_another_log_has_other_messages() -> None:
    """The same offset, the same length: but opened again after what it had was lost."""
    converted = ReplyCache(1 << 20)
    for log, text in ((1, b"a"), (2, b"b")):
        messages = [Message(text * 100, id=n + 1) for n in range(100)]
        for _ in range(3):
            found = read(converted.batches(log, 0, stored(messages)))
            assert {message.payload for message in found} == {text * 100}


async def test_a_log_that_is_opened_again_is_another_one() -> None:
    async with opened() as harness:
        peer = await logged_in(harness)
        await topic_of(peer)
        await peer.send(b"before")
        ((_, before),) = harness.broker.partitions.opened()
        await before.close()
        await peer.send(b"after", first=2)
        ((_, after),) = harness.broker.partitions.opened()
        assert after.stream_id == before.stream_id
        assert after.serial != before.serial
        assert await peer.payloads() == [b"before", b"after"]


async def test_a_purged_topic_has_other_messages() -> None:
    async with opened() as harness:
        peer = await logged_in(harness)
        await topic_of(peer)
        for number, text in enumerate((b"before", b"after")):
            assert await poll(peer, 0, 1) == []
            await peer.send(*(text * 20 for _ in range(10)), first=1 + 100 * number)
            for _ in range(2):
                assert {m.payload for m in await poll(peer, 0, 100)} == {text * 20}
            await peer.call(c.PURGE_TOPIC, topics.PurgeTopic("s", "t"))


def test_short_batches_are_converted_together() -> None:
    converted = ReplyCache(1 << 20)
    pieces = [stored(of(3, "mixed"), 3 * n) for n in range(100)]
    assert len(converted.batches(1, 0, joined(pieces))) == 1
    assert len(converted.summed(1, joined(pieces))) == 1
    long = stored(of(200, "equal"), 300)
    unframed = [stored(of(3, "mixed"), 500 + 3 * n, framed=False) for n in range(10)]
    everything = joined([*pieces, long, *unframed])
    made = converted.batches(1, 0, everything)
    assert len(made) == 3
    assert read(made) == decoded(everything)
    summed = b"".join(converted.summed(1, everything))
    assert decode_messages(summed) == decoded(everything)
    begun = stored(of(30, "mixed"), 0, skip=11)
    assert read(converted.batches(1, 0, begun)) == decoded(begun)


MANY = 500  # messages of a SEND that is not short


def sent(converted: ReplyCache, number: int, back: list[object]) -> tuple[memoryview, memoryview]:
    """A SEND that is not short, kept: the memory it came in, and what was stored."""
    memory = bytearray(by_hand(of(MANY, "equal")))
    area, starts, _, frames = vsr_batch.decode_batch(memoryview(memory), MANY)
    assert frames is not None
    batch.stamp(
        area, starts, base_offset=MANY * number, timestamp_us=5, new_ids=bytes, summed=False
    )
    lent = Lent(memory, back.append)
    converted.keep(1, 0, area, frames, lent)
    assert lent.kept
    return memoryview(memory), area


def test_memory_of_sends_is_given_back_when_nobody_views_it() -> None:
    converted = ReplyCache(500_000)
    back: list[object] = []
    first, area = sent(converted, 0, back)
    reply = converted.batches(1, 0, stored(of(MANY, "equal")))
    assert read(reply) == decode_messages(area)
    before = bytes(first)
    for number in range(1, 20):
        sent(converted, number, back)
        assert converted.bytes <= 500_000
    assert converted.bytes + len(first) > 500_000
    assert not any(memory is first.obj for memory in back)
    assert back, "of those that nobody views"
    assert bytes(first) == before
    assert all(isinstance(memory, bytearray) and is_free(memory) for memory in back)


def test_sends_that_are_not_kept() -> None:
    converted = ReplyCache(4_000_000)
    memory = bytearray(by_hand(of(MANY, "equal")))
    area, starts, _, frames = vsr_batch.decode_batch(memoryview(memory), MANY)
    assert frames is not None
    lent = Lent(memory, lambda _: None)
    converted.keep(1, 0, area, frames, lent)
    assert not lent.kept, "nothing says that these messages were stored: they have no timestamp"
    batch.stamp(area, starts, base_offset=0, timestamp_us=5, new_ids=bytes, summed=False)
    ReplyCache(0).keep(1, 0, area, frames, lent)
    assert not lent.kept
    ReplyCache(3 * len(memory)).keep(1, 0, area, frames, lent)
    assert not lent.kept, "it would take the place of all others"
    piece = stored(of(MANY, "equal"))
    for _ in range(2):
        (made,) = converted.batches(1, 0, piece)
    converted.keep(1, 0, area, frames, lent)
    assert not lent.kept, "two have read it already"
    assert converted.bytes == len(made)
    area, starts, _, frames = vsr_batch.decode_batch(memoryview(by_hand(of(20, "equal"))), 20)
    assert frames is not None
    batch.stamp(area, starts, base_offset=100, timestamp_us=5, new_ids=None, summed=False)
    ReplyCache(4_000_000).keep(1, 0, area, frames, lent)
    assert not lent.kept, "it is converted together with its neighbours, unless somebody reads"


def test_frames_of_long_sends_are_kept_while_there_are_readers() -> None:
    converted = ReplyCache(100_000)
    converted.on_sent(10)
    assert not converted.keeps_frames()
    converted.batches(1, 0, Slice())  # somebody waits at the end
    assert converted.keeps_frames()
    converted.on_sent(99_999)
    assert converted.keeps_frames()
    converted.on_sent(1)
    assert not converted.keeps_frames()
    converted.summed(1, stored(of(100, "equal")))
    assert not converted.keeps_frames(), "readers of others do not get them"
    converted.batches(1, 0, stored(of(100, "equal")))
    assert converted.keeps_frames()
    nothing = ReplyCache(0)
    nothing.batches(1, 0, Slice())
    assert not nothing.keeps_frames()


async def test_a_request_that_failed_keeps_nothing() -> None:
    async with opened() as harness:
        peer = await logged_in(harness)
        await topic_of(peer)
        messages = [Message(b"x" * 100, id=n + 1) for n in range(100)]
        request = encode_send("s", "nothing", Partitioning.to_partition(0), messages)
        with pytest.raises(Exception, match="topic"):
            await peer.call(c.SEND_MESSAGES, request)
        await asyncio.sleep(0)
        assert harness.broker.poll_caches.replies.bytes == 0
