"""What Spark says a checkpoint holds, compared over versions."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace import Application
from headrace.pipeline.plan.checkpoint_contents import checkpoint_contents
from headrace.pipeline.plan.versions import compare

Aggregate = Callable[[DataFrame], DataFrame]


def counted(aggregate: Aggregate) -> Application:
    app = Application("counted")
    app.topic("numbers", "s/numbers", schema="n int, at timestamp", on_bad_row="dead_letter")
    app.topic("others", "s/others", schema="n int, m int, at timestamp")

    @app.operator(to="s/plain")
    def plain(numbers: DataFrame) -> DataFrame:
        return numbers.filter("n > 0")

    @app.operator(to="s/totals", output_mode="append")
    def totals(numbers: DataFrame) -> DataFrame:
        return aggregate(numbers.withWatermark("at", "1 minute"))

    @app.operator(to="s/both", output_mode="append")
    def both(numbers: DataFrame, others: DataFrame) -> DataFrame:
        left = numbers.withWatermark("at", "1 minute").dropDuplicatesWithinWatermark(["n"])
        right = others.withWatermark("at", "1 minute").select(F.col("n").alias("k"), "m", "at")
        return left.join(
            right.withColumnRenamed("at", "then"),
            F.expr("n = k and then between at and at + interval 1 minute"),
        )

    return app


def by_minute(expression: str) -> Aggregate:
    def aggregate(rows: DataFrame) -> DataFrame:
        return rows.groupBy(F.window("at", "1 minute"), "n").agg(F.expr(expression).alias("x"))

    return aggregate


def test_state_is_compared_by_what_is_kept(spark: SparkSession) -> None:
    apps = {text: counted(by_minute(text)) for text in ("sum(n)", "sum(n * 2) + 1", "avg(n)")}
    shapes = {text: checkpoint_contents(app, spark) for text, app in apps.items()}
    first = shapes["sum(n)"]
    assert first["plain"] == {"sources": ["s/numbers"], "state": []}
    assert first["numbers_dead_letter"] == {"sources": ["s/numbers"], "state": []}
    window = "struct<start:timestamp,end:timestamp>"
    assert first["totals"]["state"] == [f"groups by ({window}, int) with sum (bigint)"]
    assert first["both"]["sources"] == ["s/numbers", "s/others"]
    assert [text.split(" of ")[0] for text in first["both"]["state"]] == [
        "DeduplicateWithinWatermark",
        "join",
    ]

    def verdict(new: str) -> str:
        before, after = apps["sum(n)"].plan(), apps[new].plan()
        changes = compare(before, after, first, shapes[new]).changes
        return next(one.verdict.name for one in changes if one.operator == "totals")

    assert verdict("sum(n * 2) + 1") == "COMPATIBLE", "another result of the same state"
    assert verdict("avg(n)") == "NEW_STATE"
