"""Makes `tests/fixtures/store-v2`, a data directory of format version 2: one with a journal.

    python -m tests.unit.storage.make_fixture_v2

Run once, when version 2 was made; never again for that version.

    0/0 … 2/0  four batches each: the first synced directly, three through the journal; 1/0 has lost
               the last one since
"""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path

from headrace.runtime.system import system_runtime
from headrace.storage import LogStore, RangeKey, StorageSettings
from headrace.storage.segments.formats import MARK_BYTES
from tests.simulator.runtime import SimulatedRandom
from tests.unit.storage.support import make_batch

FOLDER = Path(__file__).parents[2] / "fixtures" / "store-v2"
STORE_UUID = str(SimulatedRandom("store-v2").uuid())
RANGES = 3
_SETTINGS = StorageSettings(
    idle_ms=10**6, journal_files_min=RANGES, journal_bytes=8192 + 2 * 65536, journal_start_writes=1
)


async def make(folder: str) -> None:
    runtime = replace(system_runtime(), random=SimulatedRandom("store-v2"))
    store = await LogStore.open(runtime, folder, _SETTINGS)
    logs = [await store.create_range(RangeKey(at, 0), start_offset=0) for at in range(RANGES)]
    for number in range(4):
        if number == 1:
            await asyncio.sleep(0.2)  # the first group has asked for the journal
        appends = [log.append(*make_batch(number, timestamp=1000 * number)) for log in logs]
        await asyncio.gather(*appends)
    assert store.statistics()["journal_groups"] == 3
    await store.abort()


def damage(folder: Path) -> None:
    path = folder / "streams" / "1" / "0" / f"{0:020d}.log"
    os.truncate(path, path.stat().st_size - (MARK_BYTES + 100))
    (folder / "lock").unlink()


def main() -> None:
    if FOLDER.exists():
        shutil.rmtree(FOLDER)
    asyncio.run(make(str(FOLDER)))
    damage(FOLDER)


if __name__ == "__main__":
    main()
