"""The container as a process of its own: supervised, killed, started again, shut down."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pytest

from headrace.errors import NotFoundError
from headrace.pipeline.plan.loading import load_application
from headrace.spark.options import Target, parse_sink
from headrace.spark.server import connect
from headrace.spark.source.batch_plan import OffsetRange
from headrace.spark.source.positions import Topics
from headrace.wire.iggy.messages.messages import Message, decode_messages
from headrace.wire.iggy.primitives import Partitioning
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.windows import WindowGrid
from tests.spark.headrace_server import HeadraceServer
from tests.spark.scripted_controller import START_MS, ScriptedController, deploy_infos

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_SECONDS = 180  # a Spark start and a first batch, on a machine that does other things


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[ScriptedController]:
    controller = ScriptedController(tmp_path / "application")
    controller.start()
    yield controller
    controller.stop()


@contextmanager
def container(
    controller: ScriptedController, package: Path, broker: str
) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        **os.environ,
        "HEADRACE_CONTAINER_ID": "container-1",
        "HEADRACE_APPLICATION_PATH": str(controller.path),
        "HEADRACE_PACKAGE": str(package),
        "HEADRACE_ENTRY": "shop.py",
        "HEADRACE_BROKER": broker,
        "HEADRACE_USERNAME": "iggy",
        "HEADRACE_PASSWORD": "secret",
        "HEADRACE_SPARK_MASTER": "local[2]",
        "HEADRACE_SPARK_CONF_spark.driver.memory": "700m",
    }
    log = controller.path / "container.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.pipeline.container.container"],
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert process.poll() is None, f"the container ended with {process.returncode}"
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.1)


def test_an_unknown_container_ends(controller: ScriptedController, tmp_path: Path) -> None:
    controller.known = False
    with container(controller, tmp_path, "127.0.0.1:1") as process:
        assert process.wait(60) == 1


def test_sigterm_is_a_clean_end(controller: ScriptedController, tmp_path: Path) -> None:
    with container(controller, tmp_path, "127.0.0.1:1") as process:
        wait_for(lambda: len(controller.heartbeats) >= 2, process)
        process.terminate()
        assert process.wait(20) == 0
    assert controller.heartbeats[0].stats.id == "container-1"
    assert controller.heartbeats[0].jvm_name.startswith(f"{process.pid}@")


def test_a_container_without_its_controller_ends(tmp_path: Path) -> None:
    controller = ScriptedController(tmp_path / "application", retry_timeout_ms=500)
    controller.start()
    with container(controller, tmp_path, "127.0.0.1:1") as process:
        wait_for(lambda: len(controller.heartbeats) >= 1, process)
        controller.stop()
        assert process.wait(60) == 1


def test_a_package_that_does_not_declare_what_is_deployed_is_refused(
    controller: ScriptedController, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text("from headrace import Application\napp = Application('x')\n")
    controller.deploy = (
        m.OperatorDeployInfo(id=1, type=m.OperatorType.INPUT, name="evil", function="os:system"),
    )
    with container(controller, tmp_path, "127.0.0.1:1") as process:
        assert process.wait(30) == 1
    (error,) = controller.errors
    assert "os:system" in error.msg
    assert error.operators == (1,)


def orders(first: int, count: int) -> list[dict[str, object]]:
    """One order a second of event time, alternating between two categories."""
    return [
        {
            "order_id": f"o-{i}",
            "sku": "tea" if i % 2 else "pen",
            "qty": 2,
            "price": 1.5,
            "at": f"2026-01-01T12:{i // 60:02}:{i % 60:02}Z",
        }
        for i in range(first, first + count)
    ]


def produce(target: Target, rows: list[dict[str, object]]) -> None:
    server = connect(target)
    messages = [Message(json.dumps(row).encode()) for row in rows]
    server.run(
        server.remote.call(
            lambda client: client.send(
                target.stream, target.topic, messages, partitioning=Partitioning.to_partition(0)
            )
        )
    )


def rows_read(controller: ScriptedController) -> int:
    return sum(port.tuple_count for one in controller.stats(1) for port in one.output_ports)


def published(address: str) -> dict[tuple[str, str], tuple[int, float]]:
    """(window start, category): (orders, revenue); a row that came twice must say the same."""
    target = parse_sink({"address": address, "topic": "shop/revenue"}).target
    server = connect(target)
    reading = server.remote.reading
    try:
        state, access = server.run(reading.describe(target, Topics((target.topic,))))
    except NotFoundError:
        return {}
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for place, topic, each in state.partitions():
        span = OffsetRange(
            topic.topic, place, each.generation, each.start, each.end, cluster=state.cluster
        )
        runs = server.iterate(reading.read(target, access, span))
        for area, _ in chain.from_iterable(runs):
            for message in decode_messages(area):
                row = json.loads(message.payload)
                assert message.key == row["category"].encode()
                key = (row["window"]["start"], row["category"])
                value = (row["orders"], row["revenue"])
                assert found.setdefault(key, value) == value
    return found


def jvm_of(pid: int) -> int:
    """The child of the container that runs Java."""
    for task in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((task / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == pid and "java" in (task / "comm").read_text():
                return int(task.name)
        except FileNotFoundError:
            continue
    raise AssertionError("the container has no JVM")


@pytest.mark.timeout(600)
def test_a_container_whose_jvm_was_killed_goes_on_where_it_was(
    controller: ScriptedController,
    headrace: HeadraceServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADRACE_USERNAME", "iggy")
    monkeypatch.setenv("HEADRACE_PASSWORD", "secret")
    package = tmp_path / "package"
    package.mkdir()
    shutil.copy(EXAMPLES / "shop.py", package)
    app = load_application(str(package), "shop.py")
    controller.deploy = deploy_infos(app)
    names = [info.name for info in controller.deploy]
    assert names == ["orders", "valid", "enriched", "revenue"]
    target = parse_sink({"address": headrace.address, "topic": "shop/orders"}).target
    connect(target).create_topic(target)
    produce(target, orders(0, 60))

    with container(controller, package, headrace.address) as process:
        wait_for(lambda: len(published(headrace.address)) >= 6, process)
        wait_for(lambda: len(controller.stats(4)) >= 1, process)
        controller.stack_trace_required = True
        wait_for(lambda: any(beat.stack_trace for beat in controller.heartbeats), process)
        os.kill(jvm_of(process.pid), signal.SIGKILL)
        assert process.wait(60) == 1, "a container without its JVM ends, to be started again"
    traces = [beat.stack_trace for beat in controller.heartbeats if beat.stack_trace]
    assert {"python", "jvm"} == set(json.loads(traces[0]))
    first_life = controller.stats(4)

    produce(target, orders(60, 60))
    with container(controller, package, headrace.address) as process:
        wait_for(lambda: len(published(headrace.address)) >= 18, process)
        wait_for(lambda: len(controller.stats(4)) > len(first_life), process)
        wait_for(lambda: rows_read(controller) >= 120, process)
        controller.shutdown = m.ShutdownType.WAIT_TERMINATE
        assert process.wait(60) == 0

    # Ten seconds each, five orders per category; the last windows are not over yet.
    whole = {
        key: value
        for key, value in published(headrace.address).items()
        if key[0] < "2026-01-01T12:01:30"
    }
    assert len(whole) == 18
    assert set(whole.values()) == {(5, 15.0)}

    stats = controller.stats(4)
    batches = [int(str(one.batch_id)) for one in stats]
    assert batches == sorted(set(batches)), "every batch is reported once, in order"
    windows = [one.window_id for one in stats]
    assert windows == sorted(set(windows)), "windows only grow, over the restart too"
    grid = WindowGrid(START_MS, 500)
    assert all(grid.ordinal(window) >= 0 for window in windows)  # type: ignore[arg-type]  # plain ints on the wire
    assert all(one.checkpoint and one.checkpoint.window_id == one.window_id for one in stats)
    assert rows_read(controller) == 120
    read = [one.input_ports[0].tuple_count for one in controller.stats(2)]
    assert sum(read) == 120, "an input port has the rows of the output port it reads"
    assert sum(one.cpu_time_used for one in stats) > 100_000_000
    last = controller.heartbeats[-1]
    assert f"{last.buffer_server_host}:{last.buffer_server_port}" == headrace.address
    assert len({one.run_id for one in stats}) == 2
    sizes = [one.metrics["rows_published"] for one in stats]
    assert sum(int(str(size)) for size in sizes) >= 18
    recorded = sorted((controller.path / "checkpoints/orders/revenue/windows").iterdir())
    assert len(recorded) >= len(batches)
