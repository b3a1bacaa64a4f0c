"""From an application to DataFrames: every stage's function is called once, each terminal stage
becomes one streaming query in which everything above it is fused.

Where the rows come from is the caller's: the container passes the headrace source, a test passes
files, validation passes nothing at all. So all of them run the same parsing, the same conditions
and the same operators. A part of an application is built by naming what it publishes (`outlets`)
and giving it what other parts made (`given`).
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.errors import ConfigError, HeadraceError
from headrace.pipeline.declare.bad_rows import (
    dead_letter_topic,
    split_expected,
    split_payloads,
    trace,
)
from headrace.pipeline.declare.declarations import (
    BATCH,
    OUTPUT_PORT,
    SPARK,
    Metric,
    Stage,
    TopicInput,
    feed_of,
)
from headrace.pipeline.declare.graph import ApplicationGraph, Properties, PropertyValues
from headrace.pipeline.declare.inputs import MESSAGE_TYPES, message_columns
from headrace.pipeline.declare.queries import (
    Query,
    check_query,
    check_stated_mode,
    is_stateful,
    stateful_parts,
    streaming_nodes,
)
from headrace.pipeline.declare.stores import Batch

if TYPE_CHECKING:
    from headrace.pipeline.declare.inputs import ReadTopic

__all__ = ["Builder", "Query", "build_queries", "give"]

T = TypeVar("T")


def build_queries(
    app: ApplicationGraph,
    spark: SparkSession,
    read_topic: ReadTopic,
    properties: Properties | PropertyValues | None = None,
    *,
    terminals: Collection[str] | None = None,
    given: Mapping[str, DataFrame] | None = None,
    outlets: Mapping[str, str] | None = None,
) -> list[Query]:
    """Call every operator that is needed; ConfigError with the remedy for what Spark cannot run.

    `terminals` narrows the queries to these stages; `given` are streams that were made elsewhere,
    by feed ("split.ok"); `outlets` maps feeds to topics that others read them from, each of which
    becomes a query of its own, named after the feed.
    """
    builder = Builder(app, spark, read_topic, properties, given=given)
    wanted = [each for each in app.terminals() if terminals is None or each.name in terminals]
    feeds = outlets or {}
    builder.build([*(each.name for each in wanted), *(feed.partition(".")[0] for feed in feeds)])
    if builder.problems:
        raise ConfigError(builder.problems[0])
    queries = [*builder.rejected, *(builder.query(stage) for stage in wanted)]
    queries += [builder.outlet(feed, topic) for feed, topic in feeds.items()]
    for query in queries:
        check_query(query, spark)
    return queries


class Builder:
    """DataFrames of an application, by feed: `name`, or `name.port` of several outputs."""

    def __init__(
        self,
        app: ApplicationGraph,
        spark: SparkSession,
        read_topic: ReadTopic,
        properties: Properties | PropertyValues | None = None,
        *,
        given: Mapping[str, DataFrame] | None = None,
        tracing: bool = False,
    ) -> None:
        """With `tracing` every row has the message it came from, as far as operators keep it."""
        self._app = app
        self._spark = spark
        self._read_topic = read_topic
        if not isinstance(properties, PropertyValues):
            properties = PropertyValues(app, properties)
        self.values = properties
        self.given = dict(given or {})
        self.frames: dict[str, DataFrame] = dict(self.given)
        self.rejected: list[Query] = []  # dead letters
        self._results: dict[str, DataFrame] = {}  # by feed, as the functions returned them
        self._tracing = tracing
        self.problems: list[str] = []
        self._stateful: dict[str, bool] = {}  # whether a feed's rows went through state

    def build(self, names: Collection[str] | None = None) -> None:
        """Make the frames of these stages and all above them; what fails is in `problems`."""
        used = self.upstream(self._app.stages if names is None else names)
        for topic in self._app.topics.values():
            if topic.name in used:
                self._attempt(topic.name, self._read, topic)
        for stage in self._app.ordered():
            fed = all(feed in self.frames for feed in stage.ports.values())
            if stage.name in used and not stage.sink and fed:
                self._attempt(stage.name, self._run, stage)

    def upstream(self, names: Collection[str]) -> dict[str, None]:
        """All that is needed for these, upstream first, up to what is given."""
        found: dict[str, None] = {}

        def visit(name: str) -> None:
            stage = self._app.stages.get(name)
            for feed in stage.ports.values() if stage is not None else ():
                if feed not in self.given:
                    visit(feed.partition(".")[0])
            found[name] = None

        for name in names:
            visit(name)
        return found

    def query(self, stage: Stage) -> Query:
        """The query of a terminal stage."""
        feed = next(iter(stage.ports.values())) if stage.sink else stage.name
        query = self._query(feed, stage, stage.name)
        if stage.key is not None and stage.key not in self.frames[feed].columns:
            columns = ", ".join(self.frames[feed].columns)
            raise ConfigError(
                f"key {stage.key!r} of {stage.name} is not among its columns {columns}"
            )
        if stage.to is not None:
            _check_published(stage, self.frames[feed])
        return replace(
            query,
            topic=stage.to,
            key=stage.key,
            stage=stage if stage.sink else None,
            values=self.values,
        )

    def outlet(self, feed: str, topic: str) -> Query:
        """The query that publishes a stream for other containers."""
        stage = self._app.stages.get(feed.partition(".")[0])
        return replace(self._query(feed, stage, feed), topic=topic)

    def _query(self, feed: str, stage: Stage | None, name: str) -> Query:
        frame = self.frames[feed]
        nodes = streaming_nodes(frame)
        stated = stage.output_mode if stage is not None else None
        check_stated_mode(name, stated, nodes)
        names = tuple(self.upstream([stage.name if stage is not None else feed]))
        query = Query(
            name=name,
            frame=frame,
            mode=stated or "append",
            operators=names,
            stateful=next((each for each in names if self._stateful.get(each)), ""),
        )
        called = [each for each in self._called_per_batch(names) if not each.sink]
        return query if not called else self._with_tail(query, feed, called)

    # live properties

    def _called_per_batch(self, names: Collection[str]) -> list[Stage]:
        """Operators with live properties, and everything below them."""
        found: dict[str, Stage] = {}
        for stage in self._app.ordered():
            below = any(feed.partition(".")[0] in found for feed in stage.ports.values())
            if stage.name in names and (stage.live or below):
                found[stage.name] = stage
        return list(found.values())

    def _with_tail(self, query: Query, feed: str, called: list[Stage]) -> Query:
        """Cut the query where the first live property is read: what follows runs per batch."""
        names = {stage.name for stage in called}
        live = next(stage.name for stage in called if stage.live)
        above = {
            each: None
            for stage in called
            for each in stage.ports.values()
            if each.partition(".")[0] not in names
        }
        if len(above) != 1:
            raise ConfigError(
                f"{live} has a live property, so it and what follows it run batch by batch, and a "
                f"batch has one input, not {', '.join(above)}: join them in an operator above it"
            )
        (start,) = above
        added = stateful_parts(streaming_nodes(query.frame)) - stateful_parts(
            streaming_nodes(self.frames[start])
        )
        if added:
            raise ConfigError(
                f"{live} has a live property, so it and what follows it run batch by batch and "
                f"cannot keep state ({', '.join(sorted(added))}): aggregate in an operator above it"
            )
        for stage in called:
            if stage.metrics or "dead_letter" in stage.expect.values():
                raise ConfigError(
                    f"{stage.name} runs batch by batch because a property of {live} is live; "
                    "declare its metrics and dead letters on an operator above it"
                )

        def tail(batch: DataFrame) -> DataFrame:
            frames = {start: batch}
            for stage in called:
                for port, frame in self._call(stage, frames).items():
                    frames[feed_of(stage, port)] = self._expect(stage, port, frame)[0]
            return frames[feed]

        return replace(query, frame=self.frames[start], tail=tail)

    # one stage

    def _attempt(self, name: str, make: Callable[[T], None], what: T) -> None:
        try:
            make(what)
        except ConfigError as error:
            self.problems.append(str(error))
        except PySparkException as error:
            text = str(error).split("\n", 1)[0]
            self.problems.append(f"{name}: {text}")

    def _read(self, topic: TopicInput) -> None:
        if topic.name in self.given:
            return
        if self._tracing:
            self.frames[topic.name] = trace(self._raw(topic), topic, message_columns(topic))
            return
        rows = self._read_topic(topic, message_columns(topic))
        rejected: list[Query] = []
        if topic.schema is not None:
            letters = dead_letter_topic(self._app, "", topic.name)
            rows, rejected = split_payloads(topic, rows, lambda: self._raw(topic), letters=letters)
        self.frames[topic.name] = rows
        self.rejected += rejected

    def _raw(self, topic: TopicInput) -> DataFrame:
        """The topic's messages as they are."""
        return self._read_topic(replace(topic, schema=None, columns=()), tuple(MESSAGE_TYPES))

    def _run(self, stage: Stage) -> None:
        if all(feed_of(stage, port) in self.given for port in stage.outputs):
            return
        inputs = {feed: self.frames[feed] for feed in stage.ports.values()}
        above = [streaming_nodes(frame) for frame in inputs.values()]
        for port, result in self._call(stage, inputs).items():
            self._results[feed_of(stage, port)] = result
            frame, rejected = self._expect(stage, port, result)
            self.rejected += rejected
            nodes = streaming_nodes(frame)
            first = is_stateful(nodes) and not any(map(is_stateful, above))
            self._stateful[stage.name] = self._stateful.get(stage.name, False) or first
            feed = feed_of(stage, port)
            metrics = [metric for metric in stage.metrics if metric.port == port]
            self.frames[feed] = _observe(frame, f"{stage.name}.{port}", metrics)

    def _expect(self, stage: Stage, port: str, frame: DataFrame) -> tuple[DataFrame, list[Query]]:
        stream = next(iter(self._app.topics.values())).topic.split("/")[0]
        operators = tuple(self.upstream([stage.name]))

        def traced() -> DataFrame | None:
            return None if self._tracing else self._traced(stage).get(feed_of(stage, port))

        letters = dead_letter_topic(self._app, stream, stage.name)
        return split_expected(
            stage, port, frame, traced=traced, letters=letters, operators=operators
        )

    def _traced(self, stage: Stage) -> Mapping[str, DataFrame]:
        """What the stage returns for rows that know their message; nothing where that fails, for
        example because an operator counts its columns."""
        builder = Builder(
            self._app, self._spark, self._read_topic, self.values, given=self.given, tracing=True
        )
        builder.build([stage.name])
        return {} if builder.problems else builder._results

    def _call(self, stage: Stage, frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        """The stage's outputs by port. The function runs now; Spark runs what it returned."""
        inputs = {port: frames[feed] for port, feed in stage.ports.items()}
        arguments: dict[str, Any] = {**inputs, **self.values.of(stage)}
        if SPARK in inspect.signature(stage.function).parameters:
            arguments[SPARK] = self._spark
        result = _call(stage, arguments)
        results = {OUTPUT_PORT: result} if stage.outputs == (OUTPUT_PORT,) else result
        if not isinstance(results, dict) or set(results) != set(stage.outputs):
            raise ConfigError(f"{stage.name} must return a dict with {', '.join(stage.outputs)}")
        for port, frame in results.items():
            if not isinstance(frame, DataFrame):
                raise ConfigError(
                    f"{stage.name} returned {type(frame).__name__} for {port}, not a DataFrame; "
                    "is a `return` missing?"
                )
        return {port: results[port] for port in stage.outputs}


def _check_published(stage: Stage, frame: DataFrame) -> None:
    from headrace.spark.sink.publish import check_messages

    try:
        check_messages(frame.schema, stage.key)
    except ConfigError as error:
        raise ConfigError(f"{stage.name}: {error}") from error


def _call(stage: Stage, arguments: Mapping[str, Any]) -> Any:
    try:
        return stage.function(**arguments)
    except (HeadraceError, PySparkException):
        raise
    except Exception as error:  # the user's code: its author needs to know what and where
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        raise ConfigError(f"{stage.name}: {type(error).__name__}: {error} ({place})") from error


def _observe(frame: DataFrame, name: str, metrics: list[Metric]) -> DataFrame:
    """Spark counts while the rows pass; one observation per port."""
    if not metrics:
        return frame
    columns = [F.expr(metric.expression).alias(metric.name) for metric in metrics]
    return frame.observe(name, F.count(F.lit(1)).alias("rows"), *columns)


def give(query: Query, frame: DataFrame, batch: Batch) -> int:
    """Call a sink function with its one input and what else it asks for; the rows it counted."""
    stage, values = query.stage, query.values
    assert stage is not None
    assert values is not None
    (port,) = stage.ports
    extra = {BATCH: batch, SPARK: frame.sparkSession}
    wanted = inspect.signature(stage.function).parameters
    arguments = {name: value for name, value in extra.items() if name in wanted}
    rows = stage.function(**{port: frame}, **values.of(stage), **arguments)
    return rows if isinstance(rows, int) else -1
