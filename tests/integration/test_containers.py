"""An application of three containers on real Spark, each lost in turn, and the controller too.

What stands in the last topic must be what went into the first one, every row once; then it is
changed while it runs, in all the ways there are.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.client.iggy import IggyClient
from headrace.net.addresses import parse_address
from headrace.net.credentials import grant_bytes, service_token, verify_grant
from headrace.runtime.system import system_runtime
from headrace.wire.iggy.messages.messages import Message, decode_messages
from headrace.wire.iggy.primitives import Partitioning, Strategy
from tests.integration.server import Server, is_running, running

SCRIPT = """
import pyspark.sql.functions as F
from headrace import Application

app = Application("chain", trigger="300 milliseconds", HEARTBEAT_TIMEOUT_MILLIS=6_000)
app.topic("numbers", "mine/numbers", schema="n int")

@app.operator
def valid(numbers):
    return numbers.where("n is not null")

@app.operator(to="mine/audit")
def audit(numbers):
    return numbers

@app.operator(isolate=True, STATELESS=True, live=True)
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
[advanced.controller]
restart_delay_ms_min = 200
retry_delay_ms = 500
committed_interval_ms = 1000
"""
pytestmark = pytest.mark.timeout(900)
PATIENCE_SECONDS = 400.0
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
        self._loop = asyncio.Runner()
        self._client: IggyClient | None = None
        self.factor = 2
        self.sent = 0
        self.expected: dict[str, Counter[int]] = {"doubled": Counter(), "audit": Counter()}
        self._found: dict[str, list[int]] = {"doubled": [], "audit": []}

    def send(self, count: int = 1000) -> range:
        numbers = range(self.sent, self.sent + count)
        messages = [Message(json.dumps({"n": n}).encode()) for n in numbers]

        async def send(client: IggyClient) -> None:
            await client.send("mine", "numbers", messages, partitioning=Partitioning.balanced())

        self._ask(send)
        self.sent += count
        self.expect(numbers)
        return numbers

    def expect(self, numbers: range, *topics: str) -> None:
        """These come, or come again."""
        for topic in topics or ("doubled", "audit"):
            factor = self.factor if topic == "doubled" else 1
            self.expected[topic].update(factor * n for n in numbers)

    def all_arrived(self, topic: str = "doubled") -> bool:
        found, expected = self._found[topic], self.expected[topic]
        self._ask(lambda client: self._read(client, topic))
        too_many = Counter(found) - expected
        assert not too_many, f"rows of {topic} that nobody sent so often: {too_many}"
        return len(found) == expected.total()

    async def _read(self, client: IggyClient, topic: str) -> None:
        found = self._found[topic]
        while True:
            strategy = Strategy.offset(len(found))
            polled = await client.poll("mine", topic, partition=0, strategy=strategy, count=1000)
            if not polled.count:
                return
            found += [
                json.loads(message.payload)["n"]
                for part in polled.slices
                for message in decode_messages(part)
            ]

    def ends(self) -> dict[str, int]:
        """Where the next messages of each partition will be."""
        ends: dict[str, int] = {}

        async def look(client: IggyClient) -> None:
            topic = await client.get_topic("mine", "numbers")
            assert topic is not None
            ends.update({str(one.id): one.messages_count for one in topic.partitions})

        self._ask(look)
        return ends

    def _ask(self, ask: Callable[[IggyClient], Awaitable[None]]) -> None:
        async def main() -> None:
            if self._client is None or not self._client.usable:
                self._client = await IggyClient.connect(system_runtime(), *self._address)
                await self._client.login("iggy", "iggy")
            await ask(self._client)

        self._loop.run(main())

    def close(self) -> None:
        async def close() -> None:
            if self._client is not None:
                await self._client.close()

        self._loop.run(close())
        self._loop.close()


@pytest.fixture(scope="module")
def producer(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Producer]:
    folder = tmp_path_factory.mktemp("chain")
    (folder / "chain.py").write_text(SCRIPT)
    for arguments in (
        ("stream", "create", "mine"),
        ("topic", "create", "mine/numbers", "--partitions", "2"),
        ("topic", "create", "mine/doubled", "--partitions", "1"),
        ("topic", "create", "mine/audit", "--partitions", "1"),
    ):
        assert server.headrace(*arguments).returncode == 0
    producer = Producer(server)
    producer.send()
    done = server.headrace("pipeline", "deploy", str(folder / "chain.py"))
    assert done.returncode == 0, done.stderr
    took = until(producer.all_arrived, server)
    print(f"three containers: first rows at the end after {took:.1f} s")
    yield producer
    producer.close()


def recovery(server: Server, operator: str) -> int:
    """The newest event that says that the operator's container came to a first new window."""
    id_ = container(server, operator)["id"]
    events = [one for one in show(server)["events"] if one["type"] == "RecoverContainer"]
    return max((one["id"] for one in events if one["container"] == id_), default=0)


