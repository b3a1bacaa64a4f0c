"""What it costs a producer to be connected to the wrong worker.

    python -m benchmarks moved_connections

Two workers, each a process; the second one leads the partition that is sent to and has its data
node. Each connection waits for its answer before it sends again. The same load comes over
connections to the first worker that stay there, so that all requests are passed on; over
connections to the first worker that move; and over connections to the second worker, which is the
limit. Rounds of the three alternate and the median counts. Processor time is that of both workers,
for each request.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec

from benchmarks.broker_send_poll import Round, close_callers, load, log_in, make_frame
from headrace.broker.core import Identity
from headrace.broker.shards.service import WorkerService
from headrace.broker.term.term import Setup
from headrace.config.datanode import DataNodeSettings, StorageSettings
from headrace.config.placement import PlacementSettings
from headrace.datanode.service import DataNodeService
from headrace.placement.metadata.store import MemoryStore
from headrace.placement.service import PlacementService
from headrace.process.cluster_connections import node_connect, placement_links
from headrace.runtime.system import run as run_loop
from headrace.runtime.system import system_runtime
from headrace.sbp_client.client import SbpClient
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.messages.messages import Message, encode_send
from headrace.wire.iggy.messages.topics import Compression, CreateStream, CreateTopic
from headrace.wire.iggy.primitives import Partitioning

SECONDS = 0.5
ROUNDS = 9
PARTITIONS = 64
FORWARDED, MOVED, DIRECT = "passed on", "moved", "direct"
SECRET = b"b" * 32


@dataclass(frozen=True)
class Shape:
    count: int
    size: int
    connections: int
    level: str
    dialect: Dialect

    @property
    def name(self) -> str:
        what = f"send {self.count} x {self.size} B {self.level}"
        return f"{what}, {self.dialect.value}, {self.connections} conn."


SHAPES = tuple(
    Shape(count, size, connections, level, dialect)
    for level in ("written", "synced")
    for dialect in (Dialect.B2, Dialect.C)
    for count, size in ((1, 1000), (1000, 100))
    for connections in (1, 8)
)


# --- the workers ----------------------------------------------------------------------------------


async def serve(folder: str, number: int, level: str, manager: str) -> None:
    """The first one has the placement manager as well, the second one the data node."""
    from tests.integration.broker_stack import DEVELOPMENT

    runtime = system_runtime()
    connect_to = node_connect(runtime, SECRET, f"worker-{number}")
    if number == 0:
        placement = PlacementService(
            runtime, PlacementSettings(), store=MemoryStore(), node=connect_to, secret=SECRET
        )
        await placement.start()
        manager = await placement.listen("127.0.0.1", 0)
        print(manager, flush=True)
    links = placement_links(runtime, [manager], SECRET, f"worker-{number}")
    here = connect_to
    if number == 1:
        node = DataNodeService(
            runtime, DataNodeSettings(), folder=f"{folder}/node", storage=StorageSettings(),
            placement=links, secret=SECRET,
        )  # fmt: skip
        await node.start("127.0.0.1", 0)
        here = lambda _: node.connect  # noqa: E731
    identity = Identity(
        cluster_uuid="5a1e0000-0000-4000-8000-000000000001", cluster_name="bench",
        placement_address="", version="0", secret=SECRET, started_us=runtime.clock.now_us(),
    )  # fmt: skip
    client = SbpClient(runtime, placement=links, node=here, client_id=f"worker-{number}")
    settings = msgspec.structs.replace(DEVELOPMENT, durability=level)
    setup = Setup(runtime=runtime, settings=settings, client=client, identity=identity)
    service = WorkerService(
        setup, number=number, folder=f"{folder}/broker-{number}", link_path=f"{folder}/{number}"
    )
    await service.start("127.0.0.1", 0)
    gc.freeze()
    print(service.address.rpartition(":")[2], flush=True)
    loop = asyncio.get_running_loop()
    is_due = service.moving.is_due
    while order := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        if order == "led":
            print(await _led(service), flush=True)
        else:
            stays = order == FORWARDED
            setattr(service.moving, "is_due", (lambda _: False) if stays else is_due)  # noqa: B010  # for as long as it is told
            statistics = service.statistics()
            print(statistics["requests_passed_on"], statistics["connections_given"], flush=True)


async def _led(service: WorkerService) -> int:
    """A partition that this worker leads, once all shards are given out."""
    assert service.worker is not None
    while len(service.worker.shards.held) < 32:  # noqa: ASYNC110  # the coordinator gives them
        await asyncio.sleep(0.05)
    partitions = service.broker.catalogue.topic("s", "t").partitions
    return next(p.id for p in partitions if service.worker.shards.leads(p.shard))


class Child:
    def __init__(self, folder: str, number: int, level: str, manager: str = "-") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.moved_connections", folder, str(number), level,
             manager],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def order(self, text: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()
        return self.line()

    def cpu_seconds(self) -> float:
        with open(f"/proc/{self._process.pid}/stat") as file:
            fields = file.read().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """At once: the bytes go away anyway."""
        self._process.kill()
        self._process.communicate()


# --- the load -------------------------------------------------------------------------------------


@dataclass
class Measured:
    rates: list[float]
    cpu_us: list[float]
    latencies: list[float]


async def measure(shapes: list[Shape], children: list[Child], ports: list[int]) -> list[Any]:
    (first,) = await log_in(ports[0], 1)
    await first.call(make_frame(c.CREATE_STREAM, CreateStream("s")))
    await first.call(
        make_frame(c.CREATE_TOPIC, CreateTopic("s", PARTITIONS, Compression.NONE, 0, 0, 1, "t"))
    )
    to = Partitioning.to_partition(int(await asyncio.to_thread(children[1].order, "led")))
    rows = []
    for shape in shapes:
        sent = [Message(bytes([n % 256]) * shape.size) for n in range(shape.count)]
        frame = make_frame(c.SEND_MESSAGES, encode_send("s", "t", to, sent), shape.dialect)
        found = {way: Measured([], [], []) for way in (FORWARDED, MOVED, DIRECT)}
        ways = list(found)
        for _ in range(ROUNDS):
            ways.append(ways.pop(0))  # nobody is always first, or last
            for way in ways:
                measured = found[way]
                children[0].order(way)
                callers = await log_in(ports[way == DIRECT], shape.connections, shape.dialect)
                await load(callers, [frame], 0.1, 20)  # which is enough to move
                before = sum(child.cpu_seconds() for child in children)
                passed = int(children[0].order(way).split()[0])
                round_: Round = await load(callers, [frame], SECONDS)
                cpu = sum(child.cpu_seconds() for child in children) - before
                passed = int(children[0].order(way).split()[0]) - passed
                assert (passed > 0) == (way == FORWARDED), (way, passed)
                measured.rates.append(round_.rate)
                measured.cpu_us.append(cpu / len(round_.latencies) * 1e6)
                measured.latencies.append(round_.quantile(0.5) * 1000)
                close_callers(callers)
        limit = median(found[DIRECT].rates)
        for way, measured in found.items():
            rate = median(measured.rates)
            rows.append(
                {
                    "name": f"{shape.name}, {way}", "value": rate, "unit": "requests/s",
                    "limit": limit, "ratio": rate / limit,
                    "cpu_us": median(measured.cpu_us), "p50": median(measured.latencies),
                }
            )  # fmt: skip
    close_callers([first])
    return rows


def run() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    only = os.environ.get("ONLY", "")
    for level in ("written", "synced"):
        shapes = [shape for shape in SHAPES if shape.level == level and only in shape.name]
        if not shapes:
            continue
        with (
            tempfile.TemporaryDirectory(
                prefix="headrace-bench-", dir=os.environ.get("HEADRACE_BENCH_DIR")
            ) as folder,
            ExitStack() as stopping,
        ):
            children = [Child(folder, 0, level)]
            stopping.callback(children[0].stop)
            children.append(Child(folder, 1, level, children[0].line()))
            stopping.callback(children[1].stop)
            ports = [int(child.line()) for child in children]
            rows += run_loop(measure(shapes, children, ports))
    return rows


if __name__ == "__main__":
    folder, number, level, manager = sys.argv[1:]
    run_loop(serve(folder, int(number), level, manager))
