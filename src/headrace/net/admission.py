"""What keeps one connection of a server from holding up the others: a bound on the bytes that all
of them hold, room for newcomers, and turns.

A connection holds the frame it has half received, the request it waits an answer for, and the
answer its peer has not taken. Past the limit (`HeldBytes`)

* a connection between two frames is not read until there is room: it holds nothing;
* of those inside a frame one at a time goes on, so that frames complete and memory comes back; a
  turn ends with the frame, or when nothing comes for a moment. It begins only while little more
  than the limit is held: those who had a turn and stopped have to go first;
* whoever had a turn, or has an answer to take, and makes no progress is cut off by the server's
  sweep, the slowest first.

So the bytes held stay below the limit and an eighth, plus one frame, plus what connections were
already reading (one piece each); and a peer that stops half-way delays nobody for longer than a
sweep.

When all connections of a server are taken and another one comes, `pick` says who has to go: only
those who have proved nothing; of the host that has most of them, the one that has been there
longest. Whoever fills a server with idle connections thus puts out its own, and a newcomer that
proves itself soon has the time to.

No connection holds up the loop (`Fairness`). It is served without a pause up to REQUESTS_MAX
requests or SECONDS_MAX; if it has sent more than that, it gives way, and goes on when all who gave
way before it have, a few of them in each turn of the loop. A turn is therefore short whatever
arrives, and what has a time to be kept, such as heartbeats and leases, is on time. Whoever waits
for an answer before it asks again never gives way: it lets the loop turn by itself.

Answers that need no task would overtake those that do: a SEND takes many turns of the loop, and in
each of them every consumer that finds something at once could be served. So while somebody writes,
such answers are sent at a pace (`Pace`): after each of them the loop belongs to others for
PAUSE_FACTOR times as long as it took. Those that wait longest go first.

An answer may also wait for something to happen (`Later`): its connection then costs neither a task
nor a timer until the broker says that it is due.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from typing import Protocol, TypeVar

from headrace.errors import HeadraceError, UnavailableError
from headrace.net.addresses import parse_address
from headrace.net.flow import Gate
from headrace.runtime.interfaces import Buffer, Connection

_TURN_SECONDS = 0.02


class Phase(Enum):
    RECEIVING = auto()
    """Waiting for the peer: between two frames while nothing is held, inside one otherwise."""
    PAUSED = auto()
    """Waiting for room: not the peer's fault."""
    HANDLING = auto()
    ANSWERING = auto()
    """Waiting for the peer to take its answer."""


class Held:
    """One connection's part, and since when it is in its phase."""

    __slots__ = ("bytes", "connection", "given_up", "phase", "since")

    def __init__(self, connection: Connection, now: float) -> None:
        self.connection = connection
        self.bytes = 0
        self.phase = Phase.RECEIVING
        self.since = now
        self.given_up = False

    def stuck(self) -> bool:
        """It holds something and only its peer can change that."""
        return self.bytes > 0 and self.phase in (Phase.RECEIVING, Phase.ANSWERING)


class HeldBytes:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._turns_up_to = limit + limit // 8
        self.total = 0
        self._turn: Held | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._gates: dict[Gate, None] = {}

    @property
    def is_wanted(self) -> bool:
        """Somebody waits for room."""
        return bool(self._waiting or self._gates)

    def fits(self, size: int) -> bool:
        return self.total + size <= self.limit

    def call_when_roomy(self, gate: Gate) -> None:
        self._gates[gate] = None

    @property
    def over(self) -> bool:
        return self.total > self.limit

    @property
    def is_blocked(self) -> bool:
        """Nobody goes on before somebody is cut off."""
        return self._turn is None and self.total > self._turns_up_to

    def set(self, held: Held, count: int) -> None:
        was_blocked = self.is_blocked
        self.total += count - held.bytes
        held.bytes = count
        if self._waiting and (not self.over or (was_blocked and not self.is_blocked)):
            self._wake()
        if self._gates and not self.over:
            asyncio.get_running_loop().call_soon(self._admit)

    async def wait_room(self, held: Held) -> None:
        """Returns when `held` may receive: there is room, or its frame has the turn.
        UnavailableError when it was given up."""
        loop = asyncio.get_running_loop()
        while self.over:
            if held.given_up:
                raise UnavailableError("cut off", peer=held.connection.peer)
            if held.bytes and (self._turn is held or not (self._turn or self.is_blocked)):
                self._turn = held
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = loop.call_later(_TURN_SECONDS, self.pass_turn, held)
                return
            woken: asyncio.Future[None] = loop.create_future()
            self._waiting.append(woken)
            await woken

    def pass_turn(self, held: Held) -> None:
        """The frame is complete, the connection is over, or nothing came."""
        if self._turn is held:
            self._turn = None
            self._wake()

    def give_up(self, held: Held) -> None:
        """Its connection ends: it waits no longer, and whatever it holds will be free."""
        held.given_up = True
        self._wake()

    def drop(self, held: Held) -> None:
        self.set(held, 0)
        self.pass_turn(held)

    def _admit(self) -> None:
        """Those that waited longest first; who does not fit yet stays in line."""
        for gate in list(self._gates):
            if self.over:
                return
            gate.admit()
            if not gate.waiting:
                del self._gates[gate]

    def slowest(self, held: Iterable[Held], now: float, seconds: float) -> Iterator[Held]:
        """Memory is short: who holds it without moving for so long, the slowest first, until half
        of it is free, so that whoever waited meanwhile does not fill it at once again. Who holds
        less than a fair share is spared: if all held that little, there would be no shortage."""
        everybody = list(held)
        share = self.limit // 2 // max(len(everybody), 1)
        large = [each for each in everybody if each.bytes > share]
        stuck = [each for each in large if each.stuck()]
        if not stuck and self.is_blocked:  # they stand in each other's way
            stuck = [each for each in large if each.phase is Phase.PAUSED]
        stuck = [each for each in stuck if each.since <= now - seconds]
        left = self.total
        for each in sorted(stuck, key=lambda each: each.bytes / max(now - each.since, 0.001)):
            if left <= self.limit // 2:
                return
            left -= each.bytes
            yield each

    def _wake(self) -> None:
        """All of them: each looks again, and the first inside a frame takes the turn."""
        waiting, self._waiting = self._waiting, []
        for woken in waiting:
            if not woken.done():
                woken.set_result(None)


