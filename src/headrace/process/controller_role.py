"""The pipeline controller by itself, for a broker that may move.

The controller and the containers it starts know one address of the broker: a door in this process,
which leads to whichever broker leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from headrace.broker.term.broker_registry import LEADER_LEASE
from headrace.broker.term.standby_listener import Door
from headrace.config.settings import Settings
from headrace.process.control_plane import ControlPlane
from headrace.process.encryption import load_tls
from headrace.process.links import check_addresses, node_connect, placement_links, reach
from headrace.process.roles import Role
from headrace.runtime import Runtime
from headrace.sbp_client.client import SbpClient
from headrace.web.metrics.checks import Observed
from headrace.web.metrics.pipelines import ObservedController

_LOOPBACK = "127.0.0.1"


class ControllerRole(Role):
    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        *,
        secret: bytes,
        environment: Mapping[str, str],
    ) -> None:
        super().__init__()
        self._runtime = runtime
        self._settings = settings
        self._secret = secret
        self._environment = environment
        self._watching: asyncio.Task[None] | None = None
        self._plane: ControlPlane | None = None

    async def _start(self) -> None:
        runtime, settings = self._runtime, self._settings
        managers = check_addresses(settings.placement_managers)
        tls = (await load_tls(runtime, settings)).peers
        client = SbpClient(
            runtime,
            placement=placement_links(runtime, managers, self._secret, "controller", tls=tls),
            node=node_connect(runtime, self._secret, "controller", tls=tls),
            client_id="controller",
            settings=settings.client,
        )
        self._closers.append(client.close)
        await reach(client, wait=True)

        async def find_leader() -> str:
            return (await client.query_lease(LEADER_LEASE)).address

        door = Door(
            runtime,
            find_leader=find_leader,
            wait_seconds=settings.broker.leader_wait_ms / 1000,
            guests_max=settings.broker.connections_max,
        )
        await door.start(_LOOPBACK, 0)
        self._closers.append(door.close)
        plane = self._plane = ControlPlane(
            runtime,
            settings,
            {"placement_manager": ",".join(managers), "iggy": door.address},
            environment=self._environment,
            secret=self._secret,
        )
        await plane.start()
        self._closers.append(plane.close)
        self._watching = asyncio.create_task(self._watch(plane))
        self._closers.append(self._stop_watching)

    async def _watch(self, plane: ControlPlane) -> None:
        await plane.wait_ended()
        self.lost.set()

    async def _stop_watching(self) -> None:
        assert self._watching is not None, "it was started"
        self._watching.cancel()
        await asyncio.wait([self._watching])

    def observed(self) -> Sequence[Observed]:
        return (
            ObservedController(
                lambda: None if self._plane is None else self._plane.controller,
                lambda: None if self._plane is None else self._plane.failure,
                labels_max=self._settings.observability.labels_max,
            ),
        )

    def addresses(self) -> dict[str, str]:
        assert self._plane is not None, "not started"
        return self._plane.addresses()
