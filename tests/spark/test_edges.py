"""Edges between queries with Spark itself: rows keep their types, windows their order, once."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from headrace.client.sync import SyncIggyClient
from headrace.errors import FencedError, HeadraceError
from headrace.ids import WindowId
from headrace.net.addresses import parse_address
from headrace.pipeline.container.query_run import end_streams, pass_idle_windows
from headrace.pipeline.container.window_log import WindowLog
from headrace.pipeline.plan.edges import Edge, make_edge
from headrace.runtime.system import system_runtime
from headrace.spark.edges.sink import EdgeSink, advance, last_closed, publish_window
from headrace.spark.options import Target, parse_sink
from headrace.wire.umbilical.windows import NO_WINDOW, WindowGrid
from tests.spark.headrace_server import HeadraceServer

SCHEMA = "sku string, qty int, price decimal(9,2), at timestamp, tags array<string>"
GRID = WindowGrid(1_700_000_000_000, 500)


def at(ordinal: int) -> WindowId:
    return GRID.window_at(GRID.start_ms + ordinal * GRID.width_ms)


@pytest.fixture
def edge(headrace: HeadraceServer, request: pytest.FixtureRequest) -> Edge:
    made = Edge("spark", request.node.name, 2)
    host, port = parse_address(headrace.address)
    with SyncIggyClient(host, port, username="iggy", password="secret") as client:
        client.run(lambda each: make_edge(each, made))
    return made


def target_of(headrace: HeadraceServer, edge: Edge) -> Target:
    return parse_sink({"address": headrace.address, "topic": edge.address}).target


def rows(spark: SparkSession, first: int, count: int) -> DataFrame:
    numbers = spark.range(first, first + count)
    return numbers.select(
        F.concat(F.lit("sku-"), F.col("id") % 5).alias("sku"),
        F.col("id").cast("int").alias("qty"),
        (F.col("id") / 100).cast("decimal(9,2)").alias("price"),
        F.timestamp_seconds(F.col("id") + 1_700_000_000).alias("at"),
        F.array(F.lit("a"), F.col("id").cast("string")).alias("tags"),
    )


def read(
    spark: SparkSession, headrace: HeadraceServer, edge: Edge, checkpoint: Path, **options: str
) -> list[list[Row]]:
    """What a query that reads to the publishers' end gets, batch by batch."""
    batches: list[list[Row]] = []
    frame = (
        spark.readStream.format("headrace")
        .option("windows", "true")
        .options(address=headrace.address, topic=edge.address, **options)
        .schema(SCHEMA)
        .load()
    )
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: batches.append(batch.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert query.exception() is None
    return batches


def test_rows_pass_an_edge_window_by_window(
    spark: SparkSession, headrace: HeadraceServer, edge: Edge, tmp_path: Path
) -> None:
    target = target_of(headrace, edge)
    left = EdgeSink(target, edge.publisher(0), 0, epoch=3, key=("sku",), mask=1)
    right = EdgeSink(target, edge.publisher(1), 1, epoch=3, key=("sku",))
    assert last_closed(left) == last_closed(right) == NO_WINDOW
    assert publish_window(rows(spark, 0, 20), left, window=at(2), previous=NO_WINDOW) == 20
    assert publish_window(rows(spark, 20, 10), right, window=at(1), previous=NO_WINDOW) == 10
    publish_window(rows(spark, 20, 99), right, window=at(1), previous=NO_WINDOW)  # run again
    publish_window(rows(spark, 30, 7), left, window=at(5), previous=at(2))
    publish_window(rows(spark, 0, 0), right, window=at(6), previous=at(1))
    with pytest.raises(HeadraceError, match="window out of order"):
        advance(left, window=at(9), previous=at(2))
    taken_over = EdgeSink(target, edge.publisher(0), 0, epoch=4, key=("sku",))
    assert last_closed(taken_over) == at(5)
    with pytest.raises(FencedError):
        advance(left, window=at(9), previous=at(5))
    advance(taken_over, window=at(7), previous=at(5), last=True)
    advance(right, window=at(7), previous=at(6), last=True)

    batches = read(spark, headrace, edge, tmp_path / "all", maxWindowsPerTrigger="1")
    assert [sorted(row.qty for row in batch) for batch in batches] == [
        [*range(20, 30)],
        [*range(20)],
        [*range(30, 37)],
    ]
    wanted = sorted(rows(spark, 0, 37).collect())
    assert sorted(row for batch in batches for row in batch) == wanted, "with all their types"
    assert isinstance(wanted[0].at, dt.datetime)

    shared = [
        read(spark, headrace, edge, tmp_path / str(n), partitionMask="1", partitionKeys=str(n))
        for n in (0, 1)
    ]
    halves = [{row.sku for batch in half for row in batch} for half in shared]
    assert halves[0] & halves[1] == set(), "a key is one instance's alone"
    assert sorted(row for half in shared for batch in half for row in batch) == wanted

    # The last batch is read again after its commit was lost: the same rows.
    commits = sorted((tmp_path / "all" / "commits").glob("[0-9]*"), key=lambda one: int(one.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)
    again = read(spark, headrace, edge, tmp_path / "all")
    assert [sorted(row.qty for row in batch) for batch in again] == [[*range(30, 37)]]


def test_the_side_log_reads_what_spark_writes_and_lets_idle_windows_pass(
    spark: SparkSession, headrace: HeadraceServer, edge: Edge, tmp_path: Path
) -> None:
    """A query from this edge to another: its windows are those it reads up to."""
    target = target_of(headrace, edge)
    sinks = [EdgeSink(target, edge.publisher(n), n, epoch=1) for n in (0, 1)]
    for sink in sinks:
        assert last_closed(sink) == NO_WINDOW
        publish_window(rows(spark, 0, 3), sink, window=at(4), previous=NO_WINDOW)
    following = Edge("spark", f"{edge.stream}-out")
    host, port = parse_address(headrace.address)
    with SyncIggyClient(host, port, username="iggy", password="secret") as client:
        client.run(lambda each: make_edge(each, following))
    onward = EdgeSink(target_of(headrace, following), following.publisher(), 0, epoch=1)
    log = WindowLog(system_runtime().disk, str(tmp_path / "c"), GRID)
    entered = []

    def on_batch(batch: DataFrame, batch_id: int) -> None:
        found = log.enter(batch_id, lambda: [last_closed(onward)])
        entered.append(found)
        publish_window(batch, onward, window=found.window, previous=found.closed[0])

    frame = (
        spark.readStream.format("headrace")
        .option("windows", "true")
        .options(address=headrace.address, topic=edge.address)
        .schema(SCHEMA)
        .load()
    )
    query = (
        frame.writeStream.foreachBatch(on_batch)
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        _until(lambda: last_closed(onward) == at(4))
        query.processAllAvailable()

        def idle() -> WindowId | None:
            return pass_idle_windows(
                log, GRID, sinks=[onward], edges=[target], now_ms=0, reads_topics=False
            )

        _until(lambda: (tmp_path / "c" / "commits" / "0").exists())
        assert idle() is None, "its inputs are closed no further"
        for sink in sinks:
            advance(sink, window=at(9), previous=at(4))
        assert idle() == at(9)
        assert idle() is None
        assert last_closed(onward) == at(9)
        for sink in sinks:
            publish_window(rows(spark, 3, 2), sink, window=at(12), previous=at(9))
        _until(lambda: last_closed(onward) == at(12))
        assert [(each.window, each.previous) for each in entered] == [
            (at(4), NO_WINDOW),
            (at(12), at(9)),
        ]
        _until(lambda: (tmp_path / "c" / "commits" / "1").exists())
    finally:
        query.stop()
    assert end_streams(log, GRID, sinks=[onward]) == at(13)
    found = read(spark, headrace, following, tmp_path / "reader")
    assert sorted(row.qty for batch in found for row in batch) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def _until(reached: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "it never came to it"
        time.sleep(0.1)
