"""The streaming queries of an application, and what Spark's analysed plan says about them.

A `Query` is what the builder hands to whoever starts it. The functions tell which state a query
needs and in which modes it can run, before anything is started.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import ConfigError
from headrace.pipeline.failures import sentence
from headrace.pipeline.plan.spark_conf import PROVIDER, store_of

if TYPE_CHECKING:
    from headrace.pipeline.declare.declarations import Stage
    from headrace.pipeline.declare.graph import PropertyValues

    Tail = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class Query:
    """One streaming query: a terminal stage with all that feeds it."""

    name: str
    frame: DataFrame
    mode: str
    topic: str | None = None  # where the rows go, or
    key: str | None = None
    stage: Stage | None = None  # the sink function they are given to, with its
    values: PropertyValues | None = None  # of all properties, as they are at the moment
    operators: tuple[str, ...] = ()  # fused in it, upstream first
    tail: Tail | None = None
    """The operators that are called for every batch, because a property of theirs is live."""
    letters: bool = False  # it publishes dead letters
    stateful: str = ""  # the operator that Spark keeps state for, and that drops late rows

    def finish(self, batch: DataFrame) -> DataFrame:
        """The rows that leave, out of a batch of `frame`."""
        return batch if self.tail is None else self.tail(batch)


AGGREGATE = "Aggregate"
_STATEFUL = frozenset(
    {
        AGGREGATE,
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsWithState",
        "FlatMapGroupsInPandasWithState",
        "TransformWithState",
        "TransformWithStateInPySpark",
        "GlobalLimit",
        "LocalLimit",
    }
)
WATERMARK = "EventTimeWatermark"
JOIN = "Join"


def streaming_nodes(frame: DataFrame) -> Counter[str]:
    """Nodes of the plan that work on a stream, by name; a join counts if both its sides do."""
    plan: Any = frame._jdf.queryExecution().analyzed()
    return Counter(_walk(plan))


def _walk(node: Any) -> Iterator[str]:
    if not node.isStreaming():
        return  # a static table below a join holds no state
    children = node.children()
    below = [children.apply(index) for index in range(children.size())]
    name = str(node.nodeName())
    if name != JOIN or all(child.isStreaming() for child in below):
        yield name
    for child in below:
        yield from _walk(child)


def is_stateful(nodes: Counter[str]) -> bool:
    return any(name in _STATEFUL or name == JOIN for name in nodes)


def stateful_parts(nodes: Counter[str]) -> Counter[str]:
    """What a batch of its own cannot do as the stream would, a watermark among it."""
    kept = _STATEFUL | {JOIN, WATERMARK}
    return Counter({name: count for name, count in nodes.items() if name in kept})


def store_settings(frame: DataFrame) -> dict[str, str]:
    """Settings that a query needs beside its session's: a store that can do what it keeps."""
    stated = frame.sparkSession.conf.get(PROVIDER, None)
    needed = store_of(streaming_nodes(frame), stated)
    return {} if needed == stated else {PROVIDER: needed}


def plan_query(query: Query) -> None:
    """Let Spark plan a micro-batch of it, as far as that goes without running one. ConfigError with
    what Spark says."""
    from headrace.spark.session.queries import settings

    spark = query.frame.sparkSession
    jvm: Any = spark.sparkContext._jvm
    mode = jvm.org.apache.spark.sql.execution.ExplainMode.fromString("simple")
    try:
        with settings(spark, store_settings(query.frame)):
            text = str(query.frame._jdf.queryExecution().explainString(mode))
    except (PySparkException, Py4JJavaError) as error:
        raise ConfigError(f"{query.name} cannot be planned: {sentence(str(error))}") from error
    # Where a plan was to stand, Spark writes why there is none.
    if found := re.search(r"^(?:[\w.]+\.)?\w*AnalysisException: (.*)", text, re.MULTILINE):
        raise ConfigError(f"{query.name} cannot be planned: {found.group(1)}")


def check_query(query: Query, spark: SparkSession) -> None:
    """What Spark would refuse at start, refused before anything has started."""
    jvm: Any = spark.sparkContext._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    mode = getattr(modes, query.mode.capitalize())()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(query.frame._jdf.queryExecution().analyzed(), mode)
    except AnalysisException as error:
        raise ConfigError(f"{query.name} cannot run: {_remedy(query, error)}") from error


def check_stated_mode(name: str, mode: str | None, nodes: Counter[str]) -> None:
    """An aggregation means three different things in the three modes: nobody should guess."""
    if mode is None and AGGREGATE in nodes:
        raise ConfigError(
            f'{name} aggregates: state output_mode="append" (each group once, when the '
            'watermark has passed it), "update" (a group whenever it changes) or "complete" '
            "(all groups, every time)"
        )


def _remedy(query: Query, error: AnalysisException) -> str:
    text = str(error).split("\n", 1)[0]
    if query.mode == "append" and "watermark" in text.lower():
        return (
            "it aggregates in append mode without a watermark, so Spark never knows when a group "
            'is complete. Add .withWatermark("<event time column>", "2 minutes") before the '
            'aggregation, or declare output_mode="update" to publish every change'
        )
    if query.mode == "complete":
        return f'{text}. output_mode="complete" needs an aggregation; use "append"'
    return text
