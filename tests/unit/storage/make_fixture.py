"""Makes `tests/fixtures/store-v1`, a data directory of format version 1.

    python -m tests.unit.storage.make_fixture

Run once, when version 1 was released; never again for that version. The next format version gets a
script and a folder of its own, and this folder shows that version 1 still opens.

    1/0, 1/1  synced and written, 40 batches over several segments, epoch 5
    2/0       the same, sealed and trimmed to 31
    3/0       five batches, the second one damaged
    4/0       three batches and a torn fourth
"""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path

from headrace.runtime.system import system_runtime
from headrace.storage import LogStore, RangeKey, RangeLog, StorageSettings
from headrace.storage.segments.formats import MARK_BYTES
from headrace.wire.sbp.messages import Durability
from tests.simulator.runtime import SimulatedRandom
from tests.unit.storage.support import joined, make_batch

FOLDER = Path(__file__).parents[2] / "fixtures" / "store-v1"
STORE_UUID = str(SimulatedRandom("store-v1").uuid())
_SETTINGS = StorageSettings(segment_bytes_max=1500, index_interval_bytes=300, idle_ms=10**6)


def batches(count: int) -> list[bytes]:
    return [joined(make_batch(offset, timestamp=1000 * offset)) for offset in range(count)]


async def fill(log: RangeLog, count: int) -> None:
    for _ in range(count):  # each in a group of its own
        await log.append(*make_batch(log.next_offset, timestamp=1000 * log.next_offset))


async def make(folder: str) -> None:
    runtime = replace(system_runtime(), random=SimulatedRandom("store-v1"))
    store = await LogStore.open(runtime, folder, _SETTINGS)
    for level in Durability:
        key = RangeKey(1, int(level))
        await fill(
            await store.create_range(key, start_offset=0, writer_epoch=5, durability=level), 40
        )
    sealed = await store.create_range(RangeKey(2, 0), start_offset=0)
    await fill(sealed, 40)
    await sealed.trim(31)
    await sealed.seal()
    await fill(await store.create_range(RangeKey(3, 0), start_offset=0), 5)
    await fill(await store.create_range(RangeKey(4, 0), start_offset=0), 4)
    await asyncio.sleep(0.5)  # index files are saved in the background
    await store.abort()


def damage(folder: Path) -> None:
    first = f"{0:020d}.log"
    path = folder / "streams" / "3" / "0" / first
    data = bytearray(path.read_bytes())
    data[(MARK_BYTES + 100) + MARK_BYTES + 70] ^= 4
    path.write_bytes(data)
    path = folder / "streams" / "4" / "0" / first
    os.truncate(path, path.stat().st_size - 30)
    (folder / "lock").unlink()


def main() -> None:
    if FOLDER.exists():
        shutil.rmtree(FOLDER)
    asyncio.run(make(str(FOLDER)))
    damage(FOLDER)


if __name__ == "__main__":
    main()
