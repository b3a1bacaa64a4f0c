"""A disk that is full or fails: the range stops, what was acknowledged stays."""

from __future__ import annotations

import asyncio

import pytest

from headrace.errors import DiskFullError, SealedError, StorageError
from headrace.storage import RangeKey, StorageSettings
from headrace.wire.sbp.messages import Durability
from tests.simulator.runtime import SimulatedDisk, SimulatedRandom
from tests.unit.storage.support import (
    FOLDER,
    KEY,
    SMALL,
    append_many,
    append_one,
    cut_power,
    end_process,
    open_store,
    read_all,
    simulated_disk,
    turns,
)

LEVELS = [Durability.SYNCED, Durability.WRITTEN]


@pytest.mark.parametrize("level", LEVELS)
async def test_a_full_disk_fails_the_append_and_keeps_the_rest(level: Durability) -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0, durability=level)
    written = await append_many(log, 3)
    waiter = asyncio.ensure_future(log.wait_for(3))
    disk.full = True
    failing, _ = append_one(log, size=5000)
    await asyncio.sleep(0)  # the group is on its way
    behind, _ = append_one(log)
    with pytest.raises(DiskFullError):
        await failing
    with pytest.raises((SealedError, DiskFullError)):
        await behind
    with pytest.raises(SealedError):
        append_one(log)
    await waiter
    assert (log.failed, log.next_offset, log.durable_offset) == (True, 3, 3)
    assert await read_all(log) == written
    assert store.statistics()["queued_bytes"] == 0
    disk.full = False
    assert await log.seal() == 3
    assert await log.seal() == 3
    await store.close()
    store = await open_store(disk)
    assert await read_all(store.range(KEY)) == written
    await store.close()


async def test_later_appends_in_flight_get_sealed_not_a_gap() -> None:
    disk = simulated_disk()
    settings = StorageSettings(group_bytes_max=100, idle_ms=10**6, min_free_bytes=0)
    store = await open_store(disk, settings)  # one batch to a group
    log = await store.create_range(KEY, start_offset=0)
    await append_many(log, 1)
    disk.fail_next("write")
    outcomes = await asyncio.gather(*(append_one(log)[0] for _ in range(4)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StorageError, *[SealedError] * 3]
    assert log.next_offset == 1
    await store.close()


async def test_the_reserve_is_for_control_state_alone() -> None:
    disk = simulated_disk()
    settings = StorageSettings(min_free_bytes=1 << 20, preallocate_bytes_min=4096, idle_ms=10**6)
    store = await open_store(disk, settings)
    topic = await store.create_range(KEY, start_offset=0)
    state = await store.create_range(RangeKey(8, 0), start_offset=0, reserved=True)
    disk.free = (1 << 20) + 5000
    await append_many(topic, 1, size=4000)
    disk.free = (1 << 20) - 1
    with pytest.raises(DiskFullError):
        await append_many(topic, 1, size=4000)
    written = await append_many(state, 3, size=4000)
    await topic.seal()  # metadata may always be written
    await cut_power(disk, store)
    store = await open_store(disk, settings)
    state = store.range(RangeKey(8, 0))
    written += await append_many(state, 3, size=4000)  # it is still reserved
    assert await read_all(state) == written
    await store.close()


async def test_the_reserve_is_kept_when_others_take_space_at_the_same_time() -> None:
    def take_space(operation: str, path: str) -> None:
        if operation == "allocate":
            disk.free -= 9000  # this file's, and another's

    disk = SimulatedDisk(SimulatedRandom(0), on_operation=take_space)
    disk.free = (1 << 20) + 10_000
    settings = StorageSettings(min_free_bytes=1 << 20, preallocate_bytes_min=4096, idle_ms=10**6)
    store = await open_store(disk, settings)
    topic = await store.create_range(KEY, start_offset=0)
    written = await append_many(topic, 1, size=3000)
    with pytest.raises(DiskFullError):
        await append_many(topic, 1, size=3000)
    disk.free = (1 << 20) + 5000
    other = await store.create_range(RangeKey(8, 0), start_offset=0)
    with pytest.raises(DiskFullError):
        await append_many(other, 1, size=3000)
    allocated = max(at for at, each in enumerate(disk.operations) if each[0] == "allocate")
    assert disk.operations[allocated + 1][0] == "truncate"  # given back
    assert await topic.seal() == 1
    assert await read_all(topic) == written
    await store.close()


async def test_a_nearly_full_disk_gives_what_is_needed_instead_of_the_double() -> None:
    disk = simulated_disk()
    settings = StorageSettings(min_free_bytes=0, preallocate_bytes_min=4096, idle_ms=10**6)
    store = await open_store(disk, settings)
    log = await store.create_range(KEY, start_offset=0)
    await append_many(log, 1, size=60_000)
    disk.free = 10_000  # doubling would take 60 KiB
    await append_many(log, 1, size=8_000)
    disk.free = 1_000
    with pytest.raises(DiskFullError):
        await append_many(log, 1, size=8_000)
    await store.close()


@pytest.mark.parametrize("operation", ["write", "sync", "create", "allocate", "sync_folder"])
async def test_a_failed_operation_is_never_acknowledged(operation: str) -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0)
    disk.fail_next(operation)
    with pytest.raises(StorageError):
        await append_many(log, 2)
    assert (log.durable_offset, log.failed) == (0, True)
    assert await log.read(0, 100) == []
    other = await store.create_range(RangeKey(8, 0), start_offset=0)
    await append_many(other, 2)  # nobody else's business
    await store.close()
    assert not disk.exists(f"{FOLDER}/clean-stop")


