"""Damaged and lost batches of a sealed range come back, and nothing good is lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

import pytest
from msgspec.structs import replace

from headrace.errors import (
    CorruptionError,
    DiskFullError,
    InvalidArgumentError,
    RangeNotFoundError,
    StateError,
    StorageError,
)
from headrace.storage import CorruptSpan, LogStore, RangeLog
from headrace.storage.layout import DRAFT_SUFFIX, LOG_SUFFIX
from headrace.storage.range.repair import Batches
from headrace.wire.sbp.records import split
from tests.simulator.disk import PowerCut
from tests.simulator.runtime import SimulatedDisk, SimulatedRandom
from tests.unit.storage.support import (
    FOLDER,
    KEY,
    SMALL,
    append_many,
    cut_power,
    end_process,
    open_store,
    read_all,
    simulated_disk,
    turns,
)

COUNT = 75
RANGE_FOLDER = f"{FOLDER}/streams/7/0"
JOURNALED = replace(SMALL, journal_files_min=1, journal_start_writes=1)
Harm = Callable[[SimulatedDisk], None]


def names(disk: SimulatedDisk, suffix: str = LOG_SUFFIX) -> list[str]:
    return [name for name in disk.list(RANGE_FOLDER) if name.endswith(suffix)]


def log_path(disk: SimulatedDisk, at: int) -> str:
    return f"{RANGE_FOLDER}/{names(disk)[at]}"


class Trouble:
    """Lets one operation of a name fail, after some that succeed."""

    operation = ""
    skipped = 0

    def __call__(self, operation: str, path: str) -> None:
        if operation != self.operation:
            return
        if self.skipped == 0:
            self.operation = ""
            raise StorageError("planned failure", path=path)
        self.skipped -= 1


def no_trouble(operation: str, path: str) -> None: ...


async def sealed_range(
    seed: int = 0, *, on_operation: Callable[[str, str], None] = no_trouble
) -> tuple[SimulatedDisk, list[bytes]]:
    """A directory with a sealed range of several segments, closed."""
    disk = SimulatedDisk(SimulatedRandom(seed), on_operation=on_operation)
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0)
    written: list[bytes] = []
    for _ in range(COUNT // 3):
        written += await append_many(log, 3)
    await log.seal()
    await store.close()
    assert len(names(disk)) > 3
    return disk, written


async def damaged_range(
    harm: Harm, seed: int = 0, *, on_operation: Callable[[str, str], None] = no_trouble
) -> tuple[SimulatedDisk, LogStore, list[bytes]]:
    disk, written = await sealed_range(seed, on_operation=on_operation)
    harm(disk)
    store = await open_store(disk)
    await store.range(KEY).verify()
    return disk, store, written


def views(written: Sequence[bytes], span: CorruptSpan) -> list[memoryview]:
    """As another replica would answer: several batches to a view."""
    batches = written[span.start : span.end]
    return [memoryview(b"".join(batches[at : at + 4])) for at in range(0, len(batches), 4)]


async def repair_all(store: LogStore, written: Sequence[bytes]) -> None:
    for key, span in store.damaged():
        await store.range(key).repair(span, views(written, span))


async def read_good(log: RangeLog, written: Sequence[bytes]) -> set[int]:
    """Read everything that can be; the offsets that cannot."""
    bad: set[int] = set()
    offset = log.start_offset
    while offset < log.durable_offset:
        try:
            found = await log.read(offset, 500)
        except CorruptionError:
            bad.add(offset)
            offset += 1
            continue
        for view in found:
            for header, batch in split(view):
                assert written[header.base_offset] == batch
                offset = header.next_offset
    return bad


def flip(at: int, position: int) -> Harm:
    return lambda disk: disk.flip_bit(log_path(disk, at), position)


def lose(*at: int) -> Harm:
    def harm(disk: SimulatedDisk) -> None:
        for path in [log_path(disk, each) for each in at]:
            disk.remove(path)
        disk.sync_folder(RANGE_FOLDER)

    return harm


def shorten(at: int, size: int) -> Harm:
    def harm(disk: SimulatedDisk) -> None:
        file = disk.open(log_path(disk, at))
        file.truncate(size)
        file.sync_data()
        file.close()

    return harm


def both(*harms: Harm) -> Harm:
    def harm(disk: SimulatedDisk) -> None:
        for each in harms:
            each(disk)

    return harm


HARMS: dict[str, Harm] = {
    "a batch": flip(1, 32 + 250),
    "the first batch of all": flip(0, 40),
    "several batches of a segment": both(flip(2, 50), flip(2, 500), flip(2, 1100)),
    "two segments": both(flip(0, 400), flip(2, 400)),
    "the first file": lose(0),
    "the first files": lose(0, 1),
    "a file between others": lose(1),
    "two files between others": lose(1, 2),
    "the last file": lose(-1),
    "all files": lose(0, 1, 2, 3),
    "the tail of a file": shorten(1, 700),
    "a file and the tail before it": both(shorten(0, 900), lose(1)),
    "a whole file's content": shorten(2, 0),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
async def test_damage_is_repaired(harm: Harm) -> None:
    intact_disk, _ = await sealed_range()
    intact = await open_store(intact_disk)
    disk, store, written = await damaged_range(harm)
    log = store.range(KEY)
    assert store.damaged()
    await repair_all(store, written)
    assert store.damaged() == []
    assert await read_all(log, max_bytes=700) == written
    assert log.segments() == intact.range(KEY).segments()
    assert await log.verify() == ()
    await turns(10)
    assert names(disk, DRAFT_SUFFIX) == []
    await cut_power(disk, store)
    store = await open_store(disk)
    assert store.range(KEY).state().corrupt == ()
    assert await read_all(store.range(KEY)) == written
    await store.close()
    await intact.close()


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
async def test_a_repair_may_be_cut_anywhere(harm: Harm) -> None:
    cut, finished = 0, False
    while not finished:
        disk, store, written = await damaged_range(harm, cut)
        bad = await read_good(store.range(KEY), written)
        disk.cut_before(cut)
        try:
            await repair_all(store, written)
            finished = True
        except PowerCut:
            pass
        await cut_power(disk, store)
        store = await open_store(disk)
        log = store.range(KEY)
        assert await read_good(log, written) <= bad, "something good was lost"
        assert log.end_offset == COUNT
        assert names(disk, DRAFT_SUFFIX) == []
        await repair_all(store, written)
        assert await read_all(log) == written
        await end_process(disk, store)
        cut += 1
    assert cut > 8


async def test_a_file_that_becomes_several_may_be_cut_anywhere() -> None:
    """Written anew under a smaller limit: its good batches are in the old file until the last."""
    smaller = replace(SMALL, segment_bytes_max=500)
    cut, finished = 0, False
    while not finished:
        disk, store, written = await damaged_range(HARMS["a batch"], cut)
        bad = await read_good(store.range(KEY), written)
        await store.close()
        store = await open_store(disk, smaller)
        disk.cut_before(cut)
        try:
            await repair_all(store, written)
            finished = True
        except PowerCut:
            pass
        await cut_power(disk, store)
        store = await open_store(disk, smaller)
        log = store.range(KEY)
        assert await read_good(log, written) <= bad, "something good was lost"
        await repair_all(store, written)
        assert await read_all(log) == written
        assert all(segment.bytes <= 500 for segment in log.segments()[1:5])
        await end_process(disk, store)
        cut += 1
    assert cut > 12


async def test_what_an_earlier_attempt_left_is_written_over() -> None:
    disk, store, written = await damaged_range(HARMS["a batch"])
    path = log_path(disk, 1)
    leftover = disk.open(path.replace(LOG_SUFFIX, DRAFT_SUFFIX), create=True)
    leftover.pwrite([b"x" * 9000], 0)
    leftover.close()
    await repair_all(store, written)
    assert disk.size(path) < 3000
    assert await read_all(store.range(KEY)) == written
    await store.close()


@pytest.mark.parametrize("harm", [HARMS["a batch"], HARMS["a file and the tail before it"]])
@pytest.mark.parametrize(
    "operation", ["create", "truncate", "write", "sync", "remove", "rename", "sync_folder"]
)
async def test_a_repair_that_fails_changes_nothing(harm: Harm, operation: str) -> None:
    for skipped in range(3):
        trouble = Trouble()
        disk, store, written = await damaged_range(harm, on_operation=trouble)
        log = store.range(KEY)
        bad = await read_good(log, written)
        trouble.operation, trouble.skipped = operation, skipped
        with suppress(StorageError):
            await repair_all(store, written)
        assert await read_good(log, written) <= bad
        trouble.operation = ""
        await turns(10)
        await repair_all(store, written)
        assert await read_all(log) == written
        await cut_power(disk, store)
        store = await open_store(disk)
        assert await read_all(store.range(KEY)) == written
        await store.close()


async def test_the_file_is_synced_before_it_takes_its_place() -> None:
    disk, store, written = await damaged_range(HARMS["a batch"])
    before = len(disk.operations)
    await repair_all(store, written)
    done = [name for name, _ in disk.operations[before:]]
    place = done.index("rename")
    assert "write" not in done[place:]
    assert done[:place][-4:] == ["write", "sync", "remove", "sync_folder"]
    assert done[place + 1 : place + 3] == ["sync_folder", "write_atomic"]
    await store.close()


async def test_one_of_two_damages_is_repaired_and_the_other_still_known() -> None:
    disk, store, written = await damaged_range(both(flip(1, 50), flip(1, 500), flip(1, 1200)))
    log = store.range(KEY)
    first, second, third = log.state().corrupt
    assert store.damaged() == [(KEY, CorruptSpan(first.start, third.end))]
    await log.repair(second, views(written, second))
    for _ in range(2):
        assert log.state().corrupt == (first, third)
        assert await read_good(log, written) == {first.start, third.start}
        assert await log.verify() == (first, third)
        await end_process(disk, store)
        for name in names(disk, ".index"):
            disk.remove(f"{RANGE_FOLDER}/{name}")  # the file itself says so
        store = await open_store(disk)
        log = store.range(KEY)
    await log.repair(third, views(written, third))
    await log.repair(first, views(written, first))
    assert await read_all(log) == written
    await store.close()


async def test_a_part_of_a_long_damage_can_be_repaired() -> None:
    _, store, written = await damaged_range(HARMS["two files between others"])
    log = store.range(KEY)
    (span,) = log.state().corrupt
    for start in range(span.start, span.end, 5):
        part = CorruptSpan(start, min(start + 5, span.end))
        await log.repair(part, views(written, part))
        assert await read_good(log, written) == set(range(part.end, span.end))
    assert await log.verify() == ()
    await store.close()


async def test_batches_may_come_one_by_one_and_only_whole_ones_are_taken() -> None:
    disk, store, written = await damaged_range(HARMS["a file between others"])
    log = store.range(KEY)
    (span,) = log.state().corrupt
    before = disk.list(RANGE_FOLDER)

    async def stream(*, end: int, harm: int = -1) -> AsyncIterator[memoryview]:
        for offset in range(span.start, end):
            await asyncio.sleep(0)
            data = bytearray(written[offset])
            if offset == harm:
                data[80] ^= 1
            yield memoryview(data)

    async def fail() -> AsyncIterator[memoryview]:
        yield memoryview(written[span.start])
        raise RangeNotFoundError("the other replica is gone")

    wrong: list[Batches] = [
        stream(end=span.end - 1),
        stream(end=span.end, harm=span.end - 2),
        views(written, CorruptSpan(span.start + 1, span.end)),
        [*views(written, CorruptSpan(span.start, span.start + 4)), memoryview(written[span.end])],
        [],
    ]
    for batches in wrong:
        with pytest.raises(InvalidArgumentError):
            await log.repair(span, batches)
    with pytest.raises(RangeNotFoundError):
        await log.repair(span, fail())
    await turns(10)
    assert disk.list(RANGE_FOLDER) == before
    assert log.state().corrupt == (span,)
    closed: list[bool] = []

    async def endless() -> AsyncIterator[memoryview]:
        try:
            async for view in stream(end=COUNT):
                yield view
        finally:
            closed.append(True)

    await log.repair(span, endless())
    assert closed == [True]
    assert await read_all(log) == written
    await log.repair(span, stream(end=span.end))  # done already
    await store.close()


async def test_more_damage_on_the_way_is_found_and_stops_the_repair() -> None:
    disk, store, written = await damaged_range(HARMS["a batch"])
    log = store.range(KEY)
    (span,) = log.state().corrupt
    disk.flip_bit(log_path(disk, 1), 1500)
    with pytest.raises(CorruptionError):
        await log.repair(span, views(written, span))
    assert len(log.state().corrupt) == 2
    await repair_all(store, written)
    assert await read_all(log) == written
    await store.close()


async def test_what_was_trimmed_is_not_asked_for() -> None:
    disk, store, written = await damaged_range(both(flip(0, 50), flip(0, 500), flip(0, 1200)))
    log = store.range(KEY)
    _, second, third = log.state().corrupt
    await log.trim(second.start)
    assert log.state().corrupt == (second, third)
    ((_, span),) = store.damaged()
    await log.repair(span, views(written, span))
    assert await read_all(log) == written[second.start :]
    assert await log.verify() == ()
    await cut_power(disk, store)
    store = await open_store(disk)
    log = store.range(KEY)
    assert log.state().corrupt == ()
    assert await read_all(log) == written[second.start :]
    await store.close()


async def test_a_start_inside_a_damaged_batch_is_repaired_with_the_whole_batch() -> None:
    for lost in (False, True):
        disk = simulated_disk()
        store = await open_store(disk)
        log = await store.create_range(KEY, start_offset=0)
        written = await append_many(log, 5, records=10, size=200)
        await log.seal()
        await log.trim(13)
        await store.close()
        if lost:
            disk.remove(log_path(disk, 0))
        else:
            disk.flip_bit(log_path(disk, 0), 32 + 250)
            disk.flip_bit(log_path(disk, 0), 32 + 50)
        store = await open_store(disk)
        log = store.range(KEY)
        await log.verify()
        ((_, span),) = store.damaged()
        assert span == CorruptSpan(13, 50 if lost else 20)
        await log.repair(span, [memoryview(data) for data in written[1:]])
        assert b"".join(await log.read(13, 1 << 20)) == b"".join(written[1:])
        assert (await log.verify(), log.start_offset) == ((), 13)
        await cut_power(disk, store)
        store = await open_store(disk)
        assert await store.range(KEY).verify() == ()
        await store.close()


async def test_readers_go_on_while_the_file_is_replaced() -> None:
    for delay in range(25):
        _, store, written = await damaged_range(HARMS["a batch"])
        log = store.range(KEY)
        (span,) = log.state().corrupt
        repair = asyncio.ensure_future(log.repair(span, views(written, span)))
        await turns(delay)
        offsets = [offset for offset in range(0, COUNT, 3) if offset != span.start]
        found = await asyncio.gather(*(log.read(offset, 1) for offset in offsets))
        assert [bytes(views[0][:100]) for views in found] == [written[each] for each in offsets]
        assert await log.offset_at(0) == 0
        await repair
        assert await read_all(log) == written
        await store.close()


@pytest.mark.parametrize("ending", ["trim", "delete", "close"])
async def test_a_range_may_go_away_during_its_repair(ending: str) -> None:
    for delay in range(20):
        disk, store, written = await damaged_range(HARMS["a batch"])
        log = store.range(KEY)
        (span,) = log.state().corrupt
        repair = asyncio.ensure_future(log.repair(span, views(written, span)))
        await turns(delay)
        if ending == "trim":
            await log.trim(45)
        elif ending == "delete":
            await store.delete_stream(7)
        else:
            await store.close()
        with suppress(StateError):
            await repair
        if ending != "close":
            await store.close()
        store = await open_store(disk)
        assert names(disk, DRAFT_SUFFIX) == []
        if ending == "delete":
            assert disk.list(f"{FOLDER}/streams") == []
        else:
            log = store.range(KEY)
            await repair_all(store, written)
            assert await read_all(log) == written[log.start_offset :]
        await store.close()


async def test_only_a_final_and_complete_range_is_repaired() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0, ack_quorum=2)
    written = await append_many(log, 4)
    span = CorruptSpan(1, 2)
    with pytest.raises(StateError):
        await log.repair(span, views(written, span))
    await log.seal()
    with pytest.raises(StateError):
        await log.repair(span, views(written, span))
    await log.finish(6)
    with pytest.raises(StateError):
        await log.repair(span, views(written, span))
    await store.close()


async def test_a_full_disk_refuses_the_repair_before_it_eats_the_reserve() -> None:
    disk, store, written = await damaged_range(HARMS["a batch"])
    log = store.range(KEY)
    disk.free = 1000
    with pytest.raises(DiskFullError):
        await repair_all(store, written)
    await turns(10)
    assert names(disk, DRAFT_SUFFIX) == []
    disk.free = 1 << 30
    await repair_all(store, written)
    assert await read_all(log) == written
    await store.close()


async def test_a_file_may_end_anywhere() -> None:
    """Also a few bytes after something that looks like the start of a batch."""
    disk, written = await sealed_range()
    size = disk.size(log_path(disk, 1))
    for end in range(size - 1, size - 300, -7):
        disk, written = await sealed_range()
        file = disk.open(log_path(disk, 1))
        file.pwrite([b"#" * 20], end - 20)
        file.truncate(end)
        file.close()
        store = await open_store(disk)
        log = store.range(KEY)
        assert (log.end_offset, len(log.state().corrupt)) == (COUNT, 1)
        await log.verify()
        await repair_all(store, written)
        assert await read_all(log) == written
        await store.close()


async def test_a_file_that_vanishes_from_an_open_store_is_damage_like_any_other() -> None:
    disk, written = await sealed_range()
    store = await open_store(disk)
    log = store.range(KEY)
    info = log.segments()[1]
    lose(1)(disk)
    with pytest.raises(CorruptionError) as caught:
        await log.read(info.base + 3, 100)
    assert (caught.value.data["start"], caught.value.data["end"]) == (info.base, info.end)
    assert store.damaged() == [(KEY, CorruptSpan(info.base, info.end))]
    await repair_all(store, written)
    assert await read_all(log) == written
    await store.close()


async def test_the_journal_does_not_bring_the_old_bytes_back() -> None:
    """It still names the file that was replaced, by positions that mean other batches now."""
    for seed in range(5):
        disk = simulated_disk(seed)
        store = await open_store(disk, JOURNALED)
        log = await store.create_range(KEY, start_offset=0)
        written: list[bytes] = []
        for _ in range(12):
            written += await append_many(log, 2)
        assert store.statistics()["journal_groups"] > 5
        await log.seal()
        await turns(20)
        disk.flip_bit(log_path(disk, 0), 500)
        await log.verify()
        await repair_all(store, written)
        await cut_power(disk, store)
        store = await open_store(disk, JOURNALED)
        assert await store.range(KEY).verify() == ()
        assert await read_all(store.range(KEY)) == written
        await store.close()
