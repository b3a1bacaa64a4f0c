"""Passwords, personal access tokens, and how often one may guess.

Argon2id runs in an executor: it takes tens of milliseconds by design. One login at a time per name
and host; after a few failures each answer waits longer, so guessing is slow and the loop is not.
Only a few logins of a host are checked at a time and some more wait, whatever their names, those of
connections that never failed first: a flood from one place delays others by little, and is refused
beyond that. A password that was right before
is known again without a hash, so that no flood keeps its owner out.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from base64 import urlsafe_b64encode
from bisect import insort
from dataclasses import dataclass, field

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from headrace.config.broker import BrokerSettings
from headrace.errors import ThrottledError
from headrace.runtime.interfaces import Executor, Runtime
from headrace.wire.iggy.refusals import InvalidCredentialsError, InvalidPasswordError

PASSWORD_BYTES = (3, 100)
_SALT_BYTES = 16
_TOKEN_BYTES = 50
_TOKEN_PREFIX = "iggypat-"  # a connection string tells a token from a user name by it
_TRACKED_MAX = 10_000
_DELAY_FIRST_MS = 100
_PROVEN_KEY_BYTES = 32
_TOKENS = ""  # no user's name is empty


def check_password(password: str) -> None:
    shortest, longest = PASSWORD_BYTES
    if not shortest <= len(password.encode()) <= longest:
        raise InvalidPasswordError(f"a password has {shortest} to {longest} bytes")


class Passwords:
    """Argon2id away from the loop. The parameters are OWASP's smaller recommendation."""

    def __init__(self, runtime: Runtime, *, time_cost: int = 2, memory_kib: int = 19_456) -> None:
        self._runtime = runtime
        self._executor: Executor = runtime.executor("passwords", 1)
        self._hasher = PasswordHasher(time_cost=time_cost, memory_cost=memory_kib, parallelism=1)
        self._nobody = ""

    async def hash(self, password: str) -> str:
        salt = self._runtime.random.bytes(_SALT_BYTES)
        return await self._executor.run(lambda: self._hasher.hash(password, salt=salt))

    async def verify(self, stored: str | None, password: str) -> bool:
        """`stored` is None for a user that does not exist: the answer takes as long."""
        if stored is None:
            if not self._nobody:
                self._nobody = await self.hash("nobody")
            await self._executor.run(self._check, self._nobody, password)
            return False
        return await self._executor.run(self._check, stored, password)

    def _check(self, stored: str, password: str) -> bool:
        try:
            return self._hasher.verify(stored, password)
        except (VerificationError, InvalidHashError):
            return False

    def close(self) -> None:
        self._executor.close()


@dataclass(slots=True)
class _Attempts:
    failures: int = 0
    waiting: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class _HostLogins:
    """The logins of one host that are being checked, and those that wait: connections that failed
    less often come first, and where too many wait the one that failed most often goes."""

    def __init__(self, room: int, waiting_max: int) -> None:
        self._room = room
        self._waiting_max = waiting_max
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = 0
        self._busy = 0

    @property
    def empty(self) -> bool:
        return self._busy == 0

    async def enter(self, failures: int, host: str) -> None:
        if self._busy < self._room:
            self._busy += 1
            return
        if len(self._waiting) >= self._waiting_max:
            self._make_room(failures, host)
        self._number += 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (failures, self._number, turn)
        insort(self._waiting, entry, key=lambda each: each[:2])
        try:
            await turn
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave()  # it was its turn just now
            raise

    def leave(self) -> None:
        while self._waiting:
            turn = self._waiting.pop(0)[2]
            if not turn.done():  # else its connection closed just now
                turn.set_result(None)
                return
        self._busy -= 1

    def _make_room(self, failures: int, host: str) -> None:
        refusal = ThrottledError("too many logins of this host wait", host=host)
        if self._waiting[-1][0] <= failures:
            raise refusal
        turn = self._waiting.pop()[2]
        if not turn.done():
            turn.set_exception(refusal)


