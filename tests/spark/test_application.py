"""Applications on real Spark, without a broker: `app.test`, and what is refused before launch."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pyspark.sql.functions as F
import pytest
from pyspark.sql import DataFrame, SparkSession

from headrace import Application, Batch
from headrace.errors import ConfigError
from headrace.pipeline.declare.application import Payload
from headrace.pipeline.plan.logical import LogicalPlan
from headrace.pipeline.plan.physical import make_physical_plan

EXAMPLES = Path(__file__).parents[2] / "examples"


def order(
    number: int, sku: str = "tea", qty: int = 1, second: int = 0, **more: Any
) -> dict[str, Any]:
    at = f"2026-01-01T12:00:{second:02}Z"
    return {"order_id": f"o-{number}", "sku": sku, "qty": qty, "price": 2.0, "at": at, **more}


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Application:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    sys.modules.pop("shop", None)
    import shop  # type: ignore[import-not-found]  # found through the path set above

    app: Application = shop.app
    return app


def test_the_example_adds_up(spark: SparkSession, shop: Application) -> None:
    rows: list[list[Payload]] = [
        [order(1), order(2, "tea", 3, 5), order(3, "mug", 1, 9), "no json", {"qty": 1}],
        [order(4, "pen", 0, 9), order(5, "unknown", 1, 9), order(6, "pen", 4, 11, price=None)],
    ]
    assert shop.test(spark, orders=rows)["revenue"] == [], "no window is over yet"
    results = shop.test(spark, orders=rows, close=True)["revenue"]
    found = {(row.window.start.second, row.category): (row.orders, row.revenue) for row in results}
    assert found == {
        (0, "drinks"): (2, 8.0),
        (0, "kitchen"): (1, 2.0),
        (0, "other"): (1, 2.0),
        (10, "paper"): (1, 6.0),
    }


def test_the_example_can_be_planned(shop: Application) -> None:
    plan = make_physical_plan(LogicalPlan.from_json(shop.plan()))
    assert [operator.logical.name for operator in plan.operators] == [
        *("orders", "valid", "enriched", "revenue"),
    ]
    assert plan.container_count == 1
    assert plan.operators[-1].query == "revenue"


def test_late_rows_are_dropped_window_by_window(spark: SparkSession, shop: Application) -> None:
    # Spark compares a row with the watermark that held one micro-batch before its own.
    windows = [[order(1, second=1)], [order(2, second=55)], [order(3, second=2)]]
    results = shop.test(spark, orders=windows, close=True)["revenue"]
    assert {row.window.start.second: row.orders for row in results} == {0: 2, 50: 1}
    windows.insert(2, [order(4, second=56)])
    results = shop.test(spark, orders=windows, close=True)["revenue"]
    assert {row.window.start.second: row.orders for row in results} == {0: 1, 50: 2}


def test_several_outputs_sinks_and_rejected_rows(spark: SparkSession) -> None:
    app = Application("several")
    app.topic("events", "s/events", schema="kind string, n int", on_bad_row="dead_letter")
    given: list[tuple[list[int], Batch]] = []

    @app.operator(outputs=("small", "large"), expect={"n > 0": "dead_letter"})
    def split(events: DataFrame, *, limit: int = 10) -> dict[str, DataFrame]:
        return {
            "small": events.filter(F.col("n") < limit),
            "large": events.filter(F.col("n") >= limit),
        }

    @app.operator(inputs={"rows": "split.small"}, to="s/small", key="kind")
    def small(rows: DataFrame) -> DataFrame:
        return rows

    @app.sink(inputs={"rows": "split.large"})
    def large(rows: DataFrame, batch: Batch) -> None:
        given.append(([row.n for row in rows.collect()], batch))

    events: list[Payload] = [
        {"kind": "a", "n": 1},
        {"kind": "b", "n": 12},
        {"kind": "c", "n": -1},
        "oops",
        '{"n": "x"}',
    ]
    results = app.test(spark, events=events)
    assert set(results) == {
        *("events_dead_letter", "split_small_dead_letter", "split_large_dead_letter"),
        *("small", "large"),
    }
    assert [row.asDict() for row in results["small"]] == [{"kind": "a", "n": 1}]
    assert [bytes(row.payload) for row in results["events_dead_letter"]] == [b"oops", b'{"n": "x"}']
    (letter,) = results["split_small_dead_letter"]
    assert bytes(letter.payload) == b'{"kind": "c", "n": -1}', "the message, not the row"
    assert bytes(letter.headers["headrace.reason"]) == b"expects n > 0"
    assert given == [([12], Batch(window_id=0, batch_id=0, replay=False))]
    raised = app.test(spark, events=events, properties={"split": {"limit": 20}})
    assert sorted(row.n for row in raised["small"]) == [1, 12]
    with pytest.raises(ConfigError, match="no property colour; it has limit"):
        app.test(spark, events=[], properties={"split": {"colour": 1}})
    with pytest.raises(ConfigError, match="no topic port orders; there is events"):
        app.test(spark, orders=[])


def test_raw_rows_and_failing_conditions(spark: SparkSession) -> None:
    app = Application("raw")
    app.topic("events", "s/events")

    @app.operator(to="s/copy", key="topic", expect={"length(payload) < 9": "fail"})
    def copy(events: DataFrame) -> DataFrame:
        return events.select("topic", "payload")

    (row,) = app.test(spark, events=["hello"])["copy"]
    assert (row.topic, bytes(row.payload)) == ("events", b"hello")
    with pytest.raises(Exception, match="copy expects length"):
        app.test(spark, events=["much too long"])


def build(spark: SparkSession, app: Application) -> None:
    app.test(spark)


def test_what_spark_cannot_run_is_refused_with_the_remedy(spark: SparkSession) -> None:
    def application(**options: Any) -> Application:
        app = Application("a")
        app.topic("events", "s/events", schema="kind string, at timestamp")

        @app.operator(to="s/counts", **options)
        def counts(events: DataFrame) -> DataFrame:
            return events.groupBy("kind").count()

        return app

    with pytest.raises(ConfigError, match=r"withWatermark.*output_mode=\"update\""):
        build(spark, application(output_mode="append"))
    with pytest.raises(ConfigError, match="key 'colour' of counts is not among its columns kind"):
        build(spark, application(output_mode="update", key="colour"))
    build(spark, application(output_mode="update"))

    app = Application("b")
    app.topic("events", "s/events", schema="kind string")

    @app.operator(to="s/out", output_mode="complete")
    def plain(events: DataFrame) -> DataFrame:
        return events

    with pytest.raises(ConfigError, match="complete"):
        build(spark, app)


def test_a_function_that_returns_nothing_is_told_so(spark: SparkSession) -> None:
    app = Application("a")
    app.topic("events", "s/events")

    @app.operator(to="s/out")
    def forgot(events: DataFrame) -> None:
        events.select("payload")

    with pytest.raises(ConfigError, match="is a `return` missing"):
        build(spark, app)


def test_times_come_back_as_they_were(spark: SparkSession) -> None:
    app = Application("times")
    app.topic("events", "s/events", schema="at timestamp")

    @app.operator(to="s/out")
    def same(events: DataFrame) -> DataFrame:
        return events.select(F.date_format("at", "yyyy-MM-dd HH:mm").alias("at"))

    (row,) = app.test(spark, events=[{"at": datetime(2026, 1, 2, 3, 4)}])["same"]
    assert row.at == "2026-01-02 03:04"
