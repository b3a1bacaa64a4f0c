"""`headrace cluster start` as a child process, and its roles to kill, stop and start again."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from headrace.cli.cluster.cluster_status import look
from headrace.client.iggy import IggyClient
from headrace.errors import HeadraceError
from headrace.net.addresses import parse_address
from headrace.runtime.system import system_runtime
from headrace.web.broker_api.types import ClusterInfo

T = TypeVar("T")

START_SECONDS = 90.0
STOP_SECONDS = 60.0
HEADRACE = (sys.executable, "-m", "headrace.cli.main")


def headrace(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*HEADRACE, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200", **environment},
        timeout=120,
        check=False,
    )


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """The first true answer."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.05)
    return found


class ClusterProcesses:
    """Roles go by the names of the local cluster: `broker-1`, `data-node-2`, ..."""

    def __init__(self, folder: Path, *arguments: str, settings: str = "") -> None:
        self.folder = folder / "cluster"
        self._arguments = arguments
        self._log = folder / "cluster.log"
        self.ready_file = folder / "ready.json"
        self._config = folder / "settings.toml"
        self._config.write_text(settings)
        self._process: subprocess.Popen[bytes] | None = None
        self._again: dict[str, subprocess.Popen[bytes]] = {}
        self.ready: dict[str, Any] = {}

    def start(self) -> ClusterProcesses:
        command = [*HEADRACE, "cluster", "start", "--data-dir", str(self.folder), "--dev"]
        command += ["--iggy-port", "0", "--config", str(self._config)]
        command += ["--ready-file", str(self.ready_file), *self._arguments]
        self.ready_file.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not self.ready_file.exists():
            assert self._process.poll() is None, f"ended at start:\n{self.log}"
            assert time.monotonic() < deadline, f"not ready in time:\n{self.log}"
            time.sleep(0.02)
        self.read_ready()
        return self

    def read_ready(self) -> None:
        self.ready = json.loads(self.ready_file.read_text())

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    @property
    def log(self) -> str:
        return self._log.read_text()

    def role_log(self, name: str) -> str:
        return (self.folder / name / "log").read_text()

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        for process in self._again.values():
            process.kill()
            process.wait(STOP_SECONDS)
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)

    # -- its roles

    def names(self, prefix: str) -> list[str]:
        return [name for name in self.ready["roles"] if name.startswith(prefix)]

    def pid(self, name: str) -> int:
        again = self._again.get(name)
        return again.pid if again is not None else int(self.ready["roles"][name]["pid"])

    def pids(self) -> list[int]:
        return [self.pid(name) for name in self.ready["roles"]]

    def address(self, name: str) -> str:
        return str(next(iter(self.ready["roles"][name]["addresses"].values())))

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self.pid(name), number)

    def kill(self, name: str) -> None:
        self.signal(name, signal.SIGKILL)
        again = self._again.pop(name, None)
        if again is not None:
            again.wait(STOP_SECONDS)

    def restart(self, name: str) -> None:
        """With the command it was started with, as a person would."""
        command = shlex.split((self.folder / name / "command").read_text())
        with (self.folder / name / "log").open("ab") as log:
            self._again[name] = subprocess.Popen(command, stdout=log, stderr=log)

    # -- what it says of itself

    def status(self) -> ClusterInfo:
        return look(str(self.folder), None, "")

    def brokers(self, role: str) -> list[str]:
        """Names of the brokers that have this role now."""
        found = {each.address for each in self.status().brokers if each.role == role}
        return [name for name in self.names("broker") if self.address(name) in found]

    def wait_leader(self, *, other_than: str = "", seconds: float = 30.0) -> str:
        """The broker that leads, once it serves."""

        def serves() -> str:
            try:
                (name,) = self.brokers("leader") or [other_than]
                if name != other_than:
                    self.streams(name)
                    return name
            except HeadraceError:
                pass  # not yet
            return ""

        return str(wait_for(serves, seconds, "no broker leads"))

    # -- what clients do with it

    def call(self, name: str, work: Callable[[IggyClient], Awaitable[T]]) -> T:
        """With a client of that broker."""

        async def main() -> T:
            async with await self.connect(name) as client:
                return await work(client)

        return asyncio.run(main())

    async def connect(self, name: str) -> IggyClient:
        """A client of that broker, logged in."""
        host, port = parse_address(self.address(name))
        client = await IggyClient.connect(system_runtime(), host, port)
        try:
            await client.login("iggy", "iggy")
        except BaseException:
            await client.close()
            raise
        return client

    def streams(self, name: str) -> set[str]:
        return {stream.name for stream in self.call(name, lambda client: client.get_streams())}

    def create_stream(self, name: str, stream: str) -> None:
        self.call(name, lambda client: client.create_stream(stream))


@contextmanager
def running_cluster(
    folder: Path, *arguments: str, settings: str = ""
) -> Iterator[ClusterProcesses]:
    cluster = ClusterProcesses(folder, *arguments, settings=settings)
    try:
        yield cluster.start()
    finally:
        cluster.stop()
