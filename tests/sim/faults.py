"""Trouble for a simulated cluster, chosen by the seed: crashes, partitions, pauses, disks.

Every fault is undone after a while, at the latest by `mend`. What is beyond repair (a replaced
disk, rotten bytes) happens to one node of a run at most: the log promises to survive the loss of
one copy, not of all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import HeadraceError, StorageError
from headrace.placement.metadata.records import NodeRecord, RangeRecord
from tests.sim.cluster import Cluster
from tests.sim.ending import come_back
from tests.simulator.runtime import SimulatedRandom


@dataclass(slots=True)
class Faults:
    cluster: Cluster
    random: SimulatedRandom
    kinds: tuple[str, ...]
    busy: set[str] = field(default_factory=set)
    """Hosts with which something is going on: one fault at a time for each."""
    damaged: str = ""
    """The one node that lost bytes for ever."""
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def run(self, count: int, seconds: float) -> None:
        """`count` faults, spread over `seconds`."""
        for _ in range(count):
            await asyncio.sleep(2 * self.random.uniform() * seconds / count)
            kind = self.kinds[self.random.below(len(self.kinds))]
            fault: Callable[[], Coroutine[Any, Any, None]] = getattr(self, f"_{kind}")
            self._tasks.append(asyncio.ensure_future(fault()))

    async def stop(self) -> None:
        """No more of it; what is wrong stays wrong until `mend`."""
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    # Choosing

    def _choose(self, hosts: list[str]) -> str | None:
        free = [host for host in hosts if host not in self.busy and self.cluster.is_up(host)]
        return free[self.random.below(len(free))] if free else None

    def _seconds(self) -> float:
        """Mostly short; sometimes long enough that a node counts as lost and is replaced."""
        return self.random.between(*((0.05, 2.0) if self.random.below(3) else (4.0, 15.0)))

    # Kinds of trouble. Each is a task, cancelled by `stop`.

    async def _crash(self) -> None:
        host = self._choose([*self.cluster.nodes, *self.cluster.managers])
        if host is not None:
            self.busy.add(host)
            self.cluster.crash(host, power_cut=bool(self.random.below(4)))
            await asyncio.sleep(self._seconds())
            await come_back(self.cluster, host)
            self.busy.discard(host)

    async def _crash_in_write(self) -> None:
        """The power goes in the midst of a write, or between two changes of the disk."""
        host = self._choose(self.cluster.nodes)
        if host is None:
            return
        self.busy.add(host)
        disk = self.cluster.simulation.disk(host)
        if self.random.below(2):
            disk.cut_after(1 + self.random.below(4000))
        else:
            disk.cut_before(self.random.below(40))
        for _ in range(100):
            await asyncio.sleep(0.1)
            if not self.cluster.is_up(host):
                break
        self.cluster.crash(host)
        await asyncio.sleep(self._seconds())
        await come_back(self.cluster, host)
        self.busy.discard(host)

    async def _crash_all_nodes(self) -> None:
        """The mains."""
        if self.busy & set(self.cluster.nodes):
            return  # somebody is about to start one of them again
        for host in self.cluster.nodes:
            if self.cluster.is_up(host):
                self.cluster.crash(host)
            self.busy.add(host)
        await asyncio.sleep(self._seconds() / 4)
        for host in self.cluster.nodes:
            await come_back(self.cluster, host)
            self.busy.discard(host)

    async def _restart(self) -> None:
        """A clean stop, and a start."""
        host = self._choose(self.cluster.nodes)
        if host is not None:
            self.busy.add(host)
            with suppress(HeadraceError):  # its disk is full, say
                await self.cluster.stop_node(host)
            await asyncio.sleep(self._seconds())
            await come_back(self.cluster, host)
            self.busy.discard(host)

    async def _partition(self) -> None:
        """Two hosts, or one host and many others, one way or both ways."""
        everybody = [*self.cluster.nodes, *self.cluster.managers]
        host = everybody[self.random.below(len(everybody))]
        others = [other for other in everybody if other != host]
        if self.random.below(2):
            others = [others[self.random.below(len(others))]]
        elif self.random.below(2):
            others = others[: 1 + self.random.below(len(others))]
        one_way = not self.random.below(3)
        back = bool(self.random.below(2))
        simulation = self.cluster.simulation
        for other in others:
            a, b = (other, host) if back else (host, other)
            simulation.partition(a, b, one_way=one_way)
        await asyncio.sleep(self._seconds())
        for other in others:
            simulation.heal(host, other)

    async def _strand(self) -> None:
        """A data node that no placement manager reaches, while clients and other nodes do."""
        host = self._choose(self.cluster.nodes)
        if host is not None:
            for manager in self.cluster.managers:
                self.cluster.simulation.partition(host, manager)
            await asyncio.sleep(self._seconds())
            for manager in self.cluster.managers:
                self.cluster.simulation.heal(host, manager)

    async def _isolate(self) -> None:
        """A data node that no other one reaches, while clients and managers do."""
        host = self._choose(self.cluster.nodes)
        if host is not None:
            others = [other for other in self.cluster.nodes if other != host]
            for other in others:
                self.cluster.simulation.partition(host, other)
            await asyncio.sleep(self._seconds())
            for other in others:
                self.cluster.simulation.heal(host, other)

    async def _cut_metadata(self) -> None:
        """One placement manager, or all of them, does not reach the metadata."""
        managers = self.cluster.managers
        if self.random.below(3):
            managers = [managers[self.random.below(len(managers))]]
        self.cluster.metadata.unreachable.update(managers)
        await asyncio.sleep(self._seconds())
        self.cluster.metadata.unreachable.difference_update(managers)

    async def _drop(self) -> None:
        """Connections break; what they carried may or may not have arrived."""
        for host in self.cluster.nodes:
            for other in (*self.cluster.nodes, *self.cluster.managers):
                if other != host and self.random.below(2):
                    self.cluster.simulation.break_connections(host, other)

    async def _pause(self) -> None:
        """A process that stalls and wakes up later."""
        host = self._choose([*self.cluster.nodes, *self.cluster.managers])
        if host is not None:
            self.busy.add(host)
            self.cluster.simulation.pause(host)
            await asyncio.sleep(self._seconds())
            self.cluster.simulation.resume(host)
            self.busy.discard(host)

    async def _slow(self) -> None:
        host = self._choose([*self.cluster.nodes, *self.cluster.managers])
        if host is not None:
            self.cluster.simulation.slow(host, self.random.between(5, 60))
            await asyncio.sleep(self._seconds())
            self.cluster.simulation.slow(host)

    async def _fill_disk(self) -> None:
        host = self._choose(self.cluster.nodes)
        if host is not None:
            disk = self.cluster.simulation.disk(host)
            disk.full = True
            await asyncio.sleep(self._seconds())
            disk.full = False

    async def _fail_disk(self) -> None:
        """One operation fails; a failed sync loses what it should have kept."""
        host = self._choose(self.cluster.nodes)
        if host is not None:
            operation = ("sync", "write", "write_atomic", "sync_atomic")[self.random.below(4)]
            with suppress(StorageError):
                self.cluster.simulation.disk(host).fail_next(operation)

    async def _wipe(self) -> None:
        """A disk is replaced by an empty one, or the log on it is lost and the rest is not."""
        host = self._choose(self.cluster.nodes)
        if host is None or not self._may_damage(host):
            return
        self.busy.add(host)
        if self.random.below(2):
            self.cluster.wipe(host)
        else:
            self.cluster.crash(host)
            self.cluster.simulation.disk(host).remove_tree("/data/log")
            self.cluster.history.lost.setdefault(host, []).append(self.cluster.simulation.time())
        await asyncio.sleep(self._seconds() / 4)
        await come_back(self.cluster, host)
        self.busy.discard(host)

    async def _rot(self) -> None:
        """A bit flips in a segment file of a range that is sealed, on one node."""
        host = self._choose(self.cluster.nodes)
        if host is None or not self._may_damage(host):
            return
        disk = self.cluster.simulation.disk(host)
        sealed = {
            f"/data/log/streams/{r.stream_id}/{r.range_index}/"
            for r in self.cluster.records()
            if isinstance(r, RangeRecord) and r.end >= 0
        }
        paths = [
            path
            for path, content in disk.files().items()
            if path.endswith(".log") and path.rpartition("/")[0] + "/" in sealed and content
        ]
        if paths:
            path = paths[self.random.below(len(paths))]
            disk.flip_bit(path, self.random.below(disk.size(path)), self.random.below(8))
            self.cluster.simulation.record(host, f"rots {path}")

    def _may_damage(self, host: str) -> bool:
        """One disk of a run may be lost, whatever else is wrong just then; not the only copy of
        what was asked to be kept once."""
        records = self.cluster.records()
        alone = {
            (r.node_id,)
            for r in records
            if isinstance(r, NodeRecord) and r.address.startswith(f"{host}:")
        }
        if any(isinstance(r, RangeRecord) and r.replicas in alone for r in records):
            return False
        self.damaged = self.damaged or host
        return self.damaged == host