class _Proven:
    """Passwords that were right a while ago, as digests under a key that never leaves this process.

    Who logs in with one again waits for no hash and behind no guesser. Of a user there is one, and
    it holds for the stored hash that it was checked against.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._known: dict[str, tuple[str, bytes]] = {}

    def matches(self, name: str, stored: str | None, password: str) -> bool:
        known = self._known.get(name)
        if known is None or known[0] != stored:
            return False
        return hmac.compare_digest(known[1], self._digest(name, password))

    def add(self, name: str, stored: str, password: str) -> None:
        self._known.pop(name, None)
        self._known[name] = (stored, self._digest(name, password))
        if len(self._known) > _TRACKED_MAX:
            del self._known[next(iter(self._known))]

    def _digest(self, name: str, password: str) -> bytes:
        said = f"{name}\0{password}".encode()
        return hashlib.blake2b(said, digest_size=32, key=self._key).digest()


class Guard:
    """Slows down who guesses: state per (name, host). All names cost the same and get the same
    answer, whether there is such a user or not."""

    def __init__(self, runtime: Runtime, settings: BrokerSettings) -> None:
        self._clock = runtime.clock
        self._free = settings.login_failures_free
        self._delay_ms_max = settings.login_delay_ms_max
        self._waiting_max = settings.login_waiting_max
        self._per_host_max = settings.logins_per_host_max
        self._host_waiting_max = settings.logins_waiting_per_host_max
        self._attempts: dict[tuple[str, str], _Attempts] = {}
        self._logins_by_host: dict[str, _HostLogins] = {}
        self._proven = _Proven(runtime.random.bytes(_PROVEN_KEY_BYTES))

    async def check(self, passwords: Passwords, name: str, host: str, stored: str | None,
                    password: str, *, failures: int = 0) -> None:  # fmt: skip
        """Returns when the password is right; InvalidCredentialsError when it is not.

        `failures`: of this connection before.
        """
        if self._proven.matches(name, stored, password):
            return
        attempts = self._attempts.setdefault((name, host), _Attempts())
        if attempts.waiting >= self._waiting_max:
            raise ThrottledError("too many logins wait for this name", user=name)
        attempts.waiting += 1
        try:
            async with attempts.turn:
                await self._delay(attempts)
                if await self._verify(passwords, host, stored, password, failures):
                    attempts.failures = 0
                    assert stored is not None, "nobody's password is right"
                    self._proven.add(name, stored, password)
                else:
                    attempts.failures += 1
                    raise InvalidCredentialsError("unknown user or wrong password")
        finally:
            attempts.waiting -= 1
            self._tidy(name, host, attempts)

    async def _verify(
        self, passwords: Passwords, host: str, stored: str | None, password: str, failures: int
    ) -> bool:
        logins = self._logins_by_host.get(host)
        if logins is None:
            logins = self._logins_by_host[host] = _HostLogins(
                self._per_host_max, self._host_waiting_max
            )
        await logins.enter(failures, host)
        try:
            return await passwords.verify(stored, password)
        finally:
            logins.leave()
            if logins.empty:
                self._logins_by_host.pop(host, None)

    async def on_token_refused(self, host: str) -> None:
        """Nobody guesses a token, but asking often is not free either: failures get slower."""
        attempts = self._attempts.setdefault((_TOKENS, host), _Attempts())
        attempts.failures += 1
        attempts.waiting += 1
        try:
            await self._delay(attempts)
        finally:
            attempts.waiting -= 1
            self._tidy(_TOKENS, host, attempts)

    def on_token_accepted(self, host: str) -> None:
        self._attempts.pop((_TOKENS, host), None)

    async def _delay(self, attempts: _Attempts) -> None:
        beyond = attempts.failures - self._free
        if beyond >= 0 and attempts.failures:
            delay_ms = min(_DELAY_FIRST_MS << min(beyond, 16), self._delay_ms_max)
            await self._clock.sleep(delay_ms / 1000)

    def _tidy(self, name: str, host: str, attempts: _Attempts) -> None:
        if not attempts.waiting and not attempts.failures:
            self._attempts.pop((name, host), None)
        elif len(self._attempts) > _TRACKED_MAX:
            # Names are the guesser's to invent: forget the oldest idle ones.
            idle = next((k for k, a in self._attempts.items() if not a.waiting), None)
            if idle is not None:
                del self._attempts[idle]


def make_token(random: bytes) -> str:
    """The text a user sees once; only `token_digest` of it is stored."""
    assert len(random) == _TOKEN_BYTES
    return _TOKEN_PREFIX + urlsafe_b64encode(random).decode().rstrip("=")


def draw_token(runtime: Runtime) -> str:
    return make_token(runtime.random.bytes(_TOKEN_BYTES))


def token_digest(token: str) -> bytes:
    """400 random bits need no slow hash. Looking a digest up compares nothing secret: who could
    learn from its timing would still have to invert it."""
    return hashlib.blake2b(token.encode(), digest_size=32).digest()
