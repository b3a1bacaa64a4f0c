"""The in-memory form of what etcd is to placement managers, for the simulator and for tests.

It outlives the hosts that use it, as a cluster of etcd servers would. Each placement manager has a
coordinator of its own; one named in `unreachable` is cut off. A call takes `delay` there and
again back, and reachability is looked at on both ways: cut off in between, it happened and its
caller does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from headrace.config.placement import PlacementSettings
from headrace.errors import UnavailableError
from headrace.placement.metadata.election import (
    CreatedAt,
    KeyValue,
    LeaseElection,
    Outcome,
    Transaction,
)
from headrace.placement.metadata.guarded_store import RECORDS, GuardedStore, decode_entry
from headrace.placement.metadata.records import Record
from headrace.runtime.interfaces import Clock, Runtime

T = TypeVar("T")

UNREACHABLE_SECONDS = 1.0  # until a caller that is cut off gives up


class Written(NamedTuple):
    """A transaction that took effect."""

    revision: int
    author: str
    transaction: Transaction


class Membership(NamedTuple):
    """What a `PlacementService` of several needs."""

    store: GuardedStore
    election: LeaseElection


@dataclass(slots=True)
class _Value:
    value: bytes
    create_revision: int
    lease: int


@dataclass(slots=True)
class _Lease:
    ttl: float
    ends: float


class MemoryMetadata:
    def __init__(self, clock: Clock, *, delay: Callable[[], float] = lambda: 0.001) -> None:
        """`clock` measures the leases: of a host that does not crash."""
        self.unreachable: set[str] = set()
        self.history: list[Written] = []
        self.delay = delay
        self._clock = clock
        self._revision = 0
        self._values: dict[str, _Value] = {}
        self._leases: dict[int, _Lease] = {}
        self._leases_granted = 0

    def join(self, runtime: Runtime, settings: PlacementSettings, name: str) -> Membership:
        """For one life of one placement manager."""
        coordinator = MemoryCoordinator(self, runtime.clock, name)
        election = LeaseElection(runtime, coordinator, settings, name=name)
        return Membership(GuardedStore(runtime, coordinator, election), election)

    def records(self) -> list[Record]:
        """What is durable now."""
        return [decode_entry(entry) for entry in self.scan(RECORDS)]

    # What the coordinators ask

    def read(self, key: str) -> KeyValue | None:
        self._expire()
        found = self._values.get(key)
        return None if found is None else KeyValue(key, found.value, found.create_revision)

    def scan(self, prefix: str) -> Sequence[KeyValue]:
        self._expire()
        return [
            KeyValue(key, found.value, found.create_revision)
            for key, found in sorted(self._values.items())
            if key.startswith(prefix)
        ]

    def write(self, transaction: Transaction, author: str) -> Outcome:
        self._expire()
        if transaction.lease and transaction.lease not in self._leases:
            raise UnavailableError("no such lease")
        for condition in transaction.conditions:
            found = self._values.get(condition.key)
            if isinstance(condition, CreatedAt):
                holds = (found.create_revision if found else 0) == condition.revision
            else:
                holds = found is not None and found.value == condition.value
            if not holds:
                return Outcome(False, self._revision)
        self._revision += 1
        for key, value in transaction.puts.items():
            known = self._values.get(key)
            created = known.create_revision if known else self._revision
            self._values[key] = _Value(value, created, transaction.lease)
        for key in transaction.removes:
            self._values.pop(key, None)
        self.history.append(Written(self._revision, author, transaction))
        return Outcome(True, self._revision)

    def grant(self, ttl: float) -> tuple[int, float]:
        self._leases_granted += 1
        self._leases[self._leases_granted] = _Lease(ttl, self._clock.monotonic() + ttl)
        return self._leases_granted, ttl

    def keep_alive(self, lease: int) -> float:
        self._expire()
        found = self._leases.get(lease)
        if found is None:
            return 0.0
        found.ends = self._clock.monotonic() + found.ttl
        return found.ttl

    def revoke(self, lease: int) -> None:
        self._leases.pop(lease, None)
        gone = [key for key, found in self._values.items() if found.lease == lease]
        if gone:
            self._revision += 1
        for key in gone:
            del self._values[key]

    def _expire(self) -> None:
        now = self._clock.monotonic()
        for lease in [number for number, found in self._leases.items() if found.ends <= now]:
            self.revoke(lease)


class MemoryCoordinator:
    def __init__(self, metadata: MemoryMetadata, clock: Clock, name: str) -> None:
        self._metadata = metadata
        self._clock = clock
        self._name = name

    async def _pass(self) -> None:
        if self._name in self._metadata.unreachable:
            await self._clock.sleep(UNREACHABLE_SECONDS)
            raise UnavailableError("metadata cut off", name=self._name)
        await self._clock.sleep(self._metadata.delay())
        if self._name in self._metadata.unreachable:
            await self._clock.sleep(UNREACHABLE_SECONDS)
            raise UnavailableError("metadata cut off", name=self._name)

    async def _call(self, function: Callable[..., T], *args: object) -> T:
        await self._pass()
        result = function(*args)
        await self._pass()
        return result

    async def read(self, key: str) -> KeyValue | None:
        return await self._call(self._metadata.read, key)

    async def scan(self, prefix: str) -> Sequence[KeyValue]:
        return await self._call(self._metadata.scan, prefix)

    async def write(self, transaction: Transaction) -> Outcome:
        return await self._call(self._metadata.write, transaction, self._name)

    async def grant(self, ttl: float) -> tuple[int, float]:
        return await self._call(self._metadata.grant, ttl)

    async def keep_alive(self, lease: int) -> float:
        return await self._call(self._metadata.keep_alive, lease)

    async def revoke(self, lease: int) -> None:
        await self._call(self._metadata.revoke, lease)

    async def close(self) -> None:
        pass
