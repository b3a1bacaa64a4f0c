"""Sessions of people in browsers: a cookie instead of a password in every request.

A session keeps the credentials it was opened with, in memory alone, because each call goes to the
broker as the user and the broker may have to be reached anew. The table holds digests of the
tokens; it is bounded, and who was away longest goes first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from headrace.runtime import Runtime

COOKIE = "headrace_session"
SESSIONS_MAX = 1_000
SESSION_SECONDS = 12 * 3600.0
_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Credentials:
    username: str
    password: str = field(repr=False)
    host: str = field(default="", compare=False)
    """Where they came from, if that is known."""


@dataclass(slots=True)
class _Session:
    credentials: Credentials
    ends: float


@dataclass(slots=True)
class Sessions:
    runtime: Runtime
    _known: OrderedDict[bytes, _Session] = field(default_factory=OrderedDict)

    def open(self, credentials: Credentials) -> str:
        """The token, which only the browser keeps."""
        token = self.runtime.random.bytes(_TOKEN_BYTES).hex()
        while len(self._known) >= SESSIONS_MAX:
            self._known.popitem(last=False)
        ends = self.runtime.clock.monotonic() + SESSION_SECONDS
        self._known[_digest(token)] = _Session(credentials, ends)
        return token

    def find(self, token: str) -> Credentials | None:
        key = _digest(token)
        session = self._known.get(key)
        if session is None:
            return None
        if session.ends <= self.runtime.clock.monotonic():
            del self._known[key]
            return None
        self._known.move_to_end(key)
        return session.credentials

    def end(self, token: str) -> None:
        self._known.pop(_digest(token), None)

    def __len__(self) -> int:
        return len(self._known)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
