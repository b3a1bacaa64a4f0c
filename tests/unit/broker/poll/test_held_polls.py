"""Polls that wait, without a broker: who becomes due when, in which order, and what is kept."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterable

from headrace.broker.poll.held_polls import IN_A_TURN_MAX, HeldPoll, HeldPolls, Watch
from tests.simulator.runtime import Simulation

SECONDS = 0.005


def held(polls: HeldPolls, name: str, due: list[str], *watches: tuple[object, int]) -> HeldPoll:
    poll = polls.begin()
    poll.on_due = lambda: due.append(name)
    poll.watch([Watch(place, offset) for place, offset in watches])
    return poll


async def turns(number: int = 3) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def simulated(main: Callable[[HeldPolls], Iterable[object] | object]) -> None:
    """With a clock that moves when everybody waits."""

    async def run() -> None:
        result = main(HeldPolls(SECONDS))
        if asyncio.iscoroutine(result):
            await result

    Simulation(1).run(run())


def test_a_commit_wakes_those_that_wait_for_less() -> None:
    async def main(polls: HeldPolls) -> None:
        due: list[str] = []
        held(polls, "beyond", due, ("p", 12))
        held(polls, "next", due, ("p", 10))
        held(polls, "elsewhere", due, ("q", 10))
        polls.on_commit("p", 10)
        await turns()
        assert due == [], "offset 10 is not there yet"
        polls.on_commit("p", 11)
        await turns()
        assert due == ["next"]
        polls.on_commit("p", 13)
        await turns()
        assert due == ["next", "beyond"]

    simulated(main)


def test_nobody_is_called_from_within_a_commit() -> None:
    """A producer's answer goes out before those of consumers that waited for its messages."""

    async def main(polls: HeldPolls) -> None:
        due: list[str] = []
        held(polls, "consumer", due, ("p", 0))
        polls.on_commit("p", 1)
        asyncio.get_running_loop().call_soon(due.append, "after")
        assert due == []
        await turns()
        assert due == ["consumer", "after"]

    simulated(main)


def test_time_ends_waits_in_the_order_they_began_with_one_timer() -> None:
    async def main(polls: HeldPolls) -> None:
        loop = asyncio.get_running_loop()
        due: list[str] = []
        for number in range(5000):
            held(polls, str(number), due, ("p", 0))
            if number == 2499:
                await asyncio.sleep(SECONDS / 2)
        timers = [each for each in loop._scheduled if not each.cancelled()]  # type: ignore[attr-defined]
        assert len(timers) == 1
        await asyncio.sleep(SECONDS / 2 + 0.0001)
        await turns(400)
        assert len(due) == 2500
        await asyncio.sleep(SECONDS / 2)
        await turns(400)
        assert due == [str(number) for number in range(5000)]
        assert polls.statistics() == {"polls_waiting": 0, "polls_held": 5000, "polls_woken": 0}
        assert not polls._places

    simulated(main)


def test_a_batch_that_many_wait_for_leaves_the_loop_time_for_others() -> None:
    async def main(polls: HeldPolls) -> None:
        due: list[str] = []
        for number in range(100):
            held(polls, str(number), due, ("p", 0))
        polls.on_commit("p", 1)
        before = 0
        while len(due) < 100:
            await asyncio.sleep(0)
            assert len(due) - before <= IN_A_TURN_MAX
            before = len(due)
        assert due == [str(number) for number in range(100)], "who waits longest goes first"

    simulated(main)


def test_a_poll_that_waits_at_several_places_becomes_due_once() -> None:
    async def main(polls: HeldPolls) -> None:
        due: list[str] = []
        poll = held(polls, "member", due, ("p", 0), ("q", 0), ("r", 7))
        polls.on_commit("q", 1)
        polls.on_commit("p", 1)
        await asyncio.sleep(2 * SECONDS)
        assert due == ["member"]
        assert poll.is_over
        assert not polls._places

    simulated(main)


def test_a_poll_that_looked_again_keeps_its_time() -> None:
    async def main(polls: HeldPolls) -> None:
        loop = asyncio.get_running_loop()
        began, poll = loop.time(), polls.begin()
        for offset in range(3):
            loop.call_later(SECONDS / 4, polls.on_commit, "p", offset + 1)
            await poll.wait([Watch("p", offset)])
            assert not poll.is_over
        await poll.wait([Watch("p", 99)])
        assert poll.is_over
        assert loop.time() - began < SECONDS + 0.001
        await poll.wait([Watch("p", 99)])  # at once
        poll.drop()
        assert len(polls) == 0

    simulated(main)


def test_what_is_dropped_or_finished_is_not_called_again() -> None:
    async def main(polls: HeldPolls) -> None:
        due: list[str] = []
        dropped = held(polls, "dropped", due, ("p", 0))
        finished = held(polls, "finished", due, ("p", 0))
        late = held(polls, "late", due, ("p", 0))
        dropped.drop()
        finished.finish()
        assert due == ["finished"]
        polls.on_commit("p", 1)
        late.drop()  # between becoming due and being called
        await asyncio.sleep(2 * SECONDS)
        assert due == ["finished"]

    simulated(main)


def test_a_place_that_is_gone_wakes_all_who_wait_there() -> None:
    async def main(polls: HeldPolls) -> None:
        due: list[str] = []
        held(polls, "first", due, ("p", 9))
        held(polls, "second", due, ("p", 3))
        held(polls, "other", due, ("q", 0))
        polls.retain(lambda place: place != "p")
        await turns()
        assert due == ["first", "second"]
        polls.on_change("nowhere")
        polls.close()
        assert due == ["first", "second", "other"]
        assert len(polls) == 0
        assert polls._timer is None

    simulated(main)


def test_what_is_kept_stays_small_when_few_wait_for_long() -> None:
    """Polls far behind the end come and go while one stays."""

    async def main(polls: HeldPolls) -> None:
        due: list[str] = []
        held(polls, "stays", due, ("p", 0))
        for number in range(1000):
            held(polls, "goes", due, ("p", 1_000_000 + number)).drop()
        assert len(polls._places["p"].entries) < 40
        assert len(polls) == 1
        polls.on_commit("p", 1)
        await turns()
        assert due == ["stays"]
        assert not polls._places

    simulated(main)


async def test_a_poll_that_is_over_keeps_nothing_alive() -> None:
    polls, due = HeldPolls(10.0), list[str]()

    class Connection:
        def on_due(self) -> None:
            due.append("never")

    connection, stays = Connection(), held(HeldPolls(10.0), "stays", due, ("p", 0))
    poll = polls.begin()
    poll.on_due = connection.on_due
    poll.watch([Watch("p", 5)])
    gone = weakref.ref(connection)
    gc.disable()
    try:
        poll.drop()
        del connection
        assert gone() is None
    finally:
        gc.enable()
    stays.drop()
    polls.close()
