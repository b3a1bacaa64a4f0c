"""Uvicorn inside a running event loop: starts, says where it listens, stops when told.

Whatever it serves, it serves under the server's own names alone (`web/server/hosts.py`).

What connections to the HTTP port may take.

Uvicorn counts idle connections against its limit and never ends one that has not asked anything: a
few hundred of them made everybody else wait. Here connections and requests are bounded apart.

* A connection without a request in progress is closed soon, however little of one it sends, and
  when there are too many the one that has waited longest makes room.
* One that sends half a request, or does not take its answer, is closed when nothing moves.
* Requests in progress are bounded; past that they are answered 503, but not those who ask how the
  server is: that answer is needed most when it is busy.

The HTTP port on which a process tells how it is; off unless `metrics_port` is set.

It opens before the roles start and closes after they stopped, so that somebody who waits for a
long recovery sees why.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.config.settings import LOOPBACK, Settings
from headrace.errors import ConfigError
from headrace.net.addresses import format_address
from headrace.net.admission import pick
from headrace.runtime import Runtime
from headrace.web.metrics.process import ObservedProcess, ObservedRole, Probes, ProcessReading
from headrace.web.server.hosts import ANY, OwnHost, OwnNames

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


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process decides what a signal means, not its web server."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second. No timer is set per request: what takes long is seen here."""
        sweep(self.server_state.connections, asyncio.get_running_loop().time())
        return await super().on_tick(counter)


class WebServer:
    def __init__(
        self,
        app: Starlette,
        *,
        option: str = "--http-port",
        names: Sequence[str] = (),
        limits: HttpLimits | None = None,
    ) -> None:
        """`option` is the one that chooses the port, for whoever finds it taken; `names` are those
        that it goes by beside its address and the machine's own."""
        self._app = app
        self._names = names
        self._limits = limits or HttpLimits()
        self._option = option
        self._task: asyncio.Task[None] | None = None
        self._server: _Server | None = None

    async def start(
        self,
        host: str,
        port: int,
        *,
        certificate: tuple[str, str] | None = None,
        port_before: int = 0,
    ) -> None:
        """HTTPS with the files of a certificate and its key, if given. Where any port will do, it
        is `port_before` if nobody else has that."""
        if not host.strip():
            raise ConfigError("refusing to serve on an empty host: that is every interface")
        if port == 0 and port_before:
            try:
                return await self._start(host, port_before, certificate)
            except ConfigError:
                self._server = self._task = None
        await self._start(host, port, certificate)

    async def _start(self, host: str, port: int, certificate: tuple[str, str] | None) -> None:
        chain, key = certificate or (None, None)
        limits = self._limits
        own = OwnHost(self._app, OwnNames(host, self._names, platform.node()))
        config = uvicorn.Config(
            Admission(own, limits.requests_max),
            host=host,
            port=port,
            log_config=None,
            access_log=False,
            lifespan="off",
            http=type("_Protocol", (WebProtocol,), {"limits": limits}),
            timeout_keep_alive=math.ceil(limits.idle_seconds),
            timeout_graceful_shutdown=2,
            ws="none",
            ssl_certfile=chain,
            ssl_keyfile=key,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._serve(self._server, host, port))
        while not self._server.started:
            if self._task.done():
                await self._task
            await asyncio.wait([self._task], timeout=0.01)

    async def _serve(self, server: _Server, host: str, port: int) -> None:
        try:
            await server.serve()
        except SystemExit as error:  # how uvicorn says that the address is taken
            raise ConfigError(
                f"cannot listen on {host}:{port}; choose another {self._option}, or 0 for any"
            ) from error

    @property
    def address(self) -> tuple[str, int]:
        assert self._server is not None, "not started"
        host, port = self._server.servers[0].sockets[0].getsockname()[:2]
        return str(host), int(port)

    async def close(self) -> None:
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await asyncio.wait([self._task])


class Endpoint:
    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        roles: Sequence[ObservedRole],
        *,
        token: str = "",
        read_process: Callable[[], ProcessReading] = ProcessReading,
    ) -> None:
        self._settings = settings
        self._process = ObservedProcess(runtime, version("headrace"), read_process)
        self._roles = roles
        self._token = token
        self._web: WebServer | None = None

    async def start(self) -> None:
        port = self._settings.metrics_port
        if port < 0:
            return
        self._process.start()
        probes = Probes(self._process, self._roles, token=self._token)
        host = self._settings.observability.metrics_host
        # Beyond loopback a token protects it, or the network does; scrapers have names of their own
        # for us there (a service's, a container's).
        names = self._settings.http_names if host in LOOPBACK else (ANY,)
        self._web = WebServer(probes.app(), option="--metrics-port", names=names)
        try:
            await self._web.start(host, port)
        except BaseException:
            await self._process.close()
            raise

    def addresses(self) -> dict[str, str]:
        return {} if self._web is None else {"metrics": format_address(*self._web.address)}

    async def close(self) -> None:
        if self._web is not None:
            await self._web.close()
            await self._process.close()
