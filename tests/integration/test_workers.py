"""`headrace up --workers N`: one server in several processes, any of which may die."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from headrace.client.iggy import IggyClient
from headrace.errors import HeadraceError
from headrace.net.addresses import parse_address
from headrace.runtime.system import system_runtime
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Partitioning, Strategy
from tests.integration.server import Server, running, wait_until_gone

WORKERS = 3
PARTITIONS = 4
BATCH = 5
SECONDS = 30.0


def arguments(workers: int) -> tuple[str, ...]:
    return ("--dev", "--metrics-port", "0", "--workers", str(workers))


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def workers_of(server: Server) -> dict[int, int]:
    """Process ids by the numbers of the workers, as people who list processes see them."""
    found = {}
    for pid in server.children():
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"headrace.process.startup.worker_process" in command:
                found[int(command[-2])] = pid
    return found


def metric(address: str, name: str) -> dict[str, float]:
    """Values of a metric by its labels."""
    with httpx.Client(trust_env=False) as client:
        lines = client.get(f"http://{address}/metrics").text.splitlines()
    rows = [line.rsplit(" ", 1) for line in lines if line.startswith(f"headrace_{name}")]
    return {labels: float(value) for labels, value in rows}


def wait_ready(server: Server) -> None:
    """Until every worker serves."""
    deadline = time.monotonic() + SECONDS
    with httpx.Client(trust_env=False) as client:
        while client.get(f"http://{server.addresses['metrics']}/ready").status_code != 200:
            assert time.monotonic() < deadline, server.log
            time.sleep(0.05)


async def connect(server: Server) -> IggyClient:
    client = await IggyClient.connect(system_runtime(), *parse_address(server.addresses["iggy"]))
    try:
        await client.login("iggy", "iggy")
    except BaseException:
        await client.close()
        raise
    return client


async def read_all(server: Server, partition: int) -> list[int]:
    """The numbers in a partition of `s/t`, in its order."""
    numbers: list[int] = []
    async with await connect(server) as client:
        while True:
            at = Strategy.offset(len(numbers))
            polled = await client.poll("s", "t", partition=partition, strategy=at, count=1000)
            if not polled.count:
                return numbers
            numbers += [int(message.payload) for message in polled.messages()]


class Writer:
    """Sends numbers to a partition, each batch until it is acknowledged, over any connection."""

    def __init__(self, server: Server, partition: int) -> None:
        self._server = server
        self._partition = partition
        self.acknowledged = 0
        self._more = asyncio.Event()

    async def run(self) -> None:
        while True:
            with suppress(HeadraceError):
                async with await connect(self._server) as client:
                    await self._send(client)
            await asyncio.sleep(0.02)

    async def _send(self, client: IggyClient) -> None:
        while True:
            numbers = range(self.acknowledged, self.acknowledged + BATCH)
            messages = [Message(payload=str(number).encode()) for number in numbers]
            to = Partitioning.to_partition(self._partition)
            await client.send("s", "t", messages, partitioning=to)
            self.acknowledged += BATCH
            self._more.set()

    async def wait_more(self) -> None:
        """Until something is acknowledged that was not sent before now."""
        enough = self.acknowledged + 3 * BATCH
        async with asyncio.timeout(SECONDS):
            while self.acknowledged < enough:
                self._more.clear()
                await self._more.wait()


def check_numbers(numbers: list[int], acknowledged: int) -> None:
    """A batch that was sent again, because its answer was lost, may be there twice."""
    expected = 0
    batches = [numbers[at : at + BATCH] for at in range(0, len(numbers), BATCH)]
    for batch in batches:
        assert batch[0] <= expected, f"lost before {batch[0]}: {expected}"
        assert batch == list(range(batch[0], batch[0] + BATCH))
        expected = max(expected, batch[0] + BATCH)
    assert expected >= acknowledged


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("workers") / "server"
    with running(folder, arguments=arguments(WORKERS)) as started:
        ok(started.headrace("stream", "create", "s"))
        for topic in ("t", "real"):
            ok(started.headrace("topic", "create", f"s/{topic}", "--partitions", str(PARTITIONS)))
        yield started


async def test_any_connection_reaches_everything(server: Server) -> None:
    assert sorted(workers_of(server)) == list(range(WORKERS))
    clients = [await connect(server) for _ in range(24)]
    try:
        served = [
            sum(metric(server.addresses[f"worker_{n}_metrics"], name).get(label, 0.0)
                for name, label in (
                    ("broker_connections", 'headrace_broker_connections{transport="tcp"}'),
                    ("broker_relayed_connections", "headrace_broker_relayed_connections"),
                ))
            for n in range(WORKERS)
        ]  # fmt: skip
        assert all(served), f"the system gives each worker some: {served}"
        for number, client in enumerate(clients):
            to = Partitioning.to_partition(number % PARTITIONS)
            await client.send("s", "real", [Message(payload=b"x")], partitioning=to)
            told = await client.get_topic("s", "real")
            assert told is not None
            assert told.topic.messages_count == number + 1
    finally:
        for client in clients:
            await client.close()
    ok(server.headrace("topic", "purge", "s/real", "--yes"))


def test_a_real_client_writes_and_reads(server: Server) -> None:
    writers = [server.peer("0.8.0", "numbered_writer.py", "s", "real", str(p), "7") for p in (0, 1)]
    for partition, writer in enumerate(writers):
        assert writer.stdout is not None
        while int(writer.stdout.readline()) < 70:
            pass
        writer.kill()
        acknowledged = max([70, *map(int, writer.stdout.read().split())])
        writer.wait()
        writer.stdout.close()
        reader = server.peer("0.8.0", "numbered_reader.py", "s", "real", str(partition))
        output, _ = reader.communicate(timeout=60)
        assert reader.returncode == 0
        assert int(output) >= acknowledged


async def test_a_worker_that_is_killed_comes_back_and_loses_nothing(server: Server) -> None:
    writers = [Writer(server, partition) for partition in range(PARTITIONS)]
    tasks = [asyncio.create_task(writer.run()) for writer in writers]
    try:
        await asyncio.gather(*(writer.wait_more() for writer in writers))
        for number in range(WORKERS):
            killed = workers_of(server)[number]
            others = {n: pid for n, pid in workers_of(server).items() if n != number}
            os.kill(killed, signal.SIGKILL)
            await asyncio.gather(*(writer.wait_more() for writer in writers))
            await asyncio.to_thread(wait_ready, server)
            now = workers_of(server)
            assert now.pop(number) not in (None, killed)
            assert now == others, "nobody else was started again"
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended
    for partition, writer in enumerate(writers):
        check_numbers(await read_all(server, partition), writer.acknowledged)
    restarts = metric(server.addresses["metrics"], "worker_restarts_total")
    assert list(restarts.values()) == [1.0] * WORKERS
    assert {line.count("worker=") for line in server.log.splitlines() if "audit" in line} == {1}


def start_again(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    """Start once more where a start ended by itself. That was seen once in some sixty starts, and
    why is not known: the log of such a start is shown, also where the test passes."""
    try:
        server.start()
    except AssertionError as error:
        if "ended at start" not in str(error):
            raise
        with capfd.disabled():
            print(f"UNEXPLAINED: {error}")
        server.start()


async def test_everything_is_there_with_other_numbers_of_workers(
    server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    before = [await read_all(server, partition) for partition in range(PARTITIONS)]
    assert all(before)
    children = server.children()
    server.kill()
    # Workers end at once; the control plane first gives back what it can reach no more.
    assert wait_until_gone(children, 30.0) == [], "they outlived their parent"
    data = server.folder / "data"
    for workers in (1, 2, 4):
        server.arguments = arguments(workers)
        start_again(server, capfd)
        assert len(workers_of(server)) == (workers if workers > 1 else 0)
        for partition in range(PARTITIONS):
            assert await read_all(server, partition) == before[partition]
            async with await connect(server) as client:
                last = str(before[partition][-1]).encode()
                to = Partitioning.to_partition(partition)
                await client.send("s", "t", [Message(payload=last)], partitioning=to)
                before[partition].append(int(last))
        children = server.children()
        assert server.stop() == 0
        assert wait_until_gone(children, 5.0) == []
        found = sorted(path.name for path in data.glob("node*"))
        assert found == [f"node{f'-{n}' if n else ''}" for n in range(max(WORKERS, workers))]
    assert "Traceback" not in server.log


async def test_a_backup_of_several_data_nodes_is_whole(server: Server, tmp_path: Path) -> None:
    data = server.folder / "data"
    server.start()
    before = [await read_all(server, partition) for partition in range(PARTITIONS)]
    refused = server.headrace("verify", str(data))
    assert refused.returncode == 1
    assert "in use" in refused.stderr
    again = server.headrace(
        "up", "--dev", "--workers", "2", "--data-dir", str(data), "--iggy-port=0"
    )
    assert again.returncode == 1
    assert "already runs" in again.stderr
    ok(server.headrace("backup", str(tmp_path / "backup"), "--data-dir", str(data)))
    server.stop()
    for path in (tmp_path / "backup", data):
        told = json.loads(ok(server.headrace("verify", str(path), "--json")))
        assert told["sound"]
        assert told["records"] >= sum(map(len, before))
    parts = ok(server.headrace("upgrade", "--check", "--data-dir", str(data)))
    assert "log of node-1" in parts
    logs = json.loads(
        ok(server.headrace("control-log", "check", "--data-dir", str(data), "--json"))
    )
    assert not logs["lost"]
    ok(
        server.headrace(
            "restore", str(tmp_path / "backup"), "--data-dir", str(tmp_path / "new/data")
        )
    )
    with running(tmp_path / "new", arguments=arguments(2)) as restored:
        for partition in range(PARTITIONS):
            assert await read_all(restored, partition) == before[partition]


def test_the_first_password_is_told_by_the_parent_and_another_server_keeps_its_port(
    tmp_path: Path,
) -> None:
    with running(tmp_path / "server", arguments=("--workers", "2")) as server:
        password = server.log.split("\n  password ")[1].split()[0]
        ok(server.headrace("stream", "list", f"--password={password}"))
        port = str(parse_address(server.addresses["iggy"])[1])
        command = ["up", "--dev", "--workers", "2", "--data-dir", str(tmp_path / "other")]
        command += ["--placement-port=0", "--node-port=0", "--http-port=0", "--iggy-port", port]
        other = server.headrace(*command)
        assert other.returncode == 2
        assert f"port {port} of 127.0.0.1 is taken" in other.stderr
        workers = list(workers_of(server).values())
        server.kill()
        assert wait_until_gone(workers, 5.0) == []
