"""A broker of a cluster whose every broker leads: the parent of its workers.

Each worker is a process that shares the port of clients with the others and leads some shards, of
the same cluster as the workers of all other brokers. Data nodes and placement managers are
elsewhere. A worker that ends comes back by itself; what it led goes to others at once, because its
end is known here. When the broker stops, its workers hand over what they lead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from headrace.broker.shards.leases import COORDINATOR, WORKER_PREFIX
from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.observability.logging import Format, get_logger
from headrace.process.certificates import load_tls
from headrace.process.cluster_connections import node_connect, placement_links, reach
from headrace.process.roles import Role
from headrace.process.startup.serving import tell_root
from headrace.process.startup.worker_process import CLOSE_BROKER
from headrace.process.startup.worker_supervision import (
    ObservedWorkers,
    WorkerChild,
    WorkerProcesses,
    metrics_port,
    release_leases,
    with_ports,
)
from headrace.runtime import Runtime
from headrace.sbp_client.client import SbpClient
from headrace.web.metrics.process import ObservedRole

log = get_logger(__name__)


class SupervisedBroker(Role):
    def __init__(
        self, runtime: Runtime, settings: Settings, *, secret: bytes, log_format: Format
    ) -> None:
        super().__init__()
        self._runtime = runtime
        self._settings = settings
        self._secret = secret
        self._log_format = log_format
        self._workers = WorkerProcesses()

    async def _start(self) -> None:
        runtime, settings, secret = self._runtime, self._settings, self._secret
        peers = (await load_tls(runtime, settings)).peers
        managers = settings.placement_managers
        client = self._client = SbpClient(
            runtime,
            placement=placement_links(runtime, managers, secret, "supervisor", tls=peers),
            node=node_connect(runtime, secret, "supervisor", tls=peers),
            client_id="supervisor",
            settings=settings.client,
        )
        self._closers.append(client.close)
        await reach(client, wait=True)
        await self._check_nobody_leads_alone()
        settings = await with_ports(runtime, settings)
        machine = str(runtime.random.uuid())  # a new one each time: sockets of before are gone
        children = [
            WorkerChild(
                number,
                self._told(number, settings, machine),
                None,
                on_root=tell_root,
                on_dead=self._release_leases,
            )
            for number in range(settings.broker.workers)
        ]
        self._closers.append(self._stop_workers)
        await self._workers.start(children)
        log.info("workers serve", workers=len(children))

    def _told(self, number: int, settings: Settings, machine: str) -> dict[str, Any]:
        port = metrics_port(settings.metrics_port, number)
        return {
            "settings": replace(settings, metrics_port=port),
            "nodes": (),
            "placement_managers": settings.placement_managers,
            "secret": self._secret,
            "machine": machine,
            "log_format": self._log_format,
        }

    async def _check_nobody_leads_alone(self) -> None:
        """A broker that leads everything and workers that each lead a part would take the
        leadership from each other for ever."""
        leader = (await self._client.query_lease(COORDINATOR)).holder
        workers = {one.holder for one in (await self._client.list_leases(WORKER_PREFIX)).leases}
        if leader and leader not in workers:
            raise ConfigError(
                "another broker of this cluster leads it alone: stop the brokers that were started"
                " without workers, then start all of them with --workers"
            )

    async def _release_leases(self, holder: str) -> None:
        await release_leases(self._client, holder)

    async def _stop_workers(self) -> None:
        await self._workers.stop()
        await self._workers.ask(CLOSE_BROKER)
        await self._workers.end()

    def addresses(self) -> dict[str, str]:
        return self._workers.addresses()

    def observed(self) -> Sequence[ObservedRole]:
        return (ObservedWorkers(lambda: self._workers.children),)
