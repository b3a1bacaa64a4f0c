"""Any damage to a sealed range, any power cut during its repair: nothing good is lost, and the
repair can be had in the end.

The real store runs on the simulated disk. Bits flip, files shrink and vanish; another replica's
batches are put in their place while the power may go before any operation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace.errors import CorruptionError, UnavailableError
from headrace.storage import LogStore, RangeKey, RangeLog, StorageSettings
from headrace.wire.sbp.records import split
from tests.simulator.runtime import SimulatedDisk, Simulation
from tests.unit.storage.support import joined, make_batch, read_all

HOST = "node"
FOLDER = "/data"
RANGE_FOLDER = f"{FOLDER}/streams/7/0"
KEY = RangeKey(7, 0)
SETTINGS = StorageSettings(
    segment_bytes_max=3000,
    preallocate_bytes_min=512,
    index_interval_bytes=300,
    idle_ms=20,
    tail_cache_bytes=0,
    open_files_max=2,
    min_free_bytes=0,
)
QUICK = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Harm:
    kind: str  # flip, shorten, lose, unindex
    file: float  # which one
    place: float  # where in it


harms = st.lists(
    st.builds(
        Harm,
        st.sampled_from(["flip", "flip", "flip", "shorten", "lose", "unindex"]),
        st.floats(0, 1, exclude_max=True),
        st.floats(0, 1, exclude_max=True),
    ),
    min_size=1,
    max_size=5,
)
sizes = st.lists(
    st.lists(st.sampled_from([60, 200, 999, 5000]), min_size=1, max_size=4), min_size=1, max_size=10
)


async def write(simulation: Simulation, groups: Sequence[Sequence[int]]) -> list[bytes]:
    store = await LogStore.open(simulation.runtime(HOST), FOLDER, SETTINGS)
    log = await store.create_range(KEY, start_offset=0)
    batches: list[bytes] = []
    for group in groups:
        appends: list[asyncio.Future[None]] = []
        for size in group:
            batch = make_batch(log.next_offset, size=size, fill=len(batches) + size)
            batches.append(joined(batch))
            appends.append(log.append(*batch))
        await asyncio.gather(*appends)
    await log.seal()
    await store.close()
    return batches


def inflict(disk: SimulatedDisk, harm: Harm) -> None:
    names = [name for name in disk.list(RANGE_FOLDER) if name.endswith(".log")]
    if not names:
        return
    path = f"{RANGE_FOLDER}/{names[int(harm.file * len(names))]}"
    position = int(harm.place * disk.size(path))
    if harm.kind == "flip" and disk.size(path):
        disk.flip_bit(path, position, 3)
    elif harm.kind == "shorten":
        file = disk.open(path)
        file.truncate(position)
        file.sync_data()
        file.close()
    elif harm.kind == "lose":
        disk.remove(path)
    elif harm.kind == "unindex":
        disk.remove(path.replace(".log", ".index"))
    disk.sync_folder(RANGE_FOLDER)


async def read_good(log: RangeLog, batches: Sequence[bytes]) -> set[int]:
    """Every batch is the one that was written, or refused; which ones are."""
    bad: set[int] = set()
    for offset, data in enumerate(batches):
        try:
            views = await log.read(offset, 1)
        except CorruptionError:
            bad.add(offset)
            continue
        assert next(split(views[0]))[1] == data
    return bad


async def repair(simulation: Simulation, batches: Sequence[bytes]) -> None:
    store = await LogStore.open(simulation.runtime(HOST), FOLDER, SETTINGS)
    log = store.range(KEY)
    await log.verify()
    for _, span in store.damaged():
        await log.repair(span, [memoryview(data) for data in batches[span.start : span.end]])
    assert (store.damaged(), await log.verify()) == ([], ())
    assert await read_all(log) == batches
    await store.close()


async def look(simulation: Simulation, batches: Sequence[bytes]) -> set[int]:
    store = await LogStore.open(simulation.runtime(HOST), FOLDER, SETTINGS)
    log = store.range(KEY)
    assert (log.sealed, log.end_offset) == (True, len(batches))
    bad = await read_good(log, batches)
    await store.abort()
    return bad


async def scenario(
    simulation: Simulation, groups: list[list[int]], harm: list[Harm], cuts: list[int]
) -> None:
    disk = simulation.disk(HOST)
    batches = await simulation.on(HOST, write(simulation, groups))
    for each in harm:
        inflict(disk, each)
    bad = await simulation.on(HOST, look(simulation, batches))
    for cut in cuts:
        disk.cut_before(cut)
        with suppress(UnavailableError):  # the power went
            await simulation.on(HOST, repair(simulation, batches))
        disk.cut_before(10**9)
        still_bad = await simulation.on(HOST, look(simulation, batches))
        assert still_bad <= bad, "something good was lost"
        bad = still_bad
    await simulation.on(HOST, repair(simulation, batches))
    assert await simulation.on(HOST, look(simulation, batches)) == set()


@QUICK
@example(  # the mark and the second batch: what lies between is found without the index too
    seed=0, groups=[[60, 60]], harm=[Harm("flip", 0.0, 0.0), Harm("flip", 0.0, 0.75)], cuts=[5]
)
@given(st.integers(0, 2**32), sizes, harms, st.lists(st.integers(0, 60), min_size=0, max_size=4))
def test_damage_is_repaired_whatever_happens_on_the_way(
    seed: int, groups: list[list[int]], harm: list[Harm], cuts: list[int]
) -> None:
    simulation = Simulation(seed)
    simulation.run(scenario(simulation, groups, harm, cuts))
