"""What a query writes into Headrace is there once, whatever Spark runs again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.errors import ConfigError
from headrace.spark.options import Target, parse_sink
from headrace.spark.server import Window, connect
from headrace.spark.sink.publish import publish
from tests.spark.headrace_server import HeadraceServer
from tests.spark.plain_server import PlainServer
from tests.spark.test_topics import follow, made, numbered, reader, write

ROWS = 200


def stored(spark: SparkSession, target: Target) -> Counter[str]:
    rows = reader(spark, target, columns="payload", payloadFormat="string").load().collect()
    return Counter(row.payload for row in rows)


def copy(frame: DataFrame, target: Target, checkpoint: str, **options: str) -> None:
    """Run a stream into a topic until it caught up."""
    writer = frame.writeStream.format("headrace").options(
        address=target.address, stream=target.stream, topic=target.topic, **options
    )
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert query.exception() is None


def fails_once(folder: Path, *, after: int) -> object:
    """A function over rows whose first attempt in every task writes some rows and then dies."""
    marks = str(folder)

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        mark = Path(marks, f"{context.stageId()}-{context.partitionId()}")
        for batch in batches:
            yield batch.slice(0, after)
            if not mark.exists():
                mark.touch()
                raise RuntimeError("the first attempt of this task dies half-way")
            yield batch.slice(after)

    return pass_on


@pytest.fixture
def source(spark: SparkSession, headrace: HeadraceServer, request: pytest.FixtureRequest) -> Target:
    target = made(headrace, f"{request.node.name}-in")
    write(numbered(spark, ROWS), target)
    return target


def test_tasks_that_are_run_again_leave_no_trace(
    spark: SparkSession, headrace: HeadraceServer, source: Target, checkpoint: str, tmp_path: Path
) -> None:
    target = made(headrace, "retried")
    frame = follow(spark, source, columns="payload,key").mapInArrow(
        fails_once(tmp_path, after=10), "key binary, payload binary"
    )
    copy(frame, target, checkpoint)
    assert list(tmp_path.glob("*-*")), "attempts did fail"
    assert stored(spark, target) == Counter(f"payload-{n}" for n in range(ROWS))


def test_a_batch_that_is_run_again_after_its_commit_was_lost_is_not_written_again(
    spark: SparkSession, headrace: HeadraceServer, source: Target, checkpoint: str
) -> None:
    target = made(headrace, "lost-commit")
    options = {"columns": "payload,key", "maxMessagesPerTrigger": 40}
    copy(follow(spark, source, **options), target, checkpoint)
    commits = sorted(Path(checkpoint, "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(commits) >= 5
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)  # as a driver that dies between close and commit leaves it
    write(numbered(spark, 50, start=ROWS), source)
    copy(follow(spark, source, **options), target, checkpoint)
    assert stored(spark, target) == Counter(f"payload-{n}" for n in range(ROWS + 50))


def test_a_batch_job_writes_all_or_nothing(
    spark: SparkSession, headrace: HeadraceServer, tmp_path: Path
) -> None:
    target = made(headrace, "job")

    def dies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            context = TaskContext.get()
            assert context is not None
            if context.partitionId() == 1:
                raise RuntimeError("one task never succeeds")

    rows = numbered(spark, ROWS)
    with pytest.raises(PySparkException):
        write(rows.mapInArrow(dies, rows.schema), target)
    assert stored(spark, target) == Counter()
    write(rows.mapInArrow(fails_once(tmp_path, after=3), rows.schema), target)
    assert stored(spark, target) == Counter(f"payload-{n}" for n in range(ROWS))


def test_a_window_is_published_by_the_first_that_closes_it(
    spark: SparkSession, headrace: HeadraceServer
) -> None:
    target = made(headrace, "foreach")
    sink = parse_sink({"address": target.address, "topic": f"{target.stream}/{target.topic}"})
    for run, start in (("first", 0), ("again", 1000)):
        frame = numbered(spark, ROWS, start=start).select("payload")
        assert publish(frame, sink, Window("query", run, 0)) == ROWS
    assert stored(spark, target) == Counter(f"payload-{n}" for n in range(ROWS))
    later = spark.range(1).select(F.lit("later").alias("payload"))
    assert publish(later, sink, Window("query", "again", 1)) == 1
    assert stored(spark, target)["later"] == 1


def test_rows_are_published_as_json_whatever_their_columns_are_called(
    spark: SparkSession, headrace: HeadraceServer
) -> None:
    target = made(headrace, "rows")
    sink = parse_sink({"address": target.address, "topic": f"{target.stream}/{target.topic}"})
    rows = spark.sql(
        "select 7L as key, 'x' as `partition`, timestamp '2026-01-02 03:04:05.000006Z' as at, "
        "cast(null as string) as headers, named_struct('a.b', array(1, null)) as `in.ner`"
    )
    assert publish(rows, sink, Window("rows", "run", 0), "key") == 1
    binary = rows.select("at", F.unhex(F.lit("ff00")).alias("in.key"))
    assert publish(binary, sink, Window("rows", "run", 1), "in.key") == 1
    twice = rows.select("at", "at")
    assert publish(twice, sink, Window("rows", "run", 2)) == 1
    both = rows.select(F.lit("plain").alias("payload"), F.lit(b"k").alias("key"))
    assert publish(both, sink, Window("rows", "run", 3)) == 1
    assert publish(both.withColumn("n", F.lit(5)), sink, Window("rows", "run", 4), "n") == 1
    found = reader(spark, target, columns="offset,key,payload").load().collect()
    at = '"at":"2026-01-02T03:04:05.000006Z"'
    whole = f'{{"key":7,"partition":"x",{at},"headers":null,"in.ner":{{"a.b":[1,null]}}}}'
    assert Counter((row.key and bytes(row.key), bytes(row.payload).decode()) for row in found) == {
        (b"7", whole): 1,
        (b"\xff\0", f'{{{at},"in.key":"/wA="}}'): 1,
        (None, f"{{{at},{at}}}"): 1,
        (b"k", "plain"): 1,
        (b"5", "plain"): 1,
    }
    with pytest.raises(ConfigError, match="columns n stand beside payload"):
        publish(both.withColumn("n", F.lit(5)), sink, Window("rows", "run", 5))


def test_exactly_once_is_refused_where_it_cannot_be(
    spark: SparkSession, plain: PlainServer, headrace: HeadraceServer
) -> None:
    target = made(plain, "cannot")
    rows = numbered(spark, 10)
    writer = rows.write.format("headrace").mode("append").option("address", target.address)
    writer = writer.option("topic", "s/cannot")
    with pytest.raises(PySparkException, match="plain Iggy server"):
        writer.option("delivery", "exactly-once").save()
    writer.option("delivery", "at-least-once").save()
    assert stored(spark, target) == Counter(f"payload-{n}" for n in range(10))
    assert not connect(target).publishes_windows()
    assert connect(made(headrace, "can")).publishes_windows()
