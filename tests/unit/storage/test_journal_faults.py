"""The redo journal when bytes are damaged, operations fail and files are removed."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from headrace.errors import DiskFullError, StorageError
from headrace.storage import RangeKey
from headrace.storage.segments.formats import MARK_BYTES
from tests.simulator.runtime import PowerCut
from tests.unit.storage.journal_support import (
    FIRST,
    JOURNAL,
    RECORD,
    SETTINGS,
    append_to_all,
    journal_groups,
    journaled_store,
    log_path,
    logs_of,
    open_ranges,
)
from tests.unit.storage.support import (
    FOLDER,
    append_many,
    append_one,
    cut_power,
    end_process,
    open_store,
    read_all,
    simulated_disk,
    turns,
)


async def test_a_torn_group_at_the_end_is_no_corruption() -> None:
    for damaged in range(2):  # either record of the last group: the other one proves nothing
        disk, written = await journaled_store(3)
        disk.flip_bit(JOURNAL, FIRST + (4 + damaged) * RECORD + 150)
        store = await open_store(disk, SETTINGS)
        statistics = store.statistics()
        assert (statistics["journal_damaged"], statistics["journal_replayed"]) == (0, 5)
        assert await read_all(store.range(RangeKey(0, 0))) == written
        await store.close()


@pytest.mark.parametrize("at", [20, 150])
async def test_damage_before_later_groups_is_reported(at: int) -> None:
    """In the header or the payload of a record; the file still has the bytes."""
    disk, written = await journaled_store(3)
    disk.flip_bit(JOURNAL, FIRST + 2 * RECORD + at)
    store = await open_store(disk, SETTINGS)
    statistics = store.statistics()
    assert (statistics["journal_damaged"], statistics["journal_replayed"]) == (1, 5)
    log = store.range(RangeKey(0, 0))
    assert (await read_all(log), log.state().corrupt) == (written, ())
    await store.close()
    store = await open_store(disk, SETTINGS)
    assert store.statistics()["journal_damaged"] == 0
    await store.close()


async def test_what_neither_file_nor_journal_holds_is_corruption_and_no_tail() -> None:
    disk, written = await journaled_store(2)
    disk.flip_bit(JOURNAL, FIRST + 150)  # range 0, batch 1
    file = disk.open(log_path(0))
    file.truncate(MARK_BYTES + 100)
    store = await open_store(disk, SETTINGS)
    log = store.range(RangeKey(0, 0))
    assert log.next_offset == 3
    assert [tuple(span) for span in log.state().corrupt] == [(1, 2)]
    assert b"".join(await log.read(2, 1000)) == written[2]
    await store.close()


async def test_the_last_group_of_a_file_is_known_although_its_record_is_damaged() -> None:
    """Nothing in the file says that there was more: the journal's header does."""
    disk = simulated_disk()
    store, logs = await open_ranges(disk, 3)
    await append_to_all(logs[:2])
    await append_to_all(logs[1:])
    await end_process(disk, store)
    disk.flip_bit(JOURNAL, FIRST + 150)
    disk.open(log_path(0)).truncate(MARK_BYTES + 100)
    store = await open_store(disk, SETTINGS)
    state = store.range(RangeKey(0, 0)).state()
    assert state.next_offset == 2
    assert [tuple(span) for span in state.corrupt] == [(1, 2)]
    await append_to_all([store.range(RangeKey(0, 0))])
    await store.close()


async def test_a_damaged_file_is_mended_from_the_journal() -> None:
    disk, written = await journaled_store(2)
    disk.flip_bit(log_path(0), 2 * (MARK_BYTES + 100) + 60)
    store = await open_store(disk, SETTINGS)
    log = store.range(RangeKey(0, 0))
    assert (await read_all(log), log.state().corrupt) == (written, ())
    await store.close()


async def test_one_note_may_be_lost_but_not_both() -> None:
    disk, written = await journaled_store(2)
    disk.flip_bit(JOURNAL, 10)
    with pytest.raises(StorageError, match="notes are damaged"):
        await open_store(disk, SETTINGS)  # there is one so far
    disk.flip_bit(JOURNAL, 10)
    await (await open_store(disk, SETTINGS)).abort()
    disk.end_process()
    for note in (0, 4096):
        disk.flip_bit(JOURNAL, note + 10)
        store = await open_store(disk, SETTINGS)
        assert await read_all(store.range(RangeKey(0, 0))) == written
        await end_process(disk, store)
        disk.flip_bit(JOURNAL, note + 10)


