"""A whole cluster as children of one process, which they do not outlive.

Each role is the command a person would give, with a folder of its own below the data directory:
settings, log and data. Ports are chosen once and kept in `cluster.json`, so that a role which was
killed can be started again by hand and the others still find it. A child that dies is reported and
not started again: to see what the others do then is what such a cluster is for.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from secrets import token_hex

from headrace.cli.cluster.etcd import ETCD_USER, etcd_arguments, find_etcd, protect
from headrace.config.process import TlsSettings
from headrace.errors import ConfigError, LockedError, StateError, UnavailableError
from headrace.observability.escaping import note
from headrace.observability.logging import configure_logging
from headrace.process.certificates import load_certificate
from headrace.process.startup.server_note import started
from headrace.process.startup.serving import write_ready_file
from headrace.runtime.interfaces import Process
from headrace.runtime.system import run, system_runtime

STATE = "cluster.json"
START_SECONDS = 60.0
STOP_SECONDS = 30.0
_ASK_SECONDS = 0.05
_LINES_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class LocalClusterPlan:
    nodes: int
    brokers: int
    workers: int = 0
    managers: int
    data_dir: str
    iggy_port: int
    http_port: int
    metrics_port: int
    dev: bool
    config: str

    def roles(self) -> list[str]:
        """Name the roles in the order in which they start."""
        numbers = {
            "placement-manager": self.managers, "data-node": self.nodes, "broker": self.brokers,
        }  # fmt: skip
        return [
            *(f"{role}-{n}" for role, count in numbers.items() for n in range(1, count + 1)),
            *(["controller"] if self.http_port >= 0 else []),
        ]


@dataclass
class LocalClusterState:
    """What `cluster.json` holds."""

    pid: int = 0
    started: str = ""
    """When the process with that id started, by the system: ids are used again."""
    ports: dict[str, int] = field(default_factory=dict)
    placement_managers: list[str] = field(default_factory=list)
    secret: str = ""
    roles: dict[str, dict[str, object]] = field(default_factory=dict)
    """By name: its pid, its addresses, the command that starts it."""

    @classmethod
    def load(cls, data_dir: str) -> LocalClusterState:
        try:
            return cls(**json.loads(Path(data_dir, STATE).read_text()))
        except FileNotFoundError:
            return cls()
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{data_dir}/{STATE} cannot be read: {error}; remove it") from error

    def save(self, data_dir: str) -> None:
        path = Path(data_dir, STATE)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(asdict(self), indent=2))
        temporary.replace(path)

    def is_running(self) -> bool:
        return bool(self.pid and self.started) and started(self.pid) == self.started


class LocalCluster:
    def __init__(self, plan: LocalClusterPlan) -> None:
        self.plan = plan
        self.folder = Path(plan.data_dir).absolute()
        self.state = LocalClusterState()
        self._processes: dict[str, Process] = {}
        self._watches: list[asyncio.Task[None]] = []
        self._stopping = False

    @property
    def begun(self) -> bool:
        return bool(self._processes)

    # -- starting

    async def start(self) -> None:
        self._prepare()
        if self.plan.managers > 1:
            await self._start_etcd()
        managers = self._named("placement-manager")
        await self._start_all({name: self._manager_arguments(name) for name in managers})
        self.state.placement_managers = [f"127.0.0.1:{self.state.ports[name]}" for name in managers]
        nodes, brokers = self._named("data-node"), self._named("broker")
        await self._start_all({name: self._node_arguments(name) for name in nodes})
        await self._start_all({name: self._broker_arguments(name) for name in brokers})
        control = self._named("controller")
        await self._start_all({name: self._controller_arguments() for name in control})
        self.state.save(str(self.folder))

    def _named(self, prefix: str) -> list[str]:
        return [name for name in self.plan.roles() if name.startswith(prefix)]

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.state = LocalClusterState.load(str(self.folder))
        if self.state.is_running():
            raise LockedError(f"a cluster runs on {self.folder} (process {self.state.pid})")
        self.state.pid, self.state.started = os.getpid(), started(os.getpid())
        self.state.roles.clear()
        secret = self.folder / "secret"
        if not secret.exists():
            secret.touch(mode=0o600)
            secret.write_text(token_hex(32))
        self.state.secret = f"file:{secret}"
        self.state.save(str(self.folder))
        runtime = system_runtime()
        load_certificate(runtime.disk, runtime.clock, TlsSettings(), str(self.folder))

    async def _start_etcd(self) -> None:
        client, peer = self._port("etcd"), self._port("etcd-peer")
        data = self.folder / "etcd" / "data"
        arguments = etcd_arguments(find_etcd(), str(data), client, peer)
        await self._spawn("etcd", arguments)
        await self._wait("etcd", lambda: _accepts(client))
        password = self._etcd_password().read_text()
        await asyncio.to_thread(protect, f"http://127.0.0.1:{client}", password)
        note(f"  {'etcd':<20} 127.0.0.1:{client}")

    def _etcd_password(self) -> Path:
        path = self.folder / "etcd" / "password"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(token_hex(32))
        return path

    def _common(self, name: str, command: str) -> list[str]:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        arguments = [sys.executable, "-m", "headrace.cli.main", command]
        arguments += ["--data-dir", str(folder / "data"), "--secret", self.state.secret]
        arguments += ["--ready-file", str(folder / "ready.json")]
        if self.plan.metrics_port >= 0:
            arguments += ["--metrics-port", str(self._metrics_port(name))]
        if self.plan.config:
            arguments += ["--config", str(Path(self.plan.config).absolute())]
        return arguments

    def _metrics_port(self, name: str) -> int:
        """From the wanted one on, a port for each role: managers, data nodes, brokers, controller;
        so that a list of targets for Prometheus can be written before anything runs. Behind a
        broker's are those of its workers."""
        if self.plan.metrics_port == 0:
            return 0 if self.plan.workers else self._port(f"{name} metrics")
        before = self.plan.roles()[: self.plan.roles().index(name)]
        brokers = sum(each.startswith("broker") for each in before) if self.plan.workers else 0
        return self.plan.metrics_port + len(before) + brokers * (self.plan.workers + 1)

    def _manager_arguments(self, name: str) -> list[str]:
        metadata = "sqlite"
        if self.plan.managers > 1:
            metadata = f"etcd://127.0.0.1:{self.state.ports['etcd']}"
        port = str(self._port(name))
        arguments = [
            *self._common(name, "placement-manager"),
            *("--placement-port", port, "--metadata", metadata),
        ]
        if self.plan.managers > 1:
            password = f"file:{self._etcd_password()}"
            arguments += ["--etcd-user", ETCD_USER, "--etcd-password", password]
        return arguments

    def _joined(self, name: str, command: str) -> list[str]:
        managers = ",".join(self.state.placement_managers)
        return [*self._common(name, command), "--placement-managers", managers]

    def _node_arguments(self, name: str) -> list[str]:
        return [*self._joined(name, "data-node"), "--node-port", str(self._port(name))]

    def _share_certificate(self, name: str) -> None:
        """A connection to one broker may end at another: clients trust both by one authority."""
        own = self.folder / name / "data" / "secrets" / "tls"
        if not own.exists():
            shutil.copytree(self.folder / "secrets" / "tls", own)

    def _broker_arguments(self, name: str) -> list[str]:
        self._share_certificate(name)
        number = int(name.rpartition("-")[2])
        wanted = self.plan.iggy_port and self.plan.iggy_port + number - 1
        arguments = self._joined(name, "broker")
        arguments += ["--iggy-port", str(wanted or self._port(name)), "--quic-port", "-1"]
        if self.plan.workers:
            arguments += ["--workers", str(self.plan.workers)]
        return [*arguments, "--dev"] if self.plan.dev else arguments

    def _controller_arguments(self) -> list[str]:
        port = str(self.plan.http_port or self._port("controller"))
        return [*self._joined("controller", "controller"), "--http-port", port]

    def _port(self, name: str) -> int:
        """The same as last time if it is still free."""
        known = self.state.ports.pop(name, 0)
        port = known if known and _is_free(known) else _free_port()
        while port in self.state.ports.values():  # chosen for another role, which is yet to open it
            port = _free_port()
        self.state.ports[name] = port
        return port

    async def _start_all(self, roles: dict[str, list[str]]) -> None:
        for name in roles:
            (self.folder / name / "ready.json").unlink(missing_ok=True)
        for name, arguments in roles.items():
            await self._spawn(name, arguments)
        for name in roles:
            ready = self.folder / name / "ready.json"
            await self._wait(name, ready.exists)
            addresses = json.loads(ready.read_text())
            self.state.roles[name]["addresses"] = addresses
            note(f"  {name:<20} {', '.join(addresses.values())}")

    async def _spawn(self, name: str, arguments: list[str]) -> None:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        process = await system_runtime().processes.spawn(
            arguments, environment=os.environ, folder=str(folder), output=str(folder / "log")
        )
        (folder / "command").write_text(shlex.join(arguments) + "\n")
        self._processes[name] = process
        self.state.roles[name] = {"pid": process.pid, "command": arguments}
        self._watches.append(asyncio.create_task(self._watch(name, process)))

    async def _wait(self, name: str, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready():
            ended = self._processes[name].exit_status is not None
            if ended or time.monotonic() > deadline:
                log = self.folder / name / "log"
                what = "ended" if ended else "is not ready"
                raise StateError(f"{name} {what}; its log {log} ends with\n{_last_lines(log)}")
            await asyncio.sleep(_ASK_SECONDS)

    # -- running and stopping

    async def _watch(self, name: str, process: Process) -> None:
        status = await process.wait()
        if not self._stopping:
            how = f"by signal {-status}" if status < 0 else f"with status {status}"
            note(f"{name} ended {how}; the others go on. Its command and log: {self.folder / name}")

    async def stop(self) -> None:
        """Brokers first, so that each part finds those it needs until its own end."""
        self._stopping = True
        for prefix in ("controller", "broker", "data-node", "placement-manager", "etcd"):
            await self._stop([p for name, p in self._processes.items() if name.startswith(prefix)])
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        self.state.pid = 0
        self.state.roles.clear()
        self.state.save(str(self.folder))

    async def _stop(self, processes: Sequence[Process]) -> None:
        for process in processes:
            process.terminate()
        waits = [asyncio.create_task(process.wait()) for process in processes]
        if waits:
            _, late = await asyncio.wait(waits, timeout=STOP_SECONDS)
            for process in processes if late else ():
                process.kill()
            await asyncio.gather(*waits)

    @property
    def addresses(self) -> dict[str, object]:
        """List the addresses of the roles for the ready file."""
        brokers = []
        for name, role in self.state.roles.items():
            addresses = role.get("addresses")
            if name.startswith("broker") and isinstance(addresses, dict):
                brokers.append(addresses["iggy"])
        return {
            "iggy": brokers[0],
            "brokers": brokers,
            "placement_managers": self.state.placement_managers,
            "secret": self.state.secret,
            "roles": self.state.roles,
        }


def _last_lines(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines()
    return "\n".join(f"    {line}" for line in lines[-_LINES_SHOWN:])


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _accepts(port: int) -> bool:
    with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port), timeout=0.2)):
        return True
    return False


