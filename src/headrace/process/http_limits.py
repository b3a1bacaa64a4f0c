"""What connections to the HTTP port may take.

Uvicorn counts idle connections against its limit and never ends one that has not asked anything: a
few hundred of them made everybody else wait. Here connections and requests are bounded apart.

* A connection without a request in progress is closed soon, however little of one it sends, and
  when there are too many the one that has waited longest makes room.
* One that sends half a request, or does not take its answer, is closed when nothing moves.
* Requests in progress are bounded; past that they are answered 503, but not those who ask how the
  server is: that answer is needed most when it is busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.net.addresses import format_address
from headrace.net.slots import pick

DOORS = frozenset({"/health", "/ready", "/metrics"})
_BUSY = "too many requests at a time; try again in a moment\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    connections_max: int = 1024
    requests_max: int = 256
    idle_seconds: float = 10.0
    """Without a request in progress; for the whole head of one."""
    stalled_seconds: float = 30.0
    """Nothing more comes of a request, or is taken of an answer."""


class WebProtocol(H11Protocol):
    """One connection. `on_sweep` is called about once a second."""

    limits = HttpLimits()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self._moved = self.loop.time()
        self._untaken_since: float | None = None
        others = [each for each in self.connections if isinstance(each, WebProtocol)]
        if len(others) <= self.limits.connections_max:
            return
        idle = [each for each in others if not each.is_busy and each is not self]
        (pick(sorted(idle, key=lambda each: each._since)) or self).end()

    @property
    def address(self) -> str:
        return format_address(*self.client) if self.client else ""

    @property
    def is_busy(self) -> bool:
        """Whether a request is in progress: its head is complete, its answer is not."""
        return self.cycle is not None and not self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        before = self.is_busy
        super().data_received(data)
        if before or self.is_busy:
            self._moved = self.loop.time()

    def on_response_complete(self) -> None:
        self._since = self._moved = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._untaken_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._untaken_since = None
        super().resume_writing()

    def on_sweep(self, now: float) -> None:
        stalled = now - self.limits.stalled_seconds
        if not self.is_busy:
            if now - self._since > self.limits.idle_seconds:
                self.end()
        elif (self.cycle.more_body and self._moved < stalled) or (
            self._untaken_since is not None and self._untaken_since < stalled
        ):
            self.end()

    def end(self) -> None:
        if not self.transport.is_closing():
            self.transport.abort()


def sweep(connections: Iterable[object], now: float) -> None:
    for each in list(connections):
        if isinstance(each, WebProtocol):
            each.on_sweep(now)


class Admission:
    """The application, for so many requests at a time."""

    def __init__(self, app: ASGIApp, requests_max: int) -> None:
        self._app = app
        self._requests_max = requests_max
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in DOORS:
            await self._app(scope, receive, send)
            return
        if self._requests >= self._requests_max:
            await PlainTextResponse(_BUSY, 503, {"retry-after": "1"})(scope, receive, send)
            return
        self._requests += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._requests -= 1
