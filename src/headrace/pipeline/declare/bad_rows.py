"""Rows that do not belong in the stream: payloads that do not fit, rows that break a condition,
rows that a function failed on.

One place decides what becomes of them; `stages.py` asks it for every topic and every output. What
is set aside becomes a *dead letter*: the message as it was (payload, key and headers), with headers
that say why it is there and where it stood:

    headrace.reason, headrace.operator
    headrace.stream, headrace.topic, headrace.partition, headrace.offset

A row of an operator is led back to its message by a column RECORD, which only the frames that dead
letters are made of have (`stages.py` builds them beside the others). An operator that keeps no
columns, an aggregation for example, loses it; then the row itself, as JSON, is the payload, and the
place is left out. Dead letters are published by a query of their own, so exactly once, as any
result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.pipeline.container.query_positions import LETTERS
from headrace.pipeline.declare.declarations import OUTPUT_PORT, Stage, TopicInput
from headrace.pipeline.declare.graph import ApplicationGraph
from headrace.pipeline.declare.inputs import (
    CORRUPT,
    MESSAGE_TYPES,
    PayloadDecoder,
    decode_batches,
    row_schema,
)
from headrace.pipeline.declare.per_row import FAILED
from headrace.pipeline.declare.queries import Query
from headrace.pipeline.plan.logical import SUFFIX
from headrace.spark.formats.typed import REASON, Rejects
from headrace.transfer.dead_letters import PREFIX

Split = tuple[DataFrame, list[Query]]
"""The rows that go on, and the queries that publish the others."""

RECORD = "_record_"  # and the port: a column that holds the message a row came from
RECORD_COLUMNS = ("stream", "topic", "partition", "offset", "key", "headers", "payload")
STOPS = "headrace: the pipeline is told to stop: "  # begins an error that is meant
BAD_ROWS = "bad_rows"
_BAD = "_bad"
_OWN_BYTES_MAX = 255  # of a header's value
_HEADERS_BYTES_MAX = 64 << 10  # of the message's own; larger ones are left out


def dead_letter_topic(app: ApplicationGraph, stream: str, operator: str) -> str:
    """Of a topic's own payloads beside it, of an operator in `stream`."""
    name = app.topics[operator].topic if operator in app.topics else f"{stream}/{operator}"
    return f"{name}{SUFFIX}{app.letters_suffix}"


def split_payloads(
    topic: TopicInput, rows: DataFrame, raw: Callable[[], DataFrame], *, letters: str
) -> Split:
    """`rows` as the source decoded them, with a payload that does not fit in CORRUPT; `raw` reads
    the messages as they are. `letters` is the topic of the dead ones, here and below."""
    bad = F.col(CORRUPT).isNotNull()
    if topic.on_bad_row == "fail":
        text = F.lit(f"{STOPS}a payload of {topic.topic} does not fit its schema")
        bad = F.when(bad, F.raise_error(text)).otherwise(bad)
    observed = rows.observe(
        f"{topic.name}.{OUTPUT_PORT}",
        F.count(F.lit(1)).alias("rows"),
        F.count_if(F.col(CORRUPT).isNotNull()).alias(BAD_ROWS),
    )
    good = observed.filter(~bad).drop(CORRUPT)
    if topic.on_bad_row != "dead_letter":
        return good, []
    messages = raw().select(*RECORD_COLUMNS)
    fields = StructType.fromDDL(topic.schema or "")
    kept = StructType([*messages.schema.fields]).add(REASON, "string")
    rejects = messages.mapInArrow(Rejects(to_arrow_schema(fields, timezone="UTC")), kept)
    record = F.struct(*RECORD_COLUMNS)
    rejected = Query(
        name=f"{topic.name}{LETTERS}",
        frame=make_letters(rejects, operator=topic.name, reason=F.col(REASON), record=record),
        mode="append",
        topic=letters,
        operators=(topic.name,),
        letters=True,
    )
    return good, [rejected]


def split_expected(
    stage: Stage,
    port: str,
    frame: DataFrame,
    *,
    traced: Callable[[], DataFrame | None],
    letters: str,
    operators: tuple[str, ...],
) -> Split:
    """Rows that meet every condition of `stage`.

    `traced` makes the same rows with the messages they came from, None where that cannot be.
    """
    if not stage.expect and FAILED not in frame.columns:
        return frame, []
    dead = "dead_letter" in stage.expect.values() or FAILED in frame.columns
    marked = frame.withColumn(_BAD, _first_fault(stage, frame))
    marked = marked.observe(
        f"{stage.name}.{port}.bad", F.count_if(F.col(_BAD).isNotNull()).alias(BAD_ROWS)
    )
    # A condition that is set to stop the pipeline does so when a row breaks it.
    stop = F.raise_error(F.concat(F.lit(f"{STOPS}{stage.name} "), F.col(f"{_BAD}.reason")))
    stopping = F.col(f"{_BAD}.action") == "fail"
    good = marked.filter(F.when(stopping, stop).otherwise(F.col(_BAD).isNull()))
    good = good.drop(_BAD, FAILED)
    if not dead:
        return good, []
    rows = traced()
    rows = frame if rows is None else rows
    rejected = rows.withColumn(_BAD, _first_fault(stage, rows)).filter(
        F.col(f"{_BAD}.action") == "dead_letter"
    )
    suffix = "" if port == OUTPUT_PORT else f"_{port}"
    query = Query(
        name=f"{stage.name}{suffix}{LETTERS}",
        frame=make_letters(
            rejected,
            operator=stage.name,
            reason=F.col(f"{_BAD}.reason"),
            record=record_of(rejected),
        ),
        mode=stage.output_mode or "append",
        topic=letters,
        operators=operators,
        letters=True,
    )
    return good, [query]


