"""The connector where people run Spark: spark-submit, a standalone cluster, Spark Connect, 4.2.

The command lines are those of docs/spark.md, taken from there and run as they stand, each with the
job that stands there: it copies `shop/orders` to `shop/copy`, exactly once, from one checkpoint.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.client.arrow import payloads_of, to_area
from headrace.spark.limited_daemon import mapped_mb
from headrace.spark.options import Target, parse_sink
from headrace.spark.server import connect
from headrace.spark.source.batch_plan import OffsetRange
from headrace.spark.source.positions import Topics
from tests.integration.server import running as up_running
from tests.ports import free_port
from tests.spark.headrace_server import HeadraceServer
from tests.spark.processes import (
    ROOT,
    RUN_SECONDS,
    Cluster,
    accepts,
    run,
    running,
    spark_environment,
    standalone_cluster,
    wait_until,
)

PAGE = (ROOT / "docs/spark.md").read_text()
TOUR = str(ROOT / "tests/peers/spark_tour.py")
SPARK_4_2 = ROOT / ".venv/peers/spark-4.2/bin/python"
THIN_CLIENT = ROOT / ".venv/peers/spark-client/bin/python"
ROWS = 100


def documented(name: str) -> str:
    """The block of the page that is marked with this name."""
    (block,) = re.findall(rf"<!-- tested: {re.escape(name)} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert isinstance(block, str)
    return block


class Shop:
    """The topics of the page's job, the folder that it is run in, and what must come out."""

    def __init__(self, server: HeadraceServer, folder: Path) -> None:
        self.folder = folder
        self.variables = spark_environment(server.address)
        self._orders = self._made(server, "orders")
        self._copy = self._made(server, "copy")
        self._sent = 0
        (folder / "job.py").write_text(documented("job.py"))

    def _made(self, server: HeadraceServer, topic: str) -> Target:
        target = parse_sink({"address": server.address, "stream": "shop", "topic": topic}).target
        connect(target).create_topic(target, partitions=2)
        return target

    def order(self, count: int = ROWS) -> None:
        """More orders than there were."""
        for partition in range(2):
            texts = [f"order {self._sent + n}/{partition}".encode() for n in range(count // 2)]
            area, starts = to_area(pa.array(texts), None, None)
            connect(self._orders).send_soon(self._orders, partition, area, starts).result(60)
        self._sent += count // 2

    def run(self, name: str, **variables: str) -> str:
        """Run a block of the page as a person would paste it."""
        command = ["bash", "-euo", "pipefail", "-c", documented(name)]
        return run(command, folder=self.folder, variables={**self.variables, **variables})

    def check_copied(self) -> None:
        assert payloads(self._copy) == payloads(self._orders)
        assert sum(payloads(self._copy).values()) == 2 * self._sent


def payloads(target: Target) -> Counter[bytes]:
    """What a topic holds, read without Spark."""
    server = connect(target)
    reading = server.remote.reading
    state, access = server.run(reading.describe(target, Topics((target.topic,))))
    found: Counter[bytes] = Counter()
    for place, topic, each in state.partitions():
        span = OffsetRange(
            topic.topic, place, each.generation, each.start, each.end, cluster=state.cluster
        )
        runs = server.iterate(reading.read(target, access, span))
        for area, starts in chain.from_iterable(runs):
            found.update(payloads_of(area, np.asarray(starts)).to_pylist())
    return found


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_USERNAME", "iggy")
    monkeypatch.setenv("HEADRACE_PASSWORD", "secret")


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[HeadraceServer]:
    server = HeadraceServer(tmp_path / "data")
    server.start()
    yield server
    server.stop()


def made_for_tour(server: HeadraceServer, name: str) -> None:
    for topic in (f"{name}-in", f"{name}-out"):
        target = parse_sink({"address": server.address, "stream": "tour", "topic": topic}).target
        connect(target).create_topic(target, partitions=2)


def check_tour(printed: str, version: str, *, remote: bool) -> None:
    seen = json.loads(printed.splitlines()[-1])
    assert seen["version"].startswith(version)
    assert seen["remote"] is remote
    assert seen["columns"][:5] == ["stream", "topic", "partition", "offset", "timestamp"]
    assert seen["rows"] == 100
    assert seen["sum"] == sum(range(100))
    assert [size for size in seen["batches"] if size] == [40, 40, 20]
    assert seen["again"] == 0
    assert seen["copied"] == sorted(json.dumps({"n": n}, separators=(",", ":")) for n in range(100))
    assert seen["keys"] == [f"key-{n}" for n in range(7)]


@pytest.mark.timeout(500)  # six JVMs, one after the other
def test_a_job_moves_to_a_newer_spark_and_to_a_cluster(
    fresh: HeadraceServer, tmp_path: Path
) -> None:
    shop = Shop(fresh, tmp_path)
    shop.order()
    shop.run("settings")
    older = spark_environment(fresh.address, SPARK_4_2)
    assert f"|{ROWS // 2:>5}|" in shop.run("local", **older)
    shop.check_copied()

    shop.order()
    with standalone_cluster(tmp_path, shop.variables) as cluster:
        printed = shop.run("cluster", CLUSTER=cluster.url)
        executors = list(cluster.work.glob("app-*/*/stderr"))
    assert f"|{ROWS:>5}|" in printed
    assert executors, "the tasks ran on the cluster"
    shop.check_copied()


PIPELINE = """
import resource
import pyspark.sql.functions as F
from headrace import Application
from beside import FACTOR

app = Application("spread")
app.topic("numbers", "mine/numbers", schema="n int")

@app.operator(to="mine/spread")
def spread(numbers):
    @F.udf("int")
    def times(n):
        from beside import FACTOR
        return n * FACTOR

    @F.udf("bigint")
    def limit(n):
        return resource.getrlimit(resource.RLIMIT_AS)[0] >> 20

    return numbers.select(times("n").alias("n"), limit("n").alias("limit"))
"""


@pytest.mark.soak
@pytest.mark.timeout(500)
def test_a_pipeline_is_supervised_on_a_cluster(tmp_path: Path) -> None:
    with standalone_cluster(tmp_path, spark_environment("")) as cluster:
        check_supervised(cluster, tmp_path)
        assert list(cluster.work.glob("app-*/*/stderr")), "the tasks ran on the cluster"


def check_supervised(cluster: Cluster, folder: Path) -> None:
    """The controller's containers are drivers of that cluster: its executors have the package, the
    broker's address, the login, and a limit on their Python workers."""
    settings = folder / "settings.toml"
    settings.write_text(
        f'[controller]\nmaster = "{cluster.url}"\n'
        "container_heap_mb = 512\ncontainer_workers_mb = 300\n"
    )
    (folder / "project").mkdir()
    (folder / "project/spread.py").write_text(PIPELINE)
    (folder / "project/beside.py").write_text("FACTOR = 5\n")
    with up_running(folder / "up", arguments=("--dev", "--config", str(settings))) as server:
        server.environment = {"HEADRACE_USERNAME": "iggy", "HEADRACE_PASSWORD": "iggy"}
        for arguments in (("stream", "create", "mine"), ("topic", "create", "mine/numbers")):
            assert server.headrace(*arguments).returncode == 0
        lines = "".join(f'{{"n": {n}}}\n' for n in range(50))
        assert server.headrace("produce", "mine/numbers", input=lines).returncode == 0
        script = str(folder / "project/spread.py")
        done = server.headrace("pipeline", "run", script, "--available-now", seconds=RUN_SECONDS)
        logs = server.headrace("pipeline", "logs", "spread").stdout
        assert done.returncode == 0, f"{done.stderr}\n{logs}"
        rows = map(json.loads, server.headrace("consume", "mine/spread").stdout.splitlines())
        found = sorted((row["n"], row["limit"]) for row in rows)
    assert found == [(5 * n, mapped_mb() + 300) for n in range(50)]


@pytest.mark.timeout(500)
def test_connect_serves_clients_that_have_no_spark(fresh: HeadraceServer, tmp_path: Path) -> None:
    shop = Shop(fresh, tmp_path)
    shop.order()
    shop.run("settings")
    port = free_port()
    server = ["bash", "-euo", "pipefail", "-c", "exec " + documented("connect server").lstrip()]
    made_for_tour(fresh, "own")
    made_for_tour(fresh, "thin")
    variables = {**shop.variables, "CONNECT_PORT": str(port)}
    with running(server, folder=tmp_path, name="connect", variables=variables) as process:
        wait_until(lambda: accepts(port), process, tmp_path / "connect.log")
        remote = {"SPARK_REMOTE": f"sc://127.0.0.1:{port}"}
        shop.run("connect client", CONNECT_PORT=str(port))
        shop.check_copied()
        # What a client has: an address of the server, and nothing of ours.
        bare = {"PATH": shop.variables["PATH"], "HOME": str(tmp_path), **remote}
        check_tour(
            run([sys.executable, TOUR, "own"], folder=tmp_path, variables=bare), "4.3", remote=True
        )
        check_tour(
            run([str(THIN_CLIENT), TOUR, "thin"], folder=tmp_path, variables=bare),
            "4.3",
            remote=True,
        )
