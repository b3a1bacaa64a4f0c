"""Group commit under a disk whose syncs a test holds back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.runtime.system import system_runtime
from headrace.storage import LogStore, RangeKey, StorageSettings
from headrace.storage.segments.segment import carry_out
from headrace.wire.sbp.messages import Durability
from tests.unit.storage.support import (
    FOLDER,
    KEY,
    SMALL,
    InlineExecutor,
    append_many,
    append_one,
    open_store,
    read_all,
    runtime_on,
    simulated_disk,
    turns,
)


class GatedExecutor(InlineExecutor):
    """Holds back writes that include a sync until the gate opens."""

    gate: asyncio.Event

    async def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if function is carry_out and any(write.sync for write in args[1]):
            await self.gate.wait()
        return await super().run(function, *args, **kwargs)


async def gated_store() -> tuple[LogStore, asyncio.Event]:
    gate = GatedExecutor.gate = asyncio.Event()
    runtime = replace(runtime_on(simulated_disk()), executor=GatedExecutor)
    return await LogStore.open(runtime, FOLDER, SMALL), gate


async def test_what_is_not_synced_is_neither_acknowledged_nor_readable() -> None:
    store, gate = await gated_store()
    log = await store.create_range(KEY, start_offset=0)
    done = asyncio.ensure_future(append_one(log)[0])
    await turns(50)
    assert not done.done()
    assert (log.next_offset, log.durable_offset) == (1, 0)
    assert await log.read(0, 1000) == []
    gate.set()
    await done
    assert len(await log.read(0, 1000)) == 1
    await store.close()


async def test_while_one_group_syncs_the_next_accumulates() -> None:
    store, gate = await gated_store()
    log = await store.create_range(KEY, start_offset=0)
    waits = []
    for _ in range(10):
        waits.append(asyncio.ensure_future(append_one(log)[0]))
        await turns(10)
    gate.set()
    await asyncio.gather(*waits)
    assert store.statistics()["groups"] == 2
    await store.close()


async def test_a_group_is_bounded_over_all_ranges() -> None:
    settings = StorageSettings(group_bytes_max=500, idle_ms=10**6, min_free_bytes=0)
    store = await open_store(simulated_disk(), settings)
    logs = [await store.create_range(RangeKey(1, at), start_offset=0) for at in range(4)]
    waits = [append_one(log, size=250)[0] for log in logs for _ in range(2)]
    await asyncio.gather(*waits)
    statistics = store.statistics()
    assert (statistics["groups"], statistics["file_writes"]) == (4, 4)
    await store.close()


async def test_a_written_range_does_not_wait_for_another_range_s_sync() -> None:
    store, gate = await gated_store()
    synced = await store.create_range(KEY, start_offset=0)
    written = await store.create_range(
        RangeKey(8, 0), start_offset=0, durability=Durability.WRITTEN
    )
    held = asyncio.ensure_future(append_one(synced)[0])
    await turns(50)
    await append_many(written, 3)
    assert not held.done()
    gate.set()
    await held
    await store.close()


async def test_many_ranges_on_real_threads(tmp_path: Path) -> None:
    settings = StorageSettings(
        segment_bytes_max=20_000, open_files_max=8, tail_cache_bytes=50_000, idle_ms=5
    )
    store = await LogStore.open(system_runtime(), str(tmp_path), settings)
    logs = [
        await store.create_range(RangeKey(1, at), start_offset=0, durability=Durability(at % 2))
        for at in range(24)
    ]

    async def work(at: int) -> list[bytes]:
        written: list[bytes] = []
        for _ in range(12):
            written += await append_many(logs[at], 1 + at % 5, size=1000)
            assert b"".join(await logs[at].read(0, 1)) == written[0]
        return written

    written = await asyncio.gather(*(work(at) for at in range(24)))
    assert [await read_all(log) for log in logs] == written
    assert store.statistics()["open_files"] <= 8
    await store.close()
    store = await LogStore.open(system_runtime(), str(tmp_path), settings)
    assert [await read_all(store.range(RangeKey(1, at))) for at in range(24)] == written
    await store.close()


async def test_a_bug_in_a_group_fails_its_ranges_and_nobody_waits_for_ever() -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    disk.free_bytes = broken  # type: ignore[method-assign, assignment]  # no StorageError: a bug
    (outcome,) = await asyncio.gather(append_one(log)[0], return_exceptions=True)
    assert "ZeroDivisionError" in str(outcome)
    assert log.failed
    await store.close()


async def test_a_group_is_bounded_in_files() -> None:
    """Its files are open while it is written: ten thousand ranges at once must not need as many."""
    settings = StorageSettings(open_files_max=16, idle_ms=10**6, min_free_bytes=0)
    store = await open_store(simulated_disk(), settings)
    logs = [await store.create_range(RangeKey(1, at), start_offset=0) for at in range(40)]
    await asyncio.gather(*(append_one(log)[0] for log in logs))
    statistics = store.statistics()
    assert (statistics["groups"], statistics["file_writes"]) == (10, 40)
    assert statistics["open_files"] <= 16
    await store.close()
