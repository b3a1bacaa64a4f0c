"""The pipeline API on real Spark without a broker: validation, previews, live properties, modes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyspark.sql.functions as F
import pytest
from pyspark.sql import DataFrame, SparkSession

from headrace import Application
from headrace.errors import ConfigError
from headrace.pipeline.declare.application import Payload
from headrace.pipeline.declare.graph import PropertyValues
from headrace.pipeline.declare.stages import build_queries
from headrace.pipeline.declare.trial import empty_streams
from headrace.pipeline.plan import describe


def counted(**options: Any) -> Application:
    app = Application("counted")
    app.topic("events", "s/events", schema="kind string, at timestamp", columns=("offset",))

    @app.operator
    def recent(events: DataFrame) -> DataFrame:
        return events.withWatermark("at", "1 minute")

    @app.operator(to="s/counts", **options)
    def counts(recent: DataFrame) -> DataFrame:
        return recent.groupBy(F.window("at", "1 minute"), "kind").count()

    return app


def test_validate_tells_schemas_or_everything_that_is_wrong(
    spark: SparkSession, tmp_path: Path
) -> None:
    schemas = counted(output_mode="append").validate(spark)
    assert schemas == {
        "events": "offset bigint, kind string, at timestamp",
        "recent": "offset bigint, kind string, at timestamp",
        "counts": "window struct<start:timestamp,end:timestamp>, kind string, count bigint",
    }
    with pytest.raises(ConfigError, match=r'counts aggregates: state output_mode="append"'):
        counted().validate(spark)
    with pytest.raises(ConfigError, match="cannot see checkpoints in"):
        counted(output_mode="append").validate(
            spark, master="spark://elsewhere:7077", application_path=str(tmp_path)
        )

    app = Application("wrong")
    app.topic("events", "s/events", schema="n int, m int")
    app.topic("others", "s/others", schema="n intt")
    app.topic("odd", "s/odd", schema="n interval day to second")

    @app.operator(to="s/a")
    def first(events: DataFrame) -> DataFrame:
        return events.select("n", "colour")

    @app.operator(to="s/b")
    def second(first: DataFrame) -> DataFrame:
        raise AssertionError("what stands above it failed: it is not called")

    @app.operator(to="s/c", key="missing")
    def third(events: DataFrame) -> DataFrame:
        return events.groupBy("n").count()

    @app.operator(to="s/d")
    def fourth(events: DataFrame) -> DataFrame:
        return events.no_such_column

    @app.operator(to="s/e", output_mode="update", key="missing")
    def fifth(events: DataFrame) -> DataFrame:
        return events.groupBy("n").count()

    @app.sink
    def sixth(others: DataFrame) -> None: ...

    @app.sink
    def seventh(odd: DataFrame) -> None: ...

    with pytest.raises(ConfigError) as caught:
        app.validate(spark)
    text = str(caught.value)
    assert "has 6 problems" in text
    for says in (
        "others: ",
        "schema of odd: ",
        "first: [UNRESOLVED_COLUMN",
        "fourth: ",
        "third aggregates",
        "key 'missing' of fifth",
    ):
        assert says in text


def test_an_operator_with_live_properties_is_called_for_every_batch(spark: SparkSession) -> None:
    app = Application("live")
    app.topic("events", "s/events", schema="kind string, n int")

    @app.operator(live=True, expect={"n < 90": "drop"})
    def valid(events: DataFrame, *, minimum: int = 1) -> DataFrame:
        return events.filter(F.col("n") >= minimum)

    @app.operator(to="s/out")
    def doubled(valid: DataFrame) -> DataFrame:
        return valid.select((F.col("n") * 2).alias("n"))

    given: list[tuple[int, int]] = []

    @app.sink(inputs={"rows": "doubled"}, live=True)
    def store(rows: DataFrame, *, shift: int = 0) -> None:
        given.extend((row.n, shift) for row in rows.collect())

    values = PropertyValues(app)
    with empty_streams(spark) as read_topic:
        queries = {query.name: query for query in build_queries(app, spark, read_topic, values)}
    batch = spark.createDataFrame([("a", 1), ("a", 5), ("a", 95)], "kind string, n int")
    assert queries["doubled"].frame.columns == ["kind", "n"], "cut above the live operator"
    assert [row.n for row in queries["doubled"].finish(batch).collect()] == [2, 10]
    values.set("valid", "minimum", 3)
    assert [row.n for row in queries["doubled"].finish(batch).collect()] == [10]
    results = app.test(
        spark,
        events=[{"n": 4}, {"n": 6}],
        properties={"valid": {"minimum": 5}, "store": {"shift": 9}},
    )
    assert [row.n for row in results["doubled"]] == [12]
    assert given == [(12, 9)]


def test_what_cannot_run_batch_by_batch_is_refused_above_it(spark: SparkSession) -> None:
    def application(**options: Any) -> Application:
        app = Application("live")
        app.topic("events", "s/events", schema="kind string, n int")
        app.topic("others", "s/others", schema="kind string")

        @app.operator(live=True, **options)
        def valid(events: DataFrame, *, minimum: int = 1) -> DataFrame:
            return events.filter(F.col("n") >= minimum)

        return app

    app = application()

    @app.operator(to="s/out", output_mode="update")
    def counts(valid: DataFrame) -> DataFrame:
        return valid.groupBy("kind").count()

    with pytest.raises(ConfigError, match=r"cannot keep state \(Aggregate\): aggregate in"):
        app.validate(spark)

    app = application()

    @app.operator(to="s/out")
    def joined(valid: DataFrame, others: DataFrame) -> DataFrame:
        return valid.join(others, "kind")

    with pytest.raises(ConfigError, match="a batch has one input, not events, others"):
        app.validate(spark)

    app = application(expect={"n > 5": "dead_letter"})

    @app.operator(to="s/out")
    def same(valid: DataFrame) -> DataFrame:
        return valid

    with pytest.raises(ConfigError, match="metrics and dead letters on an operator above"):
        app.validate(spark)


def test_what_cannot_be_published_is_told_before_anything_starts(spark: SparkSession) -> None:
    app = Application("unpublished")
    app.topic("events", "s/events", schema="n int")

    @app.operator(to="s/times")
    def times(events: DataFrame) -> DataFrame:
        return events.select(F.expr("interval '1' second * n").alias("took"))

    @app.operator(to="s/mixed")
    def mixed(events: DataFrame) -> DataFrame:
        return events.withColumn("payload", F.col("n").cast("string"))

    with pytest.raises(ConfigError, match="2 problems") as caught:
        app.validate(spark)
    assert "times: column took of type duration[us] cannot be written as JSON" in str(caught.value)
    assert "mixed: columns n stand beside payload" in str(caught.value)


def test_a_preview_shows_every_stream(spark: SparkSession) -> None:
    app = counted(output_mode="append")
    rows: list[Payload] = [
        {"kind": "<b>", "at": "2026-01-01T00:00:01Z"},
        {"kind": "<b>", "at": "2026-01-01T00:00:02Z"},
        "no json",
    ]
    shown = app.preview(spark, events=rows)
    assert list(shown.tables) == ["events", "recent", "counts"]
    assert len(shown.tables["events"].rows) == 2, "what does not fit is not shown"
    (row,) = shown["counts"].collect()
    assert (row.kind, row["count"]) == ("<b>", 2)
    page = shown._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "count<br><small>bigint</small>" in page
    assert "counts (window struct<" in str(shown)

    @app.operator(to="s/wrong")
    def wrong(events: DataFrame) -> DataFrame:
        return events.select("colour")

    again = app.preview(spark, events=rows, limit=1)
    assert len(again.tables["events"].rows) == 1
    assert "UNRESOLVED_COLUMN" in again.problems[0]
    with pytest.raises(ConfigError, match="no topic port orders; there is events"):
        app.preview(spark, orders=[])


def test_parts_of_an_application_are_built_from_what_others_made(spark: SparkSession) -> None:
    app = counted(output_mode="append")
    with empty_streams(spark) as read_topic:
        (outlet,) = build_queries(
            app, spark, read_topic, terminals=(), outlets={"recent": "internal/recent"}
        )
        assert (outlet.name, outlet.topic, outlet.mode) == ("recent", "internal/recent", "append")
        assert outlet.operators == ("events", "recent")
        (counts,) = build_queries(
            app, spark, read_topic, terminals=("counts",), given={"recent": outlet.frame}
        )
        assert counts.operators == ("counts",)
        assert counts.stateful == "counts"


def test_a_package_is_validated_where_it_is_described(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `headrace pipeline validate` runs in a process of its own."""
    text = (
        "from headrace import Application\n"
        "app = Application('checked')\n"
        "app.topic('events', 's/events', schema='n int')\n"
        "@app.operator(to='s/out')\n"
        "def out(events): return events.select('COLUMN')\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("HEADRACE_PACKAGE", str(tmp_path))

    def described(entry: str, text: str) -> dict[str, Any]:
        (tmp_path / entry).write_text(text)
        monkeypatch.setenv("HEADRACE_ENTRY", entry)
        assert describe.main(str(tmp_path / "plan"), "--validate") == 0
        found: dict[str, Any] = json.loads((tmp_path / "plan").read_text())
        return found

    good = described("checked_good.py", text.replace("COLUMN", "n"))
    assert good["schemas"] == {"events": "n int", "out": "n int"}
    assert "out: [UNRESOLVED_COLUMN" in described("checked_bad.py", text)["error"]
    script = described("job.py", "spark.readStream.load().writeStream.start()")
    assert "is a script" in script["error"]
