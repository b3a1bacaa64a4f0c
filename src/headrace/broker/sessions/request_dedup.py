"""Which numbered requests were applied (dialect C), so that one that is sent again is not.

A client numbers what changes something, and sends a request whose answer it did not get again:
over a new connection, after a new login, under the same session and number. Three things
recognise it:

| What                                   | Knows                          | Lasts                |
|----------------------------------------|--------------------------------|----------------------|
| `Answers`, in memory                   | every request, its answer      | this term of leading |
| `Requests`, in the catalogue's log     | changes of the catalogue       | for ever             |
| the batch headers of a partition's log | SENDs (`PartitionLog.recover`) | with the messages    |

apache-iggy 0.9.0 itself takes a new id with every login, so its producers send a batch again under
another session. That is known by its bytes, which hold the messages' random ids, but only when it
was the last thing its user sent over a connection that is gone: nobody else has reason to send it.

The second and third are written in one piece with what the request does, so neither a crash nor
another leader can come between. All are bounded: of the sessions used longest ago and of the
smallest numbers nothing is known any more. Requests that do no harm when repeated (joining and
leaving a group, storing an offset after a restart) are simply done again.

A session's number is made of the client's id and its user, not counted: the same client gets the
same one from any broker, and nobody else does.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

from headrace.runtime.interfaces import Buffer

ANSWER_BYTES_MAX = 64 * 1024
"""A longer answer is not kept: its request is known to be applied, but not what was said."""
LEFT_MAX = 1024
"""Last SENDs of connections that are gone."""
NUMBERS_MAX = 64
"""Requests remembered of one session; a connection has at most 16 under way."""


def session_number(secret: bytes, client: bytes, user_uid: int) -> int:
    """1 to 2^63 - 1."""
    digest = hashlib.blake2b(
        client + user_uid.to_bytes(8, "little"), digest_size=8, key=secret[:64], person=b"session"
    ).digest()
    return int.from_bytes(digest, "little") >> 1 or 1


# --- in memory ------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class RequestOutcome:
    """What became of one numbered request, from its begin on."""

    fingerprint: bytes
    answer: bytes | None = None
    """Once there is one; None also when it was too long to keep."""
    done: bool = False
    failed: bool = False
    forgotten: bool = False
    """Others took its place before it was done: its answer is for those who wait, and not kept."""
    waiting: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Wait until the request was applied or failed."""
        if self.waiting is None:
            self.waiting = asyncio.get_running_loop().create_future()
        await asyncio.shield(self.waiting)


class Answers:
    """Requests under way and lately applied, by session and number."""

    def __init__(self, *, sessions_max: int, bytes_max: int) -> None:
        self._sessions_max = sessions_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._sessions: OrderedDict[int, OrderedDict[int, RequestOutcome]] = OrderedDict()
        self._left: OrderedDict[tuple[int, bytes], RequestOutcome] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def find(self, session: int, number: int) -> RequestOutcome | None:
        numbers = self._sessions.get(session)
        return None if numbers is None else numbers.get(number)

    def enter(self, session: int, number: int, fingerprint: bytes) -> tuple[RequestOutcome, bool]:
        """What is known of the request, and whether it begins now."""
        begun = self.begin(session, number, fingerprint)
        return (self._sessions[session][number], False) if begun is None else (begun, True)

    def begin(self, session: int, number: int, fingerprint: bytes) -> RequestOutcome | None:
        """A request that nothing is known of; None if something is."""
        numbers = self._sessions.get(session)
        if numbers is None:
            numbers = self._sessions[session] = OrderedDict()
            if len(self._sessions) > self._sessions_max:
                self.forget_session(next(iter(self._sessions)))
        else:
            if number in numbers:
                return None
            self._sessions.move_to_end(session)
            if len(numbers) >= NUMBERS_MAX:
                self._let_go(numbers.popitem(last=False)[1])
        outcome = numbers[number] = RequestOutcome(fingerprint)
        return outcome

    def finish(self, outcome: RequestOutcome, pieces: Sequence[Buffer]) -> None:
        answer = b"".join(pieces)
        if len(answer) <= ANSWER_BYTES_MAX:
            outcome.answer = answer
            if not outcome.forgotten:
                self._bytes += len(answer)
        outcome.done = True
        if outcome.waiting is not None:
            _end(outcome)
        while self._bytes > self._bytes_max and len(self._sessions) > 1:
            self.forget_session(next(iter(self._sessions)))

    def fail(self, session: int, number: int, outcome: RequestOutcome) -> None:
        """Forget a request that was not applied, as far as known: sent again, it is a new one."""
        numbers = self._sessions.get(session)
        if numbers is not None and numbers.get(number) is outcome:
            del numbers[number]
        outcome.failed = True
        _end(outcome)

    def leave(self, user_uid: int, outcome: RequestOutcome) -> None:
        """The user's connection ended with this SEND: its answer may not have arrived."""
        self._left[user_uid, outcome.fingerprint] = outcome
        if len(self._left) > LEFT_MAX:
            self._left.popitem(last=False)

    @property
    def has_left(self) -> bool:
        return bool(self._left)

    def take_left(self, user_uid: int | None, fingerprint: bytes) -> RequestOutcome | None:
        if not self._left or user_uid is None:
            return None
        return self._left.pop((user_uid, fingerprint), None)

    def forget_session(self, session: int) -> None:
        for outcome in self._sessions.pop(session, {}).values():
            self._let_go(outcome)

    def _let_go(self, outcome: RequestOutcome) -> None:
        outcome.forgotten = True
        if outcome.answer is not None:
            self._bytes -= len(outcome.answer)


def _end(outcome: RequestOutcome) -> None:
    outcome.done = True
    if outcome.waiting is not None and not outcome.waiting.done():
        outcome.waiting.set_result(None)


# --- in the catalogue's log -----------------------------------------------------------------------

LOGGED_SESSIONS_MAX = 1024
LOGGED_NUMBERS_MAX = 16


class Request(NamedTuple):
    session: int
    number: int


REQUEST: ContextVar[Request | None] = ContextVar("request", default=None)
"""The numbered request being applied, for whoever writes its effect down."""


class Effect(NamedTuple):
    """What a request did: the event's kind, and the uid of what it made, or -1."""

    kind: str
    uid: int


class Requests:
    """Rebuilt by a replay and part of the snapshot; the same events give the same state."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[int, OrderedDict[int, Effect]] = OrderedDict()

    def find(self, request: Request) -> Effect | None:
        numbers = self._sessions.get(request.session)
        return None if numbers is None else numbers.get(request.number)

    def note(self, request: Request, effect: Effect) -> None:
        numbers = self._sessions.setdefault(request.session, OrderedDict())
        self._sessions.move_to_end(request.session)
        numbers[request.number] = effect
        if len(numbers) > LOGGED_NUMBERS_MAX:
            numbers.popitem(last=False)
        if len(self._sessions) > LOGGED_SESSIONS_MAX:
            self._sessions.popitem(last=False)

    def rows(self) -> Iterator[tuple[int, int, str, int]]:
        """For the snapshot, oldest first."""
        for session, numbers in self._sessions.items():
            for number, effect in numbers.items():
                yield (session, number, *effect)

    def restore(self, rows: Iterable[tuple[int, int, str, int]]) -> None:
        for session, number, kind, uid in rows:
            self.note(Request(session, number), Effect(kind, uid))