# Failures


async def test_a_failed_journal_falls_back_to_the_files() -> None:
    disk = simulated_disk()
    store, logs = await open_ranges(disk, 3)
    await append_to_all(logs)
    disk.fail_next("sync")  # of the journal: nothing else is synced
    await append_to_all(logs)
    await append_to_all(logs)
    assert journal_groups(store) == 1
    expected = [await read_all(log) for log in logs]
    await cut_power(disk, store)
    store = await open_store(disk, SETTINGS)
    assert [await read_all(log) for log in logs_of(store, 3)] == expected
    await store.close()


async def test_a_file_that_fails_with_the_journal_is_not_acknowledged() -> None:
    disk = simulated_disk()
    store, logs = await open_ranges(disk, 3)
    disk.fail_next("sync")
    disk.fail_next("sync")  # of the first file, which is then synced directly
    appends = [append_one(log)[0] for log in logs]
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StorageError, type(None), type(None)]
    assert [log.failed for log in logs] == [True, False, False]
    await store.close()


async def test_a_failed_write_fails_its_range_alone() -> None:
    disk = simulated_disk()
    store, logs = await open_ranges(disk, 3)
    disk.fail_next("write", DiskFullError)  # of the first file
    appends = [append_one(log)[0] for log in logs]
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [DiskFullError, type(None), type(None)]
    assert journal_groups(store) == 1
    await append_to_all(logs[1:])
    expected = [await read_all(log) for log in logs]
    await cut_power(disk, store)
    store = await open_store(disk, SETTINGS)
    assert [await read_all(log) for log in logs_of(store, 3)] == expected
    assert store.statistics()["journal_damaged"] == 0
    await store.close()


async def test_a_file_that_cannot_be_synced_behind_stays_in_the_journal() -> None:
    disk = simulated_disk()
    store, logs = await open_ranges(disk, 3)
    await append_to_all(logs)
    expected = [await read_all(log) for log in logs]
    disk.fail_next("sync")  # of the first file, when the store closes; its pages are lost with it
    await store.close()
    assert logs[0].failed
    disk.power_cut()
    store = await open_store(disk, SETTINGS)
    assert not store.clean
    assert [await read_all(log) for log in logs_of(store, 3)] == expected
    await store.close()


async def test_without_space_for_the_journal_files_are_synced_as_before() -> None:
    disk = simulated_disk()
    disk.free = SETTINGS.journal_bytes + (1 << 20)
    settings = msgspec.structs.replace(SETTINGS, min_free_bytes=2 << 20)
    store = await open_store(disk, settings)
    logs = [
        await store.create_range(RangeKey(at, 0), start_offset=0, reserved=True) for at in range(3)
    ]
    for _ in range(3):
        await append_to_all(logs)
        await turns(20)
    assert journal_groups(store) == 0
    assert not disk.exists(JOURNAL)
    await store.close()


# Removal


async def test_a_stream_made_again_does_not_get_the_bytes_of_the_old_one() -> None:
    for unlucky in range(6):
        disk = simulated_disk(seed=unlucky)
        store, logs = await open_ranges(disk, 3)
        await append_to_all(logs)
        await append_to_all(logs)
        await store.delete_stream(0)
        made = await store.create_range(RangeKey(0, 0), start_offset=0)
        written = await append_many(made, 1, size=150)
        await cut_power(disk, store)
        store = await open_store(disk, SETTINGS)
        assert await read_all(store.range(RangeKey(0, 0))) == written
        assert [len(await read_all(log)) for log in logs_of(store, 3)[1:]] == [3, 3]
        await store.close()


async def test_a_deleted_stream_stays_deleted() -> None:
    for cut in range(16):
        disk = simulated_disk(seed=cut)
        store, logs = await open_ranges(disk, 3)
        await append_to_all(logs)
        expected = await read_all(logs[0])
        disk.cut_before(cut)
        try:
            await store.delete_stream(0)
            finished = True
        except PowerCut:
            finished = False
        await cut_power(disk, store)
        store = await open_store(disk, SETTINGS)
        found = [state.key.stream_id for state in store.ranges()]
        assert found == ([1, 2] if finished or 0 not in found else [0, 1, 2])
        if 0 in found:
            assert await read_all(store.range(RangeKey(0, 0))) == expected
        await store.close()


