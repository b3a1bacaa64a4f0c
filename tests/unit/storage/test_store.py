"""Appending, reading, waiting, sealing, trimming: what a healthy disk shows."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from headrace.errors import (
    CorruptionError,
    FencedError,
    LockedError,
    OffsetOutOfRangeError,
    OffsetOverflowError,
    RangeNotFoundError,
    RemoteProtocolError,
    SealedError,
    ThrottledError,
    UnavailableError,
    UnexpectedOffsetError,
)
from headrace.runtime.system import system_runtime
from headrace.storage import LogStore, RangeKey, StorageSettings
from headrace.wire.sbp.messages import Durability
from tests.simulator.disk import SimulatedFile
from tests.unit.storage.support import (
    FOLDER,
    KEY,
    SMALL,
    ManualClock,
    append_many,
    append_one,
    cut_power,
    joined,
    make_batch,
    open_store,
    read_all,
    runtime_on,
    simulated_disk,
    turns,
)


def note(order: list[tuple[int, int]], where: tuple[int, int], _: object) -> None:
    order.append(where)


LEVELS = [Durability.SYNCED, Durability.WRITTEN]


@pytest.mark.parametrize("level", LEVELS)
async def test_batches_come_back_byte_for_byte_over_segments_and_restarts(
    level: Durability,
) -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=40, durability=level)
    written = await append_many(log, 60, records=3, size=150)
    assert log.next_offset == log.durable_offset == 40 + 180
    assert len(log.segments()) > 3
    assert await read_all(log) == written
    await store.close()
    store = await open_store(disk)
    assert store.clean
    log = store.range(KEY)
    assert (log.start_offset, log.next_offset, log.durability) == (40, 220, level)
    assert await read_all(log) == written
    written += await append_many(log, 5, records=3, size=150)
    assert await read_all(log, max_bytes=1) == written
    assert await log.verify() == ()
    await store.close()


async def test_works_on_a_real_disk(tmp_path: Path) -> None:
    settings = StorageSettings(segment_bytes_max=100_000, tail_cache_bytes=0, idle_ms=20)
    store = await LogStore.open(system_runtime(), str(tmp_path), settings)
    log = await store.create_range(KEY, start_offset=0)
    written = await append_many(log, 100, size=5000)
    assert await read_all(log, max_bytes=30_000) == written
    await store.close()
    folder = tmp_path / "streams" / "7" / "0"
    assert (folder / "00000000000000000000.log").exists()
    assert (tmp_path / "clean-stop").exists()
    store = await LogStore.open(system_runtime(), str(tmp_path), settings)
    assert not (tmp_path / "clean-stop").exists()
    assert await read_all(store.range(KEY)) == written
    await store.abort()
    store = await LogStore.open(system_runtime(), str(tmp_path), settings)
    assert not store.clean
    assert await read_all(store.range(KEY)) == written
    await store.close()


async def test_files_appear_at_the_first_append_and_space_doubles() -> None:
    disk = simulated_disk()
    settings = StorageSettings(preallocate_bytes_min=512, segment_bytes_max=1 << 20, idle_ms=10**6)
    store = await open_store(disk, settings)
    log = await store.create_range(KEY, start_offset=0)
    assert disk.list(f"{FOLDER}/streams/7/0") == ["range.json"]
    before = len(disk.operations)
    for _ in range(40):
        await append_many(log, 1)
    path = f"{FOLDER}/streams/7/0/{0:020d}.log"
    names = [operation for operation, where in disk.operations[before:] if where == path]
    assert names.count("create") == 1
    assert names.count("allocate") == 5  # 512 to 8192
    assert disk.size(path) == 40 * (100 + 32) + 32  # reserved, not grown
    await store.close()


async def test_every_write_is_synced_before_it_is_acknowledged() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0)
    start = len(disk.operations)
    await append_many(log, 3)
    assert [name for name, _ in disk.operations[start:]] == [
        "create",
        "allocate",
        "write",
        "sync",
        "sync_folder",
        "write",  # the mark that says so
    ]
    written = await store.create_range(
        RangeKey(7, 1), start_offset=0, durability=Durability.WRITTEN
    )
    await append_many(written, 1)
    start = len(disk.operations)
    await append_many(written, 1)
    assert [name for name, _ in disk.operations[start:]] == ["write"]
    await written.sync()
    assert [name for name, _ in disk.operations[start:]] == ["write", "sync"]
    await store.close()


async def test_a_group_takes_everything_that_waited_and_resolves_in_order() -> None:
    disk = simulated_disk()
    store = await open_store(disk, StorageSettings(idle_ms=10**6, min_free_bytes=0))
    logs = [await store.create_range(RangeKey(7, i), start_offset=0) for i in range(3)]
    order: list[tuple[int, int]] = []
    waits = []
    for number in range(20):
        for at, log in enumerate(logs):
            future = asyncio.ensure_future(append_one(log)[0])
            future.add_done_callback(partial(note, order, (at, number)))
            waits.append(future)
    await asyncio.gather(*waits)
    for at in range(3):
        assert [number for where, number in order if where == at] == list(range(20))
    statistics = store.statistics()
    assert statistics["groups"] == 1
    assert statistics["file_writes"] == 3
    await store.close()


async def test_read_bounds() -> None:
    store = await open_store(simulated_disk())
    log = await store.create_range(KEY, start_offset=10)
    assert await log.read(10, 1000) == []
    batches = await append_many(log, 4, records=5)
    with pytest.raises(OffsetOutOfRangeError):
        await log.read(9, 1000)
    with pytest.raises(OffsetOverflowError):
        await log.read(31, 1000)
    assert await log.read(30, 1000) == []
    assert b"".join(await log.read(17, 1)) == batches[1]  # inside a batch: the whole batch
    assert b"".join(await log.read(17, 299)) == b"".join(batches[1:3])
    await log.seal()
    assert await log.read(30, 1000) == []
    with pytest.raises(OffsetOutOfRangeError):
        await log.read(31, 1000)
    await store.close()


async def test_cached_and_stored_reads_agree() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0)
    await append_many(log, 30, records=2, size=130)
    cached = [b"".join(await log.read(offset, 1)) for offset in range(60)]
    assert store.statistics()["tail_cache_hits"] == 60
    await store.close()
    store = await open_store(disk)
    log = store.range(KEY)
    assert [b"".join(await log.read(offset, 1)) for offset in range(60)] == cached
    assert store.statistics()["tail_cache_hits"] == 0
    await store.close()


async def test_a_read_asks_the_file_for_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start of a batch that does not fit any more would be read for nothing."""
    settings = StorageSettings(
        tail_cache_bytes=0, index_interval_bytes=4096, idle_ms=10**6, min_free_bytes=0
    )
    store = await open_store(simulated_disk(), settings)
    log = await store.create_range(KEY, start_offset=0)
    written = [(await append_many(log, 1, size=50_000))[0] for _ in range(12)]
    asked: list[int] = []
    pread = SimulatedFile.pread

    def counting(self: SimulatedFile, length: int, offset: int) -> bytes:
        asked.append(length)
        return pread(self, length, offset)

    monkeypatch.setattr(SimulatedFile, "pread", counting)
    for offset in (0, 3, 9):
        asked.clear()
        assert b"".join(await log.read(offset, 140_000)) == b"".join(written[offset : offset + 2])
        assert 100_000 <= sum(asked) < 102_000
    asked.clear()
    assert b"".join(await log.read(10, 10**6)) == b"".join(written[10:])
    assert b"".join(await log.read(11, 1)) == written[11]
    assert await read_all(log, max_bytes=140_000) == written
    await store.close()


