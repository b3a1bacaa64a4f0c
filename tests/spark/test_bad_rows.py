"""Rows that cannot be processed, on a real broker: where they go, and who hears of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from headrace import Application, per_row
from headrace.errors import ConfigError
from headrace.pipeline.container.container import ContainerSettings
from headrace.pipeline.container.workload import Workload
from headrace.pipeline.plan.loading import RUN_FILE, Run, format_run, load_application
from headrace.runtime.system import system_runtime
from headrace.spark.options import Target
from headrace.spark.server import connect
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Partitioning
from headrace.wire.iggy.user_headers import UserHeader, encode_headers
from headrace.wire.umbilical import messages as m
from tests.spark.headrace_server import HeadraceServer
from tests.spark.listeners import wait_heard
from tests.spark.scripted_controller import START_MS, deploy_infos
from tests.spark.test_topics import made

MODULE = """
import pyspark.sql.functions as F
from headrace import Application, per_row

app = Application("{name}", trigger="200 milliseconds")
app.topic("events", "s/{name}", schema="n int", on_bad_row="{policy}", messages_max=20)

@per_row("n int, half int")
def halved(row):
    if row["n"] == 26:
        raise ValueError("no half of it")
    return {{"n": row["n"], "half": row["n"] // 2}}

@app.operator(expect={{"n >= 0": "dead_letter"}})
def {name}_valid(events):
    return halved(events)

@F.udf("int")
def picky(n):
    if n == 13:
        raise ValueError("thirteen is bad luck")
    return n

@app.operator(inputs={{"rows": "{name}_valid"}}, to="s/{name}_out")
def {name}_lucky(rows):
    return rows.withColumn("lucky", picky("n"))
"""
PATIENCE_SECONDS = 300  # halving a batch is many jobs, on whatever the machine has left
BAD_PAYLOADS = {20: b"not json", 31: b'{"n": "x"}'}


class Deployed:
    """A workload over the session that all tests share."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        name: str,
        address: str,
        application: str = "application",
    ) -> None:
        self.folder = folder / application
        self.infos = deploy_infos(load_application(str(folder), f"{name}.py"))
        settings = ContainerSettings(
            container_id="c",
            application_path=str(self.folder),
            package=str(folder),
            entry=f"{name}.py",
            broker=address,
            available_now=True,
        )
        context = m.StreamingContainerContext(start_window_millis=START_MS)
        self.workload = Workload(system_runtime(), settings, context)
        self.workload.session.use(spark)
        self._spark = spark

    def run(self, state: m.DeployState = m.DeployState.SHUTDOWN) -> list[m.OperatorHeartbeat]:
        """Until every operator is in that state; all heartbeats."""
        self.workload.expect(self.infos)
        self.workload.deploy(self.infos)
        beats: list[m.OperatorHeartbeat] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            seen = self.workload.heartbeats(1, 100)
            beats += seen
            if any(beat.state is state for beat in seen) and not self._busy():
                wait_heard()
                return beats + list(self.workload.heartbeats(1, 100))
            time.sleep(0.1)
        raise AssertionError(f"never {state.name}")

    def _busy(self) -> bool:
        return any(query.isActive for query in self._spark.streams.active)

    def end(self) -> None:
        self.workload.undeploy([info.id for info in self.infos])
        self._spark.streams.removeListener(self.workload.session.rings)


@pytest.fixture
def deployed(
    spark: SparkSession, headrace: HeadraceServer, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[list[Deployed]]:
    several: list[Deployed] = []
    yield several
    for each in several:
        each.end()


def produce(target: Target) -> None:
    """40 records in one partition; those that are bad by themselves at their offsets."""
    headers = encode_headers([UserHeader.of("source", b"till 7")])
    messages = [
        Message(BAD_PAYLOADS.get(n, b'{"n": %d}' % (-1 if n == 22 else n)), headers)
        for n in range(40)
    ]
    server = connect(target)
    server.run(
        server.remote.call(
            lambda client: client.send(
                target.stream, target.topic, messages, partitioning=Partitioning.to_partition(0)
            )
        )
    )


def read(spark: SparkSession, headrace: HeadraceServer, topic: str) -> list[Row]:
    frame = spark.read.format("headrace").option("address", headrace.address).option("topic", topic)
    return sorted(frame.load().collect(), key=lambda row: bytes(row.payload))


def texts(row: Row) -> dict[str, str]:
    return {name: bytes(value).decode() for name, value in row.headers.items()}


def start(
    spark: SparkSession,
    headrace: HeadraceServer,
    tmp_path: Path,
    deployed: list[Deployed],
    name: str,
    policy: str,
) -> Deployed:
    (tmp_path / f"{name}.py").write_text(MODULE.format(name=name, policy=policy))
    produce(made(headrace, name, partitions=1))
    each = Deployed(spark, tmp_path, name, headrace.address)
    deployed.append(each)
    return each


@pytest.mark.timeout(600)  # three runs, one of them with a batch that is halved
def test_every_bad_row_is_set_aside_once_with_its_reason(
    spark: SparkSession, headrace: HeadraceServer, tmp_path: Path, deployed: list[Deployed]
) -> None:
    first = start(spark, headrace, tmp_path, deployed, "aside", "dead_letter")
    beats = first.run()
    check_set_aside(spark, headrace)

    ((operators, message),) = first.workload.take_failures()
    names = {info.id: info.name for info in first.infos}
    assert [names[one] for one in operators] == ["aside_lucky"]
    assert "aside_lucky failed on s/aside partition 0 offset 13 in window" in message
    assert "thirteen is bad luck" in message
    bad: Counter[str] = Counter()
    for beat in beats:
        for stats in beat.window_stats:
            bad[names[beat.node_id]] += int(str(stats.metrics.get("bad_rows", 0)))
    assert bad == {"events": 2, "aside_valid": 2, "aside_lucky": 1}

    # A container that ended before Spark noted its last batches runs them again.
    first.end()
    checkpoints = first.folder / "checkpoints"
    for file in (*checkpoints.glob("*/commits/*"), *checkpoints.glob("*/offsets/1")):
        file.unlink()
    again = Deployed(spark, tmp_path, "aside", headrace.address)
    deployed.append(again)
    again.run()
    check_set_aside(spark, headrace)

    # A backfill sets its bad rows aside beside its own rows, and leaves the others' alone.
    run = Run(name="b1", starting='{"0": 10}', ending='{"0": 23}')
    (tmp_path / RUN_FILE).write_bytes(format_run(run))
    backfill = Deployed(spark, tmp_path, "aside", headrace.address, "backfill")
    deployed.append(backfill)
    backfill.run()
    out = read(spark, headrace, "s/aside_out.b1")
    kept = sorted(int(bytes(row.payload).split(b":")[-1][:-1]) for row in out)
    assert kept == [10, 11, 12, *range(14, 20), 21]
    letters = {
        operator: [texts(row)["headrace.offset"] for row in read(spark, headrace, topic)]
        for operator, topic in (
            ("events", "s/aside.dead_letter.b1"),
            ("valid", "s/aside_valid.dead_letter.b1"),
            ("lucky", "s/aside_lucky.dead_letter.b1"),
        )
    }
    assert letters == {"events": ["20"], "valid": ["22"], "lucky": ["13"]}
    check_set_aside(spark, headrace)


def check_set_aside(spark: SparkSession, headrace: HeadraceServer) -> None:
    good = [n for n in range(40) if n not in (13, 22, 26, *BAD_PAYLOADS)]
    out = read(spark, headrace, "s/aside_out")
    assert sorted(int(bytes(row.payload).split(b":")[-1][:-1]) for row in out) == good

    unread = read(spark, headrace, "s/aside.dead_letter")
    assert [bytes(row.payload) for row in unread] == sorted(BAD_PAYLOADS.values())
    found = {texts(row)["headrace.offset"]: texts(row) for row in unread}
    assert set(found) == {"20", "31"}
    assert found["20"]["headrace.topic"] == "aside"
    assert found["20"]["headrace.operator"] == "events"
    assert found["20"]["headrace.reason"]
    assert found["20"]["source"] == "till 7", "the message's own headers stay"

    broken = read(spark, headrace, "s/aside_valid.dead_letter")
    assert [bytes(row.payload) for row in broken] == [b'{"n": -1}', b'{"n": 26}']
    reasons = [(texts(row)["headrace.offset"], texts(row)["headrace.reason"]) for row in broken]
    assert reasons == [("22", "expects n >= 0"), ("26", "ValueError: no half of it")]

    (unlucky,) = read(spark, headrace, "s/aside_lucky.dead_letter")
    assert bytes(unlucky.payload) == b'{"n": 13}'
    assert texts(unlucky)["headrace.reason"] == "ValueError: thirteen is bad luck"
    assert texts(unlucky)["headrace.offset"] == "13"
    assert len(texts(unlucky)["headrace.window"]) == 16


def test_a_record_that_may_not_fail_stops_its_query_by_name(
    spark: SparkSession, headrace: HeadraceServer, tmp_path: Path, deployed: list[Deployed]
) -> None:
    each = start(spark, headrace, tmp_path, deployed, "strict", "fail")
    each.run(m.DeployState.FAILED)
    told = " ".join(message for _, message in each.workload.take_failures())
    assert "strict_lucky failed on s/strict partition 0 offset 13 in window" in told
    assert "(fail)" in told


def test_rows_without_their_message_are_kept_as_they_are(spark: SparkSession) -> None:
    app = Application("bare")
    app.topic("events", "s/events", schema="kind string, n int")

    @app.operator(expect={"n > 0": "drop", "n < 100": "dead_letter"})
    def renamed(events: DataFrame) -> DataFrame:
        return events.select(F.col("kind").alias("sort"), "n")

    @app.operator(inputs={"rows": "renamed"}, to="s/out")
    def out(rows: DataFrame) -> DataFrame:
        return rows

    results = app.test(
        spark, events=[{"kind": "a", "n": 1}, {"kind": "b", "n": 100}, {"kind": "c", "n": -1}]
    )
    assert [row.n for row in results["out"]] == [1]
    (letter,) = results["renamed_dead_letter"]
    assert bytes(letter.payload) == b'{"sort":"b","n":100}'
    assert texts(letter) == {"headrace.reason": "expects n < 100", "headrace.operator": "renamed"}


def test_functions_of_rows(spark: SparkSession) -> None:
    app = Application("rows")
    app.topic("events", "s/events", schema="n int")

    @app.operator(to="s/out")
    @per_row("n int, square bigint", on_bad_row="drop")
    def squares(events: dict[str, Any]) -> Any:  # the parameter's name is the port
        n = events["n"]
        if n < 0:
            return None
        if n == 7:
            return {"n": n, "square": "forty-nine"}
        if n == 8:
            return {"n": n, "cube": 512}
        return [{"n": n, "square": n * n}] * (2 if n == 2 else 1)

    results = app.test(spark, events=[{"n": n} for n in (1, 2, -3, 7, 8, 9)])
    found = [(row.n, row.square) for row in results["squares"]]
    assert found == [(1, 1), (2, 4), (2, 4), (9, 81)]
    assert set(results) == {"squares", "squares_dead_letter"}
    assert results["squares_dead_letter"] == []
    with pytest.raises(ConfigError, match="on_bad_row"):
        per_row("n int", on_bad_row="hide")
