"""Cut the power at any byte, reopen: what was acknowledged is there, nothing else is invented.

The real store runs on the simulated disk. A plan of appends, syncs, seals, trims and pauses is
drawn; the power goes at a drawn byte or operation, and of what was not synced any subset of pages
survives. A model on the side remembers what was submitted and what was promised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import CorruptionError, StateError, UnavailableError
from headrace.storage import LogStore, RangeKey, RangeLog, RangeState, StorageSettings
from headrace.storage.segments.formats import MARK_BYTES
from headrace.wire.sbp.messages import Durability
from headrace.wire.sbp.records import split
from tests.simulator.disk import SimulatedFile
from tests.simulator.runtime import SimulatedDisk, Simulation
from tests.unit.storage.support import joined, make_batch, read_all

HOST = "node"
FOLDER = "/data"
SETTINGS = StorageSettings(
    segment_bytes_max=3000,
    preallocate_bytes_min=512,
    index_interval_bytes=300,
    idle_ms=20,
    idle_file_ms=60,
    idle_checkpoint_bytes=800,
    checkpoint_bytes=2500,
    tail_cache_bytes=1500,
    journal_files_min=0,
    open_files_max=2,
    commit_threads=3,
    min_free_bytes=0,
)
JOURNALED = msgspec.structs.replace(
    SETTINGS,
    open_files_max=8,  # two files to a group
    idle_file_ms=100,  # the journal is settled when it was quiet for so long
    journal_files_min=1,
    journal_bytes=8192 + 2 * 8192,  # so that generations are used again
    journal_file_bytes_max=3000,
    journal_start_writes=1,
)
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Append:
    range: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Act:
    name: str  # settle, sync, seal, trim
    range: int
    share: float = 0.0


@dataclass(frozen=True)
class Pause:
    ms: int


Step = Append | Act | Pause

steps = st.one_of(
    st.builds(
        Append,
        st.integers(0, 2),
        st.lists(st.sampled_from([60, 200, 999, 5000]), min_size=1, max_size=5).map(tuple),
    ),
    st.builds(
        Act,
        st.sampled_from(["settle", "settle", "sync", "trim", "seal"]),
        st.integers(0, 2),
        st.floats(0, 1),
    ),
    st.builds(Pause, st.sampled_from([1, 50])),
)
plans = st.lists(steps, min_size=1, max_size=25)
levels = st.lists(st.sampled_from(Durability), min_size=1, max_size=3)
cuts = st.one_of(
    st.tuples(st.just("bytes"), st.integers(1, 30_000)),
    st.tuples(st.just("operations"), st.integers(0, 150)),
    st.just(("end", 0)),
)


@dataclass
class Promise:
    """What one range was asked to do, and what it answered."""

    level: Durability
    created: bool = False
    submitted: dict[int, bytes] = field(default_factory=dict)
    kept_end: int = 0  # durable by an answer: acknowledged as synced, or synced on request
    start: int = 0
    start_asked: int = 0
    sealed_end: int | None = None

    def durable(self, end: int) -> None:
        self.kept_end = max(self.kept_end, end)


async def drive(
    simulation: Simulation,
    promises: list[Promise],
    plan: Iterable[Step],
    storage: StorageSettings,
) -> None:
    runtime = simulation.runtime(HOST)
    store = await LogStore.open(runtime, FOLDER, storage)
    logs: list[RangeLog] = []
    for index, promise in enumerate(promises):
        key = RangeKey(7, index)
        logs.append(await store.create_range(key, start_offset=0, durability=promise.level))
        promise.created = True
    waiting: list[list[asyncio.Task[None]]] = [[] for _ in logs]
    for step in plan:
        if isinstance(step, Pause):
            await runtime.clock.sleep(step.ms / 1000)
            continue
        at = step.range % len(logs)
        if isinstance(step, Append):
            submit(logs[at], promises[at], step.sizes, waiting[at])
        else:
            await act(logs[at], promises[at], step, waiting[at])
    for tasks in waiting:
        await asyncio.gather(*tasks)


def submit(
    log: RangeLog, promise: Promise, sizes: Iterable[int], waiting: list[asyncio.Task[None]]
) -> None:
    for number, size in enumerate(sizes):
        offset = log.next_offset
        batch = make_batch(offset, records=1 + number % 3, size=size, fill=size + number + offset)
        data = joined(batch)
        try:
            done = log.append(*batch)
        except StateError:
            assert promise.sealed_end is not None
            return
        promise.submitted[offset] = data
        waiting.append(asyncio.ensure_future(acknowledged(promise, log.next_offset, done)))


async def acknowledged(promise: Promise, end: int, done: object) -> None:
    try:
        await done  # type: ignore[misc]  # an Awaitable, whatever its class
    except StateError:  # refused by a seal
        return
    if promise.level is Durability.SYNCED:
        promise.durable(end)


async def act(
    log: RangeLog, promise: Promise, step: Act, waiting: list[asyncio.Task[None]]
) -> None:
    if step.name == "settle":
        await asyncio.gather(*waiting)
    elif step.name == "sync":
        target = log.next_offset
        await log.sync()
        promise.durable(target)
    elif step.name == "seal":
        promise.sealed_end = -1
        promise.sealed_end = await log.seal()
        promise.durable(promise.sealed_end)
    else:
        target = int(log.durable_offset * step.share)
        promise.start_asked = max(promise.start_asked, target)
        await log.trim(target)
        promise.start = max(promise.start, target)


def check_recovered(promise: Promise, log: RangeLog, batches: list[bytes]) -> None:
    state = log.state()
    assert state.corrupt == ()
    assert state.start in {promise.start, promise.start_asked}
    assert state.durability is promise.level
    if promise.sealed_end is None:
        assert not state.sealed
    elif promise.sealed_end >= 0:
        assert (state.sealed, state.end) == (True, promise.sealed_end)
    assert state.next_offset >= promise.kept_end, "an acknowledged batch is gone"
    offset = state.start
    for data in batches:
        ((header, _),) = split(data)
        assert header.base_offset <= offset < header.next_offset
        assert promise.submitted[header.base_offset] == data, "a batch that nobody sent"
        offset = header.next_offset
    assert offset == state.next_offset


async def recover(
    simulation: Simulation, promises: list[Promise], storage: StorageSettings
) -> tuple[LogStore, list[RangeState], list[list[bytes]]]:
    async def on_host() -> tuple[LogStore, list[RangeState], list[list[bytes]]]:
        store = await LogStore.open(simulation.runtime(HOST), FOLDER, storage)
        contents: list[list[bytes]] = []
        for index, promise in enumerate(promises):
            if promise.created:
                log = store.range(RangeKey(7, index))
                contents.append(await read_all(log, max_bytes=2000))
                check_recovered(promise, log, contents[-1])
        created = [RangeKey(7, index) for index, each in enumerate(promises) if each.created]
        return store, [store.range(key).state() for key in created], contents

    return await simulation.on(HOST, on_host())


async def scenario(
    simulation: Simulation,
    promises: list[Promise],
    plan: list[Step],
    cut: tuple[str, int],
    recovery_cut: int,
    storage: StorageSettings,
) -> None:
    disk = simulation.disk(HOST)
    plan_the_cut(disk, cut)
    try:
        await simulation.on(HOST, drive(simulation, promises, plan, storage))
        simulation.crash(HOST)
    except UnavailableError:
        pass
    disk.cut_before(recovery_cut)
    try:
        await recover(simulation, promises, storage)
        simulation.crash(HOST, power_cut=False)
    except UnavailableError:
        pass
    disk.cut_before(10**9)
    store, states, contents = await recover(simulation, promises, storage)
    for index, promise in enumerate(promises):
        if promise.created:
            await continue_range(simulation, store.range(RangeKey(7, index)), promise)
    await simulation.on(HOST, store.close())
    store, again, longer = await recover(simulation, promises, storage)
    assert store.clean
    for before, after in zip(states, again, strict=True):
        assert before.start == after.start
        assert (before.sealed, before.end) == (after.sealed, after.end)
        assert after.truncated_bytes == 0
    for less, more in zip(contents, longer, strict=True):
        assert more[: len(less)] == less
    await simulation.on(HOST, store.close())


def plan_the_cut(disk: SimulatedDisk, cut: tuple[str, int]) -> None:
    if cut[0] == "bytes":
        disk.cut_after(cut[1])
    elif cut[0] == "operations":
        disk.cut_before(cut[1])


async def continue_range(simulation: Simulation, log: RangeLog, promise: Promise) -> None:
    """The next append goes on where recovery ended; what was lost is not expected any more."""
    promise.submitted = {
        offset: data for offset, data in promise.submitted.items() if offset < log.next_offset
    }
    waiting: list[asyncio.Task[None]] = []

    async def on_host() -> None:
        if log.sealed:
            promise.sealed_end = log.end_offset
            return
        submit(log, promise, [100, 2000, 300], waiting)
        await log.sync()
        await asyncio.gather(*waiting)

    await simulation.on(HOST, on_host())
    promise.durable(log.next_offset)


def run_scenario(
    seed: int,
    level_of: list[Durability],
    plan: list[Step],
    cut: tuple[str, int],
    recovery_cut: int,
    storage: StorageSettings = SETTINGS,
) -> None:
    simulation = Simulation(seed)
    promises = [Promise(level) for level in level_of]
    simulation.run(scenario(simulation, promises, plan, cut, recovery_cut, storage))


@QUICK
@given(st.integers(0, 2**32), levels, plans, cuts, st.integers(0, 40))
def test_nothing_acknowledged_is_lost_and_nothing_is_invented(
    seed: int,
    level_of: list[Durability],
    plan: list[Step],
    cut: tuple[str, int],
    recovery_cut: int,
) -> None:
    run_scenario(seed, level_of, plan, cut, recovery_cut)


@QUICK
@given(st.integers(0, 2**32), levels, plans, cuts, st.integers(0, 40))
def test_the_journal_loses_and_invents_nothing_either(
    seed: int,
    level_of: list[Durability],
    plan: list[Step],
    cut: tuple[str, int],
    recovery_cut: int,
) -> None:
    run_scenario(seed, level_of, plan, cut, recovery_cut, JOURNALED)


def test_the_property_notices_a_missing_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proof that the test above can fail: without the sync before the acknowledgement it does."""
    plan: list[Step] = [Append(0, (999, 200, 999)), Act("settle", 0), Append(0, (200,))]
    seeds = range(10)
    for seed in seeds:
        run_scenario(seed, [Durability.SYNCED], plan, ("end", 0), 40)
    monkeypatch.setattr(SimulatedFile, "sync_data", lambda self: None)
    lost = 0
    for seed in seeds:
        try:
            run_scenario(seed, [Durability.SYNCED], plan, ("end", 0), 40)
        except AssertionError:
            lost += 1
    assert lost > 5