async def test_the_tail_cache_is_bounded_over_all_ranges() -> None:
    settings = StorageSettings(tail_cache_bytes=1000, idle_ms=10**6, min_free_bytes=0)
    store = await open_store(simulated_disk(), settings)
    logs = [await store.create_range(RangeKey(7, i), start_offset=0) for i in range(3)]
    written = [await append_many(log, 20) for log in logs]
    assert store.statistics()["tail_cache_bytes"] <= 1000
    assert [await read_all(log) for log in logs] == written
    await store.delete_stream(7)
    assert store.statistics()["tail_cache_bytes"] == 0
    await store.close()


async def test_open_files_are_bounded() -> None:
    settings = StorageSettings(
        segment_bytes_max=300, open_files_max=4, tail_cache_bytes=0, min_free_bytes=0
    )
    store = await open_store(simulated_disk(), settings)
    log = await store.create_range(KEY, start_offset=0)
    written = await append_many(log, 40)
    assert len(log.segments()) == 14
    for _ in range(2):
        assert await read_all(log) == written
        assert store.statistics()["open_files"] <= 4
    await store.close()


async def test_appends_must_continue_the_log() -> None:
    store = await open_store(simulated_disk())
    log = await store.create_range(KEY, start_offset=0)
    with pytest.raises(UnexpectedOffsetError):
        log.append(*make_batch(1))
    header, body = make_batch(0)
    header[20] ^= 1
    with pytest.raises(RemoteProtocolError):
        log.append(header, body)
    assert log.next_offset == 0
    await append_many(log, 1)
    await store.close()


