"""Operators that keep state as only RocksDB can: no setting is needed, and none is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from headrace import Application
from headrace.pipeline.plan.spark_conf import PROVIDER, ROCKSDB, read_pinned


class Counter(StatefulProcessor):  # type: ignore[misc]  # pyspark's classes are untyped
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        before = self._count.get()[0] if self._count.exists() else 0
        now = before + sum(len(each) for each in rows)
        self._count.update((now,))
        yield pd.DataFrame({"kind": [key[0]], "n": [now]})

    def close(self) -> None: ...


def counted(events: DataFrame) -> DataFrame:
    return events.groupBy("kind").transformWithStateInPandas(
        Counter(), outputStructType="kind string, n long", outputMode="Update", timeMode="None"
    )


def test_a_transform_with_state_runs_as_it_is_and_is_validated(
    spark: SparkSession, monkeypatch: Any, tmp_path: Path
) -> None:
    app = Application("counting")
    app.topic("events", "s/events", schema="kind string")
    app.operator(to="s/counted", output_mode="update")(counted)
    before = spark.conf.get(PROVIDER, None)
    assert app.validate(spark)["counted"] == "kind string, n bigint"
    found = app.test(spark, events=[[{"kind": "a"}, {"kind": "b"}], [{"kind": "a"}]])["counted"]
    assert sorted((row.kind, row.n) for row in found) == [("a", 1), ("a", 2), ("b", 1)]
    assert spark.conf.get(PROVIDER, None) == before


def test_a_checkpoint_says_which_store_it_is_bound_to(spark: SparkSession, tmp_path: Path) -> None:
    """As `diff` reads it."""
    from headrace.pipeline.declare.queries import store_settings
    from headrace.spark.session.queries import settings

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"kind": "a"}\n')
    frame = counted(spark.readStream.schema("kind string").json(str(tmp_path / "in")))
    with settings(spark, store_settings(frame)):
        query = (
            frame.writeStream.outputMode("update")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .foreachBatch(lambda rows, _: rows.collect())
            .start()
        )
    assert query.awaitTermination(200)
    pinned = read_pinned((tmp_path / "checkpoint/offsets/0").read_bytes())
    assert pinned[PROVIDER] == ROCKSDB
