from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.errors import NotLeaderError, UnavailableError
from headrace.runtime.interfaces import Runtime
from headrace.runtime.system import system_runtime
from headrace.sbp_client.leadership import Holder, HolderFile, Leadership
from headrace.wire.sbp.messages import LeaseResponse
from tests.simulator.runtime import Simulation


class Placement:
    """Grants to whom it says in `holder`; "" grants to anybody."""

    def __init__(self, holder: str = "") -> None:
        self.holder = holder
        self.epoch = 7
        self.asked: list[tuple[str, int]] = []
        self.released: list[tuple[str, int]] = []
        self.down = False

    async def lease(
        self, name: str, holder: str, duration_ms: int, address: str = "", epoch: int = -1
    ) -> LeaseResponse:
        if self.down:
            raise UnavailableError("down")
        self.asked.append((holder, epoch))
        granted = self.holder in ("", holder)
        return LeaseResponse(granted=granted, epoch=self.epoch, remaining_ms=20)

    async def release(self, name: str, holder: str, epoch: int) -> object:
        self.released.append((holder, epoch))
        return None


def leadership(runtime: Runtime, placement: Placement, lost: list[bool]) -> Leadership:
    return Leadership(
        runtime,
        placement,
        name="broker",
        holder="me",
        duration_ms=150,
        on_lost=lambda: lost.append(True),
    )


def test_it_waits_for_its_turn_renews_and_gives_back() -> None:
    simulation = Simulation(1)

    async def main() -> None:
        placement, lost = Placement("other"), list[bool]()
        lease = leadership(simulation.runtime("me"), placement, lost)
        acquiring = asyncio.create_task(lease.acquire())
        await asyncio.sleep(0.05)
        assert not acquiring.done()
        with pytest.raises(NotLeaderError):
            lease.check()
        placement.holder = ""
        assert await acquiring == 7
        lease.check()
        await asyncio.sleep(0.4)  # longer than the lease lasts
        lease.check()
        assert ("me", 7) in placement.asked
        await lease.close()
        assert placement.released == [("me", 7)]
        assert not lease.holds
        assert lost == []

    simulation.run(main())


@pytest.mark.parametrize("reason", ["taken", "another epoch", "unreachable"])
def test_it_is_over_when_it_cannot_be_renewed(reason: str) -> None:
    simulation = Simulation(1)

    async def main() -> None:
        placement, lost = Placement(), list[bool]()
        lease = leadership(simulation.runtime("me"), placement, lost)
        await lease.acquire()
        if reason == "taken":
            placement.holder = "other"
        elif reason == "another epoch":
            placement.epoch = 8
        else:
            placement.down = True
        await asyncio.sleep(0.4)
        assert lost == [True]
        with pytest.raises(NotLeaderError):
            lease.check()
        await lease.close()
        assert placement.released == []

    simulation.run(main())


async def test_the_holder_keeps_its_name(tmp_path: object) -> None:
    runtime = system_runtime()
    executor = runtime.executor("test", 1)
    file = HolderFile(runtime, f"{tmp_path}/new/folder", executor)
    holder = await file.load()
    await file.save(Holder(holder.holder, clean_epoch=4))
    again = await file.load()
    assert (again.holder, again.clean_epoch) == (holder.holder, 4)
    executor.close()


def test_only_the_next_epoch_continues_a_clean_stop() -> None:
    assert [e for e in range(10) if Holder("me", clean_epoch=5).continues(e)] == [5, 6]
    assert not any(Holder("me").continues(e) for e in range(10))


class Failing:
    """Grants on a virtual clock; `trouble` says what happens to requests made now."""

    def __init__(self) -> None:
        self.trouble: str = ""
        self.epoch = 7
        self.asked_at: list[float] = []

    async def lease(
        self, name: str, holder: str, duration_ms: int, address: str = "", epoch: int = -1
    ) -> LeaseResponse:
        loop = asyncio.get_running_loop()
        self.asked_at.append(loop.time())
        if self.trouble == "no leader":
            raise NotLeaderError("nobody leads")
        if self.trouble == "silent":
            await asyncio.Event().wait()
        if self.trouble == "slow":
            await asyncio.sleep(8.0)
        return LeaseResponse(granted=epoch in (-1, self.epoch), epoch=self.epoch)

    async def release(self, name: str, holder: str, epoch: int) -> object:
        return None


def on_virtual_clock(
    main: Callable[[Failing, Leadership, list[float]], Awaitable[None]], *, alone: bool = False
) -> None:
    simulation = Simulation(1)

    async def whole() -> None:
        placement, lost = Failing(), list[float]()
        lease = Leadership(
            simulation.runtime("broker"),
            placement,
            name="broker",
            holder="me",
            duration_ms=10_000,
            on_lost=lambda: lost.append(asyncio.get_running_loop().time()),
            alone=alone,
        )
        await main(placement, lease, lost)
        await lease.close()

    simulation.run(whole())