async def test_queued_bytes_are_bounded() -> None:
    settings = StorageSettings(queued_bytes_max=1000, min_free_bytes=0, idle_ms=10**6)
    store = await open_store(simulated_disk(), settings)
    log = await store.create_range(KEY, start_offset=0)
    waiting = [append_one(log)[0] for _ in range(10)]
    with pytest.raises(ThrottledError):
        append_one(log)
    await asyncio.gather(*waiting)
    assert store.statistics()["queued_bytes"] == 0
    await append_many(log, 1)
    await store.close()


async def test_waiting_for_an_offset() -> None:
    store = await open_store(simulated_disk())
    log = await store.create_range(KEY, start_offset=0)
    early = asyncio.ensure_future(log.wait_for(0))
    late = asyncio.ensure_future(log.wait_for(5))
    await append_many(log, 3)
    await early
    await asyncio.sleep(0.01)
    assert not late.done()
    await log.seal()
    await late
    await log.wait_for(100)
    await store.close()


async def test_a_seal_is_for_ever() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0, durability=Durability.WRITTEN)
    written = await append_many(log, 3)
    assert await log.seal(writer_epoch=4) == 3
    with pytest.raises(SealedError):
        append_one(log)
    assert await log.seal() == 3
    with pytest.raises(FencedError):
        await log.seal(writer_epoch=3)
    await cut_power(disk, store)
    store = await open_store(disk)
    log = store.range(KEY)
    assert (log.sealed, log.end_offset, log.next_offset, log.writer_epoch) == (True, 3, 3, 4)
    with pytest.raises(SealedError):
        append_one(log)
    assert await log.seal() == 3
    assert await read_all(log) == written
    await store.close()


async def test_the_end_of_a_seal_is_synced_before_it_is_persisted() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0, durability=Durability.WRITTEN)
    await append_many(log, 1)
    start = len(disk.operations)
    await log.seal()
    folder = f"{FOLDER}/streams/7/0"
    assert disk.operations[start : start + 2] == [
        ("sync", f"{folder}/{0:020d}.log"),
        ("write_atomic", f"{folder}/range.json"),
    ]
    await store.close()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("waits", range(8))
async def test_a_seal_keeps_what_was_acknowledged_and_refuses_the_rest(
    level: Durability, waits: int
) -> None:
    """However far the group commit has come: acknowledged below the end, refused from it on."""
    store = await open_store(simulated_disk())
    log = await store.create_range(KEY, start_offset=0, durability=level)
    appends = []
    for turn in range(waits + 3):
        appends += [append_one(log)[0] for _ in range(2)]
        if turn < waits:
            await asyncio.sleep(0)
    end = await log.seal()
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    assert [outcome is None for outcome in outcomes] == [at < end for at in range(len(outcomes))]
    assert all(isinstance(outcome, SealedError) for outcome in outcomes[end:])
    assert log.next_offset == log.durable_offset == end
    assert len(await read_all(log)) == end
    await store.close()


async def test_epochs_only_rise_and_survive() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0, writer_epoch=3)
    await log.set_epoch(3)
    await log.set_epoch(9)
    with pytest.raises(FencedError):
        await log.set_epoch(8)
    await cut_power(disk, store)
    store = await open_store(disk)
    assert store.range(KEY).writer_epoch == 9
    await store.close()


