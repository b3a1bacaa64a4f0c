"""Which shards this process leads, and under which epochs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from headrace.errors import NotLeaderError


@dataclass(frozen=True, slots=True)
class Led:
    """One shard, from the grant of its lease to its end."""

    epoch: int
    clean: bool = False
    """The leader before left everything acknowledged, so streams go on without being sealed."""


class LeadsShards(Protocol):
    """What partitions need to know of leadership."""

    def get(self, shard: int) -> Led:
        """NotLeaderError when another process leads it."""

    def leads(self, shard: int) -> bool: ...

    def on_fenced(self, shard: int) -> None:
        """A data node knows a later epoch of the shard's: another process leads it."""


@dataclass(frozen=True, slots=True)
class AllShards:
    """One process leads everything under one lease."""

    led: Led
    on_lost: Callable[[], None]

    def get(self, shard: int) -> Led:
        return self.led

    def leads(self, shard: int) -> bool:
        return True

    def on_fenced(self, shard: int) -> None:
        self.on_lost()


@dataclass(slots=True)
class SomeShards:
    """Others lead the rest. Changed only by who holds the leases."""

    on_lost: Callable[[int], None]
    held: dict[int, Led] = field(default_factory=dict)

    def get(self, shard: int) -> Led:
        led = self.held.get(shard)
        if led is None:
            raise NotLeaderError("another broker leads the partition", shard=shard)
        return led

    def leads(self, shard: int) -> bool:
        return shard in self.held

    def on_fenced(self, shard: int) -> None:
        self.on_lost(shard)
