"""The pipeline API: `Application`, with its decorators and the calls that try or plan it.

The graph that the decorators make is in `graph.py`; `stages.py` turns it into DataFrames. This
module imports neither pyspark nor numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

from headrace.errors import ConfigError
from headrace.pipeline.declare.declarations import (
    OUTPUT_PORT,
    Hook,
    Metric,
    StreamOptions,
    TopicInput,
    make_stage,
)
from headrace.pipeline.declare.graph import ApplicationGraph, Properties
from headrace.pipeline.declare.stores import ROWS, Batch, Store, check_store

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from headrace.pipeline.declare.trial import Preview

__all__ = ["Application", "Batch"]

F = TypeVar("F", bound=Callable[..., Any])
Payload = Mapping[str, Any] | str  # an object, or the text of a payload, right or wrong


class Application(ApplicationGraph):
    """A named pipeline: topics in, operators between, topics and sinks out.

    `trigger` is how often Spark starts a micro-batch. `attributes` are the controller's (for
    example `HEARTBEAT_TIMEOUT_MILLIS=10_000`) and travel in the plan. Its containers may use the
    topics that it declares; `other_topics` are those ("stream/topic", with wildcards) that its
    functions read or write by themselves. `spark_conf` are Spark settings of its containers; they
    win over the server's and travel in the plan, so they hold no secrets.
    """

    def topic(
        self,
        port: str,
        topic: str,
        *,
        schema: str | None = None,
        on_bad_row: str = "drop",
        starting: str = "earliest",
        messages_max: int | None = None,
        columns: Sequence[str] = (),
        renamed_from: str | None = None,
        on_data_loss: str = "skip",
    ) -> None:
        """Declare `topic` ("stream/topic") as the input port `port`.

        With a `schema` (Spark's DDL text) payloads are JSON objects and the port has its columns,
        and of the message itself those that `columns` names; without one it has all of the
        message's. `on_bad_row` says what happens to a payload that does not fit: "drop" counts it,
        "dead_letter" publishes it to `<topic>.dead_letter`, "fail" stops the query. `starting`
        (earliest, latest, a time or offsets) matters once, at the first start; `messages_max`
        bounds a micro-batch. `on_data_loss`: where retention was faster than the pipeline, "skip"
        goes on with what is there and tells of the gap in an event, "fail" stops the query.
        """
        self.add_topic(
            TopicInput(
                port,
                topic,
                schema,
                on_bad_row,
                starting,
                messages_max,
                tuple(columns),
                renamed_from=renamed_from,
                on_data_loss=on_data_loss,
            )
        )

    @overload
    def operator(self, function: F, /) -> F: ...
    @overload
    def operator(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        inputs: Mapping[str, str] | None = None,
        outputs: Sequence[str] = (),
        expect: Mapping[str, str] | None = None,
        to: str | None = None,
        key: str | None = None,
        output_mode: str | None = None,
        live: bool | Sequence[str] = False,
        isolate: bool = False,
        instances: int = 1,
        renamed_from: str | None = None,
        ports: Mapping[str, Mapping[str, Any]] | None = None,
        **attributes: Any,
    ) -> Callable[[F], F]: ...
    def operator(self, function: Any = None, /, **options: Any) -> Any:
        """Declare a function of DataFrames; its parameters are input ports, its result the output.

        `to` publishes the result to a topic under the column `key`; a result that aggregates states
        its `output_mode`. With `outputs=("ok", "late")` the function returns a dict of them, wired
        as `inputs={"rows": "split.ok"}`. `expect` maps a SQL condition to what happens to rows that
        break it. Properties are keyword-only parameters; those that `live` names (True: all) are
        read again for every batch. `isolate` and `instances` give the operator containers of its
        own, `renamed_from` keeps the checkpoint of its old name. What is written in capitals are
        attributes (MEMORY_MB=2048); `ports` has those of its ports.
        """

        def declare(function: F) -> F:
            self.add_stage(make_stage(function, sink=False, **options))
            return function

        return declare if function is None else declare(function)

    @overload
    def sink(self, function: F, /) -> F: ...
    @overload
    def sink(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        inputs: Mapping[str, str] | None = None,
        output_mode: str | None = None,
        live: bool | Sequence[str] = False,
        isolate: bool = False,
        instances: int = 1,
        renamed_from: str | None = None,
        ports: Mapping[str, Mapping[str, Any]] | None = None,
        **attributes: Any,
    ) -> Callable[[F], F]: ...
    def sink(self, function: Any = None, /, **options: Any) -> Any:
        """Declare a function that receives one *batch* DataFrame and `batch` (see `Batch`)."""

        def declare(function: F) -> F:
            self.add_stage(make_stage(function, sink=True, **options))
            return function

        return declare if function is None else declare(function)

    def store(self, feed: str, store: Store, *, name: str | None = None, **options: Any) -> None:
        """Write what `feed` (an operator, or one of its outputs) gives to a file, table or screen.

        See `headrace.pipeline.declare.stores`. The sink is named after both unless it has a
        `name`; it has the options of `sink`.
        """
        check_store(store, options.get("output_mode") or "append")
        self.add_stage(
            make_stage(
                store,
                sink=True,
                name=name or f"{feed.replace('.', '_')}_{store.kind}",
                inputs={ROWS: feed},
                **options,
            )
        )

    def metric(
        self,
        operator: str | Callable[..., Any],
        *,
        port: str = OUTPUT_PORT,
        aggregate: str = "sum",
        **expressions: str,
    ) -> None:
        """Count something about every window of an output: `app.metric(valid, units="sum(qty)")`.

        The expressions are SQL aggregates over the port's rows. `aggregate` (sum, min, max, avg,
        last) makes one value out of those of several instances.
        """
        name = operator if isinstance(operator, str) else operator.__name__
        stage = self.stages.get(name)
        if stage is None or stage.sink:
            raise ConfigError(f"a metric belongs to an operator; {name!r} is none")
        if port not in stage.outputs:
            raise ConfigError(f"{name} has no output {port!r}; it has {', '.join(stage.outputs)}")
        if not expressions:
            raise ConfigError('name the metric: app.metric("valid", units="sum(qty)")')
        added = [Metric(each, sql, port, aggregate) for each, sql in expressions.items()]
        taken = {each.name for each in stage.metrics if each.port == port}
        if twice := sorted(taken & {each.name for each in added}):
            raise ConfigError(f"{name} has the metric {', '.join(twice)} already")
        self.stages[name] = replace(stage, metrics=(*stage.metrics, *added))

    def stream(
        self,
        source: str,
        *,
        name: str | None = None,
        locality: str | None = None,
        remote: bool = False,
    ) -> None:
        """Name or place the stream of an output: `app.stream("valid", locality="NODE_LOCAL")`.

        Streams fuse the operators at their ends unless they are NODE_LOCAL, RACK_LOCAL or remote.
        """
        if source in self.streams:
            raise ConfigError(f"the stream of {source} is declared twice")
        self.streams[source] = StreamOptions(source, name, locality, remote)

    @overload
    def committed(self, function: F, /) -> F: ...
    @overload
    def committed(self, operator: str | None = None, /) -> Callable[[F], F]: ...
    def committed(self, what: Any = None, /) -> Any:
        """Declare a function that is told of every window that all operators have checkpointed.

        It gets the window id, and `spark` if it asks for it, in every container, or with
        `@app.committed("store")` where that operator runs. Windows may be skipped, never repeated
        in one container's life; after a restart the last one may come again.
        """
        if callable(what):
            self.hooks.append(Hook(what))
            return what

        def declare(function: F) -> F:
            self.hooks.append(Hook(function, what))
            return function

        return declare

    def plan(self) -> dict[str, Any]:
        """The logical plan, Apex-shaped: operators with ports, and the streams between them."""
        from headrace.pipeline.plan.logical_json import to_plan

        return to_plan(self)

    @classmethod
    def from_plan(
        cls, plan: Mapping[str, Any], *, resolve: Callable[[str], Callable[..., Any]] | None = None
    ) -> Application:
        """The application of a plan; `resolve` finds functions by `module:function`.

        Without it they are imported: only for plans that you trust as you trust code.
        """
        from headrace.pipeline.plan.logical_json import from_plan

        return from_plan(cls, plan, resolve=resolve)

    def test(
        self,
        spark: SparkSession,
        *,
        close: bool = False,
        properties: Properties | None = None,
        **rows: Sequence[Payload] | Sequence[Sequence[Payload]],
    ) -> dict[str, list[Row]]:
        """Run the application on rows, without broker or controller; rows per terminal stage.

        A list of lists is a list of windows, processed one after the other. `close=True` ends
        every event-time window, as time would.
        """
        from headrace.pipeline.declare.trial import emulate

        return emulate(self, spark, rows, close=close, properties=properties or {})

    def validate(
        self,
        spark: SparkSession | None = None,
        *,
        properties: Properties | None = None,
        master: str | None = None,
        application_path: str | None = None,
    ) -> dict[str, str]:
        """Build everything on empty streams; the schema of every stream, as DDL by its name.

        ConfigError lists all that is wrong: schemas, columns, modes, wiring. With `master` also
        whether checkpoints under `application_path` are where the whole cluster sees them. A
        session is started for the time being if none is given.
        """
        from headrace.pipeline.declare.trial import validate

        return validate(
            self,
            spark,
            properties=properties or {},
            master=master,
            application_path=application_path,
        )

    def preview(
        self,
        spark: SparkSession,
        *,
        limit: int = 20,
        address: str | None = None,
        properties: Properties | None = None,
        **rows: Sequence[Payload],
    ) -> Preview:
        """Rows of every topic and operator, as tables a notebook shows.

        They come from the broker (the newest `limit` messages of each partition, as a batch), or
        from what is given by port. Nothing is published and no sink is called.
        """
        from headrace.pipeline.declare.trial import preview

        return preview(self, spark, rows, limit=limit, address=address, properties=properties or {})
