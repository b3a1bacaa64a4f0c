"""What several placement managers share: keys with revisions, transactions, leases.

The terms are etcd's. `LeaseElection` and `GuardedStore` use nothing else, so that the simulator
runs them over `MemoryMetadata` and a cluster over `EtcdCoordinator`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.errors import UnavailableError


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key that there is, and what it holds."""

    key: str
    value: bytes
    create_revision: int
    """Of the transaction that made the key. Removed and made again, it has another one."""


@dataclass(frozen=True, slots=True)
class CreatedAt:
    """True when the key was made by that revision; 0: when there is no such key."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class ValueIs:
    key: str
    value: bytes


Condition = CreatedAt | ValueIs


@dataclass(frozen=True, slots=True)
class Transaction:
    """If all conditions hold, everything is written at once; otherwise nothing."""

    conditions: Sequence[Condition]
    puts: Mapping[str, bytes] = field(default_factory=dict)
    removes: Sequence[str] = ()
    lease: int = 0
    """The puts go away with this lease; 0: they stay."""


@dataclass(frozen=True, slots=True)
class Outcome:
    succeeded: bool
    revision: int


class RefusedError(UnavailableError):
    """It was looked at and nothing was done; the same again will fare no better."""


class Coordinator(Protocol):
    """Linearizable: what one caller was told happened is seen by every later call of any other.

    Every call may raise UnavailableError, after which it may have happened, may still happen, or
    never does.
    """

    async def read(self, key: str) -> KeyValue | None: ...

    async def scan(self, prefix: str) -> Sequence[KeyValue]:
        """All keys that start so, in order, as of one moment."""
        ...

    async def write(self, transaction: Transaction) -> Outcome: ...

    async def grant(self, ttl: float) -> tuple[int, float]:
        """A new lease and the seconds it lives without being kept alive."""
        ...

    async def keep_alive(self, lease: int) -> float:
        """The seconds it lives from now on; 0 when it is over."""
        ...

    async def revoke(self, lease: int) -> None:
        """End the lease and everything that was put with it."""
        ...

    async def close(self) -> None: ...
