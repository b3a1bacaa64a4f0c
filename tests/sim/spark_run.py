"""A random run of the simulated query: `python -m tests.sim.spark_run SEED`."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from tests.sim.spark_engine import drive
from tests.sim.spark_world import VICTIMS, Plan, World, run
from tests.simulator.runtime import SimulatedRandom

BATCHES = 5
BATCH = 12
_STEPS = {  # and about how often a batch passes each
    "driver before latestOffset": 1,
    "driver before planning": 1,
    "driver before offset log": 1,
    "driver after offset log": 1,
    "driver after source commit": 1,
    "driver before tasks": 1,
    "driver before close": 1,
    "driver after close": 1,
    "driver after commit log": 1,
    "task before read": 2,
    "task before stage": 2,
    "task between stages": 4,
    "task after stage": 2,
    "broker before stage": 4,
    "broker after stage": 4,
    "broker before intended": 1,
    "broker after intended": 1,
    "broker before publish": 4,
    "broker after publish": 4,
    "broker before done": 1,
    "broker after done": 1,
}


def random_plan(seed: int) -> Plan:
    random = SimulatedRandom(f"{seed}/plan")
    strikes = {}
    names = list(_STEPS)
    for _ in range(2 + random.below(4)):
        name = names[random.below(len(names))]
        number = random.below(BATCHES * _STEPS[name] - 1)
        strikes[f"{name}#{number}"] = VICTIMS[random.below(len(VICTIMS))]
    return Plan(
        strikes=strikes,
        messages=(BATCHES - 1) * BATCH,
        later=BATCH,
        batch=BATCH,
        nodes=1 if random.below(2) else 3,
        read_from="auto" if random.below(3) else "broker",
        speculative=bool(random.below(2)),
        zombies=bool(random.below(2)),
        grow=not random.below(3),
    )


def run_seed(seed: int) -> World:
    return run(seed, random_plan(seed), drive)


def strike_each(strikes: Iterable[tuple[str, str]]) -> list[str]:
    """A run for every (victim, step), on all processors; what is wrong in any of them."""
    # Children are spawned: a fork would copy whatever threads the tests before left behind.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        return [text for found in pool.map(_strike, strikes, chunksize=8) for text in found]


def _strike(strike: tuple[str, str]) -> list[str]:
    victim, step = strike
    world = run(0, Plan(strikes={step: victim}), drive)
    wrong = world.violations if world.struck else ["it never came to that"]
    return [f"{victim} at {step}: {each}" for each in wrong]


def main(arguments: list[str]) -> int:
    seed = int(arguments[0])
    world = run_seed(seed)
    told = [str(random_plan(seed)), *world.steps, f"struck: {world.struck}", *world.violations]
    if "--trace" in arguments:
        told = [*world.simulation.trace, *told]
    sys.stdout.write("\n".join([*told, f"digest {world.simulation.digest()}", ""]))
    return bool(world.violations)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
