"""An ordinary PySpark script under supervision, unchanged: its queries are operators."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.errors import LockedError
from headrace.pipeline.container.container import ContainerSettings, make_workload
from headrace.pipeline.container.script_workload import ScriptWorkload
from headrace.pipeline.plan.describe import describe
from headrace.runtime.system import system_runtime
from headrace.spark.options import Target
from headrace.spark.session.script import CHECKPOINTS
from headrace.wire.umbilical import messages as m
from tests.spark.headrace_server import HeadraceServer
from tests.spark.listeners import wait_heard
from tests.spark.scripted_controller import START_MS
from tests.spark.test_container import produce
from tests.spark.test_topics import made

SCRIPT = """
import json
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("job").config("spark.job.note", "kept").getOrCreate()
rows = (
    spark.readStream.format("headrace").option("address", "{address}").option("topic", "s/{name}")
    .option("startingOffsets", "earliest").option("maxMessagesPerTrigger", 4).load()
)

def store(frame, batch_id):
    values = sorted(json.loads(row.payload)["n"] for row in frame.collect())
    if {fails} and batch_id == 1:
        raise ValueError("the disk is full")
    with open("{folder}/rows", "a") as out:
        out.write(f"{{values}}\\n")

named = rows.writeStream.queryName("stored").foreachBatch(store).start()
copies = rows.select("payload").writeStream.format("headrace").options(
    address="{address}", topic="s/{name}_copy"
).start()
named.awaitTermination()
copies.awaitTermination()
if {wrong}:
    sys.exit("enough")