def some(often: str) -> list[Any]:
    """Each operator's container; those that `make test` has no time for are for `make soak`."""
    return [one if one == often else pytest.param(one, marks=pytest.mark.soak) for one in OPERATORS]


@pytest.mark.parametrize("operator", some("doubled"))
def test_a_killed_container_alone_is_started_again(
    server: Server, producer: Producer, operator: str
) -> None:
    before = {name: container(server, name) for name in OPERATORS}
    recovered = recovery(server, operator)
    producer.send()
    os.kill(before[operator]["pid"], signal.SIGKILL)
    producer.send()
    until(producer.all_arrived, server)
    until(lambda: recovery(server, operator) > recovered, server)
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
    pid, recovered = before[operator]["pid"], recovery(server, operator)
    for each in process_group(pid):
        os.kill(each, signal.SIGSTOP)
    producer.send()
    until(lambda: not is_running(pid), server)
    until(producer.all_arrived, server)
    until(lambda: recovery(server, operator) > recovered, server)
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


def test_no_process_of_a_container_holds_what_lets_it_in_as_another(
    server: Server, producer: Producer
) -> None:
    secret = bytes.fromhex(Path(server.folder, "data", "secrets", "cluster").read_text())
    service = service_token(secret).encode()
    processes = [pid for name in OPERATORS for pid in process_group(container(server, name)["pid"])]
    assert len(processes) > len(OPERATORS)
    for pid in processes:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue  # a worker that ended meanwhile
        assert service not in environment
        assert b"headrace-grant-" not in environment
        assert b"HEADRACE_ROOT_" not in environment
    for name in OPERATORS:
        file = grant_file(server, name)
        assert file.stat().st_mode & 0o777 == 0o600
        grant = verify_grant(secret, grant_bytes(file.read_text()), 0)
        assert grant.holder == "pipeline chain"
        assert not grant.may_read("mine", "doubled")


def grant_file(server: Server, operator: str) -> Path:
    id_ = container(server, operator)["id"]
    return Path(server.folder, "data", "applications", "chain", "tokens", f"{id_}.broker")


def control_plane(server: Server) -> int:
    for pid in server.children():
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"headrace.process.startup.control_plane_process" in command:
            return pid
    raise AssertionError("there is no control plane")


def serves(server: Server) -> bool:
    try:
        url = f"http://{server.addresses['http']}/health"
        return httpx.get(url, timeout=5, trust_env=False).text == "ok\n"
    except httpx.HTTPError:
        return False


def test_containers_outlive_the_controller(server: Server, producer: Producer) -> None:
    before = {name: container(server, name) for name in OPERATORS}
    events = len(show(server)["events"])
    granted = {name: grant_file(server, name).read_text() for name in OPERATORS}
    killed = control_plane(server)
    os.kill(killed, signal.SIGKILL)
    producer.send()
    until(producer.all_arrived, server)  # nobody needs the controller for that
    until(lambda: serves(server), server)  # at the address it had
    assert control_plane(server) != killed
    until(lambda: all(one["state"] == "ACTIVE" for one in show(server)["operators"]), server)
    after = {name: container(server, name) for name in OPERATORS}
    assert {name: one["pid"] for name, one in after.items()} == {
        name: one["pid"] for name, one in before.items()
    }
    assert len(show(server)["events"]) >= events
    for name in OPERATORS:  # the new one goes on renewing them
        until(lambda name=name: grant_file(server, name).read_text() != granted[name], server)  # type: ignore[misc]  # the default binds the loop's value
    producer.send()
    until(producer.all_arrived, server)


# --- changes while it runs


def ask(server: Server, path: str, body: object = None, method: str = "POST") -> Any:
    """Of the paths that Stram had."""
    url = f"http://{server.addresses['http']}/ws/v2/stram/chain/{path}"
    answer = httpx.request(
        method, url, json=body, auth=("iggy", "iggy"), timeout=60, trust_env=False
    )
    assert answer.is_success, answer.text
    return answer.json()


def named(server: Server, operator: str) -> list[dict[str, Any]]:
    return [one for one in show(server)["operators"] if one["name"] == operator]


def all_active(server: Server) -> bool:
    return all(one["state"] == "ACTIVE" for one in show(server)["operators"])


def pids(server: Server) -> dict[str, int]:
    return {one["id"]: one["pid"] for one in show(server)["containers"]}


