"""Data nodes: who exists, who lives, who gets the next range.

Registration is durable. Liveness and load are not: after a restart a node is usable from its first
heartbeat on.

Replicas of a range are on different *hosts*, because what one machine holds is lost with it. A node
says which machine it is on; where it does not, the host of its address tells. Nodes that run as one
(the workers of a machine) say the same `host_id` and are always on one host.

A node without a `host_id` whose address is on loopback is a host of its own: such a cluster is a
trial on one machine. So is one all of whose nodes are on the same machine: there, too, each
`host_id`, and each address without one, counts by itself (`on_one_machine`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from math import inf

from msgspec.structs import replace

from headrace.errors import AlreadyExistsError, NotEnoughNodesError
from headrace.placement.metadata.records import NodeRecord, Operation, Put
from headrace.wire.sbp.messages import ReportMetricsRequest

_MB = 1 << 20
_GB = 1 << 30


SIGHTINGS_MAX = 10_000


@dataclass(slots=True)
class Sighting:
    """What a node's heartbeats and answers tell; a follower keeps it for the day it leads."""

    heard_ms: int
    address: str
    store_id: str
    usable: bool = True  # until it misses heartbeats or does not answer
    left_on: object = None  # the connection on which it said GOAWAY


@dataclass(slots=True)
class Liveness:
    """Outlives a term: followers are told who lives, too."""

    sightings: dict[int, Sighting] = field(default_factory=dict)
    metrics: dict[int, ReportMetricsRequest] = field(default_factory=dict)