"""

Start = Callable[..., tuple[ScriptWorkload, tuple[m.OperatorDeployInfo, ...]]]


@pytest.fixture
def start(
    spark: SparkSession,
    headrace: HeadraceServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Start]:
    monkeypatch.setenv("HEADRACE_ADDRESS", "")  # a script's run sets it
    started: list[ScriptWorkload] = []

    def begin(
        name: str, *, ends: bool = True, fails: bool = False, wrong: bool = False
    ) -> tuple[ScriptWorkload, tuple[m.OperatorDeployInfo, ...]]:
        text = SCRIPT.format(
            address=headrace.address, name=name, folder=tmp_path, fails=fails, wrong=wrong
        )
        (tmp_path / "job.py").write_text(text)
        plan = describe(str(tmp_path), "job.py")
        settings = ContainerSettings(
            container_id="c",
            application_path=str(tmp_path / "application"),
            package=str(tmp_path),
            entry="job.py",
            broker=headrace.address,
            available_now=ends,
        )
        context = m.StreamingContainerContext(start_window_millis=START_MS)
        workload = make_workload(system_runtime(), settings, context)
        assert isinstance(workload, ScriptWorkload)
        infos = tuple(
            m.OperatorDeployInfo(
                id=number,
                type=m.OperatorType.INPUT,
                name=operator["name"],
                function=operator["class"],
            )
            for number, operator in enumerate(plan["operators"], start=1)
        )
        started.append(workload)
        workload.expect(infos)
        return workload, infos

    yield begin
    for workload in started:
        script = workload._script
        workload.undeploy([1, 2])
        if script is not None and script.session is not None:
            spark.streams.removeListener(script.rings)
    spark.conf.unset(CHECKPOINTS)


def with_copy(headrace: HeadraceServer, name: str) -> Target:
    made(headrace, f"{name}_copy", partitions=1)
    return made(headrace, name, partitions=1)


def numbers(count: int) -> list[dict[str, object]]:
    return [{"n": n} for n in range(count)]


def beats_until(workload: ScriptWorkload, *states: m.DeployState) -> list[m.OperatorHeartbeat]:
    seen: list[m.OperatorHeartbeat] = []
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        beats = workload.heartbeats(1, 100)
        seen += beats
        if tuple(beat.state for beat in beats) == states:
            wait_heard()
            return seen + list(workload.heartbeats(1, 100))
        time.sleep(0.1)
    raise AssertionError(f"never {states}: {[beat.state for beat in beats]}")


ACTIVE, ENDED, FAILED = m.DeployState.ACTIVE, m.DeployState.SHUTDOWN, m.DeployState.FAILED


def test_a_script_runs_ends_and_goes_on_from_its_checkpoint(
    spark: SparkSession, headrace: HeadraceServer, start: Start, tmp_path: Path
) -> None:
    topic = with_copy(headrace, "script")
    produce(topic, numbers(10))
    workload, infos = start("script")
    assert [info.name for info in infos] == ["stored", "query_1"]
    assert workload.heartbeats(1, 1) == (), "nothing runs yet"
    workload.deploy(infos)
    beats = beats_until(workload, ENDED, ENDED)
    assert workload.take_failures() == []
    rows = (tmp_path / "rows").read_text().splitlines()
    assert rows == ["[0, 1, 2, 3]", "[4, 5, 6, 7]", "[8, 9]"]
    for operator in (1, 2):
        stats = [each for beat in beats if beat.node_id == operator for each in beat.window_stats]
        assert [each.output_ports[0].tuple_count for each in stats] == [4, 4, 2]
        assert [each.output_ports[0].queue_size for each in stats] == [6, 2, 0]
        windows = [each.window_id for each in stats]
        assert windows == sorted(set(windows))
    folders = {path.name for path in (tmp_path / "application/checkpoints").iterdir()}
    assert folders == {"stored", "query_1"}

    with pytest.raises(LockedError):
        start("script")[0].deploy(infos)
    workload.undeploy([1, 2])
    produce(topic, [{"n": 10}])
    again, infos = start("script")
    again.deploy(infos)
    beats_until(again, ENDED, ENDED)
    assert (tmp_path / "rows").read_text().splitlines()[3:] == ["[10]"]
    copies = spark.read.format("headrace").options(address=headrace.address, topic="s/script_copy")
    assert copies.load().count() == 11
    assert os.environ["HEADRACE_ADDRESS"] == headrace.address
    assert "script" in again.stack_trace()
    again.undeploy([1, 2])
    assert again.heartbeats(1, 1) == ()


def test_a_query_that_fails_and_a_script_that_ends_badly_are_told(
    headrace: HeadraceServer, start: Start, tmp_path: Path
) -> None:
    produce(with_copy(headrace, "fails2"), numbers(10))
    workload, infos = start("fails2", fails=True)
    workload.deploy(infos)
    beats_until(workload, FAILED, FAILED)
    failures = workload.take_failures()
    assert ((1,), True) in [(ids, "the disk is full" in text) for ids, text in failures]
    # awaitTermination raised in the script, so the script failed, too, and says where.
    assert any(ids == (1, 2) and "job.py:" in text for ids, text in failures)
    workload.undeploy([1, 2])

    produce(with_copy(headrace, "wrong2"), numbers(2))
    (tmp_path / "application").rename(tmp_path / "before")
    workload, infos = start("wrong2", wrong=True)
    workload.deploy(infos)
    beats_until(workload, FAILED, FAILED)
    assert workload.take_failures() == [((1, 2), "the script ended with enough")]


def test_a_running_script_is_stopped(headrace: HeadraceServer, start: Start) -> None:
    produce(with_copy(headrace, "goes_on"), numbers(3))
    workload, infos = start("goes_on", ends=False)
    workload.deploy(infos)
    reported: set[int] = set()
    deadline = time.monotonic() + 200
    while reported != {1, 2}:
        assert time.monotonic() < deadline
        reported |= {beat.node_id for beat in workload.heartbeats(1, 1) if beat.window_stats}
        time.sleep(0.1)
    script = workload._script
    assert script is not None
    workload.undeploy([1, 2])
    assert script.over
    assert not any(query.status().active for _, query in script.queries())
