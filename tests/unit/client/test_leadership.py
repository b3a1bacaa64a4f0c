from __future__ import annotations

import asyncio

import pytest

from headrace.client.leadership import Holder, HolderFile, Leadership
from headrace.errors import NotLeaderError, UnavailableError
from headrace.runtime.system import system_runtime
from headrace.wire.sbp.messages import LeaseResponse


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


def leadership(placement: Placement, lost: list[bool], duration_ms: int = 150) -> Leadership:
    return Leadership(
        system_runtime(),
        placement,
        name="broker",
        holder="me",
        duration_ms=duration_ms,
        on_lost=lambda: lost.append(True),
    )


async def test_it_waits_for_its_turn_renews_and_gives_back() -> None:
    placement, lost = Placement("other"), list[bool]()
    lease = leadership(placement, lost)
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


@pytest.mark.parametrize("reason", ["taken", "another epoch", "unreachable"])
async def test_it_is_over_when_it_cannot_be_renewed(reason: str) -> None:
    placement, lost = Placement(), list[bool]()
    lease = leadership(placement, lost)
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