def _first_fault(stage: Stage, frame: DataFrame) -> Column:
    """What is wrong with a row first, (action, reason); null for a good one."""
    faults = [
        # A condition that is NULL did not hold: a missing quantity is not a positive one.
        F.when(
            ~F.coalesce(F.expr(condition), F.lit(False)),
            F.struct(F.lit(action).alias("action"), F.lit(f"expects {condition}").alias("reason")),
        )
        for condition, action in stage.expect.items()
    ]
    if FAILED in frame.columns:
        failed = F.struct(
            F.col(f"{FAILED}.action").alias("action"), F.col(f"{FAILED}.reason").alias("reason")
        )
        faults.insert(0, F.when(F.col(FAILED).isNotNull(), failed))
    return F.coalesce(*faults)


# --- dead letters ---------------------------------------------------------------------------------


def record_of(frame: DataFrame) -> Column | None:
    """The message that a row came from, where the frame still knows it."""
    names = [name for name in frame.columns if name.startswith(RECORD)]
    return F.coalesce(*(F.col(f"`{name}`") for name in names)) if names else None


def make_letters(
    frame: DataFrame,
    *,
    operator: str,
    reason: Column,
    record: Column | None,
    more: Mapping[str, str] | None = None,
) -> DataFrame:
    """Messages for a dead-letter topic; `more` are headers that all of them get."""
    own: dict[str, Column] = {
        "reason": F.coalesce(F.nullif(reason, F.lit("")), F.lit("unknown")),
        "operator": F.lit(operator),
        **{name: F.lit(value) for name, value in (more or {}).items()},
    }
    if record is None:
        hidden = (_BAD, FAILED)
        row = F.to_json(F.struct(*(name for name in frame.columns if name not in hidden)))
        if FAILED in frame.columns:
            row = F.coalesce(F.col(f"{FAILED}.row"), row)
        return frame.select(row.cast("binary").alias("payload"), _headers(own).alias("headers"))
    places = {name: record.getField(name).cast("string") for name in RECORD_COLUMNS[:4]}
    return frame.select(
        record.getField("payload").alias("payload"),
        record.getField("key").alias("key"),
        F.map_concat(_kept(record.getField("headers")), _headers(own | places)).alias("headers"),
    )


def _headers(values: Mapping[str, Column]) -> Column:
    return F.map_from_arrays(
        F.array(*(F.lit(f"{PREFIX}{name}") for name in values)),
        F.array(
            *(
                F.substring(F.coalesce(value, F.lit("unknown")).cast("binary"), 1, _OWN_BYTES_MAX)
                for value in values.values()
            )
        ),
    )


def _kept(headers: Column) -> Column:
    """The message's own, without what an earlier dead letter added. Headers have a size limit:
    what is ours goes first, and the place leads to the original."""
    empty = F.map_from_arrays(F.array().cast("array<string>"), F.array().cast("array<binary>"))
    size = F.aggregate(
        F.map_entries(headers),
        F.lit(0),
        lambda total, one: total + F.length(one["key"]) + F.length(one["value"]) + 10,
    )
    own = F.map_filter(headers, lambda name, _: ~name.startswith(PREFIX))
    return F.coalesce(F.when(size <= _HEADERS_BYTES_MAX, own), empty)


# --- messages as rows -----------------------------------------------------------------------------


def decode_messages(
    raw: DataFrame, topic: TopicInput, columns: tuple[str, ...], carried: tuple[str, ...] = ()
) -> DataFrame:
    """Messages as rows of their topic, as the connector decodes them; `carried` columns stay."""
    if topic.schema is None:
        return raw.select(*columns, *carried)
    decoded = StructType.fromDDL(row_schema(topic, columns))
    fields = StructType([each for each in decoded if each.name not in columns])
    schema = StructType(
        [
            *(raw.schema[name] for name in (*columns, *carried)),
            *fields,
        ]
    )
    decoder = PayloadDecoder(to_arrow_schema(fields, timezone="UTC"), (*columns, *carried))
    given = raw.select(*columns, *carried, F.col("payload").alias(CORRUPT))
    return given.mapInArrow(partial(decode_batches, decoder), schema)


def trace(raw: DataFrame, topic: TopicInput, columns: tuple[str, ...]) -> DataFrame:
    """The good rows of a topic, each with its message in a column RECORD."""
    name = f"{RECORD}{topic.name}"
    messages = raw.select(*MESSAGE_TYPES, F.struct(*RECORD_COLUMNS).alias(name))
    rows = decode_messages(messages, topic, columns, (name,))
    if topic.schema is None:
        return rows
    return rows.filter(F.col(CORRUPT).isNull()).drop(CORRUPT)
