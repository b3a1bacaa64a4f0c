"""What becomes of a micro-batch that failed: its bad records are set aside, the rest goes on.

The batch's ranges stand in Spark's offset log. Parts of them are read as tables and sent through
the same operators until the records stand alone (`bad_records.py`); the first operator that fails
on a record is the one to name. The policy of the record's topic says whether it is dropped, becomes
a dead letter or stops the query. What the rest of the batch gives is delivered under the batch's
own window, so nothing is delivered twice. This is for queries that keep no state: the result of a
part is then a part of the result.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from headrace.errors import CorruptionError, HeadraceError, InvalidArgumentError, NotFoundError
from headrace.ids import WindowId
from headrace.pipeline.container.bad_records import (
    BadRecord,
    OffsetRange,
    Ranges,
    TooManyBadRecordsError,
    batch_ranges,
    find_bad_records,
)
from headrace.pipeline.declare.bad_rows import (
    RECORD_COLUMNS,
    STOPS,
    dead_letter_topic,
    decode_messages,
    make_letters,
)
from headrace.pipeline.declare.declarations import TopicInput
from headrace.pipeline.declare.inputs import MESSAGE_TYPES
from headrace.pipeline.declare.queries import is_stateful, streaming_nodes
from headrace.pipeline.declare.stages import Builder
from headrace.spark.options import parse_sink
from headrace.spark.server import connect
from headrace.spark.source.batch_plan import Offsets
from headrace.spark.source.positions import AtOffsets, Topics, parse_position, resolve
from headrace.wire.umbilical.windows import format_window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from headrace.client.partition_reader import SourceState
    from headrace.pipeline.declare.application import Application
    from headrace.pipeline.declare.graph import PropertyValues
    from headrace.pipeline.declare.queries import Query
    from headrace.runtime.interfaces import Disk
    from headrace.spark.options import SinkOptions

    Publish = Callable[[DataFrame, SinkOptions], int]
    """Publishes dead letters as the batch's window, once."""
    OnFound = Callable[["FoundRecord", str], None]