@QUICK
@given(
    seed=st.integers(0, 2**32),
    level=st.sampled_from(Durability),
    groups=st.lists(
        st.lists(st.sampled_from([60, 200, 999, 5000]), min_size=1, max_size=4),
        min_size=1,
        max_size=8,
    ),
    ending=st.sampled_from(["mark", "seal", "clean"]),
    where=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_a_flipped_bit_is_reported_and_nothing_is_cut_off(
    seed: int, level: Durability, groups: list[list[int]], ending: str, where: float, bit: int
) -> None:
    simulation = Simulation(seed)
    promise = Promise(level)
    key = RangeKey(7, 0)

    async def write() -> int:
        store = await LogStore.open(simulation.runtime(HOST), FOLDER, SETTINGS)
        log = await store.create_range(key, start_offset=0, durability=level)
        promise.created = True
        for sizes in groups:
            waiting: list[asyncio.Task[None]] = []
            submit(log, promise, sizes, waiting)
            await asyncio.gather(*waiting)
        if ending == "seal":
            await log.seal()
        if ending == "clean":
            await store.close()
        else:  # quiet for long enough to note what is synced
            await simulation.runtime(HOST).clock.sleep(0.2)
        return log.next_offset

    async def check(end: int, path: str) -> None:
        disk = simulation.disk(HOST)
        size = disk.size(path)
        store = await LogStore.open(simulation.runtime(HOST), FOLDER, SETTINGS)
        log = store.range(key)
        assert log.next_offset == log.durable_offset == end
        damaged = await read_around_damage(log, promise.submitted)
        assert len(damaged) <= 1, "one bit costs one batch at most"
        assert [span[0] for span in await log.verify()] == damaged
        assert 0 <= size - disk.size(path) <= MARK_BYTES, "of a closing mark, no batch"
        if not log.sealed:
            waiting: list[asyncio.Task[None]] = []
            submit(log, promise, [200, 200], waiting)
            await asyncio.gather(*waiting)
        await store.close()
        store = await LogStore.open(simulation.runtime(HOST), FOLDER, SETTINGS)
        assert await read_around_damage(store.range(key), promise.submitted) == damaged
        await store.close()

    async def main() -> None:
        end = await simulation.on(HOST, write())
        simulation.crash(HOST)
        disk = simulation.disk(HOST)
        folder = f"{FOLDER}/streams/7/0"
        logs = [f"{folder}/{name}" for name in disk.list(folder) if name.endswith(".log")]
        sizes = [disk.size(path) for path in logs]
        position = int(where * sum(sizes))
        at = 0
        while position >= sizes[at]:
            position -= sizes[at]
            at += 1
        path = logs[at]
        disk.flip_bit(path, position, bit)
        await simulation.on(HOST, check(end, path))

    simulation.run(main())


async def read_around_damage(log: RangeLog, submitted: dict[int, bytes]) -> list[int]:
    """Check every batch outside the corrupt spans; returns where the spans start."""
    damaged: list[int] = []
    offset = 0
    while offset < log.durable_offset:
        try:
            views = await log.read(offset, 1000)
        except CorruptionError as error:
            start, end = error.data["start"], error.data["end"]
            assert isinstance(start, int)
            assert isinstance(end, int)
            assert start == offset < end
            damaged.append(start)
            offset = end
            continue
        assert views
        for view in views:
            for header, batch in split(view):
                assert submitted[header.base_offset] == batch
                offset = header.next_offset
    return damaged
