"""Spark's own processes (a standalone cluster, a Connect server) on free loopback ports."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.spark.session.session import environment
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
START_SECONDS = 90.0
RUN_SECONDS = 200.0
STOP_SECONDS = 20.0


def spark_environment(address: str, python: Path = Path(sys.executable)) -> dict[str, str]:
    """Of a process that runs Spark, or whose children do, with this environment's Python."""
    outside = ("SPARK_", "PYSPARK_", "HEADRACE_")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(outside)},
        **environment(),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "PATH": f"{python.parent}:{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "HEADRACE_ADDRESS": address,
        "HEADRACE_USERNAME": "iggy",
        "HEADRACE_PASSWORD": "secret",
    }


@contextmanager
def running(
    command: Sequence[str], *, folder: Path, name: str, variables: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process and all it starts, ended with the block; its output is in `<name>.log`."""
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """The group is of our own making: whatever is left of it goes, too."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_SECONDS)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait(STOP_SECONDS)


def run(command: Sequence[str], *, folder: Path, variables: Mapping[str, str]) -> str:
    """What it printed; its complaints when it failed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert process.poll() is None, f"ended at start:\n{log.read_text()[-6000:]}"
        assert time.monotonic() < deadline, f"not ready in time:\n{log.read_text()[-6000:]}"
        time.sleep(0.1)


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Cluster:
    url: str
    work: Path
    """Where its worker keeps what executors print, a folder for each application."""


@contextmanager
def standalone_cluster(folder: Path, variables: Mapping[str, str]) -> Iterator[Cluster]:
    """A master and one worker with two cores."""
    port, page = free_port(), free_port()
    url, work = f"spark://127.0.0.1:{port}", folder / "work"
    deploy = "org.apache.spark.deploy"
    master = [str(BIN / "spark-class"), f"{deploy}.master.Master", "--host", "127.0.0.1"]
    master += ["--port", str(port), "--webui-port", str(page)]
    worker = [str(BIN / "spark-class"), f"{deploy}.worker.Worker", "--host", "127.0.0.1"]
    worker += ["--port", "0", "--webui-port", "0", "--cores", "2", "--memory", "2g"]
    worker += ["--work-dir", str(work), url]

    def registered() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
                return bool(json.load(answer)["aliveworkers"] == 1)
        except OSError:
            return False  # it listens before it knows its own pages

    with running(master, folder=folder, name="master", variables=variables) as process:
        wait_until(lambda: accepts(port) and accepts(page), process, folder / "master.log")
        with running(worker, folder=folder, name="worker", variables=variables) as process:
            wait_until(registered, process, folder / "worker.log")
            yield Cluster(url, work)
