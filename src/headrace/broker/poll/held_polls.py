"""Polls that found nothing. A consumer that asks again at once would ask thousands of times for one
message, at the cost of producers; so the answer waits until something is committed where the poll
looked, or until its time is over.

A held poll is an entry here and no task. All wait equally long, so those that began first end
first, and one timer serves all. At each place polls wait in the order of the offsets they ask for:
a commit finds those it concerns without looking at the others. What becomes due is answered in the
order in which it did, at most IN_A_TURN_MAX in each turn of the loop, so that a batch that many
wait for does not hold up producers.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

from headrace.net.admission import Later
from headrace.runtime.interfaces import Buffer

IN_A_TURN_MAX = 8
_EARLY_SECONDS = 0.000_5  # timers of some loops count in milliseconds
_ENDED_KEPT_MAX = 16  # entries of polls that are over, at one place, beside as many as wait


class Watch(NamedTuple):
    """What a poll waits for: an offset to be committed at a place."""

    place: Hashable
    offset: int


class HeldPoll(Later):
    """One poll, from the look that found nothing to its answer."""

    __slots__ = ("_at", "_number", "_polls", "ask", "expires", "is_over")

    def __init__(self, polls: HeldPolls, expires: float) -> None:
        super().__init__()
        self._polls = polls
        self.ask: Callable[[], Sequence[Buffer] | None] = _ask_nobody
        """Gives the answer of a poll that no task waits for."""
        self._at: list[_Place] = []
        self._number = 0
        """Of its entries while it watches; 0 when it does not."""
        self.expires = expires
        self.is_over = False
        """Its time is over, or somebody waits behind it: it is answered with what there is."""

    def watch(self, watches: Iterable[Watch]) -> None:
        """Until the first of them is there; `on_due` is called then, once."""
        self._polls.watch(self, watches)

    async def wait(self, watches: Iterable[Watch]) -> None:
        """As `watch`, for a caller that is a task of its own accord."""
        due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_due = lambda: None if due.done() else due.set_result(None)
        if self.is_over:
            return
        self.watch(watches)
        await due

    def finish(self) -> None:
        """Become due now, whatever there is."""
        self.is_over = True
        self._polls.drop(self)
        on_due, self.on_due = self.on_due, _nothing
        on_due()

    def answer(self) -> Sequence[Buffer] | None:
        ask = self.ask
        self.drop()
        return ask()

    def drop(self) -> None:
        """It is answered, or nobody waits for its answer any more."""
        self.on_due, self.ask = _nothing, _ask_nobody
        self._polls.drop(self)


class _Place:
    __slots__ = ("entries", "key", "waiting")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.entries: list[tuple[int, int, HeldPoll]] = []
        """A heap, by offset, then by who came first."""
        self.waiting = 0
        """How many entries are of polls that still watch."""


class HeldPolls:
    """All that one broker holds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.holds = seconds > 0
        """Whether polls wait at all."""
        self._held: OrderedDict[HeldPoll, None] = OrderedDict()
        """Those whose time is not over, in the order in which it will be."""
        self._places: dict[Hashable, _Place] = {}
        self._due: deque[HeldPoll] = deque()
        self._numbers = count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._begun = 0
        self._woken = 0

    def __len__(self) -> int:
        return len(self._held)

    def statistics(self) -> dict[str, int]:
        return {
            "polls_waiting": len(self._held),
            "polls_held": self._begun,
            "polls_woken": self._woken,
        }

    def begin(self) -> HeldPoll:
        loop = asyncio.get_running_loop()
        poll = HeldPoll(self, loop.time() + self._seconds)
        self._held[poll] = None
        self._begun += 1
        if self._timer is None:
            self._timer = loop.call_at(poll.expires, self._on_time)
        return poll

    def watch(self, poll: HeldPoll, watches: Iterable[Watch]) -> None:
        number = poll._number = next(self._numbers)
        for key, offset in watches:
            place = self._places.get(key)
            if place is None:
                place = self._places[key] = _Place(key)
            heappush(place.entries, (offset, number, poll))
            place.waiting += 1
            poll._at.append(place)

    # -- what ends a wait

    def on_commit(self, key: Hashable, end: int) -> None:
        """All below `end` can be read there."""
        place = self._places.get(key)
        if place is None:
            return
        while place.entries and place.entries[0][0] < end:
            _, number, poll = heappop(place.entries)
            if poll._number == number:
                self._woken += 1
                self._make_due(poll)

    def on_change(self, key: Hashable) -> None:
        """What is there is another thing now, or nothing: who waits there has to look again."""
        place = self._places.get(key)
        if place is None:
            return
        for _, number, poll in sorted(place.entries, key=lambda entry: entry[1]):
            if poll._number == number:
                self._make_due(poll)

    def retain(self, lives: Callable[[Hashable], bool]) -> None:
        """The same of every place that lives no more."""
        for key in [key for key in self._places if not lives(key)]:
            self.on_change(key)

    def drop(self, poll: HeldPoll) -> None:
        self._held.pop(poll, None)
        self._unwatch(poll)

    def close(self) -> None:
        """Answer all with what there is, and hold no more."""
        self._seconds = 0.0
        for poll in list(self._held):
            poll.finish()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time() + _EARLY_SECONDS
        while self._held:
            poll = next(iter(self._held))
            if poll.expires > now:
                self._timer = loop.call_at(poll.expires, self._on_time)
                return
            del self._held[poll]
            poll.is_over = True
            if poll._number:
                self._make_due(poll)

    def _make_due(self, poll: HeldPoll) -> None:
        self._unwatch(poll)
        if not self._due:
            asyncio.get_running_loop().call_soon(self._answer_some)
        self._due.append(poll)

    def _unwatch(self, poll: HeldPoll) -> None:
        poll._number = 0
        for place in poll._at:
            place.waiting -= 1
            if not place.waiting:
                place.entries.clear()
                del self._places[place.key]
            elif len(place.entries) > 2 * place.waiting + _ENDED_KEPT_MAX:
                place.entries = [each for each in place.entries if each[2]._number == each[1]]
                heapify(place.entries)
        poll._at.clear()

    def _answer_some(self) -> None:
        """Of those that wait longest."""
        for _ in range(min(IN_A_TURN_MAX, len(self._due))):
            poll = self._due.popleft()
            on_due, poll.on_due = poll.on_due, _nothing
            on_due()
        if self._due:
            asyncio.get_running_loop().call_soon(self._answer_some)


def _nothing() -> None:
    """For a poll that is over."""


def _ask_nobody() -> None:
    """For a poll that is over, or whose task asks by itself."""
