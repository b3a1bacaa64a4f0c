"""One simulated run from one seed: `python -m tests.sim.run SEED` repeats it and tells the story.

A cluster starts, clients of all kinds use it while faults happen to it; then everything is healed,
the writers come to their end, every stream is sealed, and when the cluster says that all ranges are
complete their replicas are read, one by one. The checker looks at what was seen on the way.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from headrace.errors import HeadraceError
from tests.sim.check_ending import Final
from tests.sim.checker import check
from tests.sim.cluster import Cluster
from tests.sim.ending import cut_power, finish, mend
from tests.sim.faults import Faults
from tests.sim.workload import Workload
from tests.simulator.runtime import SimulatedRandom

_SECONDS_MAX = 1000.0
ALL_FAULTS = (
    "crash",
    "crash",
    "crash_in_write",
    "crash_all_nodes",
    "restart",
    "partition",
    "partition",
    "cut_metadata",
    "drop",
    "pause",
    "slow",
    "fill_disk",
    "fail_disk",
    "strand",
    "isolate",
    "wipe",
    "rot",
)


ALL_WRITERS = ("plain", "stubborn", "sequence", "producer", "owned", "state")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed does, as far as it is not left to chance."""

    managers: int = 3
    nodes: int = 4
    replicas: int = 3
    seconds: float = 12.0
    faults: int = 6
    kinds: tuple[str, ...] = ALL_FAULTS
    writers: tuple[str, ...] = ()
    """Three kinds that the seed chooses, unless given."""
    readers: int = 1
    interferers: int = 1
    duplicates: float = 0.03


@dataclass(slots=True)
class Outcome:
    seed: int
    plan: Plan
    cluster: Cluster
    violations: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Simulated time."""
        return self.cluster.simulation.time() - 1000.0

    def report(self) -> str:
        lines = "\n".join(f"  {text}" for text in self.violations[:20])
        more = len(self.violations) - 20
        tail = f"\n  ... and {more} more" if more > 0 else ""
        return (
            f"seed {self.seed} violates {len(self.violations)} times:\n{lines}{tail}\n"
            f"replay: python -m tests.sim.run {self.seed}"
        )


def run(seed: int, plan: Plan | None = None) -> Outcome:
    plan = plan or Plan()
    cluster = Cluster(seed, managers=plan.managers, nodes=plan.nodes, duplicates=plan.duplicates)
    outcome = Outcome(seed, plan, cluster)
    try:
        final = cluster.simulation.run(_main(cluster, plan), seconds_max=_SECONDS_MAX)
    except HeadraceError as error:
        cluster.history.complain(f"liveness: the run ended by {error!r} {error}")
        final = Final({}, {})  # what was seen on the way is checked all the same
    outcome.violations = check(cluster.history, final)
    return outcome


async def _main(cluster: Cluster, plan: Plan) -> Final:
    random = SimulatedRandom(f"{cluster.simulation.seed}/plan")
    workload = Workload(cluster, random.derive("workload"), plan.replicas)
    faults = Faults(cluster, random.derive("faults"), plan.kinds)
    await cluster.start()
    await _start_clients(workload, plan)
    await cluster.sleep(0.5)
    await faults.run(plan.faults, plan.seconds)
    await cluster.sleep(2.0)
    await faults.stop()
    await mend(cluster)
    await workload.finish()
    final = await finish(cluster)
    if not cluster.simulation.seed % 4:
        await cut_power(cluster, final)
    return final


async def _start_clients(workload: Workload, plan: Plan) -> None:
    client = workload.cluster.client("operator")
    epochs = [0]
    kinds = list(ALL_WRITERS)
    chosen = [kinds.pop(workload.random.below(len(kinds))) for _ in range(3)]
    for kind in plan.writers or chosen:
        if kind == "plain":
            target = await workload.create(client)
            workload.start(kind, partial(workload.append_plainly, target=target))
        elif kind == "stubborn":
            target = await workload.create(client)
            workload.start(kind, partial(workload.append_stubbornly, target=target))
        elif kind == "sequence":
            target = await workload.create(client)
            workload.start(kind, partial(workload.append_in_sequence, target=target))
        elif kind == "producer":
            target = await workload.create(client)
            workload.start(kind, partial(workload.produce, target=target))
        elif kind == "owned":
            for _ in range(2):
                workload.start(kind, partial(workload.own, name="p/1/0/0", epochs=epochs))
        elif kind == "state":
            for _ in range(2):
                workload.start(kind, partial(workload.keep_state, name="s/state", epochs=epochs))
    for _ in range(plan.readers):
        workload.start("reader", workload.read)
    for _ in range(plan.interferers):
        workload.start("rival", workload.interfere)
    await client.close()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--calls", action="store_true", help="print every call")
    options = parser.parse_args(arguments)
    outcome = run(options.seed)
    show: Callable[[str], int] = sys.stdout.write
    if options.trace:
        show("\n".join([*outcome.cluster.simulation.trace, ""]))
    if options.calls:
        show("".join(f"{call}\n" for call in outcome.cluster.history.calls))
    show(f"digest {outcome.cluster.simulation.digest()}, {outcome.seconds:.1f} simulated seconds\n")
    if outcome.violations:
        show(outcome.report() + "\n")
    return bool(outcome.violations)


if __name__ == "__main__":
    sys.exit(main())
