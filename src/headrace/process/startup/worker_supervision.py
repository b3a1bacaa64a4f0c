"""The parent of several workers: placement manager, supervision, and the order of start and stop.

First the data nodes of all workers start, then one broker, which leads before the others follow. A
port that the settings leave open is chosen here, once for all of them. A worker that ends comes
back by itself; the others serve on, and what it led is free at once, because its end is known here.
A stop takes one step after the other in all of them: nobody takes over any more, brokers end, data
nodes end, then the placement manager does.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from msgspec.structs import replace

from headrace.broker.service import RootCredentials
from headrace.broker.term.broker_registry import LEADER_LEASE
from headrace.config.settings import LOOPBACK, Settings
from headrace.errors import HeadraceError
from headrace.observability.exposition import Family, family
from headrace.observability.logging import Format, get_logger
from headrace.placement.service import PlacementService
from headrace.process.certificates import load_tls
from headrace.process.cluster_connections import node_connect
from headrace.process.node_folders import NODE, broker_folder, find_nodes, numbers_of
from headrace.process.roles import PlacementRole, Role
from headrace.process.secrets import load_identity
from headrace.process.startup.child_process import STOP_SECONDS, Child
from headrace.process.startup.worker_process import CLOSE_BROKER, END, RETIRE, SERVE
from headrace.process.worker_plane import find_datagram_port, find_port
from headrace.runtime import Runtime
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.leadership import Holder, HolderFile
from headrace.web.metrics.cluster import ObservedPlacement
from headrace.web.metrics.process import Check, ObservedRole
from headrace.wire.sbp.messages import ClientRole

WORKERS_MAX = 16
"""As many as a machine gets by itself."""
_RELEASE_SECONDS = 2.0
_QUOTA = Path("/sys/fs/cgroup/cpu.max")

log = get_logger(__name__)


# Decisions ----------------------------------------------------------------------------------------


def count_workers(wanted: int, cores: int) -> int:
    """How many there are: as the settings say, or by the cores (one is for everything else)."""
    return wanted or max(1, min(cores - 1, WORKERS_MAX))


def usable_cores(quota: Path = _QUOTA) -> int:
    """Of this machine, or as many as this process or its control group may use."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    with suppress(OSError, ValueError):
        allowed, period = quota.read_text().split()  # "max" is no number
        cores = min(cores, math.ceil(int(allowed) / int(period)))
    return max(1, cores)


def choose_first(holders: Sequence[Holder], leader: str) -> int:
    """Which worker starts first: the one that still has the lease, since nobody else gets it before
    it ran out; else the one that gave it back cleanly, since it goes on where it stopped."""
    for number, one in enumerate(holders):
        if leader and one.holder == leader:
            return number
    return max(range(len(holders)), key=lambda number: (holders[number].clean_epoch, -number))


def metrics_port(base: int, worker: int) -> int:
    """The parent has the first port, the control plane the next one, workers those after it."""
    return base + 2 + worker if base > 0 else base


def on_one_host(settings: Settings, nodes: int) -> Settings:
    """Several data nodes of one machine are no reason for several replicas."""
    if nodes == 1:
        return settings
    broker = settings.broker
    return replace(
        settings,
        broker=replace(
            broker, replicas=broker.replicas or 1, log_replicas=broker.log_replicas or 1
        ),
    )


# One worker ---------------------------------------------------------------------------------------


