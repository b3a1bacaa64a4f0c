"""Real kills under a real query: a cluster and a Spark driver of their own, struck one by one.

`python -m tests.spark.storm SEED KILLS` repeats one. Messages come in all the time; after the last
kill the producer stops, the query catches up, and what it wrote is compared with what a batch
computation over the source makes of it, row for row and each key's rows in their order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random

from headrace.client.iggy import IggyClient
from headrace.errors import HeadraceError
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Partitioning, Strategy
from headrace.wire.iggy.user_headers import key_header
from tests.cluster_processes import ClusterProcesses, running_cluster, wait_for
from tests.spark.copy_job import BATCH_MESSAGES

KINDS = ("task", "broker", "data-node", "driver")
PARTITIONS = 2
BATCHES_AHEAD = 4
PATIENCE_SECONDS = 150.0
SETTINGS = """
[advanced.broker]
lease_ms = 3000
[advanced.placement]
node_timeout_ms = 2000
[advanced.data_node]
heartbeat_interval_ms = 300
"""


class Job:
    """The driver, started again whenever it ended: a query is somebody's to supervise."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder = folder
        self._address = address
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def keep(self) -> None:
        """See to it that it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        self.starts += 1
        environment = {
            **os.environ,
            "HEADRACE_USERNAME": "iggy",
            "HEADRACE_PASSWORD": "iggy",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        with (self._folder / f"job-{self.starts}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.spark.copy_job"),
                    *(self._address, str(self._folder / "checkpoint")),
                ],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in self._logs()[-2:])

    def failed_tasks(self) -> int:
        """As Spark tells of them."""
        return sum(path.read_text().count("Exception in task") for path in self._logs())

    def _logs(self) -> list[Path]:
        return sorted(self._folder.glob("job-*.log"), key=lambda path: path.stat().st_mtime)

    def committed(self) -> int:
        """The last batch that is finished."""
        return max(
            (int(p.name) for p in self._folder.glob("checkpoint/commits/[0-9]*")), default=-1
        )

    def finished(self) -> bool:
        planned = (int(path.name) for path in self._folder.glob("checkpoint/offsets/[0-9]*"))
        return max(planned, default=-1) == self.committed()

    def kill(self) -> None:
        """Driver, JVM and workers at once."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)

    def kill_tasks(self) -> None:
        """Every Python worker that runs tasks."""
        assert self._process is not None
        for pid, parent in _below(self._process.pid):
            if _runs_tasks(pid) and _runs_tasks(parent):  # forked by their daemon
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _below(pid: int) -> Iterator[tuple[int, int]]:
    """Descendants, each with its parent."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in path.read_text().split()]
        except OSError:
            continue
        for child in children:
            yield child, pid
            yield from _below(child)


def _runs_tasks(pid: int) -> bool:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"pyspark.daemon" in arguments and b"pyspark.worker" in arguments


class Producer:
    """Sends numbered messages, a few batches ahead of the query, until it is told to stop.

    What of it got lost or doubled is no matter."""

    def __init__(self, cluster: ClusterProcesses, job: Job) -> None:
        self._cluster = cluster
        self._job = job
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        number = 0
        client: IggyClient | None = None
        while not self._stop.is_set():
            if number > BATCH_MESSAGES * (self._job.committed() + BATCHES_AHEAD):
                await asyncio.sleep(0.05)
                continue
            partition = number // 20 % PARTITIONS
            messages = [
                Message(b"%d" % n, key_header(b"%d-%d" % (partition, n % 5)))
                for n in range(number, number + 20)
            ]
            number += 20
            try:
                if client is None:
                    client = await self._cluster.connect("broker-1")
                where = Partitioning.to_partition(partition)
                await client.send("s", "in", messages, partitioning=where)
            except HeadraceError:
                if client is not None:
                    await client.close()
                client = None
            await asyncio.sleep(0.05)
        if client is not None:
            await client.close()


Row = tuple[bytes | None, bytes]


def stored(cluster: ClusterProcesses, topic: str) -> list[list[Row]]:
    """By partition."""

    async def read(client: IggyClient) -> list[list[Row]]:
        found = []
        for partition in range(PARTITIONS):
            rows: list[Row] = []
            while True:
                where = Strategy.offset(len(rows))
                polled = await client.poll(
                    "s", topic, partition=partition, strategy=where, count=5000
                )
                if not polled.count:
                    break
                rows += [(message.key, message.payload) for message in polled.messages()]
            found.append(rows)
        return found

    found: list[list[list[Row]]] = []

    def answered() -> bool:
        try:
            found.append(cluster.call("broker-1", read))
        except HeadraceError:
            return False
        return True

    wait_for(answered, PATIENCE_SECONDS, "the broker does not answer")
    return found[-1]


def computed(source: list[list[Row]]) -> list[Row]:
    return [(k, b"x" + row) for part in source for k, row in part if int(row) % 3]


def compare(wanted: list[Row], found: list[list[Row]]) -> list[str]:
    """What is wrong."""
    rows = [row for part in found for row in part]
    difference = Counter(wanted)
    difference.subtract(Counter(rows))
    wrong = [f"lost {row}" for row, n in difference.items() if n > 0]
    wrong += [f"{-n} too many {row}" for row, n in difference.items() if n < 0]
    by_key: dict[bytes | None, tuple[list[Row], list[Row]]] = {}
    for index, each in enumerate((wanted, rows)):
        for row in each:
            by_key.setdefault(row[0], ([], []))[index].append(row)
    wrong += [f"key {key!r} is out of order" for key, (a, b) in by_key.items() if a != b]
    return wrong


async def _create(client: IggyClient, topic: str) -> None:
    await client.create_topic("s", topic, partitions_count=PARTITIONS)


@contextmanager
def _prepared(folder: Path) -> Iterator[tuple[ClusterProcesses, Job]]:
    arguments = ("--nodes", "3", "--brokers", "1", "--managers", "1")
    with running_cluster(folder, *arguments, settings=SETTINGS) as cluster:
        name = cluster.wait_leader()
        cluster.create_stream(name, "s")
        for topic in ("in", "out"):
            cluster.call(name, partial(_create, topic=topic))
        job = Job(folder, cluster.address(name))
        try:
            yield cluster, job
        finally:
            job.kill()


def storm(folder: Path, kills: list[str], seed: int) -> list[str]:
    """Strike one after the other; what is wrong in the end."""
    random = Random(seed)
    with _prepared(folder) as (cluster, job):
        producer = Producer(cluster, job)
        producer.start()

        def advanced(batches: int) -> None:
            wanted = job.committed() + batches

            def there() -> bool:
                job.keep()
                return job.committed() >= wanted

            try:
                wait_for(there, PATIENCE_SECONDS, "the query does not go on")
            except AssertionError as error:
                raise AssertionError(f"{error}\n{job.log()}") from None

        try:
            for kind in kills:
                advanced(2)
                time.sleep(0.5 * random.random())
                strike(kind, cluster, job, random)
            advanced(2)
        finally:
            producer.stop()
        wanted = computed(stored(cluster, "in"))

        def caught_up() -> bool:
            job.keep()
            return job.finished() and sum(map(len, stored(cluster, "out"))) >= len(wanted)

        try:
            wait_for(caught_up, PATIENCE_SECONDS, "the query does not catch up")
        except AssertionError as error:
            found = compare(wanted, stored(cluster, "out"))
            return [str(error), *found[:20], job.log()]
        return compare(wanted, stored(cluster, "out"))


def strike(kind: str, cluster: ClusterProcesses, job: Job, random: Random) -> None:
    if kind == "driver":
        job.kill()
    elif kind == "task":
        before = job.failed_tasks()

        def struck() -> bool:
            """Between two batches there is nothing to strike."""
            job.keep()
            job.kill_tasks()
            return job.failed_tasks() > before

        wait_for(struck, PATIENCE_SECONDS, "no task runs")
    else:
        name = random.choice(cluster.names(kind))
        cluster.kill(name)
        time.sleep(random.random())
        cluster.restart(name)


def main(seed: int, count: int) -> int:
    kills = [KINDS[i % len(KINDS)] for i in range(count)]
    Random(seed).shuffle(kills)
    with tempfile.TemporaryDirectory() as folder:
        wrong = storm(Path(folder), kills, seed)
    print("\n".join([*kills, f"seed {seed}", *(wrong or ["nothing is wrong"])]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
