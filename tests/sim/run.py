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

from headrace.client.sbp import SbpClient
from headrace.errors import HeadraceError, OffsetOutOfRangeError, RangeNotFoundError
from headrace.net.sbp_channel import Channel
from headrace.placement.records import RangeRecord, StreamRecord
from headrace.runtime.simulated import SimulatedRandom
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import raise_for_status
from headrace.wire.sbp.opcodes import Code
from tests.sim.checker import Final, Replica, check
from tests.sim.cluster import NODE_PORT, Cluster
from tests.sim.faults import Faults
from tests.sim.history import Stored, stored_batches
from tests.sim.workload import Workload

HEAL_SECONDS_MAX = 120.0
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
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed does, as far as it is not left to chance."""

    managers: int = 3
    nodes: int = 3
    replicas: int = 1
    seconds: float = 15.0
    faults: int = 6
    kinds: tuple[str, ...] = ALL_FAULTS
    writers: tuple[str, ...] = ("plain", "sequence", "owned", "state")
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
    final = cluster.simulation.run(_main(cluster, plan), seconds_max=_SECONDS_MAX)
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
    await faults.heal()
    await workload.finish()
    await _seal_everything(cluster, workload)
    await _until_complete(cluster)
    final = await read_replicas(cluster)
    if not cluster.simulation.seed % 4:
        await _cut_power(cluster, final)
    return final


async def _start_clients(workload: Workload, plan: Plan) -> None:
    client = workload.cluster.client("operator")
    epochs = [0]
    for kind in plan.writers:
        if kind == "plain":
            target = await workload.create(client)
            workload.start(kind, partial(workload.append_plainly, target=target))
        elif kind == "sequence":
            target = await workload.create(client)
            workload.start(kind, partial(workload.append_in_sequence, target=target))
        elif kind == "owned":
            for _ in range(2):
                workload.start(kind, partial(workload.own, name="p/1/0/0", epochs=epochs))
        elif kind == "state":
            workload.start(kind, partial(workload.keep_state, name="s/state", epochs=epochs))
    for _ in range(plan.readers):
        workload.start("reader", workload.read)
    for _ in range(plan.interferers):
        workload.start("rival", workload.interfere)
    await client.close()


# The end of a run


def _final(cluster: Cluster) -> Final:
    records = cluster.records()
    streams = {r.stream_id: r for r in records if isinstance(r, StreamRecord) and r.deleted_ms < 0}
    ranges = {(r.stream_id, r.range_index): r for r in records if isinstance(r, RangeRecord)}
    return Final(streams, ranges)


async def _seal_everything(cluster: Cluster, workload: Workload) -> None:
    """Nobody writes any more: what is there becomes sealed ranges, whose copies must agree."""
    client = cluster.client("operator")
    for stream_id in _final(cluster).streams:
        await workload.insist(partial(_seal, client, cluster, stream_id))
    await client.close()


async def _seal(client: SbpClient, cluster: Cluster, stream_id: int) -> None:
    last = _final(cluster).ranges_of(stream_id)[-1]
    await client.seal(stream_id, last.range_index, last.writer_epoch)


async def _until_complete(cluster: Cluster) -> None:
    deadline = cluster.simulation.time() + HEAL_SECONDS_MAX
    while missing := list(_incomplete(cluster)):
        if cluster.simulation.time() > deadline:
            for text in missing:
                cluster.history.complain(f"healing: {text}")
            return
        await cluster.sleep(0.5)


def _incomplete(cluster: Cluster) -> list[str]:
    final = _final(cluster)
    alive = {service.node_id for service in cluster.services.values()}
    found: list[str] = []
    for (stream_id, index), range_ in final.ranges.items():
        name = f"range {stream_id}/{index}"
        wanted = final.streams[stream_id].replica_nums
        if len(range_.replicas) != wanted or not set(range_.replicas) <= alive:
            found.append(f"{name} is on {range_.replicas}, alive {sorted(alive)}, wanted {wanted}")
        elif range_.sealing:
            found.append(f"{name} is being sealed")
    return found


async def read_replicas(cluster: Cluster) -> Final:
    final = _final(cluster)
    hosts = {service.node_id: host for host, service in cluster.services.items()}
    channels = {
        host: await cluster.channel("operator", f"{host}:{NODE_PORT}") for host in hosts.values()
    }
    for key, range_ in final.ranges.items():
        replicas = final.replicas[key] = []
        for node_id in range_.replicas:
            if node_id in hosts:
                host = hosts[node_id]
                replicas.append(await _read_replica(host, channels[host], range_))
    for stream_id in final.streams:
        first = final.ranges_of(stream_id)[0]
        for node_id in first.replicas:
            if first.start > 0 and node_id in hosts:
                final.served_below_start += await _read_below(channels[hosts[node_id]], first)
    for channel in channels.values():
        await channel.close()
    return final


async def _read_replica(host: str, channel: Channel, range_: RangeRecord) -> Replica:
    replica = Replica(host, [])
    offset = range_.start
    try:
        while offset < range_.end or range_.end < 0:
            batches = await _fetch(channel, range_.stream_id, offset)
            if not batches:
                break
            replica.batches += batches
            offset = batches[-1].end
    except HeadraceError as error:
        if range_.end >= 0:
            replica.error = str(error)
    return replica


async def _read_below(channel: Channel, first: RangeRecord) -> list[str]:
    try:
        batches = await _fetch(channel, first.stream_id, first.start - 1)
    except (OffsetOutOfRangeError, RangeNotFoundError):
        return []  # trimmed, or for all this node knows on another one
    except HeadraceError as error:
        return [f"I13: stream {first.stream_id} below its start {first.start}: {error!r}"]
    return [f"I13: stream {first.stream_id} serves {batches[:1]} below its start {first.start}"]


async def _fetch(channel: Channel, stream_id: int, offset: int) -> list[Stored]:
    info = m.FetchInfo(stream_id=stream_id, fetch_offset=offset, batch_max_bytes=1 << 20)
    request = m.FetchRequest(max_wait_ms=0, min_bytes=1, fetch_requests=(info,))
    reply = await channel.call(Code.FETCH, request)
    assert isinstance(reply.message, m.FetchResponse)
    for result in reply.message.fetch_responses:
        raise_for_status(result.status, stream_id=stream_id, offset=offset)
    return stored_batches(stream_id, b"".join(reply.payload))


async def _cut_power(cluster: Cluster, before: Final) -> None:
    """I16: recovery finds all that was there, and finds the same the second time."""
    for _ in range(2):
        for host in cluster.nodes:
            cluster.crash(host)
        for host in cluster.nodes:
            await cluster.start_node(host)
        after = await read_replicas(cluster)
        for key, replicas in before.replicas.items():
            if before.ranges[key].end < 0:
                continue
            found = {r.host: [b.batch for b in r.batches] for r in after.replicas.get(key, ())}
            for replica in replicas:
                if found.get(replica.host) != [b.batch for b in replica.batches]:
                    cluster.history.complain(f"I16: {key} on {replica.host} after a power cut")


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
