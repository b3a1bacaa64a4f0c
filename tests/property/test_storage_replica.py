"""One replica of a range against a model: appends, commits, seals, decided ends, copies, crashes.

Replicas hold the same batches, so the model is one list of batches and what was promised about it.
Checked after every step and after every recovery:

* what was acknowledged or copied is there, byte for byte, until it is trimmed (I1);
* an answered end stays, a final one for ever, and nothing is ever appended to it again (I5);
* no read returns anything at or above the committed offset or the final end (I8);
* what recovery finds is a prefix of the batches with everything that was promised, and recovering
  again finds the same (I16).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import (
    HeadraceError,
    InvalidArgumentError,
    OffsetOverflowError,
    RangeNotFoundError,
    SealedError,
    StateError,
    UnavailableError,
)
from headrace.storage import LogStore, RangeKey, RangeLog, RangeState, StorageSettings
from headrace.storage.layout import RangeMetadata
from headrace.storage.range.control import RangeControl
from headrace.storage.range.progress import RangeProgress
from headrace.wire.sbp.messages import Durability
from headrace.wire.sbp.records import HEADER_BYTES, split
from tests.simulator.disk import SimulatedFile
from tests.simulator.runtime import Simulation
from tests.unit.storage.support import joined, make_batch, turns

HOST = "node"
FOLDER = "/data"
KEY = RangeKey(7, 0)
SETTINGS = StorageSettings(
    segment_bytes_max=1500,
    preallocate_bytes_min=512,
    index_interval_bytes=300,
    idle_ms=20,
    checkpoint_bytes=2000,
    tail_cache_bytes=700,
    open_files_max=2,
    min_free_bytes=0,
)
QUICK = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def make_truth(shapes: Sequence[tuple[int, int]]) -> list[bytes]:
    batches: list[bytes] = []
    offset = 0
    for records, size in shapes:
        batches.append(joined(make_batch(offset, records=records, size=size, fill=offset + size)))
        offset += records
    return batches


TRUTH = make_truth([(1 + at % 3, (60, 130, 300, 700)[at * 7 % 4]) for at in range(40)])
BOUNDS = [0]
for _data in TRUTH:
    BOUNDS.append(next(split(_data))[0].next_offset)


@dataclass(frozen=True)
class Step:
    name: str  # append, submit, commit, seal, finish, copy, trim, pause
    amount: int  # of batches, or a place among the bounds


@dataclass(frozen=True)
class Life:
    plan: tuple[Step, ...]
    ending: str  # clean, kill, power
    cut: int = 10**9  # the power goes before this many operations are done


weighted = ["append", "append", "submit", "commit", "commit", "copy", "copy", "copy"]
steps = st.builds(
    Step,
    st.sampled_from([*weighted, "seal", "finish", "trim", "pause"]),
    st.integers(0, len(TRUTH)),
)
lives = st.builds(
    Life,
    st.lists(steps, min_size=1, max_size=10).map(tuple),
    st.sampled_from(["clean", "kill", "power"]),
    st.one_of(st.just(10**9), st.integers(0, 30)),
)


@dataclass
class Model:
    """What the replica was asked and what it promised."""

    level: Durability
    promised: int = 0  # durable by an answer
    committed: int = 0  # told, and not forgotten by a restart
    start: int = 0
    start_asked: int = 0
    sealed_end: int | None = None  # answered by a seal
    sealing: bool = False
    final: int | None = None  # answered by a finish
    finishing: int | None = None

    def promise(self, end: int) -> None:
        self.promised = max(self.promised, end)


@dataclass
class World:
    model: Model
    settings: StorageSettings


def batch_at(offset: int) -> int:
    return BOUNDS.index(offset)


def parts(data: bytes) -> tuple[bytearray, list[bytes]]:
    return bytearray(data[:HEADER_BYTES]), [data[HEADER_BYTES:]]


async def act(log: RangeLog, model: Model, step: Step) -> None:
    if step.name in ("append", "submit"):
        await append(log, model, step)
    elif step.name == "commit":
        log.set_committed(BOUNDS[step.amount])
        model.committed = max(model.committed, BOUNDS[step.amount])
    elif step.name == "seal":
        model.sealing = True
        end = await log.seal()
        assert end == log.end_offset
        model.sealed_end = end
        if model.final is None:
            model.promise(end)
    elif step.name == "finish":
        await finish(log, model, BOUNDS[step.amount])
    elif step.name == "copy":
        await copy(log, model, step.amount % 6 + 1)
    elif step.name == "trim":
        target = min(BOUNDS[step.amount], log.committed_offset)
        model.start_asked = max(model.start_asked, target)
        await log.trim(target)
        model.start = max(model.start, target)
    else:
        await turns(step.amount)


async def append(log: RangeLog, model: Model, step: Step) -> None:
    first = batch_at(log.next_offset)
    batches = TRUTH[first : first + step.amount % 6 + 1]
    try:
        done = [log.append(*parts(data)) for data in batches]
    except SealedError:
        assert model.sealing or model.finishing is not None
        return
    end = log.next_offset
    if step.name == "submit":
        for each in done:
            each.cancel()  # a caller that left: the batches are stored all the same
        return
    await asyncio.gather(*done)
    if model.level is Durability.SYNCED:
        model.promise(end)


async def finish(log: RangeLog, model: Model, end: int) -> None:
    if end < max(log.committed_offset, log.start_offset):
        if not log.final:
            with pytest.raises(InvalidArgumentError):
                await log.finish(end)
        return
    model.finishing, before = end, model.finishing
    try:
        await log.finish(end)
    except SealedError:
        assert model.final not in (None, end), "the end was refused without reason"
        model.finishing = before
        return
    except InvalidArgumentError:  # what was just being written turned out to be committed
        assert end < log.committed_offset <= model.committed
        model.finishing, model.sealing = before, True
        return
    assert model.final in (None, end), "a final end was changed"
    model.final = end
    model.promise(min(end, log.durable_offset))
    model.promised = min(model.promised, end)


async def copy(log: RangeLog, model: Model, count: int) -> None:
    if log.missing is None:
        with pytest.raises(StateError):
            log.copy(*parts(TRUTH[0]))
        return
    start, end = log.missing
    first = batch_at(start)
    batches = TRUTH[first : min(first + count, batch_at(end))]
    await asyncio.gather(*(log.copy(*parts(data)) for data in batches))
    model.promise(log.durable_offset)


# What must hold


async def check(log: RangeLog, model: Model) -> None:
    assert log.durable_offset >= model.promised
    assert log.committed_offset <= log.durable_offset
    if not log.final:
        assert log.committed_offset <= max(model.committed, model.start_asked)
    if model.final is not None:
        assert (log.final, log.end_offset) == (True, model.final)
        assert log.durable_offset <= model.final
        with pytest.raises(SealedError):
            log.append(*parts(TRUTH[0]))
    elif model.sealed_end is not None and model.finishing is None:
        assert (log.sealed, log.end_offset) == (True, model.sealed_end)
    assert log.state().corrupt == ()
    await check_read(log, committed=True)
    await check_read(log, committed=False)
    await check_beyond(log)


async def check_read(log: RangeLog, *, committed: bool) -> None:
    """Reads give the batches of the truth, all of them, and none beyond the bound."""

    def bound() -> int:  # it may rise meanwhile
        return log.committed_offset if committed else log.durable_offset

    offset = log.start_offset
    while offset < bound():
        views = await (log.read(offset, 400) if committed else log.read_durable(offset, 400))
        assert views, "committed and not to be read"
        for view in views:
            for header, batch in split(view):
                assert batch == TRUTH[batch_at(header.base_offset)]
                assert header.base_offset <= offset < header.next_offset <= bound()
                offset = header.next_offset


async def check_beyond(log: RangeLog) -> None:
    stop = log.committed_offset
    for offset in (stop, stop + 1, BOUNDS[-1]):
        assert not log.read_cached(offset, 400)
        try:
            assert await log.read(offset, 400) == []
            assert offset == stop
            assert not log.sealed or (log.final and log.missing is None)
        except (OffsetOverflowError, RangeNotFoundError):
            pass
        except HeadraceError:
            assert log.final
            assert log.missing is None


# Lives: each opens the directory, carries out a plan, and ends in its own way


async def open_replica(simulation: Simulation, world: World) -> tuple[LogStore, RangeLog]:
    store = await LogStore.open(simulation.runtime(HOST), FOLDER, world.settings)
    log = await store.create_range(
        KEY, start_offset=0, durability=world.model.level, replicas=(1, 2), ack_quorum=2
    )
    return store, log


def check_recovered(log: RangeLog, model: Model) -> None:
    """What an interrupted operation left counts either way, from now on for good."""
    if log.final and model.final is None:
        assert log.end_offset == model.finishing
        model.final = log.end_offset
        model.promised = min(model.promised, model.final)
    if log.sealed and model.sealed_end is None:
        assert model.sealing or model.finishing is not None
        model.sealed_end = log.end_offset
    assert log.durable_offset >= model.promised, "something promised is gone"
    assert log.start_offset in (model.start, model.start_asked)
    model.start = model.start_asked = log.start_offset
    if model.final is None:  # a restart does not know
        assert log.committed_offset == log.start_offset
    else:
        assert log.committed_offset == log.durable_offset
    model.committed = log.committed_offset
    model.promise(log.durable_offset)  # recovery syncs what it keeps


async def look(simulation: Simulation, world: World) -> RangeState:
    _, log = await open_replica(simulation, world)
    check_recovered(log, world.model)
    await check(log, world.model)
    return log.state()


async def live(simulation: Simulation, world: World, life: Life, before: RangeState) -> None:
    store, log = await open_replica(simulation, world)
    check_recovered(log, world.model)
    assert replace(log.state(), truncated_bytes=0) == replace(before, truncated_bytes=0)
    assert log.state().truncated_bytes == 0, "the recovery before this one was not the last"
    simulation.disk(HOST).cut_before(life.cut)
    for step in life.plan:
        await act(log, world.model, step)
        await check(log, world.model)
    if life.ending == "clean":
        await store.close()


async def conclude(simulation: Simulation, world: World) -> None:
    """In the end everything can be had: sealed, decided, copied."""
    store, log = await open_replica(simulation, world)
    model = world.model
    check_recovered(log, model)
    if not log.final:
        await finish(log, model, await log.seal())
    while log.missing is not None:
        await copy(log, model, 5)
    await check(log, model)
    assert (await log.verify(), log.durable_offset) == ((), model.final)
    await store.close()


async def scenario(simulation: Simulation, world: World, lives: Sequence[Life]) -> None:
    disk = simulation.disk(HOST)
    for life in lives:
        before = await simulation.on(HOST, look(simulation, world))
        simulation.crash(HOST, power_cut=False)
        try:
            await simulation.on(HOST, live(simulation, world, life, before))
        except UnavailableError:
            pass  # the power went
        else:
            if life.ending != "clean":
                simulation.crash(HOST, power_cut=life.ending == "power")
        disk.cut_before(10**9)
    await simulation.on(HOST, conclude(simulation, world))
    state = await simulation.on(HOST, look(simulation, world))
    assert (state.final, state.missing) == (True, None)
    simulation.crash(HOST)


@QUICK
@given(
    st.integers(0, 2**32),
    st.sampled_from(Durability),
    st.integers(0, 1),
    st.lists(lives, min_size=1, max_size=5),
)
def test_a_replica_keeps_what_it_promised(
    seed: int, level: Durability, journal_files_min: int, plan: list[Life]
) -> None:
    simulation = Simulation(seed)
    settings = msgspec.structs.replace(
        SETTINGS, journal_files_min=journal_files_min, journal_start_writes=1
    )
    simulation.run(scenario(simulation, World(Model(level), settings), plan))


PLAN = [
    Life((Step("append", 5), Step("commit", 3), Step("append", 5)), "power"),
    Life((Step("seal", 0), Step("finish", 20), Step("copy", 2), Step("copy", 3)), "power"),
    Life((Step("copy", 5), Step("copy", 5), Step("trim", 15)), "power"),
]


@pytest.mark.parametrize(
    ("owner", "name", "instead"),
    [
        (SimulatedFile, "sync_data", lambda self: None),
        (RangeProgress, "set_committed", lambda self, _: setattr(self, "commit_limit", 99)),
        (RangeControl, "_check_end", lambda self, end: None),
        (RangeMetadata, "final", property(lambda self: self.sealed)),
    ],
)
def test_the_property_notices_what_breaks_it(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, instead: object
) -> None:
    def count_failures() -> int:
        failures = 0
        for seed in range(8):
            simulation = Simulation(seed)
            world = World(Model(Durability.SYNCED), SETTINGS)
            lowered = [Life((Step("append", 5), Step("commit", 6), Step("finish", 2)), "kill")]
            try:
                simulation.run(scenario(simulation, world, PLAN if seed % 2 else lowered))
            except (AssertionError, pytest.fail.Exception):
                failures += 1
        return failures

    assert count_failures() == 0
    monkeypatch.setattr(owner, name, instead)
    assert count_failures() > 0
