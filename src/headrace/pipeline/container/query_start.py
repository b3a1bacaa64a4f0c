"""How the queries of a container are built and started.

What a container is given to run (`container_plan.py`) becomes streaming queries: those of terminal
operators, those of streams that other containers read, and those of dead letters. Each has its own
checkpoint, `<application path>/<checkpoint folder>/<terminal>`, with a lock beside it, because
Spark's fastest checkpoint files do not guard against a second writer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from headrace.ids import WindowId
from headrace.pipeline.container.container_plan import ContainerPlan, EdgeOutput, read_edges
from headrace.pipeline.container.container_session import ContainerSession, WorkloadSettings
from headrace.pipeline.container.query_positions import EDGE, QueryPositions, group_of
from headrace.pipeline.container.query_run import QueryRun
from headrace.pipeline.container.window_log import WindowLog, roll_back
from headrace.pipeline.declare.application import Application
from headrace.pipeline.declare.declarations import TopicInput
from headrace.pipeline.plan.deploy import ACTIVATION, ROLL_BACK_TO, ROLLBACKS, UNTIL
from headrace.pipeline.plan.versions import CHECKPOINT_NAME
from headrace.runtime.interfaces import Disk
from headrace.wire.umbilical.messages import OperatorDeployInfo, Value
from headrace.wire.umbilical.windows import NO_WINDOW, WindowGrid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.pipeline.container.bad_batch import FoundRecord
    from headrace.pipeline.declare.graph import PropertyValues
    from headrace.pipeline.declare.queries import Query
    from headrace.spark.edges.sink import EdgeSink
    from headrace.spark.options import Target

CHECKPOINTS = "checkpoints"  # folder, when the deployment names none
DEAD_LETTER_TRIGGER = "10 seconds"  # nobody waits for rejected rows
AT_MOST_ONCE = "AT_MOST_ONCE"


class QueryStarter:
    """Builds, prepares and starts the queries of one container."""

    def __init__(
        self,
        disk: Disk,
        monotonic: Callable[[], float],
        settings: WorkloadSettings,
        session: ContainerSession,
        grid: WindowGrid,
    ) -> None:
        self._disk = disk
        self._monotonic = monotonic
        self._settings = settings
        self._session = session
        self._grid = grid

    def build(
        self, plan: ContainerPlan, infos: Sequence[OperatorDeployInfo], values: PropertyValues
    ) -> list[Query]:
        """Make the queries of everything that the plan has; `infos` are those to be started."""
        from headrace.pipeline.declare.stages import build_queries

        spark = self._session.spark()
        nothing = f"{self._settings.application_path}/cache/empty"
        self._disk.make_folder(nothing)
        skip = self._skips_backlog(infos)
        given = read_edges(
            plan,
            spark,
            address=self._settings.broker,
            grid=self._grid,
            folder=nothing,
            skip_until=self._closed_by_all(plan) if skip else NO_WINDOW,
        )
        queries = build_queries(
            plan.app,
            spark,
            partial(self._read_topic, skip_backlog=skip),
            values,
            terminals=plan.terminals,
            given=given,
            outlets={feed: output.topic for feed, output in plan.outputs.items()},
        )
        return _distinct(queries, plan)

    def checkpoint(self, query: Query, owner: OperatorDeployInfo) -> str:
        return f"{self._settings.application_path}/{checkpoint_of(query.name, owner)}"

    def prepare(self, plan: ContainerPlan, query: Query, owner: OperatorDeployInfo) -> QueryRun:
        """Lock the checkpoint of a query and say where its batches go.

        A run whose `checkpoint_lost` is set must not be started.
        """
        from headrace.spark.options import parse_sink
        from headrace.spark.server import connect

        checkpoint = self.checkpoint(query, owner)
        self._disk.make_folder(checkpoint)
        lock = self._disk.lock(f"{checkpoint}.lock")
        windows = WindowLog(self._disk, checkpoint, self._grid)
        target = owner.context_attributes.get(ROLL_BACK_TO)
        if isinstance(target, int):
            number = owner.context_attributes.get(ROLLBACKS)
            number = number if isinstance(number, int) else 0
            roll_back(self._disk, checkpoint, windows, WindowId(target), number)
        elif windows.passed() == NO_WINDOW and _had_windows(query, owner):
            return QueryRun(query, windows, lock, self._disk, self._monotonic, checkpoint_lost=True)
        activation = owner.context_attributes.get(ACTIVATION)
        if isinstance(activation, int) and activation >= 0 and windows.last() == NO_WINDOW:
            windows.start_after(WindowId(activation))
        run = QueryRun(query, windows, lock, self._disk, self._monotonic)
        run.at_most_once = _mode(owner) == AT_MOST_ONCE
        until = owner.context_attributes.get(UNTIL)
        run.until = WindowId(until) if isinstance(until, int) else None
        run.reads = tuple(self._target(one.topic) for one in plan.above(query.operators).values())
        run.reads_topics = any(name in plan.app.topics for name in query.operators)
        run.positions = self._positions(plan.app, query)
        output = plan.outputs.get(query.name.removesuffix(EDGE))
        if output is not None and query.topic == output.topic:
            run.edge = self._edge(query, output)
        elif query.topic is not None:
            options = {"address": self._settings.broker, "topic": query.topic}
            if _mode(owner) == "EXACTLY_ONCE":
                options["delivery"] = "exactly-once"  # refused where it cannot be
            run.sink = parse_sink(options)
            connect(run.sink.target).create_topic(run.sink.target)
        return run

    def start(
        self,
        plan: ContainerPlan,
        run: QueryRun,
        owner: OperatorDeployInfo,
        on_bad_record: Callable[[FoundRecord, str], None],
    ) -> None:
        """Let Spark run a query that is prepared."""
        from headrace.pipeline.container.bad_batch import make_bad_batches
        from headrace.pipeline.declare.queries import store_settings
        from headrace.spark.session.queries import start_query

        query = run.query
        relative = checkpoint_of(query.name, owner)
        checkpoint = self.checkpoint(query, owner)
        run.identity = f"{plan.app.name}.{relative.partition('/')[2].replace('/', '.')}"
        run.bad_batches = make_bad_batches(
            plan.app,
            self._session.spark(),
            query,
            address=self._settings.broker,
            disk=self._disk,
            checkpoint=checkpoint,
            on_found=on_bad_record,
        )
        run.running = start_query(
            self._session.rings,
            query.frame,
            name=query.name,
            mode=query.mode,
            checkpoint=checkpoint,
            trigger=self._trigger(plan, query),
            on_batch=run.on_batch,
            conf=store_settings(query.frame),
        )

    def _read_topic(
        self, topic: TopicInput, columns: tuple[str, ...], *, skip_backlog: bool
    ) -> DataFrame:
        from headrace.pipeline.declare.inputs import read_stream

        return read_stream(
            self._session.spark(),
            topic,
            columns,
            address=self._settings.broker,
            skip_backlog=skip_backlog,
        )

    def _skips_backlog(self, infos: Sequence[OperatorDeployInfo]) -> bool:
        """AT_MOST_ONCE: who comes back goes on with what comes from now on. Queries that start
        together read the same frames, so only if all of them want it so; a batch that is run again
        is left out by each for itself."""
        owners = [info for info in infos if info.query]
        return bool(owners) and all(
            _mode(owner) == AT_MOST_ONCE
            and self._disk.list(
                f"{self._settings.application_path}/{checkpoint_of(owner.name, owner)}/windows"
            )
            for owner in owners
        )

    def _closed_by_all(self, plan: ContainerPlan) -> int:
        """The last window that every edge read here has closed."""
        from headrace.spark.edges.source import last_window
        from headrace.spark.server import connect

        targets = [self._target(one.topic) for one in plan.inputs.values()]
        if not targets:
            return NO_WINDOW
        server = connect(targets[0])
        return server.run(last_window(server.remote, targets))

    def _positions(self, app: Application, query: Query) -> QueryPositions:
        from headrace.spark.options import parse_source

        topics = {
            name: parse_source(
                {"address": self._settings.broker, "topic": app.topics[name].topic}, streaming=True
            )
            for name in query.operators
            if name in app.topics and app.topics[name].ending is None  # a backfill's are nobody's
        }
        former = [group_of(app.name, port) for port in topics]
        return QueryPositions(group_of(app.name, query.name), topics, former)

    def _target(self, topic: str) -> Target:
        from headrace.spark.options import parse_sink

        return parse_sink({"address": self._settings.broker, "topic": topic}).target

    def _edge(self, query: Query, output: EdgeOutput) -> EdgeSink:
        from headrace.spark.edges.sink import EdgeSink

        key: tuple[str, ...] = ()
        if output.key is not None:
            key = tuple(query.frame.columns if output.key == "*" else output.key.split(","))
        return EdgeSink(
            self._target(output.topic),
            output.publisher,
            output.partition,
            output.epoch,
            key,
            output.mask,
        )

    def _trigger(self, plan: ContainerPlan, query: Query) -> str | None:
        if self._settings.available_now:
            return None
        declared = query.name in plan.app.stages or query.name in plan.outputs
        return plan.app.trigger if declared else DEAD_LETTER_TRIGGER


def checkpoint_of(query: str, owner: OperatorDeployInfo) -> str:
    """A query's checkpoint, relative to the application path, under the name its operator had when
    the checkpoint was begun: `checkpoints/revenue`, `checkpoints/revenue~2_dead_letter`."""
    name = owner.context_attributes.get(CHECKPOINT_NAME)
    identity = name if isinstance(name, str) else owner.name
    rest = query.removeprefix(owner.name)
    return f"{owner.checkpoint_folder or CHECKPOINTS}/{identity}{rest}"


def _had_windows(query: Query, owner: OperatorDeployInfo) -> bool:
    """Whether the controller knows of windows in this very checkpoint. An operator that publishes
    to a topic and for other containers has two, and nobody can say which one it means."""
    attributes_ = owner.context_attributes
    for_others = any(one.buffer_server_host for one in owner.outputs)
    if query.name != owner.name or (for_others and attributes_.get("OUTPUT_TOPIC")):
        return False
    began = attributes_.get(ACTIVATION)
    known = owner.checkpoint.window_id if owner.checkpoint is not None else NO_WINDOW
    return known > (began if isinstance(began, int) else NO_WINDOW)


def _mode(owner: OperatorDeployInfo) -> Value:
    return owner.context_attributes.get("PROCESSING_MODE")


def _distinct(queries: Sequence[Query], plan: ContainerPlan) -> list[Query]:
    """A stream that leaves for a topic of the user's and for other containers is two queries."""
    found = []
    for query in queries:
        both = query.name in plan.outputs and query.name in plan.app.stages
        stage = plan.app.stages.get(query.name)
        if both and query.topic == plan.outputs[query.name].topic and stage and stage.to:
            query = replace(query, name=f"{query.name}{EDGE}")
        found.append(query)
    return found
