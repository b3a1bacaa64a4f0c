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
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import Protocol, TypeVar

from headrace.errors import HeadraceError, UnavailableError
from headrace.net.addresses import parse_address
from headrace.net.flow import Gate
from headrace.runtime.interfaces import Connection

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
