"""Finding the leading placement manager, on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

import pytest

from headrace.errors import (
    DeadlineError,
    FencedError,
    HeadraceError,
    NotLeaderError,
    UnavailableError,
)
from headrace.net.sbp_routes import Payload, Reply
from headrace.sbp_client.channels import FOREIGN_MAX, PAUSE_MAX, Connect, PlacementChannel
from headrace.sbp_client.client import SbpClient
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import error_of, status_of
from headrace.wire.sbp.opcodes import Code
from tests.simulator.runtime import Simulation

LEASE = m.LeaseRequest(action=m.LeaseAction.QUERY, name="broker")


class Manager:
    def __init__(self, managers: Managers, name: str) -> None:
        self._managers = managers
        self.name = name
        self.asked = 0
        self.silent = False
        self.down = False
        self.system_errors = True
        self.refusal: HeadraceError | None = None
        self.closed = False

    async def call(
        self, code: Code, message: m.Message, payload: Payload = (), *, timeout: float = 3.0
    ) -> Reply:
        self.asked += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.down:
            raise UnavailableError("connection lost")
        if self.refusal is not None:
            return Reply(m.LeaseResponse(status=status_of(self.refusal)))
        if self._managers.leader == self.name or code is Code.HEARTBEAT:
            return Reply(m.LeaseResponse(holder=self.name))
        status = status_of(NotLeaderError(leader=self._managers.hint(self.name)))
        if self.system_errors:
            raise error_of(status)
        return Reply(m.LeaseResponse(status=status))

    async def close(self) -> None:
        self.closed = True


class Managers:
    def __init__(self, *names: str, leader: str = "") -> None:
        self.each = {name: Manager(self, name) for name in names}
        self.leader = leader
        self.hints: dict[str, str] = {}
        """What one that does not lead says; by default the truth."""
        self.dialed: list[str] = []

    def hint(self, name: str) -> str:
        return self.hints.get(name, self.leader)

    def connect_to(self, address: str) -> Connect:
        async def connect() -> Manager:
            self.dialed.append(address)
            return self.each[address]

        return connect

    def links(self, *names: str) -> PlacementChannel:
        return PlacementChannel(names or tuple(self.each), self.connect_to)

    @property
    def asked(self) -> dict[str, int]:
        return {name: manager.asked for name, manager in self.each.items() if manager.asked}


async def ask(links: PlacementChannel, timeout: float = 5.0) -> str:
    reply = await links.call(Code.LEASE, LEASE, timeout=timeout)
    assert isinstance(reply.message, m.LeaseResponse)
    return reply.message.holder


def run(main: Coroutine[Any, Any, None]) -> None:
    Simulation(1).run(main)


@pytest.mark.parametrize("system_errors", [True, False])
def test_f21_a_follower_sends_us_to_the_leader_in_one_redirect(system_errors: bool) -> None:
    async def main() -> None:
        managers = Managers("a", "b", "c", leader="c")
        managers.each["a"].system_errors = system_errors
        links = managers.links()
        before = asyncio.get_running_loop().time()
        assert await ask(links) == "c"
        assert managers.asked == {"a": 1, "c": 1}
        assert asyncio.get_running_loop().time() == before  # no pause on the way
        assert await ask(links) == "c"
        assert managers.asked == {"a": 1, "c": 2}  # it stays with the leader
        await links.close()
        assert managers.each["c"].closed

    run(main())


def test_without_a_hint_the_others_are_asked() -> None:
    async def main() -> None:
        managers = Managers("a", "b", "c", leader="c")
        managers.hints = {"a": "", "b": ""}
        links = managers.links()
        assert await ask(links) == "c"
        assert managers.asked == {"a": 1, "b": 1, "c": 1}
        await links.close()

    run(main())


def test_a_new_leader_is_found_when_the_old_one_is_gone() -> None:
    async def main() -> None:
        managers = Managers("a", "b", "c", leader="a")
        links = managers.links()
        await ask(links)
        managers.each["a"].down = True
        managers.hints = {"b": "a", "c": "a"}  # nobody knows yet
        waiting = asyncio.create_task(ask(links))
        await asyncio.sleep(1.0)
        assert not waiting.done()
        managers.leader, managers.hints = "b", {}
        before = asyncio.get_running_loop().time()
        assert await waiting == "b"
        assert asyncio.get_running_loop().time() - before <= PAUSE_MAX
        assert links.leader == "b"
        await links.close()

    run(main())


def test_one_that_hangs_leaves_time_for_its_successor() -> None:
    async def main() -> None:
        managers = Managers("a", "b", leader="a")
        links = managers.links()
        await ask(links)
        managers.each["a"].silent = True
        managers.leader = "b"
        assert await ask(links, timeout=4.0) == "b"
        await links.close()

    run(main())


def test_one_that_hangs_is_asked_last() -> None:
    async def main() -> None:
        managers = Managers("a", "b", "c", leader="c")
        managers.each["a"].silent = True
        links = managers.links()
        await ask(links)
        managers.leader = ""
        loop = asyncio.get_running_loop()
        loop.call_later(1.0, setattr, managers, "leader", "b")
        before = loop.time()
        # Each round starts with those that answer; the one that hangs takes its half of the call.
        managers.each["a"].asked = 0
        assert await ask(links, timeout=9.0) == "b"
        assert managers.each["a"].asked <= 1
        assert loop.time() - before < 6.0
        await links.close()

    run(main())


def test_whoever_stops_waiting_for_one_asks_another_next_time() -> None:
    """A renewal of a lease has less time than the links would take to give one up."""

    async def main() -> None:
        managers = Managers("a", "b", leader="a")
        links = managers.links()
        await ask(links)
        managers.each["a"].silent = True
        managers.leader = "b"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await ask(links)
        before = asyncio.get_running_loop().time()
        assert await ask(links) == "b"
        assert asyncio.get_running_loop().time() == before
        await links.close()

    run(main())


def test_the_deadline_ends_the_search() -> None:
    async def main() -> None:
        managers = Managers("a", "b", leader="")
        links = managers.links()
        loop = asyncio.get_running_loop()
        before = loop.time()
        with pytest.raises(NotLeaderError):
            await ask(links, timeout=2.0)
        assert 1.0 < loop.time() - before <= 2.0
        assert sum(managers.asked.values()) < 30  # rounds are paused between
        await links.close()

    run(main())


def test_managers_that_name_each_other_do_not_send_us_in_circles() -> None:
    async def main() -> None:
        managers = Managers("a", "b", leader="")
        managers.hints = {"a": "b", "b": "a"}
        links = managers.links()
        with pytest.raises(NotLeaderError):
            await ask(links, timeout=1.0)
        assert sum(managers.asked.values()) < 20
        await links.close()

    run(main())


def test_a_leader_may_name_itself_by_another_address() -> None:
    async def main() -> None:
        managers = Managers("a", "elsewhere", leader="elsewhere")
        links = managers.links("a")
        assert await ask(links) == "elsewhere"
        await links.close()

    run(main())


def test_strange_addresses_are_not_followed_without_end() -> None:
    async def main() -> None:
        strangers = [f"stranger {n}" for n in range(50)]
        managers = Managers("a", *strangers, leader="")
        managers.hints = {"a": strangers[0]}
        managers.hints.update(pairwise(strangers))
        links = managers.links("a", "a")
        with pytest.raises(NotLeaderError):
            await ask(links, timeout=1.0)
        assert len(managers.dialed) <= FOREIGN_MAX + 1
        await links.close()

    run(main())


def test_what_the_leader_refuses_is_the_callers_to_read() -> None:
    async def main() -> None:
        managers = Managers("a", "b", leader="a")
        managers.each["a"].refusal = FencedError("no")
        links = managers.links()
        reply = await links.call(Code.LEASE, LEASE, timeout=1.0)
        assert isinstance(reply.message, m.LeaseResponse)
        assert reply.message.status == status_of(FencedError("no"))
        assert managers.asked == {"a": 1}
        await links.close()

    run(main())


def test_one_placement_manager_alone_tells_its_trouble_at_once() -> None:
    async def main() -> None:
        managers = Managers("a", leader="a")
        links = PlacementChannel.single(managers.connect_to("a"))
        assert await ask(links) == "a"
        managers.each["a"].down = True
        with pytest.raises(UnavailableError):
            await ask(links)
        managers.each["a"].down = False
        managers.leader = "b"
        with pytest.raises(NotLeaderError):
            await ask(links)
        assert managers.asked == {"a": 3}
        await links.close()

    run(main())


def test_a_broadcast_reaches_all_and_tells_each_outcome() -> None:
    async def main() -> None:
        managers = Managers("a", "b", "c", leader="b")
        managers.each["a"].silent = True
        managers.each["c"].down = True
        links = managers.links()
        outcomes = await links.broadcast(Code.HEARTBEAT, m.HeartbeatRequest(), timeout=1.0)
        assert isinstance(outcomes[0], DeadlineError)
        assert isinstance(outcomes[1], Reply)
        assert isinstance(outcomes[2], UnavailableError)
        await links.close()

    run(main())


def test_closing_ends_a_search() -> None:
    async def main() -> None:
        managers = Managers("a", "b", leader="")
        links = managers.links()
        waiting = asyncio.create_task(ask(links, timeout=60.0))
        await asyncio.sleep(1.0)
        await links.close()
        with pytest.raises((NotLeaderError, UnavailableError)):
            await waiting

    run(main())


def test_the_client_works_over_several_placement_managers() -> None:
    async def main() -> None:
        managers = Managers("a", "b", leader="b")
        simulation_runtime = simulation.runtime("client")
        client = SbpClient(simulation_runtime, placement=managers.links(), node=managers.connect_to)
        assert (await client.query_lease("broker")).holder == "b"
        managers.leader = "a"
        assert (await client.query_lease("broker")).holder == "a"
        await client.close()

    simulation = Simulation(1)
    simulation.run(main())
