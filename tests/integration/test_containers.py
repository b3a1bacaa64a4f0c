"""An application of three containers on real Spark, each lost in turn, and the controller too.

What stands in the last topic must be what went into the first one, every row once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.client.iggy import IggyClient
from headrace.net.addresses import parse_address
from headrace.runtime.system import system_runtime
from headrace.wire.iggy.messages.messages import Message, decode_messages
from headrace.wire.iggy.primitives import Partitioning, Strategy
from tests.integration.server import Server, is_running, running

SCRIPT = """
import pyspark.sql.functions as F
from headrace import Application

app = Application("chain", trigger="300 milliseconds", HEARTBEAT_TIMEOUT_MILLIS=6_000)
app.topic("numbers", "mine/numbers", schema="n int")

@app.operator(isolate=True)
def valid(numbers):
    return numbers.where("n is not null")

@app.operator(isolate=True)
def doubled(valid, *, factor=2):
    return valid.select((F.col("n") * factor).alias("n"))

@app.operator(isolate=True, to="mine/doubled")
def out(doubled):
    return doubled
"""
SETTINGS = """
[controller]
container_heap_mb = 512
container_cores = 1
restart_delay_ms_min = 200
retry_delay_ms = 500
committed_interval_ms = 1000
"""
pytestmark = pytest.mark.timeout(600)
PATIENCE_SECONDS = 240.0
OPERATORS = ("valid", "doubled", "out")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("containers")
    (folder / "settings.toml").write_text(SETTINGS)
    arguments = ("--dev", "--config", str(folder / "settings.toml"))
    with running(folder / "server", arguments=arguments) as started:
        yield started
        stop(started)


def stop(server: Server) -> None:
    server.headrace("pipeline", "stop", "chain")
    until(lambda: show(server)["state"] == "STOPPED", server)


def until(
    condition: Callable[[], bool], server: Server, seconds: float = PATIENCE_SECONDS
) -> float:
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > seconds:
            logs = server.headrace("pipeline", "logs", "chain", "-n", "60").stdout
            raise AssertionError(f"it did not happen in {seconds} s:\n{logs}\n{server.log[-3000:]}")
        time.sleep(0.2)
    return time.monotonic() - started


def show(server: Server) -> dict[str, Any]:
    url = f"http://{server.addresses['http']}/api/pipelines/chain"
    answer = httpx.get(url, auth=("iggy", "iggy"), timeout=20, trust_env=False)
    shown: dict[str, Any] = answer.raise_for_status().json()
    return shown


def container(server: Server, operator: str) -> dict[str, Any]:
    (found,) = (one for one in show(server)["containers"] if operator in one["operators"])
    return dict(found)


class Producer:
    """Numbers from 0 on, a thousand at a time, and what became of them."""

    def __init__(self, server: Server) -> None:
        self._address = parse_address(server.addresses["iggy"])
        self.sent = 0
        self._found: list[int] = []

    def send(self, count: int = 1000) -> None:
        numbers = range(self.sent, self.sent + count)
        messages = [Message(json.dumps({"n": n}).encode()) for n in numbers]

        async def send(client: IggyClient) -> None:
            await client.send("mine", "numbers", messages, partitioning=Partitioning.balanced())

        self._ask(send)
        self.sent += count

    def all_arrived(self) -> bool:
        self._ask(self._read)
        assert len(self._found) == len(set(self._found)), "a row came twice"
        return sorted(self._found) == [2 * n for n in range(self.sent)]

    async def _read(self, client: IggyClient) -> None:
        while True:
            strategy = Strategy.offset(len(self._found))
            polled = await client.poll(
                "mine", "doubled", partition=0, strategy=strategy, count=1000
            )
            if not polled.count:
                return
            self._found += [
                json.loads(message.payload)["n"]
                for part in polled.slices
                for message in decode_messages(part)
            ]

    def _ask(self, ask: Callable[[IggyClient], Awaitable[None]]) -> None:
        async def main() -> None:
            async with await IggyClient.connect(system_runtime(), *self._address) as client:
                await client.login("iggy", "iggy")
                await ask(client)

        asyncio.run(main())


@pytest.fixture(scope="module")
def producer(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Producer:
    folder = tmp_path_factory.mktemp("chain")
    (folder / "chain.py").write_text(SCRIPT)
    for arguments in (
        ("stream", "create", "mine"),
        ("topic", "create", "mine/numbers", "--partitions", "2"),
        ("topic", "create", "mine/doubled", "--partitions", "1"),
    ):
        assert server.headrace(*arguments).returncode == 0
    producer = Producer(server)
    producer.send()
    done = server.headrace("pipeline", "run", str(folder / "chain.py"), "--detach")
    assert done.returncode == 0, done.stderr
    took = until(producer.all_arrived, server)
    print(f"three containers: first rows at the end after {took:.1f} s")
    return producer


def some(often: str) -> list[Any]:
    """Each operator's container; those that `make test` has no time for are for `make soak`."""
    return [one if one == often else pytest.param(one, marks=pytest.mark.soak) for one in OPERATORS]


