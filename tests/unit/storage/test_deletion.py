"""A single range goes while its stream stays: all or nothing in the end, and its key is free."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from msgspec.structs import replace

from headrace.errors import RangeNotFoundError, StorageError
from headrace.storage import RangeKey
from tests.simulator.runtime import PowerCut
from tests.unit.storage.support import (
    FOLDER,
    KEY,
    SMALL,
    append_many,
    cut_power,
    open_store,
    read_all,
    simulated_disk,
    turns,
)


async def test_deleting_a_range_is_all_or_nothing_in_the_end() -> None:
    for cut in range(14):
        disk = simulated_disk(seed=cut)
        store = await open_store(disk)
        log = await store.create_range(KEY, start_offset=0)
        written = await append_many(log, 30)
        other = await store.create_range(RangeKey(7, 1), start_offset=30)
        kept = await append_many(other, 5)
        disk.cut_before(cut)
        finished = False
        with suppress(PowerCut):
            await store.delete_range(KEY)
            finished = True
        await cut_power(disk, store)
        store = await open_store(disk)
        if disk.exists(f"{FOLDER}/streams/7/0"):
            assert not finished
            assert await read_all(store.range(KEY)) == written
        else:
            with pytest.raises(RangeNotFoundError):
                store.range(KEY)
        assert await read_all(store.range(RangeKey(7, 1))) == kept
        await store.close()


async def test_a_deleted_range_leaves_nothing_behind_and_may_come_back() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0)
    await append_many(log, 5)
    reader = asyncio.ensure_future(log.wait_for(5))
    await asyncio.gather(store.delete_range(KEY), store.delete_range(KEY))
    await reader
    with pytest.raises(RangeNotFoundError):
        await log.read(0, 100)
    with pytest.raises(RangeNotFoundError):
        store.range(KEY)
    await store.delete_range(KEY)
    assert disk.list(f"{FOLDER}/streams/7") == []
    log = await store.create_range(KEY, start_offset=3)
    written = await append_many(log, 2)
    await cut_power(disk, store)
    store = await open_store(disk)
    assert await read_all(store.range(KEY)) == written
    await store.delete_range(KEY)
    await store.close()
    store = await open_store(disk)
    assert disk.list(f"{FOLDER}/streams") == []
    await store.close()


async def test_a_range_that_cannot_be_read_can_be_deleted_and_made_anew() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    await append_many(await store.create_range(KEY, start_offset=0), 5)
    await store.close()
    disk.flip_bit(f"{FOLDER}/streams/7/0/range.json", 5)
    store = await open_store(disk)
    assert store.unreadable() == [KEY]
    await store.delete_range(KEY)
    assert store.unreadable() == []
    log = await store.create_range(KEY, start_offset=0)
    assert (log.next_offset, log.segments()) == (0, [])
    await store.close()


@pytest.mark.parametrize("operation", ["write_atomic", "remove", "sync_folder", "remove_tree"])
async def test_a_deletion_that_failed_is_tried_again(operation: str) -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    await append_many(await store.create_range(KEY, start_offset=0), 30)
    await turns(20)  # the index of the first segment is saved
    disk.fail_next(operation)
    with pytest.raises(StorageError):
        await store.delete_range(KEY)
    await store.delete_range(KEY)
    assert disk.list(f"{FOLDER}/streams/7") == []
    await store.close()


async def test_a_range_and_its_stream_may_be_deleted_at_once() -> None:
    for delay in range(8):
        disk = simulated_disk()
        store = await open_store(disk)
        for index in range(2):
            await append_many(await store.create_range(RangeKey(7, index), start_offset=0), 5)
        deletion = asyncio.ensure_future(store.delete_range(KEY))
        await turns(delay)
        with suppress(RangeNotFoundError):
            await store.create_range(KEY, start_offset=0)
        await store.delete_stream(7)
        with suppress(RangeNotFoundError):
            await deletion
        assert (store.ranges(), disk.list(f"{FOLDER}/streams")) == ([], [])
        await store.close()


async def test_the_journal_does_not_write_into_the_successor_of_a_deleted_range() -> None:
    journaled = replace(SMALL, journal_files_min=1, journal_start_writes=1)
    for seed in range(5):
        disk = simulated_disk(seed)
        store = await open_store(disk, journaled)
        log = await store.create_range(KEY, start_offset=0)
        for _ in range(5):
            await append_many(log, 2, size=300)
        await store.delete_range(KEY)
        log = await store.create_range(KEY, start_offset=0)
        written = await append_many(log, 1, size=2000)
        await cut_power(disk, store)
        store = await open_store(disk, journaled)
        assert await read_all(store.range(KEY)) == written
        assert await store.range(KEY).verify() == ()
        await store.close()
