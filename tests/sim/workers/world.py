"""Workers on simulated machines: processes that are killed, paused, cut off and started again.

A worker is the process `m<machine>/w<number>`. Workers of one machine are linked by unix sockets;
where there are several machines all links are TCP, so that a cut between machines cuts links.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.broker.catalogue.passwords import Passwords
from headrace.broker.core import Identity
from headrace.broker.shards.led import Led
from headrace.broker.shards.service import WorkerService
from headrace.broker.term.term import Setup
from headrace.config.broker import BrokerSettings
from headrace.config.placement import PlacementSettings
from headrace.errors import HeadraceError
from headrace.sbp_client.channels import Connect, PlacementChannel, tcp_connect
from headrace.sbp_client.client import SbpClient
from headrace.wire.sbp.messages import ClientRole
from tests.sim.cluster import CLIENT_SETTINGS, CREDENTIAL, PLACEMENT_PORT, SECRET, Cluster
from tests.simulator.runtime import SimulatedRandom, Simulation

PORT = 8090
LINK_PORT = 9100
SHARDS = 6
SETTINGS = BrokerSettings(
    root_username="iggy",
    root_password="iggy",
    lease_ms=1_000,
    leader_wait_ms=3_000,
    replicas=1,
    log_replicas=1,
)
PLACEMENT_SETTINGS = PlacementSettings(
    node_timeout_ms=5_500,
    tick_interval_ms=500,
    settle_ms=500,
    leader_ttl_ms=2_000,
    leader_margin_ms=300,
)
_START_SECONDS = 20.0


class NotedShards(dict[int, Led]):
    """What a worker leads; whoever takes a shard is told to the world."""

    def __init__(self, on_led: Callable[[int, Led], None]) -> None:
        super().__init__()
        self._on_led = on_led

    def __setitem__(self, shard: int, led: Led) -> None:
        super().__setitem__(shard, led)
        self._on_led(shard, led)


@dataclass(slots=True)
class World:
    seed: int
    workers_count: int = 3
    machines: int = 1
    nodes: int = 2
    cluster: Cluster = field(init=False)
    random: SimulatedRandom = field(init=False)
    workers: dict[int, WorkerService] = field(default_factory=dict)
    """Those that were started; one that crashed stays here until it is back."""
    violations: list[str] = field(default_factory=list)
    epochs: dict[tuple[int, int], str] = field(default_factory=dict)
    """Who led a shard under an epoch."""
    moves: int = 0
    _lives: dict[int, int] = field(default_factory=dict)
    _starting: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = SimulatedRandom(f"{self.seed}/workers")
        self.cluster = Cluster(
            self.seed, managers=1, nodes=self.nodes, placement_settings=PLACEMENT_SETTINGS
        )

    @property
    def simulation(self) -> Simulation:
        return self.cluster.simulation

    def complain(self, text: str) -> None:
        self.violations.append(f"{self.simulation.time():.3f} {text}")

    # -- workers

    def host(self, number: int) -> str:
        return f"{self.machine(number)}/w{number}"

    def machine(self, number: int) -> str:
        return f"m{number % self.machines}"

    def is_up(self, number: int) -> bool:
        life = self._lives.get(number)
        return number in self.workers and life == self.simulation.life(self.host(number))

    def up(self) -> list[int]:
        return [number for number in range(self.workers_count) if self.is_up(number)]

    def coordinator(self) -> int:
        for number in self.up():
            if self.workers[number].broker.workers.coordinates:
                return number
        return 0

    async def start(self) -> None:
        await self.cluster.start()
        for number in range(self.workers_count):
            self.launch(number)
        await asyncio.gather(*self._starting.values())

    def launch(self, number: int) -> None:
        """As a supervisor does it: started again until it serves."""
        before = self._starting.get(number)
        if before is None or before.done():
            task = asyncio.get_running_loop().create_task(self._launch(number), name="launch")
            self._starting[number] = task

    async def launched(self) -> None:
        await asyncio.gather(*self._starting.values())

    async def _launch(self, number: int) -> None:
        while True:
            try:
                async with asyncio.timeout(_START_SECONDS):
                    await self._start_worker(number)
                return
            except (HeadraceError, TimeoutError):
                self.kill(number)
                await asyncio.sleep(0.2)

    async def _start_worker(self, number: int) -> None:
        host = self.host(number)
        runtime = self.simulation.runtime(host)
        setup = Setup(
            runtime=runtime,
            settings=SETTINGS,
            client=self._client(host),
            identity=Identity(
                cluster_uuid="00000000-0000-4000-8000-000000000000",
                cluster_name="simulated",
                placement_address="",
                version="0",
                secret=SECRET,
                started_us=runtime.clock.now_us(),
            ),
        )

        async def start() -> None:
            address = f"{self.machine(number)}:{LINK_PORT + number}"
            service = WorkerService(
                setup,
                number=number,
                folder="/broker",
                link_path=f"/run/w{number}.sock",
                link_address=address if self.machines > 1 else "",
            )
            # The real ones take longer than all the rest of a run.
            service.broker.passwords.close()
            service.broker.passwords = Passwords(runtime, time_cost=1, memory_kib=8)
            self._lives[number] = self.simulation.life(host)
            self.workers[number] = service
            serving = asyncio.ensure_future(service.start("0.0.0.0", PORT + number))
            while service.worker is None and not serving.done():  # noqa: ASYNC110  # made on the way
                await asyncio.sleep(0.001)
            if service.worker is not None:
                service.worker.shards.held = NotedShards(
                    lambda shard, led: self._on_led(number, shard, led)
                )
            await serving

        await self.simulation.on(host, start())

    def _client(self, host: str) -> SbpClient:
        """Without the cluster's history: what data nodes promise is checked elsewhere."""
        runtime = self.simulation.runtime(host)
        role = ClientRole.CUSTOMER

        def connect(address: str) -> Connect:
            return tcp_connect(runtime, address, client_id=host, role=role, credential=CREDENTIAL)

        addresses = [f"{manager}:{PLACEMENT_PORT}" for manager in self.cluster.managers]
        return SbpClient(
            runtime,
            placement=PlacementChannel(addresses, connect),
            node=connect,
            client_id=host,
            settings=CLIENT_SETTINGS,
        )

    def kill(self, number: int) -> None:
        """As SIGKILL does."""
        self.simulation.crash(self.host(number), power_cut=False)

    # -- who leads

    def _on_led(self, number: int, shard: int, led: Led) -> None:
        self.moves += 1
        life = f"w{number}.{self._lives[number]}"
        known = self.epochs.setdefault((shard, led.epoch), life)
        if known != life:
            self.complain(f"leaders: {known} and {life} lead shard {shard} in epoch {led.epoch}")
        self.check_leaders()

    def check_leaders(self) -> None:
        """Nobody may believe that it leads what another one leads."""
        leaders: dict[int, int] = {}
        for number in self.up():
            service = self.workers[number]
            if service.worker is None or not service.leads:
                continue
            for shard in service.worker.shards.held:
                if shard in leaders:
                    self.complain(f"leaders: w{leaders[shard]} and w{number} lead shard {shard}")
                leaders[shard] = number

    async def watch_leaders(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            self.check_leaders()