REASON_CHARACTERS_MAX = 200
_OURS = "headrace.errors."  # a broker that cannot be reached is no record's fault
_RAISED = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w*(?:Error|Exception|Warning|Exit)\b.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record, the operator that fails on it, and what is to become of it."""

    record: BadRecord
    operator: str
    action: str

    def describe(self, window: str) -> str:
        return (
            f"{self.operator} failed on {self.record} in window {window}: {self.record.reason} "
            f"({self.action})"
        )


@dataclass(frozen=True, slots=True)
class IsolatedRecords:
    """The bad records of a batch, and what is left of the batch without them."""

    found: tuple[FoundRecord, ...]
    frame: DataFrame  # what the rest of the batch gives
    letters: Mapping[str, DataFrame]  # dead letters by operator


class Isolator:
    """Finds the records of one query's batches that fail. Runs in the thread of the batch."""

    def __init__(
        self,
        app: Application,
        spark: SparkSession,
        query: Query,
        *,
        address: str,
        disk: Disk,
        checkpoint: str,
    ) -> None:
        self._app, self._spark, self._query = app, spark, query
        self._address, self._disk, self._checkpoint = address, disk, checkpoint
        self._values: PropertyValues | None = query.values
        names = set(query.operators)
        self._topics = {one.topic: one for one in app.topics.values() if one.name in names}

    def isolate(self, error: Exception, batch_id: int, window: str) -> IsolatedRecords | None:
        """None when no record is to blame: then the error stands."""
        if not isinstance(error, PySparkException | Py4JJavaError) or _OURS in str(error):
            return None
        try:
            ranges = self._ranges(batch_id)
            records = find_bad_records(ranges, lambda part: self._fails(part, ranges))
        except (TooManyBadRecordsError, HeadraceError):
            return None
        if not records:
            return None
        found = tuple(self._judge(record, ranges) for record in records)
        dead = [one for one in found if one.action == "dead_letter"]
        operators = sorted({one.operator for one in dead})
        return IsolatedRecords(
            found,
            self._frame(ranges, ranges, skipped=records),
            {
                name: self._letters([one for one in dead if one.operator == name], ranges, window)
                for name in operators
            },
        )

    def letter_sink(self, operator: str) -> SinkOptions:
        """The operator's dead-letter topic; it is made when there is something to put into it."""
        stream = next(iter(self._topics)).split("/")[0]
        topic = dead_letter_topic(self._app, stream, operator)
        sink = parse_sink({"address": self._address, "topic": topic})
        connect(sink.target).create_topic(sink.target)
        return sink

    # the batch

    def _ranges(self, batch_id: int) -> Ranges:
        states = [self._state(topic) for topic in self._topics.values()]
        names = {topic.uid: topic.name for state in states for topic in state.topics}
        after = self._offsets(batch_id)
        if batch_id > 0:
            before = self._offsets(batch_id - 1)
        else:
            before = [self._initial(topic) for topic in self._topics.values()]
            if len(before) != len(after):
                raise CorruptionError("a topic is read twice")
            if len(before) > 1:  # the order of sources is Spark's; where each began is the same
                merged = {key: at for each in before for key, at in each.positions.items()}
                before = [replace(before[0], positions=merged)] * len(after)
        return batch_ranges(before, after, names)

    def _offsets(self, batch_id: int) -> list[Offsets]:
        """From Spark's offset log: a version line, a JSON line, an offset line per source."""
        path = f"{self._checkpoint}/offsets/{batch_id}"
        try:
            lines = self._disk.read(path).decode().split("\n")[2:]
            return [Offsets.from_json(json.loads(line)) for line in lines if line.strip()]
        except (NotFoundError, ValueError, AttributeError) as error:
            raise CorruptionError(f"{path} holds no offsets") from error

    def _initial(self, topic: TopicInput) -> Offsets:
        """Where the query began. "latest" and times are not written down anywhere."""
        position = parse_position("starting", topic.starting, Topics((topic.topic.split("/")[1],)))
        if position != "earliest" and not isinstance(position, AtOffsets):
            raise CorruptionError("nobody knows where the first batch began")
        return resolve(self._state(topic), position)

    def _state(self, topic: TopicInput) -> SourceState:
        target = parse_sink({"address": self._address, "topic": topic.topic}).target
        server = connect(target)
        state, _ = server.run(
            server.remote.reading.describe(target, Topics((target.topic,)), sizes=False)
        )
        return state

    # parts of it

    def _fails(self, part: Ranges, whole: Ranges) -> str | None:
        return _failure(lambda: self._frame(part, whole))

    def _frame(
        self, part: Ranges, whole: Ranges, *, skipped: Sequence[BadRecord] = ()
    ) -> DataFrame:
        stage = self._app.stages[self._query.operators[-1]]
        feed = next(iter(stage.ports.values())) if stage.sink else stage.name
        return self._builder(part, whole, skipped).frames[feed]

    def _builder(self, part: Ranges, whole: Ranges, skipped: Sequence[BadRecord] = ()) -> Builder:
        def read_topic(topic: TopicInput, columns: tuple[str, ...]) -> DataFrame:
            messages = self._read(topic.topic, part, whole)
            for each in skipped:
                messages = messages.filter(~_is(each))
            return decode_messages(messages, topic, columns)

        builder = Builder(self._app, self._spark, read_topic, self._values)
        builder.build([self._query.operators[-1]])
        return builder

    def _read(self, topic: str, part: Ranges, whole: Ranges) -> DataFrame:
        """Messages of a topic in these ranges, as they are; of other partitions none."""
        starts = {str(each.partition): each.end for each in whole if each.topic == topic}
        ends = dict(starts)
        for each in part:
            if each.topic == topic:
                starts[str(each.partition)] = each.start
                ends[str(each.partition)] = each.end
        return (
            self._spark.read.format("headrace")
            .option("address", self._address)
            .option("topic", topic)
            .option("startingOffsets", json.dumps(starts))
            .option("endingOffsets", json.dumps(ends))
            .load()
            .select(*MESSAGE_TYPES)
        )

    # what was found

    def _judge(self, record: BadRecord, whole: Ranges) -> FoundRecord:
        alone = (OffsetRange(record.topic, record.partition, record.offset, record.offset + 1),)
        action = self._topics[record.topic].on_bad_row
        if STOPS in record.reason:
            action = "fail"
            record = replace(record, reason=record.reason.partition(STOPS)[2])
        frames = self._builder(alone, whole).frames
        for name in self._query.operators:
            feeds = [feed for feed in frames if feed.partition(".")[0] == name]
            if any(_failure(lambda feed=feed: frames[feed]) for feed in feeds):  # type: ignore[misc]  # mypy cannot infer a lambda's default
                return FoundRecord(record, name, action)
        return FoundRecord(record, self._query.operators[-1], action)

    def _letters(self, found: Sequence[FoundRecord], whole: Ranges, window: str) -> DataFrame:
        topics = sorted({one.record.topic for one in found})
        records = [one.record for one in found]
        messages = [
            self._read(
                topic,
                tuple(
                    OffsetRange(topic, each, min(offsets), max(offsets) + 1)
                    for each, offsets in _by_partition(records, topic).items()
                ),
                whole,
            )
            for topic in topics
        ]
        rows = reduce(lambda one, other: one.unionByName(other), messages)
        reason = F.coalesce(*(F.when(_is(each), F.lit(each.reason)) for each in records))
        rejected = rows.withColumn("_reason", reason).filter(F.col("_reason").isNotNull())
        return make_letters(
            rejected,
            operator=found[0].operator,
            reason=F.col("_reason"),
            record=F.struct(*RECORD_COLUMNS),
            more={"window": window},
        )


