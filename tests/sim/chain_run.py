"""A random run of the simulated chain of containers: `python -m tests.sim.chain_run SEED`."""

from __future__ import annotations

import sys

from tests.sim.chain_world import CONTROLLER, ChainPlan, ChainWorld, run_chain
from tests.simulator.runtime import SimulatedRandom

BATCHES = 6
BATCH = 6
CONTAINER_STEPS = (
    "before offset log",  # before the write-ahead log
    "after offset log",
    "after source commit",  # inside the source's commit, as far as anyone can tell
    "before stage",
    "after stage",
    "after close",  # before the commit log
    "after commit log",
    "before idle close",
    "after idle close",
)
BROKER_STEPS = tuple(
    f"broker {when} {what}"
    for what in ("opened", "stage", "intended", "publish", "done", "topicpurged", "publishersset")
    for when in ("before", "after")
)
CONTROLLER_STEPS = ("controller after edge", "controller before deploy", "controller before purge")


def random_plan(seed: int) -> ChainPlan:
    random = SimulatedRandom(f"{seed}/chain")
    instances = 1 + random.below(2)
    diamond = not random.below(3)
    roles = ["input", "output", *["right"][:diamond], "middle0", *["middle1"][: instances - 1]]
    strikes = {}
    for _ in range(1 + random.below(6)):
        kind = random.below(4)
        if kind < 2:
            role, step = roles[random.below(len(roles))], random.below(len(CONTAINER_STEPS))
            name = f"{role} {CONTAINER_STEPS[step]}"
            victim = ("self", "self", "zombie", "broker", CONTROLLER, "node")[random.below(6)]
        elif kind == 2:
            name = BROKER_STEPS[random.below(len(BROKER_STEPS))]
            victim = ("broker", "broker", CONTROLLER, "node")[random.below(4)]
        else:
            name = CONTROLLER_STEPS[random.below(len(CONTROLLER_STEPS))]
            victim = (CONTROLLER, "broker")[random.below(2)]
        strikes[f"{name}#{random.below(BATCHES)}"] = victim
    return ChainPlan(
        strikes=strikes,
        messages=(BATCHES - 2) * BATCH,
        later=2 * BATCH,
        batch=BATCH,
        nodes=1 if random.below(3) else 3,
        instances=instances,
        diamond=diamond,
    )


def run_seed(seed: int) -> ChainWorld:
    return run_chain(seed, random_plan(seed))


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
