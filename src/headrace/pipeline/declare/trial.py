"""Run an application on given rows, without broker or controller: `Application.test`.

Every window of a port is a file of payloads, read by Spark's file stream one window per
micro-batch; parsing, conditions, operators and sink functions are the ones that run in production.
Stores (tables, files) are left alone: a test gets the rows that they would.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from headrace.errors import ConfigError
from headrace.pipeline.declare.application import Application
from headrace.pipeline.declare.declarations import Batch, TopicInput
from headrace.pipeline.declare.inspection import store_settings
from headrace.pipeline.declare.properties import Properties
from headrace.pipeline.declare.samples import read_windows, windows_of, write_window
from headrace.pipeline.declare.stages import Query, build_queries, give
from headrace.pipeline.declare.stores import Store
from headrace.spark.session.queries import settings

END_OF_INPUT = 999_999  # number of the empty window that lets a finished query run once more
END_OF_TIME_MS = 253_402_300_799_000  # the last second of the year 9999
TIMEOUT_SECONDS = 120

_CHECKSUMS = "spark.sql.streaming.checkpoint.fileChecksum.enabled"


def emulate(
    app: Application,
    spark: SparkSession,
    rows: Mapping[str, Sequence[Any]],
    *,
    close: bool,
    properties: Properties,
) -> dict[str, list[Row]]:
    unknown = sorted(set(rows) - set(app.topics))
    if unknown:
        raise ConfigError(
            f"no topic port {', '.join(unknown)}; there is {', '.join(app.topics) or 'none'}"
        )
    with tempfile.TemporaryDirectory(prefix="headrace-test-") as folder, _no_checksums(spark):
        for name in app.topics:
            source = Path(folder, "in", name)
            source.mkdir(parents=True)
            for index, window in enumerate(windows_of(rows.get(name, ()))):
                write_window(source, index, window)

        def read_topic(topic: TopicInput, columns: tuple[str, ...]) -> DataFrame:
            return read_windows(spark, Path(folder, "in", topic.name), topic, columns)

        queries = [
            (query, Path(folder, "checkpoints", query.name))
            for query in build_queries(app, spark, read_topic, properties)
        ]
        results = {query.name: _run(query, checkpoint) for query, checkpoint in queries}
        if close:
            for name in app.topics:
                write_window(Path(folder, "in", name), END_OF_INPUT, ())
            for query, checkpoint in queries:
                _end_event_time(checkpoint)
                results[query.name] += _run(query, checkpoint)
        return results


def _run(query: Query, checkpoint: Path) -> list[Row]:
    """Process what is there and not processed yet; the rows that came out."""
    collected: list[Row] = []

    def on_batch(frame: DataFrame, batch_id: int) -> None:
        frame = query.finish(frame)
        collected.extend(frame.collect())
        if query.stage is not None and not isinstance(query.stage.function, Store):
            give(query, frame, Batch(window_id=batch_id, batch_id=batch_id, replay=False))

    with settings(query.frame.sparkSession, store_settings(query.frame)):
        running = (
            query.frame.writeStream.outputMode(query.mode)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .foreachBatch(on_batch)
            .start()
        )
    if not running.awaitTermination(TIMEOUT_SECONDS):
        running.stop()
        raise ConfigError(f"{query.name} did not finish in {TIMEOUT_SECONDS} s")
    return collected


def _end_event_time(checkpoint: Path) -> None:
    """Move the watermark to the end of time, as if every source had sent something that late.

    The commit log holds the watermark that the next micro-batch starts with. So nothing has to be
    invented that could show up in the results: an empty window then closes every open group.
    """
    commits = [path for path in (checkpoint / "commits").glob("*") if path.name.isdigit()]
    last = max(commits, key=lambda path: int(path.name))
    version, metadata = last.read_text().split("\n", 1)
    state = json.loads(metadata)
    state["nextBatchWatermarkMs"] = END_OF_TIME_MS
    last.write_text(f"{version}\n{json.dumps(state)}")
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


@contextlib.contextmanager
def _no_checksums(spark: SparkSession) -> Iterator[None]:
    """Spark may guard checkpoint files by checksums, which a changed commit would fail."""
    before = spark.conf.get(_CHECKSUMS)
    spark.conf.set(_CHECKSUMS, "false")
    try:
        yield
    finally:
        spark.conf.set(_CHECKSUMS, before)