class WorkerChild(Child):
    def __init__(
        self,
        number: int,
        told: Mapping[str, Any],
        log: TextIO | None,
        *,
        on_root: Callable[[RootCredentials], None],
        on_dead: Callable[[str], Awaitable[None]],
    ) -> None:
        """`told` is what every life of it must know. `on_dead` hears whose leases nobody holds."""
        super().__init__(f"worker {number}", log, at_once=True)
        self.number = number
        self._told = told
        self._on_root = on_root
        self._on_dead = on_dead
        self._holder = ""
        self._waits = True
        self._leads_first = False
        self.is_up = False
        self.restarts = 0

    def _arguments(self) -> list[str]:
        return [*worker_arguments(), str(self.number)]

    def _order(self) -> dict[str, Any]:
        mine = {"number": self.number, "before": self.addresses}
        return {**self._told, **mine, "waits": self._waits, "leads_first": self._leads_first}

    def choose_to_lead(self) -> None:
        """Its broker leads before the others' start; said before `start`."""
        self._leads_first = True

    async def serve(self) -> None:
        """Have its broker started: its data nodes, and those of the others, are there."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(SERVE.encode() + b"\n")
        await self._wait_answer()
        self._waits = self._leads_first = False  # its next life waits for nobody

    def _on_told(self, told: dict[str, Any]) -> bool:
        if "root" in told:
            self._on_root(RootCredentials(*told["root"]))
        elif "nodes" in told:
            return True
        elif "ready" in told:
            self.addresses, self._holder = told["ready"], told["holder"]
            self.is_up = True
            return True
        return False  # why it ends is in its messages

    async def _on_ended(self, status: int, pause_seconds: float) -> None:
        await super()._on_ended(status, pause_seconds)
        self.is_up = False
        self.restarts += 1
        if self._holder:
            await self._on_dead(self._holder)

    async def ask(self, step: str) -> None:
        """Have a step of the stop done; nobody else may be reading what it says."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        self.is_up = False
        process.stdin.write(step.encode() + b"\n")
        try:
            async with asyncio.timeout(STOP_SECONDS):
                while line := await process.stdout.readline():
                    if line.strip() and json.loads(line).get("done") == step:
                        return
        except TimeoutError:
            log.warning(f"{self.name} takes long to stop", step=step)
        except ValueError:
            return  # it is ended next

    async def stop(self) -> None:
        if self.pid is not None:
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(END.encode() + b"\n")
        await super().stop()


def worker_arguments() -> list[str]:
    return [sys.executable, "-m", "headrace.process.startup.worker_process"]


# All of them --------------------------------------------------------------------------------------


class WorkerProcesses:
    """The workers of one machine, from `start` to `stop`."""

    def __init__(self) -> None:
        self.children: list[WorkerChild] = []
        self._keeping: list[asyncio.Task[None]] = []

    async def start(self, children: list[WorkerChild], *, first: int | None = None) -> None:
        """Returns once all serve; `first` is the number of one that leads before the others do."""
        self.children = children
        leaders = [one for one in children if one.number == first]
        for one in leaders:
            one.choose_to_lead()
        await _all(one.start() for one in children)
        for one in leaders:
            await one.serve()
        await _all(one.serve() for one in children if one not in leaders)
        self._keeping = [
            asyncio.create_task(one.keep(), name=f"keep {one.name}") for one in children
        ]

    async def stop(self) -> None:
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)

    async def ask(self, step: str) -> None:
        await asyncio.gather(*(one.ask(step) for one in self.children))

    async def end(self) -> None:
        await asyncio.gather(*(one.stop() for one in self.children))

    def addresses(self) -> dict[str, str]:
        """As of one process; beside them where each worker tells its figures, if it does."""
        first: dict[str, str] = {}
        for one in self.children:
            for name in ("iggy", "quic"):
                if name in one.addresses:
                    first.setdefault(name, one.addresses[name])
        figures = {
            f"worker_{one.number}_metrics": one.addresses["metrics"]
            for one in self.children
            if "metrics" in one.addresses
        }
        return {**first, **figures}


async def with_ports(runtime: Runtime, settings: Settings) -> Settings:
    """The same for all workers, and nobody else's: another server that shares its port would be
    given our clients."""
    host = settings.iggy_host or settings.host
    iggy_port = await find_port(runtime, host, settings.iggy_port)
    quic_port = settings.quic_port
    if quic_port >= 0:
        quic_port = await find_datagram_port(runtime, host, quic_port)
    return replace(settings, iggy_port=iggy_port, quic_port=quic_port)


async def release_leases(client: SbpClient, holder: str) -> None:
    """A process that held leases is dead, by the word of the system: nobody need wait until they
    run out."""
    with suppress(HeadraceError, TimeoutError):
        async with asyncio.timeout(_RELEASE_SECONDS):
            await client.release_holder(holder)


class ObservedWorkers:
    role = "workers"

    def __init__(self, workers: Callable[[], Sequence[WorkerChild]]) -> None:
        self._workers = workers

    async def families(self) -> Iterable[Family]:
        up, restarts = family("worker_up"), family("worker_restarts_total")
        for one in self._workers():
            up.add(int(one.is_up), worker=str(one.number))
            restarts.add(one.restarts, worker=str(one.number))
        return [up, restarts]

    async def checks(self) -> list[Check]:
        workers = self._workers()
        if not workers:
            return [Check("started", False, "workers are not started yet")]
        return [
            Check(one.name, one.is_up, "" if one.is_up else f"{one.name} is starting again")
            for one in workers
        ]


