from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.poll.readahead import (
    RUNS_PER_STREAM_MAX,
    Batch,
    ReadAhead,
    batches_of,
    index_of,
    messages_of,
    split_batches,
)
from headrace.config.broker import BrokerSettings
from headrace.runtime.interfaces import Buffer
from headrace.wire.iggy.primitives import Strategy
from headrace.wire.sbp.records import encode_header
from tests.unit.broker.harness import opened


def batch(base: int, count: int, size: int = 100) -> bytes:
    body = bytes(size)
    header = encode_header(
        base_offset=base, body=[body], record_count=count, base_timestamp=0, max_timestamp=0
    )
    return bytes(header) + body


def put(ahead: ReadAhead, stream_id: int, *batches: bytes) -> None:
    ahead.put(stream_id, split_batches(map(memoryview, batches)))


def bases(found: Iterable[Batch]) -> list[int]:
    return [header.base_offset for header, _, _ in found]


def test_it_finds_the_batch_that_contains_an_offset() -> None:
    ahead = ReadAhead(10_000)
    put(ahead, 7, batch(10, 5) + batch(15, 1), batch(16, 4))
    assert bases(ahead.get(7, 10)) == [10, 15, 16]
    assert bases(ahead.get(7, 14)) == [10, 15, 16]
    assert bases(ahead.get(7, 15)) == [15, 16]
    assert bases(ahead.get(7, 19)) == [16]
    assert bases(ahead.get(7, 9)) == bases(ahead.get(7, 20)) == bases(ahead.get(8, 10)) == []


def test_it_is_bounded_and_forgets_the_least_recently_read() -> None:
    ahead = ReadAhead(2 * 155)
    put(ahead, 1, batch(0, 1))
    put(ahead, 2, batch(0, 1))
    ahead.get(1, 0)
    put(ahead, 3, batch(0, 1))
    assert [bases(ahead.get(stream, 0)) for stream in (1, 2, 3)] == [[0], [], [0]]
    assert ahead.bytes == 310
    put(ahead, 4, batch(0, 1, size=1000))  # too large to keep
    assert bases(ahead.get(4, 0)) == []
    ahead.drop(1)
    ahead.drop(3)
    assert ahead.bytes == 0


def test_readers_at_several_places_keep_their_runs() -> None:
    ahead = ReadAhead(1 << 20)
    for place in range(RUNS_PER_STREAM_MAX):
        put(ahead, 1, batch(place * 100, 10))
    assert bases(ahead.get(1, 0)) == [0]  # now the most recently read
    put(ahead, 1, batch(9_000, 10))
    assert bases(ahead.get(1, 100)) == []
    assert [bases(ahead.get(1, at)) for at in (0, 200, 9_005)] == [[0], [200], [9_000]]
    ahead.drop(1)
    assert ahead.bytes == 0
    assert bases(ahead.get(1, 0)) == []


def test_a_reader_that_goes_on_has_one_run() -> None:
    ahead = ReadAhead(1 << 20)
    for base in range(0, 50, 10):
        put(ahead, 1, batch(base, 10))
    put(ahead, 1, batch(90, 10))
    assert bases(ahead.get(1, 25)) == [20, 30, 40]
    assert bases(ahead.get(1, 90)) == [90]
    assert ahead.bytes == 6 * 155
    ahead.drop(1)
    assert ahead.bytes == 0


def test_runs_are_bounded() -> None:
    ahead = ReadAhead(3 * 155)
    for base in range(0, 40, 10):
        put(ahead, 1, batch(base, 10))
    assert bases(ahead.get(1, 0)) == []  # three made a run as large as may be, the fourth another
    assert bases(ahead.get(1, 30)) == [30]
    assert ahead.bytes == 155


def test_a_batch_is_the_same_in_however_many_pieces_it_is() -> None:
    messages, index = bytes(range(90)), b"\x00\x00\x00\x00\x2d\x00\x00\x00"
    header: Buffer = encode_header(
        base_offset=3, body=[messages, index], record_count=2, base_timestamp=0, max_timestamp=0
    )
    joined = b"".join((header, messages, index))
    forms: list[list[Buffer]] = [[header, messages, index], [header, messages + index], [joined]]
    for pieces in forms:
        (one,) = batches_of([[memoryview(piece) for piece in pieces]])
        assert one[0].base_offset == 3
        assert messages_of(one) == messages
        assert index_of(one) == index
    area = memoryview(messages)
    (apart,) = batches_of([[memoryview(header), area, memoryview(index)]])
    assert messages_of(apart) is area, "nothing is copied"
    (fetched,) = split_batches([memoryview(joined)])
    assert messages_of(fetched) == messages
    assert index_of(fetched) == index


async def test_small_polls_share_a_fetch() -> None:
    async with opened(settings=BrokerSettings(read_ahead_bytes=4096)) as h:
        client = await h.root()
        await client.stream()
        await client.topic()
        for n in range(20):
            await client.send(b"%d" % n * 300)
        before = h.cluster.fetches
        seen: list[int] = []
        while True:
            polled = await client.poll(Strategy.offset(len(seen)), 1)
            if not polled.count:
                break
            seen.append(polled.messages()[0].offset)
        assert seen == list(range(20))
        assert h.cluster.fetches - before < 6
        await client.send(b"tail")
        assert [m.payload for m in (await client.poll(Strategy.offset(20))).messages()] == [b"tail"]
