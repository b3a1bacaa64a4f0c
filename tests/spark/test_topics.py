"""The connector against a real Headrace (read from the data nodes with tickets) and against a
server that is plain Iggy (polled, its topics identified by their time of creation)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.client.iggy import IggyClient
from headrace.client.partition_reader import Access, SourceState
from headrace.spark.options import Target, parse_sink
from headrace.spark.server import connect
from headrace.spark.source.positions import Topics
from headrace.wire.iggy.messages.extensions import PublishingFigures
from tests.spark.conftest import AnyServer
from tests.spark.headrace_server import HeadraceServer


def made(server: AnyServer, topic: str, *, partitions: int = 2) -> Target:
    target = parse_sink({"address": server.address, "stream": "s", "topic": topic}).target
    connect(target).create_topic(target, partitions=partitions)
    return target


def ask(target: Target, call: Callable[[IggyClient], Awaitable[None]]) -> None:
    server = connect(target)
    server.run(server.remote.call(call))


def describe(target: Target) -> tuple[SourceState, Access]:
    server = connect(target)
    return server.run(server.remote.reading.describe(target, Topics((target.topic,))))


def reader(spark: SparkSession, target: Target, **options: object) -> Any:
    reading = spark.read.format("headrace").option("address", target.address)
    for name, value in {"stream": target.stream, "topic": target.topic, **options}.items():
        reading = reading.option(name, str(value))
    return reading


def write(frame: DataFrame, target: Target) -> None:
    writer = frame.write.format("headrace").mode("append").option("address", target.address)
    writer.option("stream", target.stream).option("topic", target.topic).save()


def numbered(spark: SparkSession, count: int, *, start: int = 0) -> DataFrame:
    rows = spark.range(start, start + count, numPartitions=2)
    return rows.select(
        F.format_string("payload-%d", "id").alias("payload"),
        F.format_string("key-%d", F.col("id") % 7).alias("key"),
    )


def run(
    stream: DataFrame, checkpoint: str, seen: list[str] | None = None
) -> tuple[list[str], list[int]]:
    """Run a stream until it caught up: its payloads, and how many rows each batch had."""
    seen = [] if seen is None else seen
    sizes: list[int] = []

    def on_batch(frame: DataFrame, batch_id: int) -> None:
        rows = [row.payload.decode() for row in frame.select(F.col("payload")).collect()]
        seen.extend(rows)
        sizes.append(len(rows))

    query = (
        stream.writeStream.foreachBatch(on_batch)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(200)
    return seen, sizes


def follow(spark: SparkSession, target: Target, **options: object) -> DataFrame:
    reading = spark.readStream.format("headrace").option("address", target.address)
    settings = {"stream": target.stream, "topic": target.topic, "startingOffsets": "earliest"}
    for name, value in {**settings, **options}.items():
        reading = reading.option(name, str(value))
    return reading.load()


def test_what_is_written_is_read(spark: SparkSession, server: AnyServer) -> None:
    target = made(server, "round-trip")
    write(numbered(spark, 1000), target)
    frame = reader(spark, target).load()
    assert frame.columns == [
        *("stream", "topic", "partition", "offset", "timestamp", "origin_timestamp"),
        *("id", "key", "headers", "payload"),
    ]
    rows = frame.collect()
    assert sorted(row.payload.decode() for row in rows) == sorted(
        f"payload-{i}" for i in range(1000)
    )
    assert {row.partition for row in rows} == {0, 1}
    homes: dict[bytes, set[int]] = {}
    for row in rows:
        homes.setdefault(row.key, set()).add(row.partition)
        assert (row.stream, row.topic) == ("s", "round-trip")
        assert row.headers is None
        assert len(row.id) == 36
    assert sorted(homes) == [b"key-%d" % i for i in range(7)]
    assert all(len(found) == 1 for found in homes.values()), "a key stays in its partition"
    for partition in (0, 1):
        offsets = sorted(row.offset for row in rows if row.partition == partition)
        assert offsets == list(range(len(offsets)))


def test_columns_bounds_and_text(spark: SparkSession, server: AnyServer) -> None:
    target = made(server, "bounds", partitions=1)
    frame = spark.createDataFrame(
        [("a", {"h": bytearray(b"1")}, 0), ("b", None, 0), ("ü", {}, 0)],
        "payload string, headers map<string,binary>, partition int",
    ).coalesce(1)
    write(frame, target)
    some = reader(
        spark,
        target,
        columns="offset,payload,headers",
        payloadFormat="string",
        startingOffsets='{"0": 0}',
        endingOffsets='{"0": 2}',
    ).load()
    assert [tuple(row) for row in some.orderBy("offset").collect()] == [
        (0, {"h": bytearray(b"1")}, "a"),
        (1, None, "b"),
    ]
    rest = reader(spark, target, startingOffsets='{"0": 2}', payloadFormat="string").load()
    assert [row.payload for row in rest.collect()] == ["ü"]
    empty = reader(spark, target, startingOffsets='{"0": 3}').load()
    assert empty.count() == 0


def test_rows_without_a_payload_become_json(spark: SparkSession, server: AnyServer) -> None:
    target = made(server, "json", partitions=1)
    write(spark.createDataFrame([(1, "x", None)], "n int, s string, nothing string"), target)
    (row,) = reader(spark, target).load().collect()
    assert json.loads(row.payload) == {"n": 1, "s": "x", "nothing": None}


def test_a_frame_for_kafkas_sink_is_written_as_that_sink_would(
    spark: SparkSession, server: AnyServer
) -> None:
    target = made(server, "from-kafka", partitions=1)
    rows = spark.sql(
        "SELECT X'6b' AS key, X'00ff' AS value, "
        "array(named_struct('key', 'h', 'value', X'01')) AS headers"
    )
    write(rows, target)
    (row,) = reader(spark, target, columnStyle="kafka").load().collect()
    assert (row.key, row.value) == (b"k", b"\x00\xff")
    assert [tuple(each) for each in row.headers] == [("h", b"\x01")]


def test_a_write_that_fails_leaves_nothing_behind(
    spark: SparkSession, trimming: HeadraceServer
) -> None:
    target = made(trimming, "failed", partitions=1)
    server = connect(target)

    def figures() -> PublishingFigures:
        return server.run(server.remote.call(lambda client: client.get_publishing()))

    before = figures().publishers
    last = 49_999
    payload = F.when(F.col("id") == last, F.raise_error(F.lit("no"))).otherwise(
        F.repeat(F.lit("x"), 500)
    )
    rows = spark.range(0, last + 1, numPartitions=1).select(payload.cast("string").alias("payload"))
    with pytest.raises(PySparkException, match="no"):
        write(rows, target)
    assert figures().publishers == before
    deadline = monotonic() + 60
    while figures().staged_messages and monotonic() < deadline:
        sleep(0.1)  # it is looked at now and then
    assert figures().staged_messages == 0
    assert reader(spark, target).load().count() == 0


def test_json_payloads_become_typed_columns(spark: SparkSession, headrace: HeadraceServer) -> None:
    target = made(headrace, "typed", partitions=1)
    payloads = [
        '{"n": 1, "s": "x", "at": "2026-01-01T12:00:00Z", "more": []}',
        "oops",
        '{"n": "y"}',
    ]
    write(spark.createDataFrame([(each,) for each in payloads], "payload string"), target)
    schema = "n int, s string, at timestamp, _corrupt string"
    frame = reader(spark, target, payloadFormat="json").schema(schema).load()
    rows = frame.selectExpr("n", "s", "unix_timestamp(at) as at", "_corrupt").collect()
    assert sorted(map(tuple, rows), key=str) == [
        (1, "x", 1767268800, None),
        (None, None, None, "oops"),
        (None, None, None, '{"n": "y"}'),
    ]


def test_a_stream_keeps_to_its_limits_and_continues_where_it_was(
    spark: SparkSession, server: AnyServer, checkpoint: str
) -> None:
    target = made(server, "limits")
    write(numbered(spark, 100), target)
    stream = follow(spark, target, maxMessagesPerTrigger=30)
    seen, sizes = run(stream, checkpoint)
    assert sizes == [30, 30, 30, 10]
    assert sorted(seen) == sorted(f"payload-{i}" for i in range(100))
    assert run(stream, checkpoint) == ([], []), "nothing new, nothing read again"
    write(numbered(spark, 20, start=100), target)
    seen, sizes = run(stream, checkpoint)
    assert sizes == [20]
    assert sorted(seen) == sorted(f"payload-{i}" for i in range(100, 120))
    offset = Path(checkpoint, "offsets", "0").read_text().split("\n")[2]
    parsed = json.loads(offset)
    state, _ = describe(target)
    (topic,) = state.topics
    assert list(parsed) == ["v", "c", "p", "b"], "the first batch says where it begins"
    assert set(parsed["b"].values()) == {0}
    second = json.loads(Path(checkpoint, "offsets", "1").read_text().split("\n")[2])
    assert list(second) == ["v", "c", "p"]
    assert (parsed["v"], parsed["c"]) == (1, state.cluster)
    assert list(parsed["p"]) == [f"{topic.uid}/0", f"{topic.uid}/1"]
    assert sum(at[1] for at in parsed["p"].values()) == 30


def test_a_recreated_topic_is_an_error(
    spark: SparkSession, server: AnyServer, checkpoint: str
) -> None:
    target = made(server, "recreated")
    write(numbered(spark, 10), target)
    stream = follow(spark, target)
    run(stream, checkpoint)
    ask(target, lambda client: client.delete_topic("s", "recreated"))
    made(server, "recreated")
    write(numbered(spark, 50), target)
    with pytest.raises(StreamingQueryException, match="deleted and created again"):
        run(stream, checkpoint)


def test_a_stream_writes_to_a_topic(
    spark: SparkSession, server: AnyServer, checkpoint: str
) -> None:
    source, copy = made(server, "source"), made(server, "copy")
    write(numbered(spark, 500), source)
    query = (
        follow(spark, source, maxMessagesPerTrigger=200)
        .select("key", "payload")
        .writeStream.format("headrace")
        .option("address", copy.address)
        .option("topic", "s/copy")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(200)
    rows = reader(spark, copy).load().collect()
    assert sorted(row.payload.decode() for row in rows) == sorted(
        f"payload-{i}" for i in range(500)
    )
    progress = query.lastProgress
    assert progress is not None
    source_progress = progress.sources[0]
    assert (
        json.loads(str(source_progress.latestOffset))["p"]
        == (json.loads(str(source_progress.endOffset))["p"])
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"colour": "red"}, "unknown option colour"),
        ({"password": "hunter2"}, "password=env:NAME"),
        ({"topic": "nowhere"}, "there is no topic s/nowhere"),
        ({"payloadFormat": "json"}, "needs a schema"),
    ],
)
def test_mistakes_are_answered_with_the_remedy(
    spark: SparkSession, server: AnyServer, options: dict[str, str], text: str
) -> None:
    target = made(server, "mistakes")
    with pytest.raises(PySparkException, match=text) as caught:
        reader(spark, target, **options).load().collect()
    assert "hunter2" not in str(caught.value)


def test_a_frame_that_is_no_message_is_refused(spark: SparkSession, server: AnyServer) -> None:
    target = made(server, "refused")
    with pytest.raises(PySparkException, match="column n has no place in a message"):
        write(spark.createDataFrame([("x", 1)], "payload string, n int"), target)
    with pytest.raises(PySparkException, match="payload is int"):
        write(spark.createDataFrame([(1,)], "payload int"), target)
    with pytest.raises(PySparkException, match="a payload is null"):
        write(spark.createDataFrame([(None,)], "payload string"), target)


def test_a_purged_topic_is_an_error(
    spark: SparkSession, headrace: HeadraceServer, checkpoint: str
) -> None:
    target = made(headrace, "purged", partitions=1)
    write(numbered(spark, 10), target)
    stream = follow(spark, target)
    run(stream, checkpoint)
    ask(target, lambda client: client.purge_topic("s", "purged"))
    write(numbered(spark, 50), target)
    with pytest.raises(StreamingQueryException, match="was purged"):
        run(stream, checkpoint)


def test_both_ways_of_reading_agree(spark: SparkSession, headrace: HeadraceServer) -> None:
    target = made(headrace, "both")
    write(numbered(spark, 5000), target)
    state, access = describe(target)
    assert access.ticket, "the default reads from the data nodes"
    assert access.ticket not in repr(access).encode()
    frames = [reader(spark, target, readFrom=way).load() for way in ("data-nodes", "broker")]
    rows = [sorted(map(tuple, frame.drop("headers").collect())) for frame in frames]
    assert len(rows[0]) == 5000
    assert rows[0] == rows[1]
    assert state.cluster


def test_a_query_outlives_a_restart_of_the_broker(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    server = HeadraceServer(tmp_path / "data")
    server.start()
    target = made(server, "restart", partitions=1)
    write(numbered(spark, 100), target)
    stream = follow(spark, target)
    seen, _ = run(stream, checkpoint)
    server.restart()
    write(numbered(spark, 100, start=100), target)
    more, _ = run(stream, checkpoint)
    assert sorted(seen + more) == sorted(f"payload-{i}" for i in range(200))
    server.stop()


def test_no_jars_are_needed(spark: SparkSession) -> None:
    assert not spark.sparkContext.getConf().get("spark.jars", "")
    assert not spark.sparkContext.getConf().get("spark.jars.packages", "")
