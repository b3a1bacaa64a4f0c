"""Three placement managers over etcd, three data nodes and two brokers as real processes, whose
every connection passes a fault proxy."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from headrace.cli.cluster.etcd import etcd_arguments, find_etcd
from headrace.config.process import ClientSettings
from headrace.process.cluster_connections import node_connect, placement_links
from headrace.runtime.interfaces import Process, Runtime
from headrace.runtime.system import system_runtime
from headrace.sbp_client.client import SbpClient
from tests.fault_proxy import FaultProxy
from tests.ports import free_port

SECRET = b"\x5a" * 32
START_SECONDS = 60.0

QUICK = """
[advanced.broker]
lease_ms = 2000
[advanced.placement]
node_timeout_ms = 1500
tick_interval_ms = 200
replace_after_ms = 6000
settle_ms = 600
leader_ttl_ms = 2000
[advanced.data_node]
heartbeat_interval_ms = 300
reconcile_interval_ms = 2000
drain_timeout_ms = 1000
[advanced.client]
request_timeout_ms = 2000
"""
PATIENT = """
[advanced.broker]
lease_ms = 4000
[advanced.placement]
node_timeout_ms = 3000
tick_interval_ms = 500
replace_after_ms = 12000
settle_ms = 1000
[advanced.placement.etcd]
timeout_ms = 2000
[advanced.data_node]
heartbeat_interval_ms = 500
reconcile_interval_ms = 4000
drain_timeout_ms = 2000
"""
"""For a machine that does other things too: whoever is only slow is not taken for lost."""


class FaultCluster:
    """Roles are named `pm-1`, `node-2`, `broker-1`, ...; `etcd` is not disturbed."""

    def __init__(self, folder: Path, settings: str = QUICK) -> None:
        self.folder = folder
        self.runtime: Runtime = system_runtime()
        self._settings = settings
        self.proxy = FaultProxy(self._pids)
        self.address: dict[str, str] = {}
        """Of each role, through the proxy."""
        self._commands: dict[str, list[str]] = {}
        self._processes: dict[str, Process] = {}
        self._clients: list[SbpClient] = []

    def _pids(self) -> Mapping[str, int]:
        return {name: process.pid for name, process in self._processes.items()}

    def names(self, prefix: str) -> list[str]:
        return [name for name in self._commands if name.startswith(f"{prefix}-")]

    # -- life

    async def start(self) -> None:
        (self.folder / "settings.toml").write_text(self._settings)
        (self.folder / "secret").write_text(SECRET.hex())
        client, peer = free_port(), free_port()
        etcd = str(self.folder / "etcd-data")
        await self._define("etcd", client, etcd_arguments(find_etcd(), etcd, client, peer))
        for number in (1, 2, 3):
            await self._role("pm", number, "placement-manager", "placement-port")
        for number in (1, 2, 3):
            await self._role("node", number, "data-node", "node-port")
        for number in (1, 2):
            await self._role("broker", number, "broker", "iggy-port")
        for name in self._commands:
            await self.spawn(name)

    async def _role(self, prefix: str, number: int, command: str, port_flag: str) -> None:
        name, port = f"{prefix}-{number}", free_port()
        folder = self.folder / name
        arguments = [sys.executable, "-m", "headrace.cli.main", command]
        arguments += ["--data-dir", str(folder / "data"), f"--{port_flag}", str(port)]
        arguments += ["--secret", f"file:{self.folder / 'secret'}"]
        arguments += ["--config", str(self.folder / "settings.toml")]
        arguments += ["--ready-file", str(folder / "ready.json")]
        if command == "placement-manager":
            arguments += ["--metadata", f"etcd://{self.address['etcd']}"]
        else:
            managers = ",".join(self.address[pm] for pm in self.names("pm"))
            arguments += ["--placement-managers", managers]
        if command == "broker":
            arguments += ["--dev", "--quic-port", "-1"]
        await self._define(name, port, arguments)
        self._commands[name] += ["--advertise", self.address[name]]

    async def _define(self, name: str, port: int, arguments: list[str]) -> None:
        self.address[name] = f"127.0.0.1:{await self.proxy.add(name, port)}"
        self._commands[name] = arguments
        (self.folder / name).mkdir()

    async def spawn(self, name: str) -> None:
        """Start it, or start it again; returns once it serves."""
        ready = self.folder / name / "ready.json"
        ready.unlink(missing_ok=True)
        process = await self.runtime.processes.spawn(
            self._commands[name],
            environment=os.environ,
            folder=str(self.folder / name),
            output=str(self.folder / name / "log"),
        )
        self._processes[name] = process
        async with asyncio.timeout(START_SECONDS):
            while name != "etcd" and not ready.exists():
                assert process.exit_status is None, self.log(name)
                await asyncio.sleep(0.05)

    def log(self, name: str) -> str:
        return (self.folder / name / "log").read_text("utf-8", "replace")

    def story(self, lines_max: int = 120) -> str:
        """The newest lines of all roles, in the order of their times."""
        lines = [
            (line.split(" ", 1)[0], f"{name:<9} {line}")
            for name in self._commands
            for line in self.log(name).splitlines()
            if line.startswith("20") and "audit" not in line
        ]
        return "\n".join(line for _, line in sorted(lines)[-lines_max:])

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            await process.wait()
        await self.proxy.close()

    # -- faults

    async def kill(self, name: str) -> None:
        self._processes[name].kill()
        await self._processes[name].wait()

    def pause(self, name: str) -> None:
        os.kill(self._processes[name].pid, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._processes[name].pid, signal.SIGCONT)

    # -- clients

    def client(self, settings: ClientSettings | None = None) -> SbpClient:
        managers = [self.address[name] for name in self.names("pm")]
        client = SbpClient(
            self.runtime,
            placement=placement_links(self.runtime, managers, SECRET, "test"),
            node=node_connect(self.runtime, SECRET, "test"),
            client_id="test",
            settings=settings or ClientSettings(request_timeout_ms=2000),
        )
        self._clients.append(client)
        return client

    def name_at(self, address: str) -> str:
        return next(name for name, known in self.address.items() if known == address)
