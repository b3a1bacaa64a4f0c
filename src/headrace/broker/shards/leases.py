"""The leases of one worker: that it lives, and those of the shards that it leads.

All of them are renewed together, in one request, and count from the moment before it was sent. So
either this worker may answer or it may not; a lease that is refused is lost alone. After a time
without the placement manager they may all have run out: nothing is answered then, and those that
nobody else was given meanwhile are held again as soon as it answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from headrace.errors import HeadraceError, NotLeaderError, UnavailableError
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Runtime
from headrace.wire.sbp.messages import LeaseAction, LeaseChange, LeaseResult

log = get_logger(__name__)

COORDINATOR = "broker"
"""The lease of the first shard."""
SHARD_PREFIX = "broker/shard/"
WORKER_PREFIX = "worker/"
NUMBER_PREFIX = "worker-number/"
NUMBERS_MAX = 126
"""As many as client ids have room for (`sessions.py`)."""
_REGAIN_SECONDS = 0.01


def shard_lease(shard: int) -> str:
    return f"{SHARD_PREFIX}{shard}" if shard else COORDINATOR


def shard_of(name: str) -> int | None:
    """The shard whose lease has this name."""
    if name == COORDINATOR:
        return 0
    number = name.removeprefix(SHARD_PREFIX)
    return int(number) if number != name and number.isdecimal() else None


class LeaseClient(Protocol):
    """The part of `SbpClient` this needs."""

    async def change_leases(
        self, changes: Sequence[LeaseChange], holder: str, duration_ms: int, address: str = ""
    ) -> list[LeaseResult]: ...


class WorkerLeases:
    def __init__(
        self,
        runtime: Runtime,
        client: LeaseClient,
        *,
        holder: str,
        duration_ms: int,
        on_lost: Callable[[str], None],
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_current` says whether what this worker knows of the catalogue may be used."""
        self.address = ""
        """Where other workers reach this one; said before `start`."""
        self._is_current = is_current
        self._clock = runtime.clock
        self._client = client
        self._holder = holder
        self._duration_ms = duration_ms
        self._on_lost = on_lost
        self._own = f"{WORKER_PREFIX}{holder}"
        self._held: dict[str, int] = {}
        self._until = float("-inf")
        self._asking = asyncio.Lock()

    @property
    def holds(self) -> bool:
        return self._clock.monotonic() < self._until and self._is_current()

    def check(self) -> None:
        if not self.holds:
            raise NotLeaderError("the worker's lease is not held", worker=self._holder)

    async def regain(self) -> None:
        """Return when the leases are held, at once if they are; NotLeaderError if it takes long."""
        try:
            async with asyncio.timeout(self._duration_ms / 1000):
                while not self.holds:  # of two things, either may be missing
                    await self._clock.sleep(_REGAIN_SECONDS)
        except TimeoutError:
            self.check()

    def epoch(self, name: str) -> int | None:
        return self._held.get(name)

    async def acquire(self, names: Iterable[str]) -> dict[str, int]:
        """The epochs of those that are ours now."""
        changes = [LeaseChange(name=name, action=LeaseAction.ACQUIRE) for name in names]
        async with self._asking:
            results = await self._client.change_leases(
                changes, self._holder, self._duration_ms, self.address
            )
            granted = {r.name: r.epoch for r in results if r.granted}
            self._held.update(granted)
            return granted

    async def release(self, names: Iterable[str]) -> None:
        """Give them back, so that whoever is next need not wait for their end."""
        changes = [
            LeaseChange(name=name, action=LeaseAction.RELEASE, epoch=self._held.pop(name))
            for name in names
            if name in self._held
        ]
        if changes:
            await self._client.change_leases(changes, self._holder, self._duration_ms)

    async def take_number(self) -> int:
        """One that no other worker of the cluster has while this one lives."""
        for number in range(NUMBERS_MAX):
            if await self.acquire([f"{NUMBER_PREFIX}{number}"]):
                return number
        raise UnavailableError("a cluster has room for so many workers", workers=NUMBERS_MAX)

    async def start(self) -> None:
        """Be known as a worker."""
        asked = self._clock.monotonic()
        await self.acquire([self._own])
        self._until = asked + self._duration_ms / 1000

    async def keep(self) -> None:
        """Renew all of them in good time, until cancelled."""
        third = self._duration_ms / 3000
        while True:
            await self._clock.sleep(third)
            while True:
                try:
                    async with asyncio.timeout(third):
                        await self._renew()
                    break
                except (HeadraceError, TimeoutError) as error:
                    log.info("leases not renewed", reason=str(error))
                    await self._clock.sleep(third / 10)

    async def _renew(self) -> None:
        async with self._asking:
            wanted = {self._own: self._held.get(self._own, -1), **self._held}
            changes = [
                LeaseChange(name=name, action=LeaseAction.ACQUIRE, epoch=epoch)
                for name, epoch in wanted.items()
            ]
            asked = self._clock.monotonic()
            results = await self._client.change_leases(
                changes, self._holder, self._duration_ms, self.address
            )
        lost = [r.name for r in results if not r.granted and r.name in self._held]
        for name in lost:
            del self._held[name]
        self._held.update({r.name: r.epoch for r in results if r.granted and r.name == self._own})
        # What was lost is given up before anything is answered under the rest.
        for name in lost:
            if name != self._own:
                self._on_lost(name)
        self._until = asked + self._duration_ms / 1000

    def lose(self, name: str) -> None:
        """Somebody else has it, whatever the placement manager said last."""
        if self._held.pop(name, None) is not None:
            self._on_lost(name)

    async def close(self) -> None:
        self._until = float("-inf")
        await self.release(list(self._held))