async def _serve(plan: LocalClusterPlan, ready_file: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    cluster = LocalCluster(plan)
    note(f"starting a cluster in {cluster.folder}")
    starting = asyncio.create_task(cluster.start())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            _say_ready(cluster)
            if ready_file:
                write_ready_file(ready_file, cluster.addresses)
            await stopping
    finally:
        for task in (starting, stopping):
            task.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)
        if cluster.begun:
            note("stopping the cluster")
            await cluster.stop()


def _say_ready(cluster: LocalCluster) -> None:
    folder = cluster.plan.data_dir
    broker = cluster.addresses["iggy"]
    managers = ",".join(cluster.state.placement_managers)
    note("the cluster is up; Ctrl-C stops it")
    note(f"  look at it       headrace cluster status --data-dir {folder}")
    note(f"  TLS clients      trust {cluster.folder}/secrets/tls/ca.pem")
    note(f"  use it           headrace stream create demo --address {broker}")
    note(
        f"  add a data node  headrace data-node --node-port 0 --data-dir {folder}/data-node-new "
        f"--placement-managers {managers} --secret {cluster.state.secret}"
    )


def run_attached(plan: LocalClusterPlan, ready_file: str) -> None:
    configure_logging()
    run(_serve(plan, ready_file))


def run_detached(plan: LocalClusterPlan, ready_file: str) -> None:
    folder = Path(plan.data_dir)
    folder.mkdir(parents=True, exist_ok=True)
    ready = Path(ready_file) if ready_file else folder / "ready.json"
    ready.unlink(missing_ok=True)
    arguments = [sys.executable, "-m", "headrace.cli.main", "cluster", "start"]
    for name in (
        "nodes", "brokers", "workers", "managers", "data_dir", "iggy_port", "http_port",
        "metrics_port", "config",
    ):  # fmt: skip
        value = getattr(plan, name)
        if value != "":
            arguments += [f"--{name.replace('_', '-')}", str(value)]
    arguments += ["--ready-file", str(ready), *(["--dev"] if plan.dev else [])]
    log = folder / "log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline = time.monotonic() + 2 * START_SECONDS
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise StateError(f"the cluster did not start; {log} ends with\n{_last_lines(log)}")
        time.sleep(_ASK_SECONDS)
    addresses = json.loads(ready.read_text())
    note(f"the cluster runs in the background (process {process.pid}, log {log})")
    note(f"  Iggy clients  {', '.join(addresses['brokers'])}")
    if "controller" in addresses["roles"]:
        note(f"  dashboard     http://{addresses['roles']['controller']['addresses']['http']}")
    note(f"  stop it with  headrace cluster stop --data-dir {plan.data_dir}")


def stop_cluster(data_dir: str) -> None:
    state = LocalClusterState.load(data_dir)
    if not state.is_running():
        raise UnavailableError(f"no cluster runs on {data_dir}; choose its --data-dir")
    os.kill(state.pid, signal.SIGTERM)
    deadline = time.monotonic() + 4 * STOP_SECONDS
    while state.is_running():
        if time.monotonic() > deadline:
            raise UnavailableError(f"process {state.pid} does not end; see its log in {data_dir}")
        time.sleep(_ASK_SECONDS)
    note("the cluster has stopped")
