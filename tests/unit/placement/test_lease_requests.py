"""LEASE as a placement manager serves it: many names, the list of them, a holder that is dead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.errors import InvalidArgumentError, NotLeaderError
from headrace.placement.leases import NAMES_MAX
from headrace.placement.metadata.records import LeaseRecord
from headrace.placement.service import PlacementService
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.opcodes import Code
from tests.unit.placement.world import World, simulate

SHARDS = 64
PREFIX = "broker/shard/"


def shard(number: int) -> str:
    return f"{PREFIX}{number}"


async def change(
    world: World,
    holder: str,
    epochs: dict[int, int],
    action: m.LeaseAction = m.LeaseAction.ACQUIRE,
    *,
    duration_ms: int = 3_000,
) -> dict[int, m.LeaseResult]:
    """By shard; `epochs` has those that are asked for."""
    changes = tuple(m.LeaseChange(shard(n), action, epoch) for n, epoch in epochs.items())
    request = m.LeaseRequest(
        action=m.LeaseAction.CHANGE_MANY,
        holder=holder,
        duration_ms=duration_ms,
        address=f"{holder}:1",
        leases=changes,
    )
    answer = await world.ask(Code.LEASE, request)
    assert [result.name for result in answer.leases] == [each.name for each in changes]
    return dict(zip(epochs, answer.leases, strict=True))


async def listed(
    world: World, version: int = -1, wait_ms: int = 0, prefix: str = PREFIX
) -> m.LeaseResponse:
    request = m.LeaseRequest(
        action=m.LeaseAction.LIST, name=prefix, version=version, wait_ms=wait_ms
    )
    answer = await world.ask(Code.LEASE, request)
    assert isinstance(answer, m.LeaseResponse)
    return answer


def holders(answer: m.LeaseResponse) -> dict[str, str]:
    return {result.name: result.holder for result in answer.leases}


def lease_transactions(world: World) -> list[int]:
    """How many leases each transaction changed, of those that changed one."""
    counts = [
        sum(isinstance(operation.record, LeaseRecord) for operation in transaction)
        for transaction in world.store.transactions
    ]
    return [count for count in counts if count]


def test_many_leases_change_in_one_transaction_and_are_renewed_without() -> None:
    async def body(world: World) -> None:
        granted = await change(world, "a", dict.fromkeys(range(SHARDS), -1))
        assert all(one.granted and one.epoch == 1 for one in granted.values())
        assert all(one.remaining_ms == 3_000 for one in granted.values())
        assert lease_transactions(world) == [SHARDS]
        renewed = await change(world, "a", dict.fromkeys(range(SHARDS), 1))
        assert all(one.granted and one.epoch == 1 for one in renewed.values())
        assert lease_transactions(world) == [SHARDS], "as little as a renewal of one: nothing"
        gone = await change(world, "a", {0: 1, 1: 1}, m.LeaseAction.RELEASE)
        assert all(one.granted and not one.holder for one in gone.values())
        assert lease_transactions(world) == [SHARDS, 2]

    simulate(body)


def test_each_name_is_answered_for_itself() -> None:
    async def body(world: World) -> None:
        await change(world, "a", {1: -1, 2: -1})
        await change(world, "b", {3: -1})
        changes = (
            m.LeaseChange(shard(1), m.LeaseAction.ACQUIRE, 1),
            m.LeaseChange(shard(2), m.LeaseAction.RELEASE, 1),
            m.LeaseChange(shard(3), m.LeaseAction.ACQUIRE),
            m.LeaseChange(shard(4), m.LeaseAction.ACQUIRE),
            m.LeaseChange(shard(3), 99),
            m.LeaseChange("", m.LeaseAction.ACQUIRE),
            m.LeaseChange(shard(5), m.LeaseAction.QUERY),
        )
        with pytest.raises(InvalidArgumentError, match="twice"):
            await ask_many(world, *changes)
        answer = await ask_many(world, *changes[:4], m.LeaseChange(shard(9), 99), *changes[5:])
        found = [(one.granted, one.epoch, one.holder) for one in answer.leases]
        assert found == [
            (True, 1, "a"),
            (True, 1, ""),
            (False, 2, "b"),  # of one family: behind all that were given out before
            (True, 3, "a"),
            (False, -1, ""),
            (False, -1, ""),
            (False, -1, ""),
        ]
        codes = [one.status.code if one.status else 0 for one in answer.leases]
        assert codes == [0, 0, 0, 0, 2, 2, 0]

    simulate(body)


async def ask_many(world: World, *changes: m.LeaseChange) -> m.LeaseResponse:
    request = m.LeaseRequest(
        action=m.LeaseAction.CHANGE_MANY, holder="a", duration_ms=3_000, leases=changes
    )
    answer = await world.ask(Code.LEASE, request)
    assert isinstance(answer, m.LeaseResponse)
    return answer


def test_the_number_of_names_is_bounded() -> None:
    async def body(world: World) -> None:
        await change(world, "a", dict.fromkeys(range(NAMES_MAX), -1))
        assert sum(lease_transactions(world)) == NAMES_MAX
        with pytest.raises(InvalidArgumentError, match="too many"):
            await change(world, "a", dict.fromkeys(range(NAMES_MAX + 1), -1))

    simulate(body)


def test_one_name_and_many_are_the_same_leases() -> None:
    async def body(world: World) -> None:
        one = m.LeaseRequest(
            action=m.LeaseAction.ACQUIRE, name=shard(0), holder="a", duration_ms=3_000
        )
        assert (await world.ask(Code.LEASE, one)).granted
        assert not (await change(world, "b", {0: -1}))[0].granted
        assert (await change(world, "a", {0: 1}))[0].granted
        query = m.LeaseRequest(action=m.LeaseAction.QUERY, name=shard(0))
        found = await world.ask(Code.LEASE, query)
        assert (found.holder, found.epoch, found.address) == ("a", 1, "a:1")

    simulate(body)


def test_two_requests_for_the_same_names_end_in_one_holder_each() -> None:
    async def body(world: World) -> None:
        wanted = dict.fromkeys(range(SHARDS), -1)
        backwards = dict.fromkeys(reversed(range(SHARDS)), -1)
        first, second = await asyncio.gather(
            change(world, "a", wanted), change(world, "b", backwards)
        )
        for number in range(SHARDS):
            assert first[number].granted != second[number].granted

    simulate(body)


# The list


def test_the_list_has_a_prefix_and_what_is_not_held() -> None:
    async def body(world: World) -> None:
        await change(world, "a", {0: -1, 1: -1, 2: -1})
        await change(world, "a", {1: 1}, m.LeaseAction.RELEASE)
        other = m.LeaseRequest(
            action=m.LeaseAction.ACQUIRE, name="broker", holder="z", duration_ms=3_000
        )
        await world.ask(Code.LEASE, other)
        answer = await listed(world)
        assert holders(answer) == {shard(0): "a", shard(1): "", shard(2): "a"}
        assert [one.epoch for one in answer.leases] == [1, 1, 1]
        assert {one.address for one in answer.leases if one.holder} == {"a:1"}
        again = await listed(world, answer.version)
        assert (again.leases, again.version) == ((), answer.version), "nothing new"
        await change(world, "a", {0: 1, 2: 1})
        assert (await listed(world, answer.version)).leases == (), "a renewal is no news"

    simulate(body)


def test_news_wake_whoever_waits() -> None:
    async def body(world: World) -> None:
        await change(world, "a", {0: -1})
        known = await listed(world)
        waiting = asyncio.ensure_future(listed(world, known.version, wait_ms=10_000))
        await world.clock.sleep(1)
        assert not waiting.done()
        begun = world.clock.monotonic()
        await change(world, "b", {1: -1})
        answer = await waiting
        assert world.clock.monotonic() - begun < 0.1
        assert holders(answer) == {shard(0): "a", shard(1): "b"}
        assert answer.version > known.version

    simulate(body)


def test_a_lease_that_runs_out_is_news() -> None:
    async def body(world: World) -> None:
        await change(world, "a", {0: -1, 1: -1}, duration_ms=2_000)
        await change(world, "b", {2: -1}, duration_ms=60_000)
        known = await listed(world)
        begun = world.clock.monotonic()
        answer = await listed(world, known.version, wait_ms=10_000)
        assert 1.9 < world.clock.monotonic() - begun < 2.1
        assert holders(answer) == {shard(0): "", shard(1): "", shard(2): "b"}
        late = await change(world, "a", {0: 1})
        assert late[0].granted, "late, and nobody came between"
        again = await listed(world, answer.version)
        assert holders(again)[shard(0)] == "a"

    simulate(body)


def test_the_wait_is_bounded() -> None:
    async def body(world: World) -> None:
        known = await listed(world)
        begun = world.clock.monotonic()
        answer = await listed(world, known.version, wait_ms=1_500)
        assert 1.4 < world.clock.monotonic() - begun < 1.6
        assert answer.version == known.version
        begun = world.clock.monotonic()
        await listed(world, known.version, wait_ms=29_000)
        assert 28.9 < world.clock.monotonic() - begun < 29.1

    simulate(body)


def test_another_leader_answers_at_once() -> None:
    """It knows nothing of versions of before: whatever it has is news, and told in full."""

    async def body(world: World) -> None:
        await change(world, "a", dict.fromkeys(range(4), -1), duration_ms=20_000)
        known = await listed(world)
        first = world.leaders()[0]
        waiting = asyncio.ensure_future(until_answered(world, known.version))
        await world.clock.sleep(0.5)
        world.crash(first)
        await world.leader(but=first)
        answer = await waiting
        assert answer.version != known.version
        assert holders(answer) == {shard(n): "a" for n in range(4)}

    simulate(body, managers=3)


async def until_answered(world: World, version: int) -> m.LeaseResponse:
    while True:
        try:
            return await listed(world, version, wait_ms=20_000)
        except Exception:
            await world.clock.sleep(0.1)


def test_whoever_waits_is_answered_when_the_leader_steps_down() -> None:
    async def body(world: World) -> None:
        known = await listed(world)
        leader = await world.leader()
        waiting = asyncio.ensure_future(ask_directly(world, leader, known.version))
        await world.clock.sleep(0.2)
        begun = world.clock.monotonic()
        leader._step_down()
        with pytest.raises(NotLeaderError):
            await waiting
        assert world.clock.monotonic() - begun < 0.1
        leader._ready = True

    simulate(body)


async def ask_directly(world: World, service: PlacementService, version: int) -> Any:
    request = m.LeaseRequest(
        action=m.LeaseAction.LIST, name=PREFIX, version=version, wait_ms=20_000
    )
    return await world.call(service, Code.LEASE, request)


# A holder that is dead


def test_a_dead_holder_is_fenced_and_its_leases_are_free() -> None:
    async def body(world: World) -> None:
        await change(world, "a", dict.fromkeys(range(8), -1), duration_ms=60_000)
        await change(world, "b", {8: -1}, duration_ms=60_000)
        other = m.LeaseRequest(
            action=m.LeaseAction.ACQUIRE, name="controller", holder="a", duration_ms=60_000
        )
        await world.ask(Code.LEASE, other)
        known = await listed(world)
        waiting = asyncio.ensure_future(listed(world, known.version, wait_ms=10_000))
        await world.clock.sleep(0.2)
        over = await world.ask(
            Code.LEASE,
            m.LeaseRequest(action=m.LeaseAction.RELEASE_HOLDER, name=PREFIX, holder="a"),
        )
        assert [one.name for one in over.leases] == [shard(n) for n in range(8)]
        assert lease_transactions(world)[-1] == 8, "one transaction"
        told = holders(await waiting)
        assert {told.pop(shard(n)) for n in range(8)} == {""}
        assert told == {shard(8): "b"}
        refused = await change(world, "a", dict.fromkeys(range(8), 1))
        assert not any(one.granted for one in refused.values()), "should it live after all"
        taken = await change(world, "b", dict.fromkeys(range(8), -1))
        assert all(one.granted and one.epoch > 1 for one in taken.values())
        refused = await change(world, "a", dict.fromkeys(range(8), 1))
        assert not any(one.granted for one in refused.values())
        held = await world.ask(
            Code.LEASE, m.LeaseRequest(action=m.LeaseAction.QUERY, name="controller")
        )
        assert held.holder == "a", "another prefix"
        again = await world.ask(
            Code.LEASE,
            m.LeaseRequest(action=m.LeaseAction.RELEASE_HOLDER, name=PREFIX, holder="a"),
        )
        assert again.leases == (), "nothing is its any more"
        with pytest.raises(InvalidArgumentError):
            await world.ask(Code.LEASE, m.LeaseRequest(action=m.LeaseAction.RELEASE_HOLDER))

    simulate(body)


def test_an_end_that_was_told_survives_the_placement_manager() -> None:
    async def body(world: World) -> None:
        await change(world, "a", {0: -1, 1: -1}, duration_ms=60_000)
        await world.ask(Code.LEASE, m.LeaseRequest(action=m.LeaseAction.RELEASE_HOLDER, holder="a"))
        world.crash("pm")
        await world.start("pm")
        refused = await change(world, "a", {0: 1, 1: 1})
        assert not any(one.granted for one in refused.values())
        assert (await change(world, "b", {0: -1}))[0].epoch == 2

    simulate(body)
