"""Exactly once, whatever dies: a query's driver, a task, the broker or a data node, at every step.

`python -m tests.sim.spark_run SEED` repeats a random run and tells what happened in it.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import cache

import pytest

from headrace.errors import FencedError, HeadraceError, UnavailableError
from headrace.spark.source.batch_plan import Offsets
from tests.sim.spark_engine import Engine, Job, drive
from tests.sim.spark_mutants import LATEST, follow_latest
from tests.sim.spark_run import random_plan, run_seed, strike_each
from tests.sim.spark_world import DRIVER, VICTIMS, Plan, World, run

SEEDS = range(12)
SOAK_SEEDS = range(1000, 1400)


@cache
def calm_steps() -> tuple[str, ...]:
    """What a run passes when nothing happens to it."""
    world = run(0, Plan(), drive)
    assert not world.violations, world.violations
    assert world.runs == 1
    return tuple(world.steps)


def test_the_steps_of_a_batch_are_all_there() -> None:
    """The matrix would prove little if it missed the moments that matter."""
    names = {step.partition("#")[0] for step in calm_steps()}
    assert names >= {
        *(f"driver {each}" for each in ("before offset log", "after offset log", "before tasks")),
        *(f"driver {each}" for each in ("after source commit", "before close", "after close")),
        "driver after commit log",
        *(f"task {each}" for each in ("before read", "before stage", "between stages")),
        "task after stage",
        *(f"broker {when} {what}" for when in ("before", "after") for what in ("stage", "publish")),
        *(f"broker {when} {what}" for when in ("before", "after") for what in ("intended", "done")),
        "broker before opened",
    }
    assert sum(step.startswith("driver after commit log") for step in calm_steps()) >= 2


@pytest.mark.timeout(900)  # a minute of two processors, when they are free
def test_a_strike_at_any_step_leaves_every_row_once() -> None:
    failures = strike_each((victim, step) for victim in VICTIMS for step in calm_steps())
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("seed", SEEDS)
def test_strikes_in_any_combination_leave_every_row_once(seed: int) -> None:
    world = run_seed(seed)
    assert not world.violations, f"seed {seed}, {random_plan(seed)}: {world.violations}"


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_many_strikes_in_any_combination(seed: int) -> None:
    world = run_seed(seed)
    assert not world.violations, f"seed {seed}, {random_plan(seed)}: {world.violations}"


def test_random_runs_are_about_something() -> None:
    plans = [random_plan(seed) for seed in SEEDS]
    struck = {victim for plan in plans for victim in plan.strikes.values()}
    assert struck == set(VICTIMS)
    assert any(plan.speculative for plan in plans)
    assert any(plan.zombies for plan in plans)
    assert any(plan.grow for plan in plans)
    assert {plan.read_from for plan in plans} == {"auto", "broker"}


def test_a_seed_repeats_its_run() -> None:
    assert len({run_seed(3).simulation.digest() for _ in range(2)}) == 1


def test_duplicates_that_run_to_their_end_leave_no_trace() -> None:
    for seed in range(4):
        world = run(seed, Plan(speculative=True, messages=60), drive)
        attempts = sum(step.startswith("task after stage") for step in world.steps)
        assert attempts > 10, "two tasks in each of five batches, and some of them twice"
        assert not world.violations, world.violations


def job_struck_at(step: str, victim: str) -> tuple[World, bool]:
    """And whether it came to its end."""
    ended: list[bool] = []

    async def main(world: World) -> None:
        try:
            await world.simulation.on(DRIVER, Job(world, "job").run())
            ended.append(True)
        except UnavailableError:
            await asyncio.sleep(5)  # the broker goes on by itself

    return run(0, Plan(strikes={step: victim}, messages=12), main), bool(ended)


@pytest.mark.parametrize("victim", ["driver", "broker", "node"])
def test_a_batch_job_is_there_whole_or_not_at_all(victim: str) -> None:
    steps = job_struck_at("", "")[0].steps
    first, last = steps.index("driver before close#0"), steps.index("driver after close#0")
    for step in steps[first : last + 1]:
        world, ended = job_struck_at(step, victim)
        assert world.struck
        wrong = [each for each in world.violations if "group" not in each]  # a job has none
        lost = [each for each in wrong if "lost" in each]
        assert wrong == lost, f"{victim} at {step}: {wrong}"
        if ended or "broker after intended#0" in world.steps:
            assert not lost, f"{victim} at {step}: {lost}"
        assert len(lost) in (0, 8), f"only a part of the rows, {victim} at {step}: {lost}"


# --- the first batch of a query that starts at the latest message


@pytest.mark.parametrize(
    "step", ["driver after offset log", "driver before tasks", "driver before close"]
)
def test_the_first_batch_keeps_its_beginning(step: str) -> None:
    """Spark asks for the initial offset again after the crash, when the latest is a later one."""
    world = run(0, replace(LATEST, strikes={f"{step}#0": "driver"}), follow_latest)
    assert world.struck
    first = Offsets.from_json(json.loads(world.checkpoint.offsets[0]))
    assert sorted(first.begins.values()) == [3, 3]
    assert not world.violations, world.violations


# --- two drivers


def test_a_driver_that_was_taken_for_dead_publishes_nothing_when_it_wakes_up() -> None:
    outcomes: list[HeadraceError] = []

    async def main(world: World) -> None:
        stalled = asyncio.Event()

        async def stall() -> None:
            world.simulation.pause(DRIVER)
            stalled.set()

        world.reached["driver before close#0"] = stall
        old = world.simulation.start(DRIVER, Engine(world, "old").run())
        await stalled.wait()
        await world.simulation.on("driver2", Engine(world, "new", "driver2").run())
        world.simulation.resume(DRIVER)
        try:
            await old
        except HeadraceError as error:
            outcomes.append(error)

    world = run(0, Plan(), main)
    assert not world.violations, world.violations
    (error,) = outcomes
    assert isinstance(error, FencedError), error
