"""Stores with a small journal, for its tests."""

from __future__ import annotations

import asyncio

from headrace.storage import LogStore, RangeKey, RangeLog, StorageSettings
from headrace.storage.layout import format_base
from headrace.storage.segments.formats import MARK_BYTES
from tests.simulator.runtime import SimulatedDisk
from tests.unit.storage.support import (
    FOLDER,
    append_one,
    end_process,
    open_store,
    read_all,
    simulated_disk,
    turns,
)

JOURNAL = f"{FOLDER}/journal"
SETTINGS = StorageSettings(
    preallocate_bytes_min=512,
    idle_ms=3_600_000,
    min_free_bytes=0,
    journal_files_min=2,
    journal_bytes=8192 + 2 * 8192,
    journal_file_bytes_max=3000,
    journal_start_writes=1,
)


def log_path(stream_id: int, base: int = 0) -> str:
    return f"{FOLDER}/streams/{stream_id}/0/{format_base(base)}.log"


async def open_ranges(
    disk: SimulatedDisk, count: int, settings: StorageSettings = SETTINGS
) -> tuple[LogStore, list[RangeLog]]:
    """A store with a journal that is ready, and ranges with a batch each."""
    store = await open_store(disk, settings)
    logs = [await store.create_range(RangeKey(at, 0), start_offset=0) for at in range(count)]
    await append_to_all(logs)
    await turns(20)  # the first wide group has asked for the journal
    return store, logs


async def append_to_all(logs: list[RangeLog], *, size: int = 100) -> list[bytes]:
    appends = [append_one(log, size=size) for log in logs]
    await asyncio.gather(*(done for done, _ in appends))
    return [data for _, data in appends]


def logs_of(store: LogStore, count: int) -> list[RangeLog]:
    return [store.range(RangeKey(at, 0)) for at in range(count)]


def journal_groups(store: LogStore) -> int:
    return store.statistics()["journal_groups"]


async def journaled_store(groups: int) -> tuple[SimulatedDisk, list[bytes]]:
    """After kill -9, with so many groups of two records in the journal; range 0's batches."""
    disk = simulated_disk()
    store, logs = await open_ranges(disk, 2)
    for _ in range(groups):
        await append_to_all(logs)
    assert journal_groups(store) == groups
    written = await read_all(logs[0])
    await end_process(disk, store)
    return disk, written


RECORD = 88 + MARK_BYTES + 100
FIRST = 8192
