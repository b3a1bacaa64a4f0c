"""Whoever of a chain is killed at whichever step: every row comes out once, as a batch computes it.

The crash points are those between which a container, the broker or the controller leaves something
behind: before the write-ahead log, after stage, after close, before the commit log, inside the
source's commit. `make soak` strikes each of them alone, each time it is passed, and runs many
random plans; here one run has several strikes.
"""

from __future__ import annotations

import pytest

from tests.sim.chain_run import (
    BROKER_STEPS,
    CONTAINER_STEPS,
    CONTROLLER_STEPS,
    random_plan,
    run_seed,
)
from tests.sim.chain_world import CONTROLLER, ChainPlan, ChainWorld, run_chain


def run(
    strikes: dict[str, str],
    *,
    instances: int = 1,
    roll_back_at: str = "",
    diamond: bool = False,
) -> ChainWorld:
    plan = ChainPlan(
        strikes=strikes,
        messages=18,
        later=6,
        batch=6,
        instances=instances,
        roll_back_at=roll_back_at,
        diamond=diamond,
    )
    world = run_chain(1, plan)
    assert world.violations == [], world.struck
    return world


@pytest.mark.parametrize("step", CONTAINER_STEPS)
def test_each_container_is_killed_at_a_step(step: str) -> None:
    roles = ["input", "middle0"] if "idle" in step else ["input", "middle0", "output"]
    world = run({f"{role} {step}#1": "self" for role in roles})
    assert len(world.struck) == len(roles)
    assert world.runs == 3 + len(roles), "each was started once more, and nobody else"


@pytest.mark.parametrize("step", ["before stage", "after stage", "after close"])
def test_a_container_goes_on_although_another_run_of_it_was_deployed(step: str) -> None:
    world = run({f"{role} {step}#1": "zombie" for role in ("input", "middle1")}, instances=2)
    assert len(world.struck) == 2
    assert world.runs >= 6, "here nothing but the epoch keeps two runs apart: either may end"


@pytest.mark.parametrize("what", ["stage", "intended", "publish", "done"])
def test_the_broker_is_killed_while_windows_are_published(what: str) -> None:
    world = run(
        {f"broker {when} {what}#{n}": "broker" for when, n in (("before", 3), ("after", 8))}
    )
    assert len(world.struck) == 2


def test_the_controller_is_killed_at_its_steps() -> None:
    world = run({f"{step}#1": CONTROLLER for step in CONTROLLER_STEPS}, instances=2)
    assert len(world.struck) == len(CONTROLLER_STEPS)
    assert world.purged > 0, "edges are purged in the end"


@pytest.mark.parametrize("step", ["before offset log", "after stage", "after close"])
def test_a_query_of_two_edges_reads_both_up_to_the_same_windows(step: str) -> None:
    world = run({f"{role} {step}#1": "self" for role in ("right", "output")}, diamond=True)
    assert len(world.struck) == 2


@pytest.mark.parametrize("victim", ["", CONTROLLER, "broker"])
def test_a_part_of_the_chain_is_rolled_back(victim: str) -> None:
    strikes = {}
    if victim:
        strikes = {"controller rolled back#1": victim, "controller after reset#0": victim}
    world = run(strikes, instances=2, roll_back_at="middle0 after commit log#2")
    assert len(world.struck) == len(strikes)


@pytest.mark.parametrize("seed", range(4))
def test_random_strikes(seed: int) -> None:
    world = run_seed(seed)
    assert world.violations == [], (random_plan(seed), world.struck)


def test_a_seed_replays() -> None:
    digests = {run_seed(5).simulation.digest() for _ in range(2)}
    assert len(digests) == 1


@pytest.mark.soak
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("victim", ["self", "zombie", "broker", CONTROLLER])
@pytest.mark.parametrize("role", ["input", "middle1", "output"])
@pytest.mark.parametrize("step", CONTAINER_STEPS)
def test_every_step_of_every_container(step: str, role: str, victim: str, number: int) -> None:
    run({f"{role} {step}#{number}": victim}, instances=2)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("step", [*BROKER_STEPS, *CONTROLLER_STEPS])
def test_every_step_of_broker_and_controller(step: str, number: int) -> None:
    victim = CONTROLLER if step in CONTROLLER_STEPS else "broker"
    run({f"{step}#{number}": victim}, instances=2)


@pytest.mark.soak
@pytest.mark.parametrize("hundred", range(5))
def test_many_random_strikes(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * (hundred + 1)):
        world = run_seed(seed)
        assert world.violations == [], (random_plan(seed), world.struck)
