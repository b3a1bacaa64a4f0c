"""A range that others hold too: what may be read, the end that was decided, copying the rest."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import ParamSpec, TypeVar

import pytest
from msgspec.structs import replace

from headrace.errors import (
    CorruptionError,
    DiskFullError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    OffsetOverflowError,
    RangeNotFoundError,
    SealedError,
    StorageError,
    UnexpectedOffsetError,
)
from headrace.storage import LogStore, RangeKey, RangeLog
from headrace.storage.layout import LOG_SUFFIX
from headrace.wire.sbp.messages import Durability
from headrace.wire.sbp.records import HEADER_BYTES, decode_header, split
from tests.simulator.disk import PowerCut
from tests.simulator.runtime import SimulatedDisk
from tests.unit.storage.support import (
    FOLDER,
    KEY,
    SMALL,
    InlineExecutor,
    append_many,
    append_one,
    cut_power,
    end_process,
    make_batch,
    open_store,
    read_all,
    runtime_on,
    simulated_disk,
    turns,
)

P = ParamSpec("P")
T = TypeVar("T")

RANGE_FOLDER = f"{FOLDER}/streams/7/0"
LEVELS = [Durability.SYNCED, Durability.WRITTEN]


async def make_range(
    disk: SimulatedDisk, count: int, *, durability: Durability = Durability.SYNCED
) -> tuple[LogStore, RangeLog, list[bytes]]:
    """A replicated range with `count` batches of which nobody else knows."""
    store = await open_store(disk)
    log = await store.create_range(
        KEY, start_offset=0, durability=durability, replicas=(4, 9, 2), ack_quorum=2
    )
    return store, log, await append_many(log, count)


def copy_one(log: RangeLog, data: bytes) -> asyncio.Future[None]:
    return log.copy(bytearray(data[:HEADER_BYTES]), [data[HEADER_BYTES:]])


async def copy_all(log: RangeLog, batches: Sequence[bytes]) -> None:
    await asyncio.gather(*(copy_one(log, data) for data in batches))


async def read_from(log: RangeLog, offset: int) -> list[bytes]:
    found: list[bytes] = []
    while offset < log.committed_offset:
        for view in await log.read(offset, 1 << 20):
            for header, batch in split(view):
                found.append(bytes(batch))
                offset = header.next_offset
    return found


def log_files(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.list(RANGE_FOLDER) if name.endswith(LOG_SUFFIX)]


# What may be read


async def test_only_committed_offsets_are_read() -> None:
    disk = simulated_disk()
    store, log, written = await make_range(disk, 30)
    assert (log.durable_offset, log.committed_offset) == (30, 0)
    assert await log.read(0, 1000) == []
    assert not log.read_cached(0, 1000)
    assert await log.offset_at(0) == 0
    with pytest.raises(OffsetOverflowError):
        await log.read(1, 1000)
    log.set_committed(12)
    log.set_committed(5)  # late news
    assert log.committed_offset == 12
    assert await read_from(log, 0) == written[:12]
    assert await log.read(12, 1000) == []
    durable = b"".join(await log.read_durable(12, 1 << 20))
    assert durable == b"".join(written[12:])
    assert await log.read_durable(30, 1000) == []
    with pytest.raises(OffsetOverflowError):
        await log.read_durable(31, 1000)
    await store.close()


async def test_a_committed_offset_ahead_of_the_disk_counts_when_the_disk_is_there() -> None:
    disk = simulated_disk()
    store, log, _ = await make_range(disk, 2)
    log.set_committed(100)
    assert log.committed_offset == 2
    waiter = asyncio.ensure_future(log.wait_for(3))
    await append_many(log, 1)
    assert (log.committed_offset, waiter.done()) == (3, False)
    await append_many(log, 1)
    await turns(2)
    assert (log.committed_offset, waiter.done()) == (4, True)
    await waiter
    await store.close()


async def test_a_reader_waits_for_the_commit_and_a_sync_only_for_the_disk() -> None:
    disk = simulated_disk()
    store, log, _ = await make_range(disk, 1)
    waiter = asyncio.ensure_future(log.wait_for(0))
    appended, _ = append_one(log)
    await asyncio.wait_for(log.sync(), 5)
    await appended
    assert not waiter.done()
    log.set_committed(1)
    await asyncio.wait_for(waiter, 5)
    await store.close()


async def test_one_copy_is_committed_when_it_is_durable() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0, replicas=(3,))
    written = await append_many(log, 3)
    assert (log.committed_offset, log.replicas, log.ack_quorum) == (3, (3,), 1)
    log.set_committed(1)
    assert await read_all(log) == written
    assert await log.seal() == 3
    assert log.final
    await store.close()


async def test_a_restart_keeps_who_has_the_range_and_forgets_what_was_committed() -> None:
    disk = simulated_disk()
    store, log, written = await make_range(disk, 3)
    log.set_committed(3)
    await log.trim(1)
    await cut_power(disk, store)
    store = await open_store(disk)
    log = store.range(KEY)
    assert (log.replicas, log.ack_quorum, log.final) == ((4, 9, 2), 2, False)
    assert (log.start_offset, log.committed_offset, log.durable_offset) == (1, 1, 3)
    await append_many(log, 1)  # a secondary goes on
    await log.set_replicas((9, 2))
    log.set_committed(2)
    assert await read_all(log) == written[1:2]
    await end_process(disk, store)
    store = await open_store(disk)
    assert store.ranges()[0].replicas == (9, 2)
    await store.close()


async def test_a_trim_says_that_its_offset_was_committed() -> None:
    disk = simulated_disk()
    store, log, written = await make_range(disk, 4)
    await log.trim(2)
    assert (log.start_offset, log.committed_offset) == (2, 2)
    log.set_committed(4)
    assert await read_all(log) == written[2:]
    await store.close()


async def test_the_checksum_at_an_offset() -> None:
    disk = simulated_disk()
    store, log, _ = await make_range(disk, 0)
    (first,) = await append_many(log, 1, records=3)
    (second,) = await append_many(log, 1, size=300)
    await append_many(log, 30)
    wanted = [decode_header(data).crc for data in (first, second)]
    await cut_power(disk, store)  # and nothing in memory
    store = await open_store(disk)
    log = store.range(KEY)
    assert [await log.crc_at(offset) for offset in (0, 1, 2, 3)] == [
        wanted[0],
        None,
        None,
        wanted[1],
    ]
    assert await log.crc_at(log.durable_offset) is None
    await log.trim(3)
    assert await log.crc_at(0) is None
    await store.close()


# Sealed, and then decided


async def test_a_sealed_end_is_not_final_until_it_is_decided() -> None:
    disk = simulated_disk()
    store, log, written = await make_range(disk, 5)
    log.set_committed(2)
    assert await log.seal() == 5
    assert (log.sealed, log.final, log.missing) == (True, False, None)
    assert await read_from(log, 0) == written[:2]
    for offset in (2, 4, 5, 6):
        with pytest.raises(RangeNotFoundError):
            await log.read(offset, 100)
    with pytest.raises(RangeNotFoundError):
        await log.offset_at(10**9)
    log.set_committed(3)  # the primary's last news
    assert log.committed_offset == 3
    await cut_power(disk, store)
    store = await open_store(disk)
    log = store.range(KEY)
    assert (log.sealed, log.final, log.end_offset, log.committed_offset) == (True, False, 5, 0)
    with pytest.raises(RangeNotFoundError):
        await log.read(0, 100)
    await log.finish(5)
    assert (log.final, log.end_offset, log.committed_offset) == (True, 5, 5)
    assert await read_all(log) == written
    assert await log.read(5, 100) == []
    with pytest.raises(OffsetOutOfRangeError):
        await log.read(6, 100)
    await store.close()


async def test_a_decided_end_is_there_for_ever() -> None:
    disk = simulated_disk()
    store, log, _ = await make_range(disk, 5)
    await log.finish(4)
    await log.finish(4)
    assert await log.seal() == 4
    for other in (3, 5):
        with pytest.raises(SealedError):
            await log.finish(other)
    with pytest.raises(SealedError):
        append_one(log)
    await cut_power(disk, store)
    store = await open_store(disk)
    log = store.range(KEY)
    with pytest.raises(SealedError):
        await log.finish(5)
    assert (log.end_offset, log.final) == (4, True)
    await store.close()


async def test_an_end_below_what_was_committed_is_refused() -> None:
    disk = simulated_disk()
    store, log, written = await make_range(disk, 5)
    log.set_committed(3)
    with pytest.raises(InvalidArgumentError):
        await log.finish(2)
    await append_many(log, 1)  # nothing happened
    await log.seal()
    with pytest.raises(InvalidArgumentError):
        await log.finish(2)
    await log.finish(3)
    assert await read_all(log) == written[:3]
    await store.close()


@pytest.mark.parametrize("sealed_before", [True, False])
@pytest.mark.parametrize("end", [0, 1, 12, 15, 16, 29, 30])
async def test_a_lower_end_takes_batches_out_and_gives_their_bytes_back(
    end: int, sealed_before: bool
) -> None:
    disk = simulated_disk()
    store, log, written = await make_range(disk, 30)  # 15 or 16 batches to a segment
    if sealed_before:
        assert await log.seal() == 30
    await log.finish(end)
    assert (log.end_offset, log.next_offset, log.durable_offset) == (end, end, end)
    assert await read_all(log) == written[:end]
    await turns(20)
    kept = sum(disk.size(f"{RANGE_FOLDER}/{name}") for name in log_files(disk))
    assert kept <= end * 100 + 32 * 30
    assert sum(segment.bytes for segment in log.segments()) == end * 100
    assert await log.verify() == ()
    await store.close()
    store = await open_store(disk)
    assert store.range(KEY).next_offset == end
    assert await read_all(store.range(KEY)) == written[:end]
    await store.close()


async def test_a_lower_end_may_be_cut_anywhere() -> None:
    for cut in range(12):
        disk = simulated_disk(cut)
        store, log, written = await make_range(disk, 30)
        await log.seal()
        await turns(20)
        disk.cut_before(cut)
        decided = False
        with suppress(PowerCut):
            await log.finish(12)
            decided = True
            await turns(40)
        await cut_power(disk, store)
        store = await open_store(disk)
        log = store.range(KEY)
        if not log.final:
            assert not decided
            assert log.end_offset == 30
            await log.finish(12)
        await turns(40)
        assert (log.end_offset, await log.verify()) == (12, ())
        assert await read_all(log) == written[:12]
        assert sum(segment.bytes for segment in log.segments()) == 1200
        await store.close()


async def test_copying_may_be_cut_anywhere() -> None:
    _, _, written = await make_range(simulated_disk(99), 40)
    for cut in range(30):
        disk = simulated_disk(cut)
        store, log, _ = await make_range(disk, 20)
        await log.seal()
        await turns(20)
        disk.cut_before(cut)
        decided, kept = False, 20
        with suppress(PowerCut, StorageError):  # the committer's cut ends the range
            await log.finish(40)
            decided = True
            for at in range(20, 40, 4):
                await copy_all(log, written[at : at + 4])
                kept = at + 4
        await cut_power(disk, store)
        store = await open_store(disk)
        log = store.range(KEY)
        if not log.final:
            assert not decided
            assert log.end_offset == 20
            await log.finish(40)
        assert kept <= log.durable_offset <= 40
        await copy_all(log, written[log.durable_offset :])
        assert (log.missing, log.end_offset, await log.verify()) == (None, 40, ())
        assert await read_all(log) == written
        await store.close()


# Copying


@pytest.mark.parametrize("level", LEVELS)
async def test_a_higher_end_is_copied(level: Durability) -> None:
    disk = simulated_disk()
    store, log, written = await make_range(disk, 40, durability=level)
    other_disk = simulated_disk(1)
    other = await open_store(other_disk)
    late = await other.create_range(
        KEY, start_offset=0, durability=level, replicas=(4, 9, 2), ack_quorum=2
    )
    await copy_by_append(late, written[:7])
    assert await late.seal() == 7
    await late.finish(40)
    assert (late.final, late.missing, late.committed_offset) == (True, (7, 40), 7)
    assert other.ranges()[0].missing == (7, 40)
    assert other.statistics()["ranges_incomplete"] == 1
    assert await read_from(late, 0) == written[:7]
    for offset in (7, 20, 40, 41):
        with pytest.raises(RangeNotFoundError):
            await late.read(offset, 100)
    with pytest.raises(SealedError):
        append_one(late)
    await copy_all(late, written[7:25])
    assert late.missing == (25, 40)
    await cut_power(other_disk, other)  # what was copied is synced, whatever the level
    other = await open_store(other_disk)
    late = other.range(KEY)
    assert (late.missing, late.committed_offset) == ((25, 40), 25)
    await copy_all(late, written[25:])
    assert late.missing is None
    assert await read_all(late) == written
    assert await late.read(40, 100) == []
    await turns(20)
    with pytest.raises(SealedError):
        copy_one(late, written[3])
    await log.finish(40)
    assert late.segments() == log.segments()
    await cut_power(other_disk, other)
    other = await open_store(other_disk)
    assert (other.range(KEY).missing, await other.range(KEY).verify()) == (None, ())
    assert await read_all(other.range(KEY)) == written
    await other.close()
    await store.close()


async def copy_by_append(log: RangeLog, batches: Sequence[bytes]) -> None:
    await asyncio.gather(
        *(log.append(bytearray(data[:HEADER_BYTES]), [data[HEADER_BYTES:]]) for data in batches)
    )


async def test_a_range_may_start_as_one_to_be_filled() -> None:
    disk = simulated_disk()
    source, log, written = await make_range(disk, 8)
    other_disk = simulated_disk(1)
    store = await open_store(other_disk)
    joined = await store.create_range(
        KEY, start_offset=3, replicas=(5, 4), ack_quorum=2, final_end=8
    )
    assert (joined.sealed, joined.final, joined.missing) == (True, True, (3, 8))
    with pytest.raises(RangeNotFoundError):
        await joined.read(3, 100)
    await copy_all(joined, written[3:])
    assert await read_all(joined) == written[3:]
    empty = await store.create_range(RangeKey(7, 1), start_offset=8, ack_quorum=2, final_end=8)
    assert (empty.final, empty.missing) == (True, None)
    assert await empty.read(8, 100) == []
    await store.close()
    await source.close()
    assert log.durable_offset == 8


async def test_the_first_copied_batch_may_start_before_the_range() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=12, ack_quorum=2, final_end=30)
    for data in (make_batch(0, records=10), make_batch(13, records=2), make_batch(20, records=11)):
        with pytest.raises(UnexpectedOffsetError):
            log.copy(*data)
    await log.copy(*make_batch(10, records=5))
    with pytest.raises(UnexpectedOffsetError):
        log.copy(*make_batch(14, records=5))
    await log.copy(*make_batch(15, records=15))
    assert log.missing is None
    await turns(10)
    assert decode_header((await log.read(12, 1 << 20))[0]).base_offset == 10
    await cut_power(disk, store)
    store = await open_store(disk)
    log = store.range(KEY)
    assert (log.start_offset, log.next_offset, await log.verify()) == (12, 30, ())
    await store.close()


async def test_a_failed_copy_is_tried_again() -> None:
    disk = simulated_disk()
    _, _, written = await make_range(simulated_disk(1), 20)
    for failure, error in (
        ("write", StorageError),
        ("sync", StorageError),
        ("full", DiskFullError),
    ):
        disk = simulated_disk()
        store = await open_store(disk)
        log = await store.create_range(KEY, start_offset=0, ack_quorum=2, final_end=20)
        await copy_all(log, written[:2])
        if failure == "full":
            disk.full = True
        else:
            disk.fail_next(failure)
        big = written[2:18]
        outcomes = await asyncio.gather(
            *(copy_one(log, data) for data in big), return_exceptions=True
        )
        disk.full = False
        good = [outcome for outcome in outcomes if outcome is None]
        assert all(isinstance(each, error) for each in outcomes[len(good) :])
        assert len(good) < len(big)
        assert log.missing == (2 + len(good), 20)
        assert await read_from(log, 0) == written[: 2 + len(good)]
        await copy_all(log, written[2 + len(good) :])
        assert await read_all(log) == written
        await cut_power(disk, store)
        store = await open_store(disk)
        assert await read_all(store.range(KEY)) == written
        assert await store.range(KEY).verify() == ()
        await store.close()


async def test_a_trim_above_what_was_copied_goes_on_there() -> None:
    disk = simulated_disk()
    _, _, written = await make_range(simulated_disk(1), 40)
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0, ack_quorum=2, final_end=40)
    await copy_all(log, written[:20])
    with pytest.raises(OffsetOutOfRangeError):
        await log.trim(41)
    await log.trim(30)
    assert (log.start_offset, log.missing, log_files(disk)) == (30, (30, 40), [])
    await cut_power(disk, store)
    store = await open_store(disk)
    log = store.range(KEY)
    assert (log.start_offset, log.missing) == (30, (30, 40))
    await copy_all(log, written[30:35])
    assert await read_from(log, 30) == written[30:35]
    await log.trim(40)
    assert log.missing is None
    await turns(10)
    await cut_power(disk, store)
    store = await open_store(disk)
    assert (store.range(KEY).start_offset, store.range(KEY).missing) == (40, None)
    await store.close()


async def test_copied_batches_are_checked() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0, ack_quorum=2, final_end=2)
    header, _ = make_batch(0)
    with pytest.raises(Exception, match="checksum"):
        log.copy(header, [b"x" * 45])
    assert log.missing == (0, 2)
    await store.close()


async def test_damage_in_a_range_that_is_being_copied_is_not_taken_for_a_tail() -> None:
    disk = simulated_disk()
    _, _, written = await make_range(simulated_disk(1), 10)
    store, log, _ = await make_range(disk, 6)
    await log.finish(10)
    await copy_all(log, written[6:8])
    await copy_all(log, written[8:9])
    await cut_power(disk, store)
    disk.flip_bit(f"{RANGE_FOLDER}/{0:020d}.log", 32 + 250)
    store = await open_store(disk)
    log = store.range(KEY)
    assert log.missing == (9, 10)
    await copy_all(log, written[9:])
    with pytest.raises(CorruptionError):
        await log.read(2, 100)
    assert [tuple(span) for span in await log.verify()] == [(2, 3)]
    assert await read_from(log, 3) == written[3:]
    await store.close()


async def open_slowly(disk: SimulatedDisk, slow: str) -> LogStore:
    """A store one of whose executors takes a while."""

    class Executor(InlineExecutor):
        def __init__(self, name: str, threads: int) -> None:
            super().__init__(name, threads)
            self._delay = 10 if name == slow else 0

        async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
            await turns(self._delay)
            return await super().run(function, *args, **kwargs)

    runtime = dataclasses.replace(runtime_on(disk), executor=Executor)
    return await LogStore.open(runtime, FOLDER, SMALL)


@pytest.mark.parametrize("sealed_before", [True, False])
async def test_copies_may_follow_the_decided_end_at_once(sealed_before: bool) -> None:
    """Whatever the seal still does to the file behind their back."""
    _, _, written = await make_range(simulated_disk(1), 15)
    for delay in range(12):
        disk = simulated_disk()
        store = await open_slowly(disk, "storage-control")
        log = await store.create_range(KEY, start_offset=0, ack_quorum=2)
        await copy_by_append(log, written[:6])
        if sealed_before:
            await log.seal()
        await log.finish(15)
        await turns(delay)
        for data in written[6:]:
            await copy_one(log, data)
            await turns(delay % 3)
        assert await log.verify() == ()
        await cut_power(disk, store)
        store = await open_store(disk)
        assert await read_all(store.range(KEY)) == written
        await store.close()


async def test_the_last_segment_is_opened_again_with_its_index() -> None:
    disk = simulated_disk()
    _, _, written = await make_range(simulated_disk(1), 18)
    store = await open_store(disk, replace(SMALL, open_files_max=1))
    log = await store.create_range(KEY, start_offset=0, ack_quorum=2)
    await copy_by_append(log, written[:12])
    await log.seal()
    await turns(20)
    await append_many(await store.create_range(RangeKey(8, 0), start_offset=0), 3)  # takes the file
    await log.finish(18)
    await copy_all(log, written[12:])
    assert await read_all(log, max_bytes=100) == written
    assert len(log_files(disk)) == 1
    await store.close()


async def test_one_range_is_written_by_one_committer_at_a_time() -> None:
    disk = simulated_disk()
    _, _, written = await make_range(simulated_disk(1), 10)
    store = await open_slowly(disk, "storage-commit")
    log = await store.create_range(
        KEY, start_offset=0, ack_quorum=2, final_end=10, durability=Durability.WRITTEN
    )
    await copy_all(log, written[:2])
    copies = [copy_one(log, data) for data in written[2:5]]
    await turns(3)  # being written
    copies += [copy_one(log, data) for data in written[5:]]
    writer = log._writer
    writer._shared.committers[Durability.WRITTEN].submit(writer)  # as one left from before the seal
    await asyncio.gather(*copies)
    assert await log.verify() == ()
    await cut_power(disk, store)
    store = await open_store(disk)
    assert await read_all(store.range(KEY)) == written
    await store.close()


# An end that too few hold, or that is lost


def whole_batch(offset: int) -> bytes:
    header, body = make_batch(offset)
    return b"".join([bytes(header), *map(bytes, body)])


async def test_a_doubtful_end_is_read_when_it_is_no_more() -> None:
    disk = simulated_disk()
    store, log, written = await make_range(disk, 5)
    await log.finish(5, doubtful=3)
    assert (log.final, log.doubtful, log.committed_offset) == (True, 3, 3)
    assert await read_from(log, 0) == written[:3]
    with pytest.raises(RangeNotFoundError):
        await log.read(3, 100)
    assert await log.read_durable(3, 1 << 20), "other replicas copy it"
    await cut_power(disk, store)
    store = await open_store(disk)
    log = store.range(KEY)
    assert await read_from(log, 0) == written[:3], "a restart makes it no less doubtful"
    await log.finish(5, doubtful=3)
    await log.finish(5, doubtful=2)
    assert log.doubtful == 3, "what was known once stays known"
    await log.finish(5, doubtful=4)
    assert await read_from(log, 0) == written[:4]
    await log.finish(5)
    assert (log.doubtful, await read_from(log, 0)) == (-1, written)
    await cut_power(disk, store)
    store = await open_store(disk)
    assert await read_from(store.range(KEY), 0) == written
    await store.close()


@pytest.mark.parametrize("end", [3, 5])
async def test_a_range_that_waits_for_its_end_may_give_it_up(end: int) -> None:
    disk = simulated_disk()
    store, log, written = await make_range(disk, 5)
    await log.finish(9)
    assert log.missing == (5, 9)
    await log.shorten(end)
    await log.shorten(end)
    assert (log.end_offset, log.state().missing, log.final) == (end, None, True)
    assert await read_from(log, 0) == written[:end]
    with pytest.raises(SealedError):
        copy_one(log, whole_batch(5))
    await cut_power(disk, store)
    store = await open_store(disk)
    log = store.range(KEY)
    assert (log.end_offset, log.missing) == (end, None)
    assert await read_from(log, 0) == written[:end]
    with pytest.raises(SealedError):
        await log.finish(9)
    await store.close()


async def test_a_range_that_gives_up_a_part_waits_for_the_rest() -> None:
    disk = simulated_disk()
    store, log, written = await make_range(disk, 5)
    more = [whole_batch(offset) for offset in range(5, 9)]
    await log.finish(9)
    await log.shorten(7)
    assert log.missing == (5, 7)
    await copy_all(log, more[:2])
    assert log.state().missing is None
    assert await read_from(log, 0) == [*written, *more[:2]]
    await store.close()


async def test_an_open_range_gives_up_nothing() -> None:
    store, log, written = await make_range(simulated_disk(), 5)
    await log.shorten(2)
    log.set_committed(5)
    assert await read_from(log, 0) == written
    await store.close()
