from __future__ import annotations

import asyncio

import pytest

from headrace.broker.partitions.offsets import (
    DELETED,
    EVENT,
    VERSION,
    Kind,
    LoggedOffsets,
    Offsets,
    OffsetWriter,
    Place,
    Reader,
    StoredOffset,
)
from headrace.errors import FormatError, StorageError, UnavailableError

P0, P1 = Place(9, 0, 0), Place(9, 1, 0)
ANN, GROUP = Reader(Kind.CONSUMER, 1), Reader(Kind.GROUP, 1)


class SlowLog:
    """Appends wait for `release`, then are applied, as in a StateLog."""

    def __init__(self, state: Offsets) -> None:
        self.state = LoggedOffsets(state, lambda _: False)
        self.appends: list[list[list[int]]] = []
        self.release = asyncio.Semaphore(0)
        self.broken = False

    async def append(self, kind: str, body: object, version: int = 1) -> int:
        await self.release.acquire()
        if self.broken:
            raise StorageError("disk gone")
        self.state.apply(version, kind, body)
        assert isinstance(body, list)
        self.appends.append(body)
        return len(self.appends)


async def test_stores_that_arrive_during_an_append_share_the_next() -> None:
    state = Offsets()
    log = SlowLog(state)
    writer = OffsetWriter(log)
    stores = [asyncio.create_task(writer.store([StoredOffset(P0, ANN, n)])) for n in range(50)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert state.get(P0, ANN) is None
    assert not any(s.done() for s in stores)
    log.release.release()
    log.release.release()
    await asyncio.gather(*stores)
    assert [len(rows) for rows in log.appends] in ([50], [1, 49])
    assert state.get(P0, ANN) == 49
    await writer.close()
    with pytest.raises(UnavailableError):
        await writer.store([StoredOffset(P0, ANN, 1)])


async def test_a_failed_append_fails_its_stores_and_only_those() -> None:
    state = Offsets()
    log = SlowLog(state)
    writer = OffsetWriter(log)
    log.broken = True
    log.release.release()
    with pytest.raises(StorageError):
        await writer.store([StoredOffset(P0, ANN, 1)])
    log.broken = False
    log.release.release()
    await writer.store([StoredOffset(P0, ANN, 2)])
    assert state.get(P0, ANN) == 2
    await writer.close()


async def test_one_append_is_bounded() -> None:
    state = Offsets()
    log = SlowLog(state)
    writer = OffsetWriter(log, entries_max=10)
    stores = [
        asyncio.create_task(writer.store([StoredOffset(P0, ANN, n), StoredOffset(P1, ANN, n)]))
        for n in range(12)
    ]
    for _ in range(3):
        log.release.release()
    await asyncio.gather(*stores)
    assert max(map(len, log.appends)) <= 10
    assert sum(map(len, log.appends)) == 24


def test_consumers_and_groups_of_one_number_are_different() -> None:
    state = Offsets()
    state.put(StoredOffset(P0, ANN, 5))
    state.put(StoredOffset(P0, GROUP, 7))
    assert (state.get(P0, ANN), state.get(P0, GROUP)) == (5, 7)
    assert state.lowest(P0) == 5
    state.put(StoredOffset(P0, ANN, DELETED))
    assert state.get(P0, ANN) is None
    state.retain(place=lambda _: True, reader=lambda reader: reader.kind != Kind.GROUP)
    assert list(state.entries()) == []


def test_offsets_beyond_a_shorter_log_are_clamped() -> None:
    state = Offsets()
    state.put(StoredOffset(P0, ANN, 9))
    state.put(StoredOffset(P0, GROUP, 3))
    assert state.beyond(P0, 10) == []
    assert state.beyond(P0, 5) == [StoredOffset(P0, ANN, 4)]
    for entry in state.beyond(P0, 0):
        state.put(entry)
    assert state.get(P0, ANN) is None
    assert state.get(P0, GROUP) is None


def test_snapshot_and_prune() -> None:
    state = Offsets()
    for partition in range(25_000):
        state.put(StoredOffset(Place(1, partition, 0), ANN, partition))
    state.put(StoredOffset(Place(2, 0, 0), GROUP, 5))
    version, chunks = LoggedOffsets(state, lambda _: False).snapshot()
    kept = list(chunks)
    assert len(kept) == 3
    copy = Offsets()
    LoggedOffsets(copy, lambda _: False).restore(version, kept)
    assert list(copy.entries()) == list(state.entries())
    copy.retain(place=lambda place: place.topic_uid == 2, reader=lambda _: True)
    assert list(copy.entries()) == [StoredOffset(Place(2, 0, 0), GROUP, 5)]


def test_a_log_keeps_and_changes_only_its_own_places() -> None:
    state = Offsets()
    first = LoggedOffsets(state, lambda place: place != P0)
    second = LoggedOffsets(state, lambda place: place != P1)
    both = [[*P0, *ANN, 7], [*P1, *ANN, 8]]
    first.apply(VERSION, EVENT, both)
    assert list(state.entries()) == [StoredOffset(P0, ANN, 7)]
    second.apply(VERSION, EVENT, both)
    version, chunks = second.snapshot()
    state.put(StoredOffset(P0, ANN, 70))
    state.put(StoredOffset(P1, ANN, 80))
    second.restore(version, list(chunks)[:0])
    assert list(state.entries()) == [StoredOffset(P0, ANN, 70)], "another log's offsets stay"


def test_newer_formats_are_refused() -> None:
    logged = LoggedOffsets(Offsets(), lambda _: False)
    with pytest.raises(FormatError):
        logged.apply(VERSION + 1, EVENT, [])
    with pytest.raises(FormatError):
        logged.restore(VERSION + 1, [])
