"""Who may call: a broker user by HTTP Basic, and for what changes something one who may manage."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import UnauthenticatedError, UnauthorizedError
from headrace.runtime import Runtime

LOGIN_CACHE_SECONDS = 60.0
LOGIN_CACHE_ENTRIES_MAX = 256
_OWN_PAGES = ("same-origin", "none")  # of Sec-Fetch-Site, which every browser sends


@dataclass(frozen=True, slots=True)
class Login:
    """What the broker said about a user."""

    username: str
    may_manage: bool


class Broker(Protocol):
    """What this layer needs of the broker."""

    async def login(self, username: str, password: str) -> Login:
        """UnauthenticatedError when the broker refuses."""

    async def overview(self) -> dict[str, Any]: ...


@dataclass(slots=True)
class Logins:
    """Remembers good logins for a minute: Argon2 on every poll of a page would be a burden.

    Only a keyed digest of the credentials is kept.
    """

    runtime: Runtime
    broker: Broker
    _key: bytes = b""
    _known: dict[bytes, tuple[float, Login]] = field(default_factory=dict)

    async def check(self, request: Request) -> Login:
        username, password = _basic_credentials(request.headers.get("authorization", ""))
        if not self._key:
            self._key = self.runtime.random.bytes(32)
        digest = hmac.digest(self._key, f"{username}\0{password}".encode(), "sha256")
        now = self.runtime.clock.monotonic()
        known = self._known.get(digest)
        if known is not None and known[0] > now:
            return known[1]
        login = await self.broker.login(username, password)
        if len(self._known) >= LOGIN_CACHE_ENTRIES_MAX:
            self._known.clear()
        self._known[digest] = (now + LOGIN_CACHE_SECONDS, login)
        return login


def _basic_credentials(header: str) -> tuple[str, str]:
    scheme, _, encoded = header.partition(" ")
    try:
        text = base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise UnauthenticatedError("the Authorization header is not valid") from error
    username, colon, password = text.partition(":")
    if scheme.lower() != "basic" or not colon:
        raise UnauthenticatedError("log in with a user of the broker")
    return username, password


@dataclass(frozen=True, slots=True)
class Guarded:
    """A route's endpoint behind a login. Its `serve` is what the router gets."""

    logins: Logins
    answer: Callable[[Request], Awaitable[Response]]
    manage: bool

    async def serve(self, request: Request) -> Response:
        login = await self.logins.check(request)
        if self.manage:
            if not login.may_manage:
                raise UnauthorizedError(f"user {login.username} may not manage pipelines")
            # A browser adds its login to what any other site's page asks it to send.
            if request.headers.get("sec-fetch-site", "none") not in _OWN_PAGES:
                raise UnauthorizedError("this cannot be done from another site's page")
        return await self.answer(request)