@pytest.mark.parametrize("trouble", ["no leader", "silent"])
def test_a_failover_of_the_placement_managers_does_not_end_a_lease(trouble: str) -> None:
    async def main(placement: Failing, lease: Leadership, lost: list[float]) -> None:
        await lease.acquire()
        await asyncio.sleep(3.0)
        placement.trouble = trouble  # from just before a renewal
        await asyncio.sleep(6.0)
        placement.trouble = ""
        await asyncio.sleep(30.0)
        assert lease.holds
        assert lost == []

    on_virtual_clock(main)


@pytest.mark.parametrize("trouble", ["no leader", "silent"])
def test_a_lease_that_cannot_be_renewed_ends_on_time(trouble: str) -> None:
    async def main(placement: Failing, lease: Leadership, lost: list[float]) -> None:
        await lease.acquire()
        placement.trouble = trouble
        start = placement.asked_at[-1]
        await asyncio.sleep(9.9)
        lease.check()
        await asyncio.sleep(0.2)
        assert not lease.holds
        assert lost == [pytest.approx(start + 10.0, abs=0.05)]

    on_virtual_clock(main)


def test_an_answer_after_the_end_brings_nothing_back() -> None:
    async def main(placement: Failing, lease: Leadership, lost: list[float]) -> None:
        await lease.acquire()
        placement.trouble = "slow"
        announcing = asyncio.create_task(lease.announce("here:1"))
        await asyncio.sleep(1.0)
        lease.give_up()  # a data node told us of a higher epoch
        await announcing
        assert not lease.holds
        with pytest.raises(NotLeaderError):
            lease.check()

    on_virtual_clock(main)


def test_a_late_answer_does_not_shorten_the_lease() -> None:
    async def main(placement: Failing, lease: Leadership, lost: list[float]) -> None:
        await lease.acquire()
        placement.trouble = "slow"
        announcing = asyncio.create_task(lease.announce("here:1"))
        await asyncio.sleep(0.1)
        placement.trouble = ""
        await announcing  # asked at 0, answered at 8; renewed meanwhile
        renewed = placement.asked_at[-1]
        placement.trouble = "no leader"
        await asyncio.sleep(renewed + 9.9 - asyncio.get_running_loop().time())
        assert lease.holds

    on_virtual_clock(main)


def test_a_lease_granted_too_late_is_renewed_before_it_counts() -> None:
    async def main(placement: Failing, lease: Leadership, lost: list[float]) -> None:
        lease._duration_ms = 20_000
        real = placement.lease

        async def slow_once(*args: object, **more: object) -> LeaseResponse:
            placement.lease = real  # type: ignore[method-assign]
            lease._duration_ms = 7_000  # the answer takes longer than the lease lasts
            await asyncio.sleep(8.0)
            return LeaseResponse(granted=True, epoch=7)

        placement.lease = slow_once  # type: ignore[method-assign]
        assert await lease.acquire() == 7
        assert lease.holds
        assert len(placement.asked_at) == 1

    on_virtual_clock(main)


@pytest.mark.parametrize("trouble", ["no leader", "silent"])
def test_alone_a_lease_that_ran_out_is_held_again(trouble: str) -> None:
    """Nothing is said meanwhile; whoever waits goes on when the same epoch is granted again."""

    async def main(placement: Failing, lease: Leadership, lost: list[float]) -> None:
        await lease.acquire()
        placement.trouble = trouble
        await asyncio.sleep(25.0)
        with pytest.raises(NotLeaderError):
            lease.check()
        with pytest.raises(NotLeaderError):
            await lease.regain()  # the placement manager does not answer for too long
        waiting = asyncio.create_task(lease.regain())
        await asyncio.sleep(5.0)
        assert not waiting.done()
        placement.trouble = ""
        await waiting
        assert lease.holds
        assert (lease.epoch, lost) == (7, [])
        await asyncio.sleep(30.0)
        assert lease.holds

    on_virtual_clock(main, alone=True)


def test_alone_a_lease_that_another_had_meanwhile_is_lost() -> None:
    async def main(placement: Failing, lease: Leadership, lost: list[float]) -> None:
        await lease.acquire()
        placement.trouble = "no leader"
        await asyncio.sleep(15.0)
        waiting = asyncio.create_task(lease.regain())
        await asyncio.sleep(1.0)
        placement.epoch, placement.trouble = 8, ""
        with pytest.raises(NotLeaderError):
            await waiting
        assert len(lost) == 1
        await asyncio.sleep(30.0)
        assert not lease.holds

    on_virtual_clock(main, alone=True)


def test_with_others_nobody_waits_for_a_lease_that_ran_out() -> None:
    async def main(placement: Failing, lease: Leadership, lost: list[float]) -> None:
        await lease.acquire()
        await lease.regain()
        placement.trouble = "no leader"
        await asyncio.sleep(10.5)
        before = asyncio.get_running_loop().time()
        with pytest.raises(NotLeaderError):
            await lease.regain()
        assert asyncio.get_running_loop().time() == before

    on_virtual_clock(main)