class SupervisedPlane(Role):
    """What a `DataPlane` is, in several processes. `start`, then serves until `close`."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        *,
        workers: int,
        log_format: Format,
        output: TextIO | None,
        on_root: Callable[[RootCredentials], None],
    ) -> None:
        """`output` is where the messages of workers go; None: where ours do."""
        super().__init__()
        self._runtime = runtime
        self._settings = settings
        self._count = workers
        self._log_format = log_format
        self._output = output
        self._on_root = on_root
        self._workers = WorkerProcesses()
        self._placement: PlacementService | None = None
        self._placement_address = ""
        self._client: SbpClient | None = None
        self.authority_path = ""
        """What clients trust the development certificate by; empty with one of your own."""

    async def _start(self) -> None:
        runtime, settings = self._runtime, self._settings
        secret, self._cluster_uuid = await load_identity(runtime, settings.data_dir)
        tls = await load_tls(runtime, settings)
        self.authority_path = tls.certificate.authority_path
        connect_to = node_connect(
            runtime, secret, "supervisor", ClientRole.PLACEMENT_MANAGER, tls=tls.peers
        )
        # Its metadata is open in this process alone: nobody else starts on the data directory, also
        # while a worker is between two lives.
        placement = PlacementRole(
            runtime,
            settings,
            secret=secret,
            node=connect_to,
            tls=tls.acceptor,
            plain_streams=settings.plain_streams and settings.host in LOOPBACK,
        )
        self._closers.append(placement.close)
        await placement.start()
        self._placement = placement.service
        self._placement_address = placement.address
        self._client = SbpClient(
            runtime,
            placement=placement.service.connect,
            node=connect_to,
            client_id="supervisor",
            settings=settings.client,
        )
        self._closers.append(self._client.close)
        await self._start_workers()

    # -- workers

    async def _start_workers(self) -> None:
        settings = await with_ports(self._runtime, self._settings)
        found = await find_nodes(self._runtime, settings.data_dir)
        first = await self._choose_first()
        children = [
            WorkerChild(
                number,
                self._told(number, settings, found),
                self._output,
                on_root=self._on_root,
                on_dead=self._release_leases,
            )
            for number in range(self._count)
        ]
        self._closers.append(self._stop_workers)
        await self._workers.start(children, first=first)
        log.info("workers serve", workers=self._count, first=first)

    def _told(self, number: int, settings: Settings, nodes: Sequence[int]) -> dict[str, Any]:
        port = metrics_port(settings.metrics_port, number)
        return {
            "settings": replace(settings, metrics_port=port),
            "nodes": numbers_of(number, self._count, nodes),
            "placement_managers": [self._placement_address],
            "cluster_uuid": self._cluster_uuid,
            "log_format": self._log_format,
        }

    async def _choose_first(self) -> int:
        assert self._client is not None
        files = self._runtime.executor("process", 1)
        try:
            folders = [
                f"{self._settings.data_dir}/{broker_folder(number)}"
                for number in range(self._count)
            ]
            holders = [await HolderFile(self._runtime, each, files).load() for each in folders]
        finally:
            files.close()
        return choose_first(holders, (await self._client.query_lease(LEADER_LEASE)).holder)

    async def _release_leases(self, holder: str) -> None:
        assert self._client is not None
        await release_leases(self._client, holder)

    async def _stop_workers(self) -> None:
        await self._workers.stop()
        for step in (RETIRE, CLOSE_BROKER):
            await self._workers.ask(step)
        await self._workers.end()

    # -- figures

    def addresses(self) -> dict[str, str]:
        return {
            **self._workers.addresses(),
            "data_node": self._workers.children[0].addresses[NODE],
            "placement_manager": self._placement_address,
        }

    def observed(self) -> Sequence[ObservedRole]:
        labels_max = self._settings.observability.labels_max
        monotonic = self._runtime.clock.monotonic
        return (
            ObservedPlacement(lambda: self._placement, monotonic, labels_max=labels_max),
            ObservedWorkers(lambda: self._workers.children),
        )


async def _all(starting: Iterable[Awaitable[None]]) -> None:
    """Wait for all, then raise what went wrong first."""
    for ended in await asyncio.gather(*starting, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended
