"""One seed of the workers' simulation: `python -m tests.sim.workers.run SEED [--trace]`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import dataclass, field
from unittest.mock import patch

from headrace.broker.catalogue import state
from headrace.errors import HeadraceError
from tests.sim.workers.clients import Clients, Stuck
from tests.sim.workers.faults import ALL_FAULTS, Faults
from tests.sim.workers.notes import Notes
from tests.sim.workers.world import SHARDS, World

CLIENTS = (
    ("numbered",),
    ("consumer",),
    ("keeper",),
    ("member", "member"),
    ("banned", "warden"),
    ("architect",),
    ("publisher",),
)
"""Those that belong together. A seed has two of these, and one that sends plainly."""
_SECONDS_MAX = 300.0


@dataclass(frozen=True, slots=True)
class Plan:
    seconds: float = 1.2
    faults: int = 3
    kinds: tuple[str, ...] = ALL_FAULTS
    clients: tuple[str, ...] = ()
    """Those that the seed chooses, unless given."""
    workers: int = 3
    machines: int = 0
    """0: the seed says."""


@dataclass(slots=True)
class Outcome:
    seed: int
    world: World
    notes: Notes
    struck: dict[str, int] = field(default_factory=dict)

    @property
    def violations(self) -> list[str]:
        return self.world.violations

    @property
    def seconds(self) -> float:
        """Simulated time."""
        return self.world.simulation.time() - 1000.0

    def report(self) -> str:
        lines = "\n".join(f"  {text}" for text in self.violations[:20])
        return (
            f"seed {self.seed} violates {len(self.violations)} times:\n{lines}\n"
            f"replay: python -m tests.sim.workers.run {self.seed}"
        )


def run(seed: int, plan: Plan | None = None) -> Outcome:
    plan = plan or Plan()
    machines = plan.machines or 1 + seed % 3
    with patch.object(state, "SHARDS", SHARDS):  # as many as some workers need: each costs a log
        world = World(seed, workers_count=plan.workers, machines=machines)
        outcome = Outcome(seed, world, Notes(world.complain))
        try:
            world.simulation.run(_main(outcome, plan), seconds_max=_SECONDS_MAX)
        except (HeadraceError, Stuck) as error:
            world.complain(f"stuck: the run ended by {error!r} {error}")
    return outcome


async def _main(outcome: Outcome, plan: Plan) -> None:
    world = outcome.world
    clients = Clients(world, outcome.notes)
    faults = Faults(world, world.random.derive("faults"), plan.kinds)
    await world.start()
    watching = asyncio.ensure_future(world.watch_leaders())
    await clients.prepare()
    clients.start(plan.clients or _choose(world))
    await asyncio.sleep(0.3)
    await faults.run(plan.faults, plan.seconds)
    await faults.mend()
    await asyncio.sleep(0.2)
    await clients.finish()
    await clients.read_all()
    watching.cancel()
    outcome.struck = faults.struck


def _choose(world: World) -> tuple[str, ...]:
    random, kinds, chosen = world.random.derive("clients"), list(CLIENTS), ["plain"]
    for _ in range(2):
        chosen += kinds.pop(random.below(len(kinds)))
    return tuple(chosen)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--trace", action="store_true", help="print every event")
    options = parser.parse_args(arguments)
    outcome = run(options.seed)
    if options.trace:
        sys.stdout.write("\n".join([*outcome.world.simulation.trace, ""]))
    digest = outcome.world.simulation.digest()
    sys.stdout.write(f"digest {digest}, {outcome.seconds:.1f} simulated seconds\n")
    sys.stdout.write(f"faults {outcome.struck}\nclients {outcome.notes.done}\n")
    if outcome.violations:
        sys.stdout.write(outcome.report() + "\n")
    return bool(outcome.violations)


if __name__ == "__main__":
    sys.exit(main())