async def test_trim_removes_whole_segments_and_never_the_active_one() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0)
    written = await append_many(log, 50)
    bases = [segment.base for segment in log.segments()]
    await log.trim(bases[2] + 1)
    assert [segment.base for segment in log.segments()] == bases[2:]
    assert log.start_offset == bases[2] + 1
    with pytest.raises(OffsetOutOfRangeError):
        await log.read(bases[2], 100)
    with pytest.raises(OffsetOutOfRangeError):
        await log.trim(51)
    await log.trim(0)
    assert log.start_offset == bases[2] + 1
    await log.trim(50)
    assert [segment.base for segment in log.segments()] == bases[-1:]
    await cut_power(disk, store)
    store = await open_store(disk)
    log = store.range(KEY)
    assert (log.start_offset, log.next_offset) == (50, 50)
    more = await append_many(log, 1)
    assert await read_all(log) == more
    assert await log.seal() == 51
    await log.trim(51)
    assert log.segments() == []
    assert written
    await store.close()
    store = await open_store(disk)
    state = store.range(KEY).state()
    assert (state.start, state.end, state.next_offset, state.corrupt) == (51, 51, 51, ())
    await store.close()


async def test_segments_roll_by_content_alone() -> None:
    """Replicas commit in other groups than the primary and still agree on the files."""
    one, other = await open_store(simulated_disk()), await open_store(simulated_disk())
    together = await one.create_range(KEY, start_offset=0)
    await append_many(together, 50, size=190)
    singly = await other.create_range(KEY, start_offset=0, durability=Durability.WRITTEN)
    for _ in range(50):
        await append_many(singly, 1, size=190)
    assert together.segments() == singly.segments()
    assert {segment.bytes for segment in together.segments()} == {1900}
    await one.close()
    await other.close()


async def test_offset_at_a_time() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0)
    times = [10, 20, 30, 25, 28, 40] * 8  # a plain client's clock may go back
    for time in times:
        append_one(log, timestamp=time, records=2)
    await log.sync()
    for wanted in (0, 10, 11, 26, 30, 31, 40):
        expected = next(2 * at for at, time in enumerate(times) if time >= wanted)
        assert await log.offset_at(wanted) == expected
    assert await log.offset_at(41) == 96
    await log.trim(13)
    assert await log.offset_at(0) == 13
    await store.close()
    store = await open_store(disk)
    assert await store.range(KEY).offset_at(40) == 22
    await store.close()


async def test_create_is_idempotent_and_delete_is_complete() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    both = await asyncio.gather(*(store.create_range(KEY, start_offset=5) for _ in range(2)))
    assert both[0] is both[1]
    assert await store.create_range(KEY, start_offset=5) is both[0]
    keep = await store.create_range(RangeKey(8, 0), start_offset=0)
    await append_many(both[0], 3)
    waiter = asyncio.ensure_future(both[0].wait_for(100))
    queued, _ = append_one(both[0])
    await store.delete_stream(7)
    await waiter
    (outcome,) = await asyncio.gather(queued, return_exceptions=True)
    assert outcome is None or isinstance(outcome, RangeNotFoundError)
    with pytest.raises(RangeNotFoundError):
        store.range(KEY)
    with pytest.raises(RangeNotFoundError):
        append_one(both[0])
    await store.delete_stream(7)
    assert disk.list(f"{FOLDER}/streams") == ["8"]
    await append_many(keep, 1)
    await store.close()


async def test_a_stream_may_be_deleted_twice_at_the_same_time() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    await append_many(await store.create_range(KEY, start_offset=0), 3)
    await asyncio.gather(store.delete_stream(7), store.delete_stream(7))
    with pytest.raises(RangeNotFoundError):
        store.range(KEY)
    assert disk.list(f"{FOLDER}/streams") == []
    await store.close()


async def test_a_second_deletion_may_begin_at_any_moment(tmp_path: Path) -> None:
    """Two are told by the placement manager and by a list of ranges; the threads are real."""
    runtime = system_runtime()
    store = await LogStore.open(runtime, str(tmp_path), SMALL)
    for number in range(40):
        key = RangeKey(number, 0)
        await append_many(await store.create_range(key, start_offset=0), 3)
        first = asyncio.ensure_future(store.delete_stream(number))
        await runtime.clock.sleep(number * 0.000_1)
        await asyncio.gather(first, store.delete_stream(number))
        with pytest.raises(RangeNotFoundError):
            store.range(key)
    assert runtime.disk.list(f"{tmp_path}/streams") == []
    await store.close()


