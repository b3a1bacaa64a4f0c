"""A container's operators, run in this process on the shared session."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.client.sync import SyncIggyClient
from headrace.errors import LockedError
from headrace.net.addresses import parse_address
from headrace.pipeline.container.container import ContainerSettings
from headrace.pipeline.container.workload import Workload
from headrace.pipeline.plan.deploy import CHECKPOINT_LOST, ROLL_BACK_TO
from headrace.pipeline.plan.loading import RUN_FILE, Run, format_run, load_application
from headrace.runtime.system import system_runtime
from headrace.wire.iggy.primitives import Consumer
from headrace.wire.umbilical import messages as m
from tests.spark.headrace_server import HeadraceServer
from tests.spark.listeners import wait_heard
from tests.spark.scripted_controller import START_MS, deploy_infos
from tests.spark.test_container import produce
from tests.spark.test_topics import made

MODULE = """
import json
from headrace import Application

app = Application("{name}", trigger="200 milliseconds")
app.topic("events", "s/{name}", schema="n int", messages_max=4)

@app.sink
def store(events, batch, *, folder=""):
    rows = sorted(row.n for row in events.collect())
    if "{mode}" == "fails" and batch.batch_id == 1 and not batch.replay:
        raise ValueError("the disk is full")
    with open(f"{{folder}}/rows", "a") as out:
        out.write(json.dumps([rows, batch.batch_id, batch.window_id, batch.replay]) + "\\n")
