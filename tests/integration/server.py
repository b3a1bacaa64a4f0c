"""`headrace up` as a child process, the way a person runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "tests/peers"
START_SECONDS = 60.0
STOP_SECONDS = 60.0


class Server:
    def __init__(self, folder: Path, *, arguments: tuple[str, ...] = ("--dev",)) -> None:
        self.folder = folder
        self.arguments = arguments
        self.addresses: dict[str, str] = {}
        self.environment: dict[str, str] = {}  # for commands
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    @property
    def log(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("up-*.log")))

    def start(self) -> Server:
        """Start, or start again on the same data."""
        self.folder.mkdir(exist_ok=True)
        self._starts += 1
        ready = self.folder / f"ready-{self._starts}.json"
        command = [sys.executable, "-m", "headrace.cli.main", "up", *self.arguments]
        # Said as people say it: from where they are.
        command += ["--data-dir", "data", "--ready-file", str(ready)]
        for port in ("iggy", "quic", "placement", "node", "http"):
            command += [f"--{port}-port", "0"]
        with (self.folder / f"up-{self._starts}.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            assert self.process.poll() is None, f"ended at start:\n{self.log}"
            assert time.monotonic() < deadline, f"not ready in time:\n{self.log}"
            time.sleep(0.02)
        self.addresses = json.loads(ready.read_text())
        return self

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def children(self) -> list[int]:
        """Process ids of everything that descends from it."""
        found, waiting = [], [self.process.pid]
        while waiting:
            pid = waiting.pop()
            tasks = Path(f"/proc/{pid}/task")
            names = tasks.iterdir() if tasks.exists() else ()
            for task in names:
                below = [int(child) for child in (task / "children").read_text().split()]
                found += below
                waiting += below
        return found

    def headrace(
        self, *arguments: str, seconds: float = 120, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run the command line against this server."""
        environment = {
            **os.environ,
            "HEADRACE_ADDRESS": self.addresses["iggy"],
            "HEADRACE_HTTP": self.addresses["http"],
            "NO_COLOR": "1",
            "COLUMNS": "200",
            **self.environment,
        }
        return subprocess.run(
            [sys.executable, "-m", "headrace.cli.main", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            timeout=seconds,
            check=False,
            **options,
        )

    def peer(self, version: str, script: str, *arguments: str) -> subprocess.Popen[str]:
        """A script under a real Iggy client's interpreter."""
        python = ROOT / f".venv/peers/iggy-{version}/bin/python"
        command = [str(python), str(PEERS / "run.py"), str(PEERS / script)]
        command += [self.addresses["iggy"], *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@contextmanager
def running(folder: Path, *, arguments: tuple[str, ...] = ("--dev",)) -> Iterator[Server]:
    server = Server(folder, arguments=arguments).start()
    try:
        yield server
    finally:
        server.kill()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pids: list[int], seconds: float = 60.0) -> list[int]:
    """Those still there after that long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(map(is_running, pids)):
        time.sleep(0.02)
    return [pid for pid in pids if is_running(pid)]
