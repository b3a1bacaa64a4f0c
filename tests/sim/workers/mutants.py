"""Bugs planted on purpose, each a mistake that several workers can really make.

`python -m tests.sim.workers.mutants [NAME]` shows what the simulation says of each.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from headrace.broker.catalogue.state import Catalogue
from headrace.broker.core import Broker
from headrace.broker.shards.leases import WorkerLeases
from headrace.broker.shards.offset_logs import OffsetLogs
from headrace.broker.shards.peers import Peers
from headrace.broker.shards.worker import Worker
from headrace.broker.windows.publishing import Publishing
from headrace.errors import NotLeaderError, OutcomeUnknownError, UnavailableError
from headrace.placement.leases import Leases
from tests.sim.workers.run import Plan, run

Patch = pytest.MonkeyPatch


@dataclass(frozen=True, slots=True)
class Mutant:
    plant: Callable[[Patch], None]
    finds: tuple[str, ...]
    plan: Plan
    seeds: int = 15


def lease_is_given_away(patch: Patch) -> None:
    """The placement manager does not know who holds a lease."""
    patch.setattr(Leases, "held", lambda self, name, now_ms: False)


def lease_is_ignored(patch: Patch) -> None:
    """A worker answers and acknowledges whatever its lease says, and never lets go of a shard."""
    patch.setattr(WorkerLeases, "holds", True)
    patch.setattr(WorkerLeases, "lose", lambda self, name: None)
    patch.setattr(Worker, "on_lost", lambda self, name: None)


def window_in_half(patch: Patch) -> None:
    """A window counts as published when some of its targets have it."""
    original = Publishing._fill

    async def half(self: Publishing, *args: Any, **kwargs: Any) -> Any:
        try:
            return await original(self, *args, **kwargs)
        except (NotLeaderError, UnavailableError, OutcomeUnknownError):
            return []

    patch.setattr(Publishing, "_fill", half)


def window_twice(patch: Patch) -> None:
    """Who finishes a window does not look at what its partitions hold of it."""

    async def nothing(self: Publishing, *args: Any) -> list[Any]:
        return []

    patch.setattr(Publishing, "_find", nothing)


def stale_catalogue(patch: Patch) -> None:
    """Who follows the catalogue goes on with the rights of before for a while."""
    original = Broker.apply

    def late(self: Broker, catalogue: Catalogue, version: int, kind: str, body: object) -> None:
        if kind == "PermissionsChanged" and self.is_live and not self.workers.coordinates:
            loop = asyncio.get_running_loop()
            loop.call_later(2.5, original, self, catalogue, version, kind, body)
        else:
            original(self, catalogue, version, kind, body)

    patch.setattr(Broker, "apply", late)


def offsets_before_the_catalogue(patch: Patch) -> None:
    """A shard is led before the catalogue says where its offsets are."""

    async def at_once(self: Worker, offset: int) -> None:
        if self._catalogue is not None:
            await self._catalogue.wait_applied(offset, 5.0)

    patch.setattr(Worker, "_wait_catalogue", at_once)


def offsets_are_kept(patch: Patch) -> None:
    """A worker that gets a shard back goes on with the offsets that it knew."""
    original = OffsetLogs._open

    async def stale(self: OffsetLogs, shard: int, *args: Any) -> Any:
        entries = [e for e in self._offsets.entries() if self.log_of(e.place) == shard]
        log = await original(self, shard, *args)
        for entry in entries:
            self._offsets.put(entry)
        return log

    patch.setattr(OffsetLogs, "_open", stale)
    patch.setattr("headrace.broker.partitions.offsets.Offsets.forget", lambda self, place: None)


def forwarded_twice(patch: Patch) -> None:
    """A lost answer is taken for a request that was never begun."""
    original = Peers.exchange

    async def again(self: Peers, *args: Any, **kwargs: Any) -> Any:
        try:
            return await original(self, *args, **kwargs)
        except OutcomeUnknownError as error:
            raise UnavailableError("nothing was asked") from error

    patch.setattr(Peers, "exchange", again)


_CALM = Plan(faults=6)

MUTANTS: dict[str, Mutant] = {
    "a lease is given to two": Mutant(
        lease_is_given_away, ("leaders:",), replace(_CALM, kinds=("move", "kill", "pause"))
    ),
    "a lease is ignored": Mutant(
        lease_is_ignored, ("leaders:",), replace(_CALM, kinds=("cut_manager",), machines=3)
    ),
    "a window is published in half": Mutant(
        window_in_half,
        ("window:",),
        replace(_CALM, faults=8, kinds=("move", "break_links", "kill"), clients=("publisher",)),
    ),
    "a window is published twice": Mutant(
        window_twice,
        ("window:",),
        replace(_CALM, kinds=("kill_coordinator", "move", "kill"), clients=("publisher",)),
    ),
    "a removed right counts on": Mutant(
        stale_catalogue,
        ("right:",),
        replace(_CALM, kinds=("move", "kill"), clients=("banned", "banned", "warden")),
    ),
    "offsets are opened before the catalogue": Mutant(
        offsets_before_the_catalogue,
        ("offset",),
        replace(_CALM, kinds=("kill", "stop"), clients=("plain", "keeper", "keeper", "consumer")),
    ),
    "offsets of before a hand-over": Mutant(
        offsets_are_kept,
        ("offset", "given twice"),
        replace(_CALM, kinds=("move",), clients=("plain", "plain", "keeper", "consumer", "member")),
    ),
    "a forwarded SEND is applied twice": Mutant(
        forwarded_twice, ("doubled:",), replace(_CALM, kinds=("lose_answer",), clients=("plain",))
    ),
}


def hunt(mutant: Mutant) -> tuple[int, list[str]]:
    """The first seed that finds it and what it reports; -1 when none does."""
    for seed in range(mutant.seeds):
        told = [
            text
            for text in run(seed, mutant.plan).violations
            if any(name in text for name in mutant.finds)
        ]
        if told:
            return seed, told
    return -1, []


def main(names: list[str]) -> None:
    for name, mutant in MUTANTS.items():
        if names and not any(word in name for word in names):
            continue
        with pytest.MonkeyPatch.context() as patch:
            mutant.plant(patch)
            seed, told = hunt(mutant)
        sys.stdout.write(f"{name}: seed {seed}\n" + "".join(f"    {t}\n" for t in told[:3]))
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