async def test_deleting_works_after_the_journal_failed() -> None:
    disk = simulated_disk()
    store, logs = await open_ranges(disk, 3)
    await append_to_all(logs)
    disk.fail_next("sync")
    await append_to_all(logs)
    await store.delete_stream(0)
    made = await store.create_range(RangeKey(0, 0), start_offset=0)
    written = await append_many(made, 1, size=150)
    await cut_power(disk, store)
    store = await open_store(disk, SETTINGS)
    assert await read_all(store.range(RangeKey(0, 0))) == written
    assert [len(await read_all(log)) for log in logs_of(store, 3)[1:]] == [3, 3]
    await store.close()


async def test_trimmed_segments_do_not_come_back() -> None:
    settings = msgspec.structs.replace(
        SETTINGS, segment_bytes_max=500, journal_bytes=8192 + 2 * 65536
    )
    for sealed in (False, True):
        disk = simulated_disk()
        store, logs = await open_ranges(disk, 2, settings)
        for _ in range(12):
            await append_to_all(logs)
        if sealed:
            await logs[0].seal()
        await logs[0].trim(13 if sealed else 12)
        await turns(50)
        expected = [await read_all(log) for log in logs]
        await cut_power(disk, store)
        store = await open_store(disk, settings)
        assert [await read_all(log) for log in logs_of(store, 2)] == expected
        names = disk.list(f"{FOLDER}/streams/0/0")
        assert len([name for name in names if name.endswith(".log")]) == (0 if sealed else 1)
        assert store.range(RangeKey(0, 0)).state().corrupt == ()
        await store.close()


async def test_a_sealed_range_keeps_what_only_the_journal_holds() -> None:
    for seed in range(8):
        disk = simulated_disk(seed)
        store, logs = await open_ranges(disk, 2)
        await append_to_all(logs)
        await append_to_all(logs)
        expected = await read_all(logs[0])
        assert await logs[0].seal() == 3
        await cut_power(disk, store)
        store = await open_store(disk, SETTINGS)
        log = store.range(RangeKey(0, 0))
        assert (log.end_offset, await read_all(log), log.state().corrupt) == (3, expected, ())
        await store.close()


async def test_a_file_made_by_the_journal_and_then_written_directly_keeps_its_name() -> None:
    for seed in range(12):
        disk = simulated_disk(seed)
        store, _ = await open_ranges(disk, 2)
        fresh = [await store.create_range(RangeKey(at, 0), start_offset=0) for at in (5, 6)]
        await append_to_all(fresh)
        assert journal_groups(store) == 1
        expected = [*await read_all(fresh[0]), *await append_many(fresh[0], 1)]
        await cut_power(disk, store)
        store = await open_store(disk, SETTINGS)
        assert await read_all(store.range(RangeKey(5, 0))) == expected
        await store.close()


async def test_a_write_that_was_repeated_after_it_failed_is_not_undone() -> None:
    """The first attempt stands in the journal, the second one, at the same place, in the file."""
    disk = simulated_disk()
    store, logs = await open_ranges(disk, 2)
    await append_to_all(logs)
    before = disk.read(log_path(0))
    await end_process(disk, store)
    narrow = msgspec.structs.replace(SETTINGS, journal_files_min=0)
    journal = disk.read(JOURNAL)
    disk.open(log_path(0)).truncate(MARK_BYTES + 100)
    disk.remove(JOURNAL)
    store = await open_store(disk, narrow)
    written = [*await read_all(store.range(RangeKey(0, 0)))]
    assert len(written) == 1
    for _ in range(4):  # higher group numbers, other bytes
        written += await append_many(store.range(RangeKey(0, 0)), 1, size=170)
    await end_process(disk, store)
    assert disk.read(log_path(0))[: len(before)] != before
    disk.write_atomic(JOURNAL, journal)
    store = await open_store(disk, SETTINGS)
    assert store.statistics()["journal_replayed"] == 2
    assert await read_all(store.range(RangeKey(0, 0))) == written
    await store.close()
