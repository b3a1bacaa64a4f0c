"""The HTTP port on which a process tells how it is; off unless `metrics_port` is set.

It opens before the roles start and closes after they stopped, so that somebody who waits for a
long recovery sees why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version

from headrace.config.settings import LOOPBACK, Settings
from headrace.net.addresses import format_address
from headrace.process.http_server import WebServer
from headrace.runtime import Runtime
from headrace.web.metrics.checks import Observed
from headrace.web.metrics.probes import Probes
from headrace.web.metrics.process import ObservedProcess, ProcessReading
from headrace.web.server.hosts import ANY


class Endpoint:
    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        roles: Sequence[Observed],
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