@dataclass(slots=True)
class Nodes:
    """alive -> (silent for `timeout_ms`, or did not answer) suspect -> (silent for
    `replace_after_ms`) dead -> (heartbeat) alive. GOAWAY: draining, until it comes back."""

    timeout_ms: int
    disk_free_bytes_min: int = 0
    replace_after_ms: int = 60_000
    disk_free_percent_min: int = 0
    records: dict[int, NodeRecord] = field(default_factory=dict)
    liveness: Liveness = field(default_factory=Liveness)
    since_ms: int = 0
    """When we began to listen: nobody counts as silent for longer than we listen."""
    _hosts: tuple[list[NodeRecord], dict[int, str]] = field(default_factory=lambda: ([], {}))
    """Records that the hosts were told from, and the host of each node id."""

    def on_recovered(self, now_ms: int) -> None:
        """All records are there. Who announced itself under another name is not that node."""
        self.since_ms = now_ms
        for node_id, sighting in list(self.liveness.sightings.items()):
            record = self.records.get(node_id)
            if record is None or (record.address, record.store_id) != (
                sighting.address,
                sighting.store_id,
            ):
                del self.liveness.sightings[node_id]

    def register(
        self, node_id: int, address: str, store_id: str, host: str = "", host_id: str = ""
    ) -> list[Operation]:
        """What to write when a heartbeat tells something new; nothing otherwise.

        An address has one node: whoever had it before is gone from this moment on, however lately
        it was heard, and its replicas are made again elsewhere.
        """
        known = self.records.get(node_id)
        record = NodeRecord(
            node_id=node_id, address=address, store_id=store_id, host=host, host_id=host_id
        )
        if known == record:
            return []
        if known is not None and known.store_id != store_id:
            # The same id over another store: a copied or emptied directory. Its answers to a seal
            # would be taken for those of the store that took the appends.
            raise AlreadyExistsError("node id belongs to another store", node_id=node_id)
        before = [
            other
            for other in self.records.values()
            if address and other.address == address and other.node_id != node_id
        ]
        for other in before:  # ids rise: a heartbeat of an earlier node that was long on its way
            if other.node_id > node_id and self.is_alive(other.node_id):
                raise AlreadyExistsError("a later data node has this address", address=address)
        return [*(Put(replace(other, address="", replaced=True)) for other in before), Put(record)]

    # Signs of life

    def on_heartbeat(
        self,
        node_id: int,
        now_ms: int,
        *,
        address: str = "",
        store_id: str = "",
        connection: object = None,
    ) -> None:
        """`connection`: a node that said GOAWAY on it is back when it is heard on another."""
        known = self.liveness.sightings.get(node_id)
        if known is None and len(self.liveness.sightings) >= SIGHTINGS_MAX:
            return
        left_on = known.left_on if known is not None and known.left_on is connection else None
        self.liveness.sightings[node_id] = Sighting(now_ms, address, store_id, left_on=left_on)

    def on_answer(self, node_id: int, now_ms: int) -> None:
        """As good as a heartbeat: after a restart it comes before the next one."""
        known = self.liveness.sightings.get(node_id)
        if known is not None:
            known.heard_ms, known.usable = now_ms, True
        elif node_id in self.records:
            record = self.records[node_id]
            self.on_heartbeat(node_id, now_ms, address=record.address, store_id=record.store_id)

    def on_metrics(self, node_id: int, metrics: ReportMetricsRequest) -> bool:
        """False when no such node was heard of."""
        if node_id not in self.liveness.sightings:
            return False
        self.liveness.metrics[node_id] = metrics
        return True

    def on_tick(self, now_ms: int) -> list[int]:
        """Nodes lost since the last tick."""
        lost = []
        for node_id, sighting in self.liveness.sightings.items():
            if sighting.usable and now_ms - sighting.heard_ms > self.timeout_ms:
                sighting.usable = False
                self.liveness.metrics.pop(node_id, None)
                lost.append(node_id)
        return lost

    def on_unreachable(self, node_id: int) -> None:
        """It did not answer: no new ranges until its next heartbeat."""
        sighting = self.liveness.sightings.get(node_id)
        if sighting is not None:
            sighting.usable = False

    def on_goaway(self, node_id: int, connection: object) -> None:
        """It leaves: no new ranges, and those that it has go elsewhere."""
        sighting = self.liveness.sightings.get(node_id)
        if sighting is not None:
            sighting.left_on = connection

    # Questions

    def alive(self) -> list[int]:
        return sorted(filter(self.is_alive, self.liveness.sightings))

    def is_alive(self, node_id: int) -> bool:
        sighting = self.liveness.sightings.get(node_id)
        record = self.records.get(node_id)
        return (
            sighting is not None and sighting.usable and record is not None and not record.replaced
        )

    def is_draining(self, node_id: int) -> bool:
        sighting = self.liveness.sightings.get(node_id)
        return sighting is not None and sighting.left_on is not None

    def is_lost(self, node_id: int, now_ms: int) -> bool:
        """Silent for `timeout_ms`, all of which we listened."""
        return self._silent_ms(node_id, now_ms) > self.timeout_ms

    def is_dead(self, node_id: int, now_ms: int) -> bool:
        return self._silent_ms(node_id, now_ms) > self.replace_after_ms

    def _silent_ms(self, node_id: int, now_ms: int) -> float:
        record = self.records.get(node_id)
        if record is not None and record.replaced:
            return inf
        sighting = self.liveness.sightings.get(node_id)
        heard_ms = sighting.heard_ms if sighting is not None else self.since_ms
        return now_ms - max(heard_ms, self.since_ms)

    def condition(self, node_id: int, now_ms: int) -> str:
        """For people: alive, draining, suspect, dead, replaced or unknown."""
        record = self.records.get(node_id)
        if record is not None and record.replaced:
            return "replaced"
        if self.is_dead(node_id, now_ms):
            return "dead"
        if self.is_draining(node_id):
            return "draining"
        if self.is_alive(node_id):
            return "alive"
        return "suspect" if node_id in self.liveness.sightings else "unknown"

    def address(self, node_id: int) -> str:
        record = self.records.get(node_id)
        return record.address if record else ""

    def host(self, node_id: int) -> str:
        """What is lost together with it."""
        return self.host_by_node().get(node_id, "")

    def host_by_node(self) -> dict[int, str]:
        """The host of every registered node; another object as soon as one of them changes."""
        records = list(self.records.values())
        if records != self._hosts[0]:
            self._hosts = (records, hosts_of(records))
        return self._hosts[1]

    def on_one_machine(self) -> bool:
        """Whether all nodes are: then there is no other host to choose."""
        return are_on_one_machine(list(self.records.values()))

    def hosts(self, *, roomy: bool = True, beside: Collection[int] = ()) -> int:
        """How many hosts may get a replica of a new range, or one more of a range that the nodes
        `beside` have."""
        taken = set(map(self.host, beside))
        return len(set(map(self.host, self.placeable(roomy=roomy))) - taken)

    def sharing_host(self, replicas: Sequence[int]) -> tuple[int, ...]:
        """Those of a range's replicas that are on the host of one before them."""
        hosts = self.host_by_node()
        seen: set[str] = set()
        found = []
        for node_id in replicas:
            host = hosts.get(node_id)
            if host is None:
                continue
            if host in seen:
                found.append(node_id)
            seen.add(host)
        return tuple(found)

    def metrics(self, node_id: int) -> ReportMetricsRequest | None:
        return self.liveness.metrics.get(node_id)

    def placeable(self, *, roomy: bool = True) -> list[int]:
        """Who may get a new range; with `roomy` only those with disk to spare."""
        return [
            node_id
            for node_id in self.alive()
            if not self.is_draining(node_id) and not (roomy and self._short_of_disk(node_id))
        ]

    def choose(
        self,
        count: int,
        *,
        at_least: int | None = None,
        avoid: Collection[int] = (),
        exclude: Collection[int] = (),
        beside: Collection[int] = (),
        not_first: int = -1,
        preferred: int = -1,
        load: Callable[[int], tuple[int, int]],
        below: Callable[[int], int],
    ) -> tuple[int, ...]:
        """Live nodes on distinct hosts, and on others than those `beside` are on, the primary
        first: the better of two drawn at random, each time.

        Nodes in `avoid` come after all others, and nodes short of disk last: while others have room
        they are taken only to reach `at_least`, because a full disk refuses by itself and a single
        node has no alternative. `load` tells how many open ranges a node has, and how many it
        leads; of those chosen, the one that leads the fewest becomes the primary, `not_first` if it
        must. `preferred` is the primary whatever its load, if it may get ranges and has disk to
        spare; else all is as without it.
        """
        at_least = count if at_least is None else at_least
        hosts = {self.host(n) for n in beside}
        candidates = [
            n for n in self.placeable(roomy=False) if n not in exclude and self.host(n) not in hosts
        ]
        roomy = [n for n in candidates if not self._short_of_disk(n)]
        chosen = [preferred] if preferred in roomy and count > 0 else []
        hosts.update(map(self.host, chosen))
        for pool, limit in (
            ([n for n in roomy if n not in avoid], count),
            ([n for n in roomy if n in avoid], count),
            ([n for n in candidates if n not in roomy], at_least if roomy else count),
        ):
            pool = [n for n in pool if self.host(n) not in hosts]
            while pool and len(chosen) < limit:
                drawn = [pool[below(len(pool))], pool[below(len(pool))]]
                best = max(drawn, key=lambda n: (self.score(n), -load(n)[0]))  # the first of equals
                chosen.append(best)
                hosts.add(self.host(best))
                pool = [n for n in pool if self.host(n) not in hosts]
        if len(chosen) < at_least:
            raise NotEnoughNodesError(
                "not enough data nodes",
                wanted=at_least,
                alive=len(candidates),
                machines=len(set(map(self.host, candidates))),
            )
        primary = min(
            chosen,
            key=lambda n: (
                n != preferred,
                self._short_of_disk(n),
                n in avoid,
                n == not_first,
                load(n)[1],
                -self.score(n),
            ),
            default=-1,
        )
        return tuple(sorted(chosen, key=lambda n: n != primary))

    def _short_of_disk(self, node_id: int) -> bool:
        metrics = self.liveness.metrics.get(node_id)
        if metrics is None:
            return False
        part = metrics.disk_total_space * self.disk_free_percent_min // 100  # unknown: below zero
        return metrics.disk_free_space < max(self.disk_free_bytes_min, part)

    def score(self, node_id: int) -> int:
        """Higher is better; a node that has not reported counts as the average of the others."""
        metrics = self.liveness.metrics.get(node_id)
        if metrics is not None:
            return load_score(metrics)
        known = [load_score(m) for m in self.liveness.metrics.values()]
        return sum(known) // len(known) if known else 0


