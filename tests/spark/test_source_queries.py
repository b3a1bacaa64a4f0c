"""The source in real queries: what Spark pushes down, when it calls, what a checkpoint outlives."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from headrace.pipeline.failures import skipped
from headrace.spark.server import connect
from tests.spark.headrace_server import HeadraceServer
from tests.spark.plain_server import PlainServer
from tests.spark.test_source import fill, group_offset, send, start_of, wait_until
from tests.spark.test_topics import ask, describe, follow, made, numbered, reader, run, write


def test_kafkas_columns_and_filters(spark: SparkSession, headrace: HeadraceServer) -> None:
    target = made(headrace, "kafka", partitions=2)
    rows = spark.range(0, 200, numPartitions=1).select(
        F.format_string("%0100d", "id").alias("payload"),
        (F.col("id") % 2).cast("int").alias("partition"),
        F.when(F.col("id") < 2, F.create_map(F.lit("h"), F.lit(b"x"))).alias("headers"),
    )
    write(rows, target)
    frame = reader(spark, target, columnStyle="kafka", partitionBytes=2000).load()
    assert frame.columns == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"),
    ]
    whole = frame.collect()
    assert [int(row.value) for row in sorted(whole, key=lambda row: row.value)] == [*range(200)]
    (first,) = [row for row in whole if int(row.value) == 0]
    assert (first.topic, first.timestampType, first.key) == (target.topic, 1, None)
    assert [tuple(each) for each in first.headers] == [("h", b"x")]
    # What Spark planned for a frame it uses again: a filter of one query narrows no other.
    assert frame.where("partition = 1 and offset < 10").count() == 10
    assert frame.count() == 200


def test_a_query_over_several_topics_that_grow(
    spark: SparkSession, headrace: HeadraceServer, checkpoint: str, tmp_path: object
) -> None:
    target = made(headrace, "many-a", partitions=1)
    write(numbered(spark, 100), target)
    options = {"topic": "many-*", "consumerGroup": "watched", "maxMessagesPerTrigger": 60}
    stream = follow(spark, target, **options)
    seen, sizes = run(stream, checkpoint)
    assert sizes == [60, 40]
    assert group_offset(target, "watched") == 99, "the last batch of AvailableNow counts"
    # A second query on the group neither disturbs the first nor is led by it.
    again, _ = run(follow(spark, target, **options), f"{tmp_path}/second")
    assert sorted(again) == sorted(seen)
    second = made(headrace, "many-b", partitions=1)
    ask(target, lambda client: client.create_partitions("s", "many-a", 2))
    write(numbered(spark, 50, start=100), target)
    write(numbered(spark, 10, start=150), second)
    more, _ = run(stream, checkpoint)
    assert sorted(more) == sorted(f"payload-{i}" for i in range(100, 160))
    assert group_offset(second, "watched") == 9


def test_plain_servers_have_groups_and_patterns_too(
    spark: SparkSession, plain: PlainServer, checkpoint: str
) -> None:
    target = made(plain, "plain-a", partitions=1)
    write(numbered(spark, 20), target)
    seen, _ = run(follow(spark, target, topic="plain-*", consumerGroup="g"), checkpoint)
    assert len(seen) == 20
    assert plain.known_topics["s", "plain-a"].groups == {"g": {0: 19}}


def test_what_happens_to_a_topic_under_a_running_query(
    spark: SparkSession, trimming: HeadraceServer, checkpoint: str
) -> None:
    target = made(trimming, "living", partitions=1)
    fill(target, 0, 12)
    seen: list[tuple[int, int]] = []
    begun, go_on = threading.Event(), threading.Event()

    def on_batch(frame: DataFrame, batch_id: int) -> None:
        seen.extend((row.partition, row.offset) for row in frame.collect())
        begun.set()
        assert go_on.wait(60)

    def start(on_data_loss: str) -> StreamingQuery:
        options = {"columns": "partition,offset", "onDataLoss": on_data_loss}
        stream = follow(spark, target, maxMessagesPerTrigger=2, **options)
        writer = stream.writeStream.foreachBatch(on_batch)
        return writer.option("checkpointLocation", checkpoint).start()

    # Trimmed while the first batch runs; the query fails when it plans the next.
    query = start("fail")
    assert begun.wait(60)
    ask(target, lambda client: client.delete_segments("s", "living", partition=0, count=2))
    kept = start_of(target)
    assert kept > 2
    go_on.set()
    with pytest.raises(StreamingQueryException, match="DataLossError: data loss: retention"):
        query.awaitTermination(60)
    assert seen == [(0, 0), (0, 1)]

    # It goes on with what is left, and tells of it; new partitions are read as they come.
    query = start("skip")
    wait_until(lambda: (0, 11) in seen)
    assert sorted(seen) == [(0, 0), (0, 1), *((0, offset) for offset in range(kept, 12))]
    told = [text for each in query.recentProgress for text in skipped(json.loads(each.json))]
    assert len(told) == 1
    assert f"was read up to 2 and went on at {kept}" in told[0]
    ask(target, lambda client: client.create_partitions("s", "living", 1))
    send(target, "new", partition=1)
    wait_until(lambda: (1, 0) in seen)
    ask(target, lambda client: client.purge_topic("s", "living"))
    send(target, "another life", partition=1)
    wait_until(lambda: seen.count((1, 0)) == 2)
    assert len(seen) == 2 + 12 - kept + 2

    # Without a topic there is nothing to go on with.
    ask(target, lambda client: client.delete_topic("s", "living"))
    with pytest.raises(StreamingQueryException, match="there is no topic s/living"):
        query.awaitTermination(60)


def test_a_batch_in_the_offset_log_is_never_another_clusters(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    """Planned, not committed; meanwhile the directory was wiped, and the topic has the same uid."""
    server = HeadraceServer(tmp_path / "first")
    server.start()
    try:
        target = made(server, "uid", partitions=1)
        send(target, "a0", "a1")
        uid = describe(target)[0].topics[0].uid
        seen, _ = run(follow(spark, target), checkpoint)
        assert sorted(seen) == ["a0", "a1"]
    finally:
        server.stop()
    for name in (f"{checkpoint}/commits/0", f"{checkpoint}/commits/.0.crc"):
        Path(name).unlink(missing_ok=True)
    server = HeadraceServer(tmp_path / "second")
    server.start()
    try:
        target = made(server, "uid", partitions=1)
        send(target, "b0", "b1", "b2")
        assert describe(target)[0].topics[0].uid == uid
        refused: list[str] = []
        with pytest.raises(StreamingQueryException, match=r"another cluster.*onDataLoss=skip"):
            run(follow(spark, target), checkpoint, refused)
        assert refused == []
        seen, _ = run(follow(spark, target, onDataLoss="skip"), checkpoint)
        assert sorted(seen) == ["b0", "b1", "b2"], "each of them once, none as the old batch"
    finally:
        server.stop()


def test_our_own_server_without_its_own_commands(
    spark: SparkSession, unextended: HeadraceServer, checkpoint: str
) -> None:
    source, target = made(unextended, "bare-in"), made(unextended, "bare-out")
    assert not connect(target).publishes_windows()
    write(numbered(spark, 300), source)
    stream = follow(spark, source, maxMessagesPerTrigger=100, consumerGroup="g")
    query = (
        stream.select("key", "payload")
        .writeStream.format("headrace")
        .option("address", target.address)
        .option("topic", "s/bare-out")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(200)
    rows = reader(spark, target, columns="payload", payloadFormat="string").load().collect()
    assert sorted(row.payload for row in rows) == sorted(f"payload-{i}" for i in range(300))
    state, access = describe(source)
    assert state.cluster == ""
    assert not access.ticket
    ((_, _, first), _) = state.partitions()
    assert group_offset(source, "g") == first.end - 1
