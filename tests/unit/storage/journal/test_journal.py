"""The redo journal: what is acknowledged through it survives, and it keeps to its generations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import StorageError
from headrace.runtime.system import system_runtime
from headrace.storage import LogStore, RangeKey, StorageSettings
from headrace.storage.segments.formats import MARK_BYTES
from headrace.wire.sbp.messages import Durability
from tests.simulator.runtime import PowerCut
from tests.unit.storage.journal_support import (
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
    InlineExecutor,
    ManualClock,
    append_many,
    cut_power,
    end_process,
    open_store,
    read_all,
    runtime_on,
    simulated_disk,
    turns,
)


async def test_a_wide_group_is_acknowledged_after_one_sync() -> None:
    disk = simulated_disk()
    store, logs = await open_ranges(disk, 5)
    seen = len(disk.operations)
    await append_to_all(logs)
    written = [log_path(at) for at in range(5)]
    operations = [(name, path) for name, path in disk.operations[seen:] if name != "allocate"]
    assert operations == [
        *(("write", path) for path in written), ("write", JOURNAL), ("sync", JOURNAL),
    ]  # fmt: skip
    assert journal_groups(store) == 1
    await store.close()


async def test_narrow_and_large_groups_are_synced_file_by_file() -> None:
    disk = simulated_disk()
    store, logs = await open_ranges(disk, 3)
    await append_to_all(logs[:1])
    await append_to_all(logs, size=4000)
    assert journal_groups(store) == 0
    await append_to_all(logs[:2])
    assert journal_groups(store) == 1
    await store.close()


async def test_a_single_file_gets_little_through_the_journal_and_much_alone() -> None:
    disk = simulated_disk()
    settings = msgspec.structs.replace(SETTINGS, journal_files_min=1, journal_single_bytes_max=1000)
    store, logs = await open_ranges(disk, 2, settings)
    before = journal_groups(store)
    await append_to_all(logs[:1], size=1500)
    assert journal_groups(store) == before
    await append_to_all(logs, size=1500)
    await append_to_all(logs[:1], size=500)
    assert journal_groups(store) == before + 2
    await store.close()


async def test_a_store_that_is_hardly_written_to_makes_no_journal() -> None:
    disk = simulated_disk()
    settings = msgspec.structs.replace(SETTINGS, journal_start_writes=7)
    store = await open_store(disk, settings)
    logs = [await store.create_range(RangeKey(at, 0), start_offset=0) for at in range(3)]
    for made in (False, False, True):
        await append_to_all(logs)
        await turns(20)
        assert disk.exists(JOURNAL) is made
    await store.close()


async def test_written_ranges_have_no_use_for_it() -> None:
    store = await open_store(simulated_disk(), SETTINGS)
    logs = [
        await store.create_range(RangeKey(at, 0), start_offset=0, durability=Durability.WRITTEN)
        for at in range(4)
    ]
    for _ in range(3):
        await append_to_all(logs)
        await turns(20)
    assert journal_groups(store) == 0
    await store.close()


async def test_what_went_through_the_journal_survives_a_power_cut_anywhere() -> None:
    """Cut before every operation of a few generations; any unsynced page may be lost."""
    finished = False
    cut = 0
    while not finished:
        disk = simulated_disk(seed=cut)
        store, logs = await open_ranges(disk, 4)
        acknowledged = [await read_all(log) for log in logs]
        disk.cut_before(cut)
        try:
            for _ in range(30):
                for batches, data in zip(acknowledged, await append_to_all(logs), strict=True):
                    batches.append(data)
            finished = True
        except StorageError:  # the power went in the committer
            pass
        assert not finished or store.statistics()["journal_laps"] >= 2
        await cut_power(disk, store)
        store = await open_store(disk, SETTINGS)
        for log, batches in zip(logs_of(store, 4), acknowledged, strict=True):
            found = await read_all(log)
            assert found[: len(batches)] == batches
            assert len(found) <= len(batches) + 1
            assert log.state().corrupt == ()
        assert store.statistics()["journal_damaged"] == 0
        await append_to_all(logs_of(store, 4))
        await store.close()
        cut += 1


async def test_the_journal_has_its_name_only_with_a_durable_note() -> None:
    """A kill while it is made leaves a draft, which nobody takes for a damaged journal."""
    disk = simulated_disk()
    store, logs = await open_ranges(disk, 3)
    made = [(name, path) for name, path in disk.operations if path.startswith(JOURNAL)]
    assert made[-3:] == [
        ("write", f"{JOURNAL}.new"), ("sync", f"{JOURNAL}.new"), ("rename", JOURNAL),
    ]  # fmt: skip
    assert {path for _, path in made[:-1]} == {f"{JOURNAL}.new"}
    expected = [await read_all(log) for log in logs]
    await end_process(disk, store)
    disk.remove(JOURNAL)
    draft = disk.open(f"{JOURNAL}.new", create=True)
    draft.fill(0, SETTINGS.journal_bytes)
    draft.close()
    store, logs = await open_ranges(disk, 3)
    assert [(await read_all(log))[:1] for log in logs] == expected
    await append_to_all(logs)
    assert journal_groups(store) == 1, "another one was made"
    await store.close()


async def test_replay_may_be_cut_anywhere() -> None:
    finished = False
    cut = 0
    while not finished:
        disk = simulated_disk(seed=cut)
        store, logs = await open_ranges(disk, 3)
        for _ in range(4):
            await append_to_all(logs)
        expected = [await read_all(log) for log in logs]
        await cut_power(disk, store)
        disk.cut_before(cut)
        try:
            store = await open_store(disk, SETTINGS)
            finished = True
            await store.abort()
        except PowerCut:
            pass
        disk.power_cut()
        store = await open_store(disk, SETTINGS)
        assert [await read_all(log) for log in logs_of(store, 3)] == expected
        await store.close()
        cut += 1
    assert cut > 5


async def test_a_clean_stop_leaves_an_empty_journal() -> None:
    disk = simulated_disk()
    store, logs = await open_ranges(disk, 3)
    await append_to_all(logs)
    expected = [await read_all(log) for log in logs]
    assert journal_groups(store) == 1
    await store.close()
    disk.power_cut()
    seen = len(disk.operations)
    store = await open_store(disk, SETTINGS)
    assert store.clean
    assert store.statistics()["journal_replayed"] == 0
    assert not [path for name, path in disk.operations[seen:] if name in ("write", "sync")]
    assert [await read_all(log) for log in logs_of(store, 3)] == expected
    await store.close()


async def test_a_killed_process_leaves_what_the_next_one_replays_once() -> None:
    disk = simulated_disk()
    store, logs = await open_ranges(disk, 3)
    await append_to_all(logs)
    await append_to_all(logs)
    await end_process(disk, store)
    store = await open_store(disk, SETTINGS)
    assert store.statistics()["journal_replayed"] == 6
    await end_process(disk, store)
    store = await open_store(disk, SETTINGS)
    assert store.statistics()["journal_replayed"] == 0
    assert [len(await read_all(log)) for log in logs_of(store, 3)] == [3, 3, 3]
    await store.close()


# Generations


async def test_a_half_is_used_again_only_after_its_files_are_synced() -> None:
    disk = simulated_disk()
    store, logs = await open_ranges(disk, 4)
    seen = len(disk.operations)
    while store.statistics()["journal_laps"] < 3:
        await append_to_all(logs)
    unsynced: set[str] = set()
    generations = 0
    for name, path in disk.operations[seen:]:
        if path == JOURNAL:
            continue
        if name == "write":
            unsynced.add(path)
        if name == "sync":
            unsynced.discard(path)
            generations += not unsynced
    assert generations >= 3
    await store.close()


class HeldExecutor(InlineExecutor):
    """Holds back the syncs behind the journal until the gate opens."""

    gate: asyncio.Event

    async def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if function.__name__ == "_sync_files":
            await self.gate.wait()
        return await super().run(function, *args, **kwargs)


async def test_while_the_other_generation_is_not_free_groups_go_the_direct_way() -> None:
    gate = HeldExecutor.gate = asyncio.Event()
    disk = simulated_disk()
    runtime = replace(runtime_on(disk), executor=HeldExecutor)
    store = await LogStore.open(runtime, FOLDER, SETTINGS)
    logs = [await store.create_range(RangeKey(at, 0), start_offset=0) for at in range(4)]
    await append_to_all(logs)
    await turns(20)
    for _ in range(40):
        await append_to_all(logs)
    full = journal_groups(store)
    assert full == 2 * (8192 // (4 * RECORD))
    gate.set()
    await turns(50)
    await append_to_all(logs)
    assert journal_groups(store) == full + 1
    expected = [await read_all(log) for log in logs]
    await cut_power(disk, store)
    store = await open_store(disk, SETTINGS)
    assert [await read_all(log) for log in logs_of(store, 4)] == expected
    await store.close()


async def test_a_quiet_journal_is_settled_and_the_files_then_tell_what_is_synced() -> None:
    disk = simulated_disk()
    clock = ManualClock()
    settings = msgspec.structs.replace(SETTINGS, idle_ms=900, idle_file_ms=4000)
    store = await LogStore.open(replace(runtime_on(disk), clock=clock), FOLDER, settings)
    logs = [await store.create_range(RangeKey(at, 0), start_offset=0) for at in range(3)]
    await append_to_all(logs)
    await turns(20)
    await append_to_all(logs)
    size = 2 * (MARK_BYTES + 100)
    for _ in range(3):
        clock.advance(0.5)
        await turns(50)
    assert [disk.size(log_path(at)) for at in range(3)] == [size] * 3, "the journal has it"
    for _ in range(10):
        clock.advance(1.0)
        await turns(100)
    assert [disk.size(log_path(at)) for at in range(3)] == [size + MARK_BYTES] * 3
    for _ in range(10):  # the closing marks went through the journal too, and left it
        clock.advance(1.0)
        await turns(100)
    operations = len(disk.operations)
    for _ in range(10):
        clock.advance(1.0)
        await turns(100)
    assert len(disk.operations) == operations, "once is enough"
    await end_process(disk, store)
    store = await open_store(disk, SETTINGS)
    assert store.statistics()["journal_replayed"] == 0
    await store.close()


async def test_ranges_that_go_quiet_together_get_their_marks_in_one_group() -> None:
    disk = simulated_disk()
    clock = ManualClock()
    settings = msgspec.structs.replace(
        SETTINGS, idle_ms=900, idle_file_ms=10**6, journal_files_min=4
    )
    store = await LogStore.open(replace(runtime_on(disk), clock=clock), FOLDER, settings)
    logs = [await store.create_range(RangeKey(at, 0), start_offset=0) for at in range(12)]
    await append_to_all(logs)  # makes the journal
    await turns(20)
    for log in logs:  # each synced directly
        await append_to_all([log])
    groups = store.statistics()["groups"]
    for _ in range(3):
        clock.advance(1.0)
        await turns(100)
    assert (store.statistics()["groups"] - groups, journal_groups(store)) == (1, 1)
    size = 2 * (MARK_BYTES + 100) + MARK_BYTES
    assert {disk.size(log_path(at)) for at in range(12)} == {size}
    await store.close()


async def test_an_append_never_waits_for_the_marks_of_all_that_went_quiet() -> None:
    disk = simulated_disk()
    clock = ManualClock()
    settings = msgspec.structs.replace(
        SETTINGS, idle_ms=900, idle_file_ms=10**6, journal_files_min=4
    )
    store = await LogStore.open(replace(runtime_on(disk), clock=clock), FOLDER, settings)
    logs = [await store.create_range(RangeKey(at, 0), start_offset=0) for at in range(41)]
    for log in logs:  # each synced directly
        await append_to_all([log])
    written = [("write", log_path(at)) for at in range(40)]
    before = len(disk.operations)

    def marked() -> int:
        return sum(disk.operations[before:].count(write) for write in written)

    clock.advance(0.9)
    await turns(100)
    clock.advance(0.9)
    await turns(100)
    assert marked() == 16
    await append_to_all([logs[40]])  # time stands still meanwhile
    assert marked() == 16
    for expected in (32, 40):
        clock.advance(0.01)
        await turns(100)
        assert marked() == expected
    await cut_power(disk, store)
    store = await open_store(disk, settings)
    assert [len(await read_all(log)) for log in logs_of(store, 41)] == [*[1] * 40, 2]
    await store.close()


async def test_written_ranges_that_went_quiet_are_synced_and_marked_in_one_group() -> None:
    disk = simulated_disk()
    clock = ManualClock()
    settings = msgspec.structs.replace(SETTINGS, idle_ms=900, idle_file_ms=1800)
    store = await LogStore.open(replace(runtime_on(disk), clock=clock), FOLDER, settings)
    logs = [
        await store.create_range(RangeKey(at, 0), start_offset=0, durability=level)
        for at, level in enumerate([Durability.SYNCED] * 3 + [Durability.WRITTEN] * 4)
    ]
    await append_to_all(logs[:3])  # makes the journal
    await turns(20)
    await append_to_all(logs)
    paths = [log_path(at) for at in range(3, 7)]
    size = MARK_BYTES + 100
    seen = len(disk.operations)
    for _ in range(4):
        clock.advance(0.9)
        await turns(100)
        if disk.size(paths[0]) > size:
            break
    assert [disk.size(path) for path in paths] == [size + MARK_BYTES] * 4
    operations = [(name, path) for name, path in disk.operations[seen:] if path in paths]
    assert sorted(operations) == sorted(
        (name, path) for name in ("sync", "write") for path in paths
    )
    for path in paths:
        assert operations.index(("sync", path)) < operations.index(("write", path))
    await append_to_all(logs[3:5])  # may be lost, and is no damage then
    await cut_power(disk, store)
    store = await open_store(disk, settings)
    assert store.statistics()["corrupt_spans"] == 0
    assert [len(await read_all(log)) >= 1 for log in logs_of(store, 7)] == [True] * 7
    assert len(await read_all(store.range(RangeKey(6, 0)))) == 1
    await store.close()


async def test_no_mark_tells_of_an_append_that_came_after_the_sync() -> None:
    disk = simulated_disk()
    store, _ = await open_ranges(disk, 3)
    key = RangeKey(9, 0)
    log = await store.create_range(key, start_offset=0, durability=Durability.WRITTEN)
    await append_to_all([log])
    log._writer.want_mark()  # as one that an append overtook: of these bytes nothing is synced
    await turns(50)
    assert disk.size(log_path(9)) == MARK_BYTES + 100
    await cut_power(disk, store)
    store = await open_store(disk, SETTINGS)
    assert store.statistics()["corrupt_spans"] == 0
    await store.close()


async def test_a_journal_of_another_size_is_replayed_and_made_anew() -> None:
    disk, written = await journaled_store(3)
    settings = msgspec.structs.replace(SETTINGS, journal_bytes=8192 + 2 * 65536)
    store = await open_store(disk, settings)
    assert store.statistics()["journal_replayed"] == 6
    logs = logs_of(store, 2)
    assert await read_all(logs[0]) == written
    for _ in range(60):
        await append_to_all(logs)
        await turns(20)
    assert store.statistics()["journal_laps"] == 0
    assert journal_groups(store) > 40
    expected = [await read_all(log) for log in logs]
    await cut_power(disk, store)
    store = await open_store(disk, settings)
    assert [await read_all(log) for log in logs_of(store, 2)] == expected
    await store.close()


# On the machine


async def test_many_ranges_on_real_threads(tmp_path: Path) -> None:
    settings = StorageSettings(
        segment_bytes_max=20_000, open_files_max=32, tail_cache_bytes=50_000, idle_ms=5,
        idle_file_ms=20, journal_files_min=2, journal_bytes=8192 + 2 * 65536,
        journal_start_writes=1,
    )  # fmt: skip
    store = await LogStore.open(system_runtime(), str(tmp_path), settings)
    logs = [await store.create_range(RangeKey(1, at), start_offset=0) for at in range(24)]

    async def work(at: int) -> list[bytes]:
        written: list[bytes] = []
        for _ in range(12):
            written += await append_many(logs[at], 1 + at % 5, size=1000)
            assert b"".join(await logs[at].read(0, 1)) == written[0]
        return written

    written = await asyncio.gather(*(work(at) for at in range(24)))
    async with asyncio.timeout(60):
        while not store.statistics()["journal_laps"]:  # its file may have come late
            more = await asyncio.gather(*(append_many(log, 1, size=1000) for log in logs))
            for mine, new in zip(written, more, strict=True):
                mine += new
    assert journal_groups(store) > 0
    await store.abort()
    store = await LogStore.open(system_runtime(), str(tmp_path), settings)
    assert [await read_all(store.range(RangeKey(1, at))) for at in range(24)] == written
    await store.close()