"""


Deploy = Callable[..., tuple[Workload, tuple[m.OperatorDeployInfo, ...]]]


@pytest.fixture
def deployment(spark: SparkSession, headrace: HeadraceServer, tmp_path: Path) -> Iterator[Deploy]:
    """Make a workload over ten messages; `close` would end the session that all tests share."""
    started: list[tuple[Workload, list[int]]] = []

    def deploy(
        name: str, mode: str, text: str = MODULE, application: str = "application"
    ) -> tuple[Workload, tuple[m.OperatorDeployInfo, ...]]:
        text = text.format(name=name, mode=mode) if text is MODULE else text
        (tmp_path / f"{name}.py").write_text(text)
        app = load_application(str(tmp_path), f"{name}.py")
        properties = {"folder": str(tmp_path)}
        infos = tuple(
            replace(info, properties=properties) if info.name == "store" else info
            for info in deploy_infos(app)
        )
        settings = ContainerSettings(
            container_id="c",
            application_path=str(tmp_path / application),
            package=str(tmp_path),
            entry=f"{name}.py",
            broker=headrace.address,
            available_now=mode == "ends",
        )
        context = m.StreamingContainerContext(start_window_millis=START_MS)
        workload = Workload(system_runtime(), settings, context)
        workload.session.use(spark)
        started.append((workload, [info.id for info in infos]))
        return workload, infos

    yield deploy
    for workload, ids in started:
        workload.undeploy(ids)
        spark.streams.removeListener(workload.session.rings)


def run_until(
    workload: Workload, state: m.DeployState, *, seconds: float = 200
) -> list[m.OperatorHeartbeat]:
    """Heartbeats until every operator is in that state."""
    seen: list[m.OperatorHeartbeat] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        beats = workload.heartbeats(1, 100)
        seen += beats
        if all(beat.state is state for beat in beats):
            wait_heard()
            return seen + list(workload.heartbeats(1, 100))
        time.sleep(0.1)
    raise AssertionError(f"never {state.name}: {beats} {workload.take_failures()}")


def fill(headrace: HeadraceServer, name: str) -> None:
    produce(made(headrace, name, partitions=1), [{"n": i} for i in range(10)])


def stored(tmp_path: Path) -> list[list[object]]:
    return [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]


def position(headrace: HeadraceServer, name: str, query: str = "store") -> int:
    """How far every tool sees the query, and retention waits for it."""
    host, port = parse_address(headrace.address)
    group = Consumer.group(f"pipeline.{name}.{query}")
    with SyncIggyClient(host, port, username="iggy", password="secret") as client:
        found = client.run(lambda c: c.get_consumer_offset(group, "s", name, 0))
    return -1 if found is None else found.stored_offset


def test_what_is_there_is_processed_then_it_ends(
    headrace: HeadraceServer, deployment: Deploy, tmp_path: Path
) -> None:
    fill(headrace, "ends")
    workload, infos = deployment("ends", "ends")
    workload.expect(infos)
    assert all(beat.state is m.DeployState.ACTIVE for beat in workload.heartbeats(1, 1))
    workload.deploy(infos)
    beats = run_until(workload, m.DeployState.SHUTDOWN)
    assert workload.take_failures() == []
    rows = stored(tmp_path)
    assert [row[0] for row in rows] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [row[3] for row in rows] == [False] * 3
    reported = [
        stats
        for beat in beats
        if beat.node_id == 2
        for stats in beat.window_stats
        if stats.window_count  # else it only tells how far a long batch is
    ]
    assert [(stats.batch_id, stats.window_id) for stats in reported] == [
        (row[1], row[2]) for row in rows
    ]
    sources = [stats for beat in beats if beat.node_id == 1 for stats in beat.window_stats]
    assert [stats.output_ports[0].tuple_count for stats in sources] == [4, 4, 2]
    assert [stats.output_ports[0].queue_size for stats in sources] == [6, 2, 0]
    assert sources[0].metrics["bad_rows"] == 0
    workload.undeploy([info.id for info in infos])
    assert position(headrace, "ends") == 9

    # Back to the first window: what came after it comes again, as if it had never been.
    workload.undeploy([1, 2])
    target = {ROLL_BACK_TO: int(str(rows[0][2]))}
    back = tuple(replace(info, context_attributes=target) for info in infos)
    workload.expect(back)
    workload.deploy(back)
    run_until(workload, m.DeployState.SHUTDOWN)
    assert workload.take_failures() == []
    again = stored(tmp_path)[3:]
    assert [row[0] for row in again] == [[4, 5, 6, 7], [8, 9]]
    assert [(row[1], row[3]) for row in again] == [(1, False), (2, False)]
    assert int(str(rows[2][2])) < int(str(again[0][2])) < int(str(again[1][2]))


def test_what_a_query_does_without_its_checkpoint_and_at_most_once(
    headrace: HeadraceServer, deployment: Deploy, tmp_path: Path
) -> None:
    fill(headrace, "modes")
    workload, infos = deployment("modes", "ends")
    workload.expect(infos)
    workload.deploy(infos)
    run_until(workload, m.DeployState.SHUTDOWN)
    rows = stored(tmp_path)
    assert [row[0] for row in rows] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    # Who would rather lose rows than repeat them passes over what waited while it was away.
    workload.undeploy([1, 2])
    produce(made(headrace, "modes", partitions=1), [{"n": i} for i in range(10, 15)])
    mode: m.Values = {"PROCESSING_MODE": "AT_MOST_ONCE"}
    topic, store = infos
    late = (replace(topic, query=""), replace(store, context_attributes=mode))
    workload.expect(late)
    workload.deploy(late)
    run_until(workload, m.DeployState.SHUTDOWN)
    assert workload.take_failures() == []
    assert [row[0] for row in stored(tmp_path)[3:] if row[0]] == []

    # A checkpoint that is gone, although the controller knows of windows in it, is no beginning.
    workload.undeploy([1, 2])
    shutil.rmtree(tmp_path / "application/checkpoints")
    known = tuple(replace(info, checkpoint=m.Checkpoint(int(str(rows[2][2])))) for info in infos)
    workload.expect(known)
    workload.deploy(known)
    assert {beat.state for beat in workload.heartbeats(1, 1)} == {m.DeployState.FAILED}
    ((operators, message),) = workload.take_failures()
    assert (operators, message.startswith(CHECKPOINT_LOST)) == ((2,), True)


def test_a_failed_query_is_told_and_its_batch_comes_again(
    headrace: HeadraceServer, deployment: Deploy, tmp_path: Path
) -> None:
    fill(headrace, "fails")
    workload, infos = deployment("fails", "fails")
    workload.expect(infos)
    workload.deploy(infos)
    run_until(workload, m.DeployState.FAILED)
    ((operators, message),) = workload.take_failures()
    assert operators == (1, 2)
    assert "the disk is full" in message
    other, _ = deployment("fails", "fails")
    with pytest.raises(LockedError):
        other.deploy(infos)
    workload.undeploy([1, 2])
    assert workload.heartbeats(1, 1) == ()

    again, _ = deployment("fails", "fails")
    again.expect(infos)
    again.deploy(infos)
    deadline = time.monotonic() + 200
    while len(stored(tmp_path)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    rows = stored(tmp_path)
    assert [row[0] for row in rows] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [row[1] for row in rows] == [0, 1, 2]
    assert [row[3] for row in rows] == [False, True, False], "the one that failed is a replay"
    windows = [int(str(row[2])) for row in rows]
    assert windows == sorted(set(windows))


TWO = """
from pathlib import Path
from headrace import Application

