"""Who may call: a broker user, by HTTP Basic or by the cookie of a session.

The broker decides what a user may do with streams, topics and users: those calls go to it as that
user. What the controller does needs a user who may manage the server.

A session is a cookie instead of a password in every request, for people in browsers. It keeps the
credentials it was opened with, in memory alone, because each call goes to the broker as the user
and the broker may have to be reached anew. The table of sessions holds digests of their tokens; it
is bounded, and who was away longest goes first.

`headrace up --dev` has the root user iggy/iggy, as Iggy's examples expect. That password says
nothing about who asks, and a pipeline's code runs as the user of the server. So whoever hands over
code with it proves by a `CodeToken` that they may read the server's files: the token is made once,
readable by its owner alone, and shown by the terminal of `headrace up --dev`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections import OrderedDict
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request

from headrace.client.iggy import IggyClient
from headrace.errors import UnauthenticatedError, UnauthorizedError
from headrace.runtime import Runtime
from headrace.wire.iggy.messages.users import Permissions

COOKIE = "headrace_session"
TOKEN_HEADER = "x-headrace-token"
SESSIONS_MAX = 1_000
SESSION_SECONDS = 12 * 3600.0
_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Credentials:
    username: str
    password: str = field(repr=False)
    host: str = field(default="", compare=False)
    """Where they came from, if that is known."""


WELL_KNOWN = Credentials("iggy", "iggy")


class TokenNeededError(UnauthorizedError):
    """`path` is the token's file: who can read it needs nobody to tell them what is in it."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            "the password iggy is known to everybody, so it takes a token to run code with it: "
            f"the one in {path or 'the data directory'}, which `headrace up --dev` shows, as the "
            f"header {TOKEN_HEADER} (HEADRACE_HTTP_TOKEN for the command line); "
            "or log in as another user"
        )


@dataclass(frozen=True, slots=True)
class CodeToken:
    """An empty value is the token of nobody."""

    value: str = field(default="", repr=False)
    path: str = ""

    def check(self, credentials: Credentials, given: str) -> None:
        if credentials != WELL_KNOWN:
            return
        right = hmac.compare_digest(given.encode(), self.value.encode())
        if not self.value or not right:
            raise TokenNeededError(self.path)


NOBODYS = CodeToken()


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


PAGE_HEADER = "x-headrace-page"
"""Our page sends it with all that changes something: no other site's page can."""
_OWN_PAGES = ("same-origin", "none")  # of Sec-Fetch-Site, which every browser sends


@dataclass(frozen=True, slots=True)
class Login:
    """What the broker said about a user."""

    username: str
    may_manage: bool
    permissions: Permissions | None = None


class Broker(Protocol):
    """What this layer needs of the broker."""

    async def login(self, credentials: Credentials) -> Login:
        """Who that is and what they may do, now. UnauthenticatedError when the broker refuses."""

    async def overview(self, login: Login) -> dict[str, Any]: ...

    def as_user(self, credentials: Credentials) -> AbstractAsyncContextManager[IggyClient]:
        """A connection on which this user is logged in; errors of the calls on it are theirs."""

    def as_service(self) -> AbstractAsyncContextManager[IggyClient]:
        """A connection that sees everything: for what is filtered before a user gets it."""


@dataclass(slots=True)
class Logins:
    """Asks the broker with every request: what a user may do, and whether there is such a user,
    changes at any time. Over a connection that is kept that is no more than a question."""

    broker: Broker
    sessions: Sessions

    async def check(self, request: Request) -> Login:
        """Find who asks; put `login` and `credentials` where the route's answer finds them."""
        credentials = self._credentials(request)
        try:
            login = await self.verify(credentials)
        except UnauthenticatedError:
            if "authorization" not in request.headers:  # a page would go on guessing with it
                self.sessions.end(request.cookies.get(COOKIE, ""))
            raise
        request.state.login, request.state.credentials = login, credentials
        return login

    async def verify(self, credentials: Credentials) -> Login:
        return await self.broker.login(credentials)

    def has_session(self, request: Request) -> bool:
        return self.sessions.find(request.cookies.get(COOKIE, "")) is not None

    def _credentials(self, request: Request) -> Credentials:
        header = request.headers.get("authorization")
        if header is not None:
            return Credentials(*_basic_credentials(header), host_of(request))
        found = self.sessions.find(request.cookies.get(COOKIE, ""))
        if found is None:
            raise UnauthenticatedError("log in with a user of the broker")
        return found


def _basic_credentials(header: str) -> tuple[str, str]:
    scheme, _, encoded = header.partition(" ")
    try:
        text = base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise UnauthenticatedError("the Authorization header is not valid") from error
    username, colon, password = text.partition(":")
    if scheme.lower() != "basic" or not colon:
        raise UnauthenticatedError("log in with a user of the broker")
    return username, password


def host_of(request: Request) -> str:
    """Behind a proxy it is the proxy's."""
    return "" if request.client is None else request.client.host


def check_origin(request: Request) -> None:
    """A browser adds its login to what any other site's page asks it to send."""
    if request.headers.get("sec-fetch-site", "none") not in _OWN_PAGES:
        raise UnauthorizedError("this cannot be done from another site's page")
    if "authorization" not in request.headers and PAGE_HEADER not in request.headers:
        raise UnauthorizedError(f"a request of a session says so with a header {PAGE_HEADER}")