@pytest.mark.parametrize("operator", some("doubled"))
def test_a_killed_container_alone_is_started_again(
    server: Server, producer: Producer, operator: str
) -> None:
    before = {name: container(server, name) for name in OPERATORS}
    producer.send()
    os.kill(before[operator]["pid"], signal.SIGKILL)
    producer.send()
    until(producer.all_arrived, server)
    until(lambda: container(server, operator)["recovery_ms"] is not None, server)
    after = {name: container(server, name) for name in OPERATORS}
    print(f"{operator}: {after[operator]['recovery_ms']} ms from its end to its first new window")
    assert after[operator]["restarts"] == before[operator]["restarts"] + 1
    for other in set(OPERATORS) - {operator}:
        assert after[other]["pid"] == before[other]["pid"]


@pytest.mark.parametrize("operator", some("valid"))
def test_a_hung_container_is_replaced_after_the_heartbeat_timeout(
    server: Server, producer: Producer, operator: str
) -> None:
    before = {name: container(server, name) for name in OPERATORS}
    pid = before[operator]["pid"]
    for each in process_group(pid):
        os.kill(each, signal.SIGSTOP)
    producer.send()
    until(lambda: not is_running(pid), server)
    until(producer.all_arrived, server)
    until(lambda: container(server, operator)["recovery_ms"] is not None, server)
    after = {name: container(server, name) for name in OPERATORS}
    print(f"{operator}: {after[operator]['recovery_ms']} ms from the time-out to a new window")
    assert after[operator]["restarts"] == before[operator]["restarts"] + 1
    for other in set(OPERATORS) - {operator}:
        assert after[other]["pid"] == before[other]["pid"]
    reasons = [one["reason"] for one in show(server)["events"] if one["type"] == "ContainerError"]
    assert any("no heartbeat for" in reason for reason in reasons)


def process_group(leader: int) -> list[int]:
    found = subprocess.run(
        ["ps", "-o", "pid=", "-g", str(leader)], capture_output=True, text=True, check=True
    )
    return [int(one) for one in found.stdout.split()]


def control_plane(server: Server) -> int:
    for pid in server.children():
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"headrace.cli.control" in command:
            return pid
    raise AssertionError("there is no control plane")


def until_back(server: Server) -> str:
    """The address of the control plane that followed; its ports are of its own choice."""
    known = server.addresses["http"]
    listening: list[str] = []

    def is_back() -> bool:
        try:
            pid = control_plane(server)
        except (AssertionError, FileNotFoundError):
            return False
        listening[:] = [one for one in _addresses(pid) if one != known and _serves(one)]
        return bool(listening)

    until(is_back, server)
    return listening[0]


def _addresses(pid: int) -> list[str]:
    """Where a process listens."""
    inodes = set()
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(one).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [
        f"127.0.0.1:{int(row[1].rpartition(':')[2], 16)}"
        for row in rows
        if row[3] == "0A" and row[9] in inodes
    ]


def _serves(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/health", timeout=5, trust_env=False).text == "ok\n"
    except httpx.HTTPError:
        return False


def test_containers_outlive_the_controller(server: Server, producer: Producer) -> None:
    before = {name: container(server, name) for name in OPERATORS}
    events = len(show(server)["events"])
    os.kill(control_plane(server), signal.SIGKILL)
    producer.send()
    until(producer.all_arrived, server)  # nobody needs the controller for that
    server.addresses["http"] = until_back(server)
    until(lambda: all(one["state"] == "ACTIVE" for one in show(server)["operators"]), server)
    after = {name: container(server, name) for name in OPERATORS}
    assert {name: one["pid"] for name, one in after.items()} == {
        name: one["pid"] for name, one in before.items()
    }
    assert len(show(server)["events"]) >= events
    producer.send()
    until(producer.all_arrived, server)
