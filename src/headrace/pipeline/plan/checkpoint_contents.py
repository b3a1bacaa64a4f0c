"""What checkpoints of an application's queries hold.

`python -m headrace.pipeline.plan.checkpoint_contents FILE` prints it.

Spark alone knows which state a query keeps, so this builds every query against empty streams, with
nothing started. Each version is described in a process of its own, because it runs that version's
code. The result, {query: {"sources": [...], "state": [...]}}, is what `versions.compare` compares.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from headrace.pipeline.plan.loading import load_application, write_answer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.pipeline.declare.application import Application
    from headrace.pipeline.declare.declarations import TopicInput

# Operations that keep rows from one micro-batch to the next, as Catalyst names them. A join does so
# when both its sides are streams, an aggregation and a limit when their input is one.
_ALWAYS = (
    "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState",
    "TransformWithState",
    "TransformWithStateInPySpark",
    "TransformWithStateInPandas",
)
NOWHERE = "127.0.0.1:1"  # a stream that is never started connects to nobody
_OF_A_STREAM = ("Deduplicate", "DeduplicateWithinWatermark", "GlobalLimit", "Distinct")


def checkpoint_contents(app: Application, spark: SparkSession) -> dict[str, dict[str, list[str]]]:
    from headrace.pipeline.declare.inputs import read_stream
    from headrace.pipeline.declare.stages import build_queries

    def read_topic(topic: TopicInput, columns: tuple[str, ...]) -> DataFrame:
        return read_stream(spark, topic, columns, address=NOWHERE)

    shapes = {}
    for query in build_queries(app, spark, read_topic):
        sources: list[str] = []
        state: list[str] = []
        _walk(query.frame._jdf.queryExecution().analyzed(), sources, state)
        shapes[query.name] = {"sources": sources, "state": state}
    return shapes


def _walk(plan: Any, sources: list[str], state: list[str]) -> None:
    """Upstream first, as Spark numbers sources and state."""
    children = _items(plan.children())
    for child in children:
        _walk(child, sources, state)
    kind = plan.nodeName()
    if not children and plan.isStreaming():
        topic = _option(plan, "topic")
        sources.append(topic or kind)
    elif kind == "Aggregate" and plan.isStreaming():
        state.append(_aggregate(plan))
    elif kind == "Join" and all(child.isStreaming() for child in children):
        sides = " and ".join(_types(_items(child.output())) for child in children)
        state.append(f"join of {sides}")
    elif kind in _ALWAYS or (kind in _OF_A_STREAM and plan.isStreaming()):
        keys = _items(plan.keys()) if kind.startswith("Deduplicate") else _items(plan.output())
        state.append(f"{kind} of {_types(keys)}")


def _aggregate(plan: Any) -> str:
    """Group keys and what each function keeps per group; how a result is worked out from that
    may change."""
    keys = _types(_items(plan.groupingExpressions()))
    buffers: list[str] = []
    for expression in _items(plan.aggregateExpressions()):
        _find_functions(expression, buffers)
    return f"groups by {keys} with {', '.join(buffers) or 'nothing'}"


def _find_functions(expression: Any, buffers: list[str]) -> None:
    if expression.nodeName() == "AggregateExpression":
        function = expression.aggregateFunction()
        kept = _types(_items(function.aggBufferAttributes()))
        buffers.append(f"{function.prettyName()} {kept}")
        return
    for child in _items(expression.children()):
        _find_functions(child, buffers)


def _types(attributes: list[Any]) -> str:
    return f"({', '.join(each.dataType().catalogString() for each in attributes)})"


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


def _option(plan: Any, name: str) -> str:
    """An option of a streaming relation, "" for a plan without options."""
    from py4j.protocol import Py4JError

    try:
        value = plan.extraOptions().get(name)
    except Py4JError:  # this kind of leaf has no such method
        return ""
    return str(value) if value is not None else ""


def main(output: str) -> int:
    package, entry = os.environ["HEADRACE_PACKAGE"], os.environ["HEADRACE_ENTRY"]
    from headrace.spark.session.session import session

    def answer() -> dict[str, Any]:
        app = load_application(package, entry)
        spark = session(app.name, master="local[1]", conf=app.spark_conf)
        shapes = checkpoint_contents(app, spark)
        spark.stop()
        return shapes

    write_answer(output, entry, answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
