"""Rows that do not belong in the stream: payloads that do not fit, rows that break a condition.

One place decides what becomes of them; `stages.py` asks it for every topic and every output.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.pipeline.declarations import OUTPUT_PORT, Stage, TopicInput
from headrace.pipeline.queries import Query
from headrace.pipeline.topics import CORRUPT

Split = tuple[DataFrame, list[Query]]
"""The rows that go on, and the queries that publish the others."""


def split_payloads(topic: TopicInput, rows: DataFrame) -> Split:
    """`rows` as the source decoded them, with a payload that does not fit in CORRUPT."""
    bad = F.col(CORRUPT).isNotNull()
    if topic.on_bad_row == "fail":
        text = F.concat(F.lit(f"bad row in {topic.topic}: "), F.col(CORRUPT).cast("string"))
        bad = F.when(bad, F.raise_error(text)).otherwise(bad)
    observed = rows.observe(
        f"{topic.name}.{OUTPUT_PORT}",
        F.count(F.lit(1)).alias("rows"),
        F.count_if(F.col(CORRUPT).isNotNull()).alias("bad_rows"),
    )
    good = observed.filter(~bad).drop(CORRUPT)
    if topic.on_bad_row != "dead_letter":
        return good, []
    rejected = Query(
        name=f"{topic.name}_dead_letter",
        frame=rows.filter(bad).select(F.col(CORRUPT).alias("payload")),
        mode="append",
        topic=f"{topic.topic}.dead_letter",
        operators=(topic.name,),
    )
    return good, [rejected]


def split_expected(
    stage: Stage, port: str, frame: DataFrame, *, stream: str, operators: tuple[str, ...]
) -> Split:
    """Rows that meet every condition of `stage`; `stream` is where its dead letters go."""
    rejected: list[Query] = []
    for condition, action in stage.expect.items():
        # A condition that is NULL did not hold: a missing quantity is not a positive one.
        holds = F.coalesce(F.expr(condition), F.lit(False))
        if action == "fail":
            message = F.lit(f"{stage.name} expects {condition}")
            frame = frame.filter(F.when(holds, F.lit(True)).otherwise(F.raise_error(message)))
            continue
        if action == "dead_letter":
            number = f"_{len(rejected) + 1}" if rejected else ""
            suffix = "" if port == OUTPUT_PORT else f"_{port}"
            rejected.append(
                Query(
                    name=f"{stage.name}{suffix}_dead_letter{number}",
                    frame=frame.filter(~holds),
                    mode="append",
                    topic=f"{stream}/{stage.name}.dead_letter",
                    operators=operators,
                )
            )
        frame = frame.filter(holds)
    return frame, rejected