@pytest.mark.soak
def test_changes_that_restart_no_container(server: Server, producer: Producer) -> None:
    before = pids(server)
    (out,) = named(server, "out")

    ask(server, "logicalPlan/operators/doubled/properties", {"factor": 3})
    producer.factor = 3
    recordings = f"physicalPlan/operators/{out['id']}/recordings"
    recording = ask(server, f"{recordings}/start", {"numWindows": 1})["id"]
    first = producer.sent
    folder = Path(show(server)["path"], "recordings", recording)
    while not folder.exists():  # it hears of it with one of its next heartbeats
        producer.send(20)
        until(producer.all_arrived, server)
    (window,) = ask(server, f"recordings/{recording}", method="GET")["windows"]
    rows = [row["n"] for row in window["rows"]]
    assert rows
    assert set(rows) <= {3 * n for n in range(first, producer.sent)}

    trace = ask(server, f"physicalPlan/containers/{out['container']}/stackTrace", method="GET")
    assert any(one["stack"] for one in trace["python"])
    assert any("java.lang.Thread" in line for one in trace["jvm"] for line in one["stack"])

    until(lambda: producer.all_arrived("audit"), server)
    removed = {"requestType": "RemoveOperatorRequest", "operatorName": "audit"}
    ask(server, "logicalPlan", {"requests": [removed]})
    until(lambda: not named(server, "audit"), server)
    producer.send(20)
    until(producer.all_arrived, server)
    created = [
        {"requestType": "CreateOperatorRequest", "operatorName": "audit"},
        {
            "requestType": "AddStreamSinkRequest",
            "streamName": "numbers",
            "sinkOperatorName": "audit",
            "sinkOperatorPortName": "numbers",
        },
    ]
    ask(server, "logicalPlan", {"requests": created})
    until(lambda: producer.all_arrived("audit"), server)  # from where it was
    assert pids(server) == before


@pytest.mark.soak
def test_instances_change_while_another_container_is_killed(
    server: Server, producer: Producer
) -> None:
    (out,), (valid,) = named(server, "out"), named(server, "valid")
    before = pids(server)
    ask(server, f"physicalPlan/containers/{out['container']}/kill")
    ask(server, "logicalPlan/operators/doubled/instances", {"instances": 2})
    producer.send()
    until(lambda: len(named(server, "doubled")) == 2 and all_active(server), server)
    producer.send()
    until(producer.all_arrived, server)
    assert pids(server)[valid["container"]] == before[valid["container"]]
    until(lambda: all(one["rows_out"] for one in named(server, "doubled")), server)
    events = [one for one in show(server)["events"] if one["type"] == "Partition"]
    assert [(one["old"], one["new"]) for one in events] == [(1, 2)]


@pytest.mark.soak
def test_a_rollback_and_replays(server: Server, producer: Producer) -> None:
    before = pids(server)
    until(lambda: len({one["checkpoint_window"] for one in named(server, "doubled")}) == 1, server)
    window = named(server, "doubled")[0]["checkpoint_window"]
    sent = producer.send(300)
    until(producer.all_arrived, server)
    ask(server, "rollBack", {"windowId": window, "operators": ["doubled"]})
    producer.expect(sent, "doubled")  # a topic of the user's gets them again
    until(producer.all_arrived, server)

    ends = producer.ends()
    sent = producer.send(300)
    until(lambda: producer.all_arrived() and producer.all_arrived("audit"), server)
    ask(server, "replay", {"topic": "numbers", "starting": json.dumps(ends)})
    producer.expect(sent)
    until(lambda: producer.all_arrived() and producer.all_arrived("audit"), server)

    moment = datetime.now(UTC).isoformat(timespec="microseconds")
    sent = producer.send(300)
    until(lambda: producer.all_arrived() and producer.all_arrived("audit"), server)
    ask(server, "replay", {"topic": "numbers", "starting": moment})
    producer.expect(sent)
    until(lambda: producer.all_arrived() and producer.all_arrived("audit"), server)
    assert pids(server) == before


def factors_of(server: Server) -> set[int]:
    return {one["properties"]["factor"] for one in named(server, "doubled")}


@pytest.mark.soak
def test_a_stopped_application_goes_on_where_it_was(server: Server, producer: Producer) -> None:
    package, factors = show(server)["package"], factors_of(server)
    stop(server)
    producer.send()
    assert not producer.all_arrived()
    ask(server, "resume")
    until(lambda: producer.all_arrived() and producer.all_arrived("audit"), server)
    assert show(server)["package"] == package
    assert factors_of(server) == factors