def _by_partition(records: Sequence[BadRecord], topic: str) -> dict[int, list[int]]:
    offsets: dict[int, list[int]] = {}
    for each in records:
        if each.topic == topic:
            offsets.setdefault(each.partition, []).append(each.offset)
    return offsets


def _is(record: BadRecord) -> Column:
    stream, topic = record.topic.split("/")
    return (
        (F.col("stream") == stream)
        & (F.col("topic") == topic)
        & (F.col("partition") == record.partition)
        & (F.col("offset") == record.offset)
    )


def _failure(make: Callable[[], DataFrame]) -> str | None:
    """Why a frame cannot be computed; None when it can."""
    try:
        make().write.format("noop").mode("overwrite").save()
    except (PySparkException, Py4JJavaError) as error:
        if _OURS in str(error):
            raise CorruptionError("the broker failed while a batch was searched") from error
        return reason_of(str(error))
    return None


def reason_of(text: str) -> str:
    """One line out of what Spark says: what a worker raised last, else how it begins."""
    stopped = text.find(STOPS)
    if stopped >= 0:
        line = text[stopped:].split("\n", 1)[0].partition(" SQLSTATE")[0]
    else:
        raised = _RAISED.findall(text)
        line = raised[-1] if raised else next(iter(text.strip().splitlines()), "unknown")
    return line.strip()[:REASON_CHARACTERS_MAX]


BATCHES_REMEMBERED = 1024


class BadBatches:
    """The batches of one query that failed. Called in the thread of its batches."""

    def __init__(self, isolator: Isolator, on_found: OnFound) -> None:
        self._isolator = isolator
        self._on_found = on_found
        self._bad_rows: dict[int, Counter[str]] = {}

    def rest(
        self, error: Exception, window: WindowId, batch_id: int, publish: Publish
    ) -> DataFrame | None:
        """What the batch gives without its bad records; None when none is to blame.

        InvalidArgumentError names the record when it is to stop the query.
        """
        name = format_window(window)
        isolated = self._isolator.isolate(error, batch_id, name)
        if isolated is None:
            return None
        for found in isolated.found:
            self._on_found(found, name)
        stopping = [found for found in isolated.found if found.action == "fail"]
        if stopping:
            raise InvalidArgumentError(stopping[0].describe(name)) from error
        self._bad_rows[batch_id] = Counter(found.operator for found in isolated.found)
        self._bad_rows.pop(batch_id - BATCHES_REMEMBERED, None)
        for operator, letters in isolated.letters.items():
            # Before the rest: a batch that is cut off in between is searched again, and its dead
            # letters are there already.
            publish(letters, self._isolator.letter_sink(operator))
        return isolated.frame

    def take_bad_rows(self, batch_id: int) -> Mapping[str, int]:
        """Records of a batch that were set aside, by operator."""
        return self._bad_rows.pop(batch_id, Counter())


def make_bad_batches(
    app: Application,
    spark: SparkSession,
    query: Query,
    *,
    address: str,
    disk: Disk,
    checkpoint: str,
    on_found: OnFound,
) -> BadBatches | None:
    """None for a query whose batches cannot be taken apart: one that keeps state, or reads more
    than topics."""
    if query.letters or query.name not in app.stages or is_stateful(streaming_nodes(query.frame)):
        return None
    feeds = [
        feed.partition(".")[0]
        for name in query.operators
        for feed in (app.stages[name].ports.values() if name in app.stages else ())
    ]
    if not set(feeds) <= set(query.operators):
        return None  # some of its rows come from other containers
    isolator = Isolator(app, spark, query, address=address, disk=disk, checkpoint=checkpoint)
    return BadBatches(isolator, on_found)
