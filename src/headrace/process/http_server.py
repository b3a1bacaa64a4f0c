"""Uvicorn inside a running event loop: starts, says where it listens, stops when told.

Whatever it serves, it serves under the server's own names alone (`web/server/hosts.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import platform
from collections.abc import Iterator, Sequence

import uvicorn
from starlette.applications import Starlette

from headrace.errors import ConfigError
from headrace.process.http_limits import Admission, HttpLimits, WebProtocol, sweep
from headrace.web.server.hosts import OwnHost, OwnNames


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