async def test_the_directory_has_one_owner_and_close_refuses_appends() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0)
    with pytest.raises(LockedError):
        await open_store(disk)
    queued, data = append_one(log)
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError):
        append_one(log)
    await closing
    await queued
    store = await open_store(disk)
    assert await read_all(store.range(KEY)) == [data]
    await store.close()


async def test_a_read_that_nobody_waits_for_keeps_its_file_open_until_it_ends(
    tmp_path: Path,
) -> None:
    settings = StorageSettings(tail_cache_bytes=0, open_files_max=1, segment_bytes_max=5000)
    store = await LogStore.open(system_runtime(), str(tmp_path), settings)
    log = await store.create_range(KEY, start_offset=0)
    written = await append_many(log, 50, size=1000)
    for _ in range(20):
        reads = [asyncio.ensure_future(log.read(offset, 1)) for offset in range(50)]
        await asyncio.sleep(0)
        for read in reads[::2]:
            read.cancel()
        results = await asyncio.gather(*reads, return_exceptions=True)
        assert [b"".join(views) for views in results[1::2]] == written[1::2]  # type: ignore[arg-type]  # no errors among them
    await store.close()


async def test_unreadable_metadata_concerns_one_range_alone() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0)
    other = await store.create_range(RangeKey(8, 0), start_offset=0)
    await append_many(log, 1)
    written = await append_many(other, 1)
    await store.close()
    disk.flip_bit(f"{FOLDER}/streams/7/0/range.json", 12)
    store = await open_store(disk)
    with pytest.raises(CorruptionError):
        store.range(KEY)
    with pytest.raises(CorruptionError):  # it must not come back without its seal and epoch
        await store.create_range(KEY, start_offset=0)
    assert await read_all(store.range(RangeKey(8, 0))) == written
    assert store.statistics()["ranges_unreadable"] == 1
    await store.close()


async def test_joined_pieces_are_what_is_stored() -> None:
    store = await open_store(simulated_disk(), SMALL)
    log = await store.create_range(KEY, start_offset=0)
    batch = make_batch(0, size=500)
    expected = joined(batch)
    await log.append(*batch, verified=True)
    (view,) = await log.read(0, 1)
    assert view == expected
    assert view.readonly
    await store.close()


async def test_idle_ranges_keep_no_file_open() -> None:
    settings = StorageSettings(tail_cache_bytes=0, idle_ms=20, idle_file_ms=400, min_free_bytes=0)
    store = await open_store(simulated_disk(), settings)
    logs = [await store.create_range(RangeKey(1, at), start_offset=0) for at in range(5)]
    for log in logs:
        await append_one(log)[0]
    assert store.statistics()["open_files"] == 5
    async with asyncio.timeout(10):
        while store.statistics()["open_files"]:  # noqa: ASYNC110  nobody is told
            await asyncio.sleep(0.01)
    assert len(await logs[3].read(0, 1000)) == 1
    await append_one(logs[4])[0]
    assert len(await logs[4].read(0, 1000)) == 2
    await store.close()


async def test_a_file_that_is_used_again_while_idle_ones_are_closed_stays_open() -> None:
    clock = ManualClock()
    settings = StorageSettings(
        tail_cache_bytes=0, idle_ms=10**6, idle_file_ms=100, journal_files_min=0, min_free_bytes=0
    )
    runtime = replace(runtime_on(simulated_disk()), clock=clock)
    store = await LogStore.open(runtime, FOLDER, settings)
    logs = [await store.create_range(RangeKey(1, at), start_offset=0) for at in range(40)]
    for log in logs:
        await append_one(log)[0]
    for _ in range(2):
        clock.advance(0.05)
        await turns(20)
    assert store.statistics()["open_files"] == 40 - 16, "the rest waits for its turn"
    await append_one(logs[39])[0]
    for _ in range(2):
        clock.advance(0.005)
        await turns(20)
    assert store.statistics()["open_files"] == 1
    await store.close()