def hosts_of(records: Sequence[NodeRecord]) -> dict[int, str]:
    """The host of each node: its machine, the same for all nodes with one `host_id`."""
    machines = _machines(records)
    if not are_on_one_machine(records):
        return machines
    return {
        record.node_id: machine
        if machine == _by_itself(record)
        else f"{machine}/{_by_itself(record)}"
        for record, machine in zip(records, machines.values(), strict=True)
    }


def are_on_one_machine(records: Sequence[NodeRecord]) -> bool:
    registered = [record for record in records if not record.replaced]
    machines = set(_machines(registered).values())
    return len(machines) <= 1 < len(set(map(_by_itself, registered)))


def _machines(records: Iterable[NodeRecord]) -> dict[int, str]:
    """Two machines of one `host_id` are one: the node says so, its address or system does not."""
    machines = {record.node_id: _machine(record) for record in records}
    same: dict[str, str] = {}

    def first_name(machine: str) -> str:
        while machine in same:
            machine = same[machine]
        return machine

    by_host_id: dict[str, str] = {}
    for record in records:
        if record.host_id:
            machine = machines[record.node_id]
            known = first_name(by_host_id.setdefault(record.host_id, machine))
            if known != first_name(machine):
                same[first_name(machine)] = known
    return {node_id: first_name(machine) for node_id, machine in machines.items()}


def _by_itself(record: NodeRecord) -> str:
    """What a node is called where machines do not tell nodes apart."""
    return record.host_id or record.address


def _machine(record: NodeRecord) -> str:
    host = record.address.rpartition(":")[0].strip("[]") or record.address
    try:
        loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        loopback = False
    return _by_itself(record) if loopback else record.host or host


def load_score(metrics: ReportMetricsRequest) -> int:
    """Ten points less per unit of load, ten more per 50 GB of free disk."""
    units = (
        metrics.disk_in_rate / (100 * _MB)
        + metrics.disk_out_rate / (100 * _MB)
        + metrics.disk_unindexed_data_size / (100 * _MB)
        + metrics.memory_used / _GB
        + metrics.uring_inflight_task_cnt / 128
        + metrics.uring_pending_task_cnt / 1024
        + metrics.uring_task_avg_latency / 10
        + metrics.network_append_rate / 256
        + metrics.network_fetch_rate / 256
        + metrics.network_failed_append_rate
        + metrics.network_failed_fetch_rate
        + metrics.network_append_avg_latency
        + metrics.range_missing_replica_cnt / 2
        + metrics.range_active_cnt / 10
    )
    free = min(metrics.disk_free_space, 1000 * _GB) / (50 * _GB)
    return round(10 * (free - units))