app = Application("two", trigger="200 milliseconds")
app.topic("events", "s/two", schema="n int", messages_max=4)

def store(name, events):
    rows = [row.n for row in events.collect()]
    if Path(f"FOLDER/{name}.broken").exists():
        raise ValueError(f"{name} is broken")
    with open(f"FOLDER/{name}", "a") as out:
        out.writelines(f"{n}\\n" for n in rows)

@app.sink
def first(events):
    store("first", events)

@app.sink
def second(events):
    store("second", events)
"""


def test_an_output_that_fails_while_another_is_started_again_comes_back(
    headrace: HeadraceServer,
    deployment: Deploy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What `deploy` writes back at its end is what it deployed, not what it once saw."""
    target = made(headrace, "two", partitions=1)
    produce(target, [{"n": i} for i in range(10)])
    broken = {name: tmp_path / f"{name}.broken" for name in ("first", "second")}
    broken["first"].touch()
    workload, infos = deployment("two", "", TWO.replace("FOLDER", str(tmp_path)))
    topic, first, second = sorted(infos, key=lambda info: info.id)
    workload.expect(infos)
    workload.deploy(infos)

    def told() -> dict[str, m.DeployState]:
        names = {info.id: info.name for info in infos}
        return {names[one.node_id]: one.state for one in workload.heartbeats(1, 100)}

    def wait_told(name: str, state: m.DeployState) -> None:
        deadline = time.monotonic() + 200
        while told().get(name) is not state:
            assert time.monotonic() < deadline, (told(), workload.take_failures())
            time.sleep(0.1)

    wait_told("first", m.DeployState.FAILED)
    deadline = time.monotonic() + 200
    while position(headrace, "two", "second") < 9:
        assert time.monotonic() < deadline, (told(), workload.take_failures())
        workload.pass_windows(1)
        time.sleep(0.1)
    assert position(headrace, "two", "first") == -1, "each query has a position of its own"
    workload.undeploy([topic.id, first.id])
    broken["first"].unlink()
    start = workload._start

    def start_slowly(*arguments: Any) -> None:
        start(*arguments)
        broken["second"].touch()
        produce(target, [{"n": 10}])
        wait_told("second", m.DeployState.FAILED)
        workload.undeploy([second.id])
        broken["second"].unlink()

    monkeypatch.setattr(workload, "_start", start_slowly)
    workload.expect((topic, first))
    workload.deploy((topic, first))
    monkeypatch.undo()
    assert told() == {"events": m.DeployState.ACTIVE, "first": m.DeployState.ACTIVE}
    assert not workload.knows(second.id)
    workload.expect((second,))
    workload.deploy((second,))
    for name in broken:
        (tmp_path / name).touch()
        deadline = time.monotonic() + 200
        while sorted(map(int, (tmp_path / name).read_text().split())) != list(range(11)):
            assert time.monotonic() < deadline, (name, told(), workload.take_failures())
            time.sleep(0.1)


