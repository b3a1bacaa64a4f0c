"""The leases of one worker."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.broker.shards.leases import (
    COORDINATOR,
    NUMBER_PREFIX,
    NUMBERS_MAX,
    WorkerLeases,
    shard_lease,
    shard_of,
)
from headrace.errors import NotLeaderError, UnavailableError
from headrace.runtime.system import system_runtime
from headrace.wire.sbp.messages import LeaseAction, LeaseChange, LeaseResult


class Manager:
    """Grants everything but what others have."""

    def __init__(self) -> None:
        self.others: set[str] = set()
        self.epoch = 0

    async def change_leases(
        self, changes: Sequence[LeaseChange], holder: str, duration_ms: int, address: str = ""
    ) -> list[LeaseResult]:
        self.epoch += 1
        return [
            LeaseResult(
                name=change.name,
                granted=change.name not in self.others,
                epoch=change.epoch if change.epoch >= 0 else self.epoch,
            )
            for change in changes
            if change.action == LeaseAction.ACQUIRE
        ]


async def leases_of(manager: Manager, lost: list[str], current: list[bool]) -> WorkerLeases:
    leases = WorkerLeases(
        system_runtime(),
        manager,
        holder="w",
        duration_ms=100,
        on_lost=lost.append,
        is_current=lambda: current[0],
    )
    await leases.start()
    return leases


def test_names_of_leases() -> None:
    assert [shard_of(shard_lease(shard)) for shard in (0, 1, 63)] == [0, 1, 63]
    assert shard_of("broker/shard/x") is None
    assert shard_of("worker/1") is None


async def test_a_lease_that_is_refused_is_lost_alone() -> None:
    lost: list[str] = []
    manager = Manager()
    leases = await leases_of(manager, lost, [True])
    await leases.acquire([COORDINATOR, shard_lease(1)])
    manager.others.add(shard_lease(1))
    await leases._renew()
    assert lost == [shard_lease(1)]
    assert leases.epoch(shard_lease(1)) is None
    assert leases.epoch(COORDINATOR) is not None
    assert leases.holds


async def test_nothing_is_held_by_who_knows_an_old_catalogue() -> None:
    current = [True]
    leases = await leases_of(Manager(), [], current)
    leases.check()
    current[0] = False
    with pytest.raises(NotLeaderError):
        leases.check()
    with pytest.raises(NotLeaderError):
        await leases.regain()
    current[0] = True
    await leases._renew()
    await leases.regain()


async def test_a_number_is_one_that_nobody_else_has() -> None:
    lost: list[str] = []
    manager = Manager()
    manager.others = {f"{NUMBER_PREFIX}0", f"{NUMBER_PREFIX}1"}
    leases = await leases_of(manager, lost, [True])
    assert await leases.take_number() == 2
    manager.others = {f"{NUMBER_PREFIX}{number}" for number in range(NUMBERS_MAX)}
    with pytest.raises(UnavailableError):
        await leases.take_number()
    await leases._renew()
    assert lost == [f"{NUMBER_PREFIX}2"], "whoever has it must know, and take another one"
