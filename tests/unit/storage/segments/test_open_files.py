"""What the store lets go of in the kernel's page cache, and when."""

from __future__ import annotations

from headrace.storage import RangeKey, StorageSettings
from headrace.storage.segments.open_files import STEP_BYTES
from tests.unit.storage.support import (
    FOLDER,
    append_many,
    append_one,
    open_store,
    read_all,
    simulated_disk,
    turns,
)

LIMIT = 3 * STEP_BYTES
SETTINGS = StorageSettings(page_cache_bytes=LIMIT, idle_ms=3_600_000, min_free_bytes=0)
A, B = RangeKey(7, 0), RangeKey(8, 0)


def folder_of(path: str) -> str:
    return path.removeprefix(f"{FOLDER}/streams/").partition("/")[0]


async def test_what_was_written_longest_ago_is_let_go_over_all_ranges() -> None:
    disk = simulated_disk()
    store = await open_store(disk, SETTINGS)
    logs = [await store.create_range(key, start_offset=0) for key in (A, B)]
    written = []
    for i in range(8):
        written += await append_many(logs[i % 2], 1, records=1, size=STEP_BYTES)
        await turns(20)
        kept = 2 if i else 1  # a step is a bit more than a third of the limit
        assert len(disk.dropped) == i + 1 - kept
    assert [folder_of(path) for path, _, _ in disk.dropped] == ["7", "8"] * 3
    for key in ("7", "8"):  # without a gap, from the start of the file
        spans = [(at, size) for path, at, size in disk.dropped if folder_of(path) == key]
        assert spans[0][0] == 0
        assert [at for at, _ in spans[1:]] == [at + size for at, size in spans[:-1]]
        assert all(STEP_BYTES < size < STEP_BYTES + 1000 for _, size in spans)
    assert await read_all(logs[0]) + await read_all(logs[1]) == written[::2] + written[1::2]
    await store.close()


async def test_small_writes_are_let_go_together() -> None:
    disk = simulated_disk()
    store = await open_store(disk, SETTINGS)
    log = await store.create_range(A, start_offset=0)
    for _ in range(4 * 64 + 8):
        done, _ = append_one(log, records=1, size=STEP_BYTES // 64)
        await done
    await turns(20)
    assert len(disk.dropped) == 2
    assert all(size >= STEP_BYTES for _, _, size in disk.dropped)
    await store.close()


async def test_what_was_removed_is_not_looked_for() -> None:
    disk = simulated_disk()
    store = await open_store(disk, SETTINGS)
    gone = await store.create_range(A, start_offset=0)
    await append_many(gone, 1, records=1, size=STEP_BYTES)
    await store.delete_stream(A.stream_id)
    log = await store.create_range(B, start_offset=0)
    for _ in range(4):
        await append_many(log, 1, records=1, size=STEP_BYTES)
        await turns(20)
    assert [folder_of(path) for path, _, _ in disk.dropped] == ["8", "8"]
    await store.close()


async def test_without_a_limit_the_kernel_decides() -> None:
    disk = simulated_disk()
    store = await open_store(
        disk, StorageSettings(page_cache_bytes=0, idle_ms=3_600_000, min_free_bytes=0)
    )
    log = await store.create_range(A, start_offset=0)
    await append_many(log, 8, records=1, size=STEP_BYTES)
    await turns(20)
    assert disk.dropped == []
    await store.close()


async def test_a_file_that_is_closed_is_opened_for_it() -> None:
    disk = simulated_disk()
    settings = StorageSettings(
        page_cache_bytes=31 * STEP_BYTES, open_files_max=16, idle_ms=3_600_000, min_free_bytes=0
    )
    store = await open_store(disk, settings)
    for number in range(40):
        log = await store.create_range(RangeKey(number, 0), start_offset=0)
        await append_many(log, 1, records=1, size=STEP_BYTES)
        await turns(20)
    assert [folder_of(path) for path, _, _ in disk.dropped] == [str(n) for n in range(10)]
    await store.close()