class Later(ABC):
    """An answer that is not there yet.

    `on_due` belongs to whoever is to send it: it is called once, from the loop, when the answer is
    there or has waited long enough. After `answer` or `drop` it is not called any more.
    """

    __slots__ = ("on_due",)

    def __init__(self) -> None:
        self.on_due: Callable[[], object] = _nothing

    @abstractmethod
    def answer(self) -> Sequence[Buffer] | None:
        """The reply's pieces as they are now; None when the request has to be asked again, the
        long way."""

    @abstractmethod
    def drop(self) -> None:
        """Nobody waits for it any more."""


def _nothing() -> None:
    """Until somebody says what is to be done."""


class Occupant(Protocol):
    @property
    def address(self) -> str:
        """`host:port` of the peer."""


T = TypeVar("T", bound=Occupant)


def host_of(address: str) -> str:
    try:
        return parse_address(address)[0]
    except HeadraceError:
        return address  # the peer was gone before anybody asked who it was


def pick(unproven: Iterable[T]) -> T | None:
    """Of these, in the order they came; None when there is nobody."""
    hosts = [(host_of(each.address), each) for each in unproven]
    if not hosts:
        return None
    fullest, _ = Counter(host for host, _ in hosts).most_common(1)[0]
    return next(each for host, each in hosts if host == fullest)


class NowAndThen:
    """Whether to say something again that a peer can make true as often as it likes."""

    def __init__(self, seconds: float = 10.0) -> None:
        self._seconds = seconds
        self._said = float("-inf")

    def is_due(self, now: float) -> bool:
        if now - self._said < self._seconds:
            return False
        self._said = now
        return True


REQUESTS_MAX = 32
SECONDS_MAX = 0.005
WAITED_SECONDS = 0.000_05
"""Whoever received something in less time did not wait for it."""
_IN_A_TURN_MAX = 8


class Fairness:
    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def give_way(self) -> None:
        """Returns when it is this connection's turn again, never in the same turn of the loop."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._go_on)
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _go_on(self) -> None:
        for _ in range(min(_IN_A_TURN_MAX, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():  # its connection may be over
                turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._go_on)


PAUSE_FACTOR = 4
"""What an answer costs beside its sending (it is asked for, found and taken) is about as much
again, so that of a busy loop such answers have a third."""
_TIMER_SECONDS_MIN = 0.001  # shorter pauses are turns of the loop: timers are not that fine


class Pace:
    """Work that is done at once, but by and by while `is_needed` says that others need the loop."""

    def __init__(self, monotonic: Callable[[], float], is_needed: Callable[[], bool]) -> None:
        self._monotonic = monotonic
        self._is_needed = is_needed
        self._waiting: deque[Callable[[], object]] = deque()
        self._next = 0.0

    def is_free(self) -> bool:
        """Whether nothing stands before the next piece of work."""
        if self._waiting:
            return False
        return not self._is_needed() or self._monotonic() >= self._next

    def run(self, work: Callable[[], object]) -> None:
        began = self._monotonic()
        work()
        ended = self._monotonic()
        self._next = ended + PAUSE_FACTOR * (ended - began)

    def run_later(self, work: Callable[[], object]) -> None:
        """When all that came before is done and the pause is over."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._turn)
        self._waiting.append(work)

    def _turn(self) -> None:
        left = self._next - self._monotonic() if self._is_needed() else 0.0
        if left <= 0:
            self.run(self._waiting.popleft())
        if not self._waiting:
            return
        if left > _TIMER_SECONDS_MIN:
            asyncio.get_running_loop().call_later(left, self._turn)
        else:
            asyncio.get_running_loop().call_soon(self._turn)