SUMS = """
from headrace import Application
import pyspark.sql.functions as F

app = Application("sums", trigger="200 milliseconds")
app.topic("events", "s/sums", schema="n int, at timestamp", messages_max=1)

@app.operator(outputs=("small", "large"))
def split(events):
    return {"small": events.filter("n < 100"), "large": events.filter("n >= 100")}

app.metric("split", port="small", units="sum(n)")
app.metric(split, port="small", most="max(n)", aggregate="max")

@app.operator(inputs={"rows": "split.small"}, to="s/sums_out", output_mode="append")
def sums(rows):
    marked = rows.withWatermark("at", "1 second")
    return marked.groupBy(F.window("at", "10 seconds")).agg(F.sum("n").alias("n"))

@app.operator(inputs={"rows": "split.large"}, to="s/large_out")
def large(rows):
    return rows

@app.committed("sums")
def told(window_id, spark):
    with open("FOLDER/told", "a") as out:
        out.write(f"{window_id} {spark is not None}\\n")
"""


def events(*seconds: int) -> list[dict[str, object]]:
    return [{"n": n, "at": f"2026-01-01T00:00:{at:02}Z"} for n, at in enumerate(seconds, start=1)]


def test_metrics_late_rows_and_hooks_are_reported_and_a_backfill_keeps_to_itself(
    spark: SparkSession, headrace: HeadraceServer, deployment: Deploy, tmp_path: Path
) -> None:
    # One message per batch; after 50 the watermark is at 49, so 1 and 2 come too late.
    produce(made(headrace, "sums", partitions=1), events(1, 2, 50, 51, 1, 2))
    text = SUMS.replace("FOLDER", str(tmp_path))
    workload, infos = deployment("sums", "ends", text)
    workload.expect(infos)
    workload.deploy(infos)
    beats = run_until(workload, m.DeployState.SHUTDOWN)
    assert workload.take_failures() == []
    by_name = {info.id: info.name for info in infos}
    stats: dict[str, list[m.OperatorStats]] = {}
    for beat in beats:
        stats.setdefault(by_name[beat.node_id], []).extend(beat.window_stats)
    late = [each.metrics.get("rows_late", 0) for each in stats["sums"]]
    assert sum(int(str(count)) for count in late) == 2, "counted where they were dropped"
    assert "rows_late" not in stats["events"][0].metrics
    last = stats["sums"][-1].metrics
    assert last["watermark_ms"] == 1_767_225_650_000, "a second before the newest event time"
    assert int(str(last["state_bytes"])) > 0
    phases = stats["events"][0].metrics
    assert int(str(phases["process_ms"])) <= int(str(phases["batch_duration_ms"]))
    # Spark counts no input rows where a plan has a source twice, and so gives 0 here.
    assert float(str(phases["rows_processed_per_second"])) >= 0
    assert [each.metrics["small.units"] for each in stats["split"][:6]] == [1, 2, 3, 4, 5, 6]
    assert [each.metrics["small.most"] for each in stats["split"][:6]] == [1, 2, 3, 4, 5, 6]
    ports = {port.id: port.tuple_count for port in stats["split"][0].output_ports}
    assert ports["small"] == 1
    workload.committed(77)
    assert (tmp_path / "told").read_text() == "77 True\n"

    run = Run(name="b1", starting='{"0": 1}', ending='{"0": 3}')
    (tmp_path / RUN_FILE).write_bytes(format_run(run))
    backfill, infos = deployment("sums", "ends", text, "application.b1")
    assert backfill.session.application().name == "sums.b1"
    backfill.expect(infos)
    backfill.deploy(infos)
    beats = run_until(backfill, m.DeployState.SHUTDOWN)
    read = [
        each.output_ports[0].tuple_count
        for beat in beats
        if by_name[beat.node_id] == "events"
        for each in beat.window_stats
    ]
    assert sum(read) == 2, "offsets 1 and 2"
    published = spark.read.format("headrace").option("address", headrace.address)
    for topic, total in (("s/sums_out.b1", 2), ("s/sums_out", 1 + 2)):
        (row,) = published.option("topic", topic).load().collect()
        assert json.loads(row.payload)["n"] == total