async def test_after_a_failed_sync_recovery_writes_the_bytes_again() -> None:
    """The kernel counts the pages of a failed sync as clean: a second sync would lose them."""
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0)
    written = await append_many(log, 1)
    disk.fail_next("sync")
    failing, data = append_one(log)
    with pytest.raises(StorageError):
        await failing
    await end_process(disk, store)  # the bytes are still in the page cache
    store = await open_store(disk)
    found = await read_all(store.range(KEY))
    assert found == [*written, data]
    await cut_power(disk, store)
    store = await open_store(disk)
    assert await read_all(store.range(KEY)) == found
    await store.close()


async def test_a_failed_flush_of_a_written_range_stops_it() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0, durability=Durability.WRITTEN)
    written = await append_many(log, 2)
    disk.fail_next("sync")
    with pytest.raises(StorageError):
        await log.sync()
    assert log.failed
    with pytest.raises(SealedError):
        append_one(log)
    assert await read_all(log) == written
    assert await log.seal() == 2
    await store.close()


async def test_a_failed_sync_before_a_roll_stops_the_range() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0, durability=Durability.WRITTEN)
    await append_many(log, 1, size=1500)
    disk.fail_next("sync")
    with pytest.raises(SealedError):
        await append_many(log, 1, size=1500)
    assert (log.failed, log.next_offset) == (True, 1)
    await store.close()


async def test_a_seal_that_cannot_be_persisted_refuses_appends_and_can_be_repeated() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0)
    await append_many(log, 2)
    disk.fail_next("write_atomic")
    with pytest.raises(StorageError):
        await log.seal()
    assert log.end_offset == -1
    with pytest.raises(SealedError):
        append_one(log)
    assert await log.seal() == 2
    assert log.end_offset == 2
    await store.close()


async def test_a_caller_that_leaves_does_not_leave_a_gap() -> None:
    store = await open_store(simulated_disk())
    log = await store.create_range(KEY, start_offset=0)
    appends = [append_one(log) for _ in range(3)]
    waits = [asyncio.ensure_future(done) for done, _ in appends]
    waits[1].cancel()
    await asyncio.gather(waits[0], waits[2])
    assert await read_all(log) == [data for _, data in appends]
    await store.close()


async def test_a_cancelled_seal_goes_on_to_its_end() -> None:
    disk = simulated_disk()
    store = await open_store(disk, SMALL)
    log = await store.create_range(KEY, start_offset=0)
    await append_many(log, 2)
    sealing = asyncio.ensure_future(log.seal())
    await asyncio.sleep(0)
    sealing.cancel()
    await asyncio.gather(sealing, return_exceptions=True)
    assert await log.seal() == 2
    await store.close()
    store = await open_store(disk)
    assert store.range(KEY).sealed
    await store.close()


async def test_a_trim_that_cannot_be_persisted_changes_nothing() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0)
    written = await append_many(log, 40)
    segments = log.segments()
    await turns(50)  # the indexes of closed segments are saved
    disk.fail_next("write_atomic")
    with pytest.raises(StorageError):
        await log.trim(39)
    assert (log.start_offset, log.segments()) == (0, segments)
    assert await read_all(log) == written
    await store.close()


async def test_a_segment_that_a_failed_write_left_behind_goes_with_the_seal() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0)
    written = await append_many(log, 1, size=1900)
    disk.fail_next("sync_folder")  # of the second segment, whose bytes are written by then
    with pytest.raises(StorageError):
        await append_many(log, 1, size=1900)
    folder = f"{FOLDER}/streams/7/0"
    assert disk.exists(f"{folder}/{1:020d}.log")
    assert await log.seal() == 1
    await store.close()
    store = await open_store(disk)
    log = store.range(KEY)
    assert (log.end_offset, await read_all(log)) == (1, written)
    assert not disk.exists(f"{folder}/{1:020d}.log")
    await store.close()


@pytest.mark.parametrize("attachment", [None, b"producers"])
async def test_a_range_whose_creation_failed_at_its_last_step_can_be_made_again(
    attachment: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is in its place and the sync of its folder fails. It used to be in the way of the
    range until the node was restarted: its stream could be neither written nor sealed."""
    disk = simulated_disk()
    store = await open_store(disk)
    write = disk.write_atomic

    def fail_late(path: str, data: bytes) -> None:
        write(path, data)
        if path.endswith("range.json"):
            raise StorageError("the folder was not synced", path=path)

    monkeypatch.setattr(disk, "write_atomic", fail_late)
    with pytest.raises(StorageError):
        await store.create_range(KEY, start_offset=40, attachment=attachment)
    monkeypatch.undo()
    log = await store.create_range(KEY, start_offset=50, attachment=attachment)
    assert log.start_offset == 50, "as it is wanted now"
    assert await log.attachment() == attachment
    await append_many(log, 1)
    await store.close()
    store = await open_store(disk)
    assert (store.range(KEY).start_offset, store.range(KEY).durable_offset) == (50, 51)
    await store.close()
