"""A real etcd for tests: Debian's `etcd-server` from the PATH, on free loopback ports."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.ports import free_ports

INSTALL = "apt-get install --no-install-recommends etcd-server"
START_SECONDS = 60.0


def binary() -> str:
    found = shutil.which("etcd")
    if found is None:
        pytest.fail(f"etcd is not on the PATH; install it: {INSTALL}", pytrace=False)
    return found


class EtcdServer:
    """One member. `start`, then any of `pause`, `resume`, `kill`, `start` again, at last `stop`."""

    def __init__(
        self,
        folder: Path,
        name: str,
        client_port: int,
        peer_port: int,
        cluster: str,
        options: Sequence[str] = (),
        scheme: str = "http",
    ) -> None:
        self.endpoint = f"{scheme}://127.0.0.1:{client_port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / f"{name}.log"
        peer = f"http://127.0.0.1:{peer_port}"
        self._command = [
            binary(),
            f"--name={name}",
            f"--data-dir={folder / name}",
            f"--listen-client-urls={self.endpoint}",
            f"--advertise-client-urls={self.endpoint}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={cluster}",
            "--logger=zap",
            "--log-level=error",
            *options,
        ]

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """As a crash: nothing is finished."""
        self._signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()
        self.process = None

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def _signal(self, number: signal.Signals) -> None:
        assert self.process is not None, "not running"
        self.process.send_signal(number)


class EtcdCluster:
    def __init__(self, members: list[EtcdServer]) -> None:
        self.members = members

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    def wait_ready(self) -> None:
        """Until a leader is elected and everybody knows it."""
        deadline = time.monotonic() + START_SECONDS
        for member in self.members:
            while not _healthy(member.endpoint):
                alive = member.process is not None and member.process.poll() is None
                if not alive or time.monotonic() > deadline:
                    pytest.fail(f"etcd did not start:\n{member.log.read_text()[-2000:]}")
                time.sleep(0.05)


def _healthy(endpoint: str) -> bool:
    try:  # who it is does not matter here: the client under test looks at its certificate
        answer = httpx.get(f"{endpoint}/health", timeout=1, verify=False)
    except httpx.HTTPError:
        return False
    return answer.status_code == 200 and answer.json().get("health") == "true"


@contextmanager
def running_etcd(
    folder: Path, *, members: int = 1, options: Sequence[str] = (), scheme: str = "http"
) -> Iterator[EtcdCluster]:
    """Started and ready; stopped at the end, whatever state it is in."""
    ports = free_ports(2 * members)
    names = {f"etcd{n}": (ports[2 * n], ports[2 * n + 1]) for n in range(members)}
    initial = ",".join(f"{name}=http://127.0.0.1:{peer}" for name, (_, peer) in names.items())
    cluster = EtcdCluster(
        [
            EtcdServer(folder, name, client, peer, initial, options, scheme)
            for name, (client, peer) in names.items()
        ]
    )
    try:
        for member in cluster.members:
            member.start()
        cluster.wait_ready()
        yield cluster
    finally:
        for member in cluster.members:
            member.stop()


def ask(endpoint: str, path: str, body: Mapping[str, object], token: str = "") -> object:
    """One request to the JSON gateway, for setting things up."""
    headers = {"Authorization": token} if token else {}
    answer = httpx.post(f"{endpoint}/v3/{path}", json=body, headers=headers, timeout=30)
    answer.raise_for_status()
    return answer.json()
