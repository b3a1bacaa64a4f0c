"""What the controller must not forget, as events of a StateLog and a table they build.

Decisions are journalled before they are acted upon: a run id is durable before any container hears
of it, so no two incarnations of a query ever share one.

    submit      the whole record of an application
    container   {application, index, id, state, run, restarts, exit_status}
    run         {application, run}                     a query is deployed again in a live container
    committed   {application, window}
    stop        {application}                          somebody asked for its end
    finished    {application, state, reason, time_ms}
    resume      {application}                          and for it to go on
    remove      {application}                          nothing is kept of it
    event       {application, event}                   what happened, for people; the last ones stay
    statistics  {application, operators}               totals, now and then
    property    {application, operator, values}        set at run time, given to every later deploy
    outdated    {application, operators, run}          what runs of these, up to that run, is old
    generation  {application, operators, properties, ids}   these start under a new checkpoint
    activation  {application, operator, window, id}    the new checkpoint begins after this window
    rollback    {application, window, operators}       window None: it is done
    scale       {application, operator, instances, window}   that many, from this window on
    plan        {application, plan, operator_ids, container_ids, scaled}   the graph was changed
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeAlias

import msgspec

from headrace.errors import CorruptionError, HeadraceError, UnavailableError
from headrace.observability.logging import get_logger
from headrace.wire.umbilical.windows import NO_WINDOW

log = get_logger(__name__)

LOG_NAME = "s/controller"
VERSION = 1

Body: TypeAlias = dict[str, Any]


class ContainerRecord(msgspec.Struct, kw_only=True):
    index: int
    id: str
    state: str
    run: int
    restarts: int = 0
    exit_status: int | None = None


class Rollback(msgspec.Struct, kw_only=True, frozen=True):
    """Operators that go back to a window; in force until all of them run from there."""

    window: int
    operators: list[str]


class Scaling(msgspec.Struct, kw_only=True, frozen=True):
    """An operator that gets another number of instances, at `window` once that is known."""

    operator: str
    instances: int
    window: int | None = None


class ApplicationRecord(msgspec.Struct, kw_only=True):
    name: str
    plan: dict[str, Any]
    package: str  # content hash of the deployed folder
    entry: str  # file inside it
    start_window_ms: int
    submitted_ms: int
    available_now: bool = False
    stopping: bool = False
    run: int = 0  # highest run id given out
    committed: int = NO_WINDOW
    containers: dict[int, ContainerRecord] = msgspec.field(default_factory=dict)
    state: str = ""  # how it ended; empty while it has not
    reason: str = ""
    finished_ms: int = 0
    operator_ids: dict[str, int] = msgspec.field(default_factory=dict)
    container_ids: dict[str, int] = msgspec.field(default_factory=dict)
    properties: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    generations: dict[str, int] = msgspec.field(default_factory=dict)
    rollback: Rollback | None = None
    rollbacks: int = 0
    scaling: Scaling | None = None
    activations: dict[str, int] = msgspec.field(default_factory=dict)
    outdated: dict[int, int] = msgspec.field(default_factory=dict)  # operator id: run
    fresh: list[int] = msgspec.field(default_factory=list)  # ids; their checkpoint is yet to begin
    declared: dict[str, Any] = msgspec.field(default_factory=dict)  # the package's own plan
    events: list[dict[str, Any]] = msgspec.field(default_factory=list)
    statistics: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)


class Log(Protocol):
    """What the controller needs of a StateLog: durable, applied in order, then returned."""

    async def append(self, kind: str, body: object, version: int = 1) -> int: ...

    async def write_snapshot(self) -> object: ...

    async def close(self) -> None: ...


Apply: TypeAlias = Callable[[int, str, object], None]
Snapshot: TypeAlias = Callable[[], tuple[int, Iterable[bytes]]]
Restore: TypeAlias = Callable[[int, Iterable[bytes]], None]
OpenLog: TypeAlias = Callable[[Apply, Snapshot, Restore], Awaitable[Log]]
"""Opens the log and replays it. In a cluster: `StateLog.open(client, name=LOG_NAME, ...)`."""


class Journal:
    """The table of applications; changed by `apply` and `restore` only."""

    def __init__(self, events_max: int = 1_000) -> None:
        self.applications: dict[str, ApplicationRecord] = {}
        self._events_max = events_max

    def apply(self, version: int, kind: str, body: object) -> None:
        if version != VERSION or not isinstance(body, dict):
            raise CorruptionError("not an event of the controller", kind=kind, version=version)
        try:
            self._apply(kind, body)
        except (KeyError, TypeError, msgspec.ValidationError) as error:
            raise CorruptionError(f"a controller event cannot be applied: {error!r}") from error

    def _apply(self, kind: str, body: Body) -> None:
        if kind == "submit":
            record = msgspec.convert(body, ApplicationRecord, strict=False)
            self.applications[record.name] = record
            return
        application = self.applications[body["application"]]
        if kind == "remove":
            del self.applications[application.name]
        elif kind == "container":
            container = msgspec.convert(
                {name: value for name, value in body.items() if name != "application"},
                ContainerRecord,
            )
            application.containers[container.index] = container
            application.run = max(application.run, container.run)
        elif kind == "run":
            application.run = max(application.run, int(body["run"]))
        elif kind == "committed":
            application.committed = max(application.committed, int(body["window"]))
        elif kind == "stop":
            application.stopping = True
        elif kind == "finished":
            application.state = str(body["state"])
            application.reason = str(body["reason"])
            application.finished_ms = int(body["time_ms"])
        elif kind == "resume":
            application.state = application.reason = ""
            application.finished_ms, application.stopping = 0, False
        else:
            self._apply_change(application, kind, body)

    def _apply_change(self, application: ApplicationRecord, kind: str, body: Body) -> None:
        """What people see, and what they changed while it ran."""
        if kind == "event":
            application.events.append(dict(body["event"]))
            del application.events[: -self._events_max]
        elif kind == "statistics":
            application.statistics |= body["operators"]
        elif kind == "property":
            application.properties.setdefault(body["operator"], {}).update(body["values"])
        elif kind == "generation":
            for name in body["operators"]:
                application.generations[name] = application.generations.get(name, 0) + 1
            for name, values in body["properties"].items():
                application.properties.setdefault(name, {}).update(values)
            application.fresh = sorted({*application.fresh, *body.get("ids", ())})
        elif kind == "outdated":
            application.outdated |= dict.fromkeys(body["operators"], int(body["run"]))
        elif kind == "activation":
            name = body["operator"]
            before = application.activations.get(name, NO_WINDOW)
            application.activations[name] = max(before, int(body["window"]))
            application.fresh = [one for one in application.fresh if one != body.get("id")]
        elif kind == "rollback":
            begins = body["window"] is not None
            application.rollbacks += begins
            application.rollback = (
                Rollback(window=body["window"], operators=list(body["operators"]))
                if begins
                else None
            )
        elif kind == "plan":
            application.plan = body["plan"]
            application.operator_ids = dict(body["operator_ids"])
            application.container_ids = dict(body["container_ids"])
            if body["scaled"] is not None:
                name, window = body["scaled"]
                application.generations[name] = application.generations.get(name, 0) + 1
                application.activations[name] = window
                application.scaling = None
        elif kind == "scale":
            application.scaling = Scaling(
                operator=body["operator"], instances=body["instances"], window=body["window"]
            )
        else:
            raise KeyError(kind)

    def snapshot(self) -> tuple[int, Iterable[bytes]]:
        """One chunk per application."""
        return VERSION, [msgspec.msgpack.encode(one) for one in self.applications.values()]

    def restore(self, version: int, chunks: Iterable[bytes]) -> None:
        if version != VERSION:
            raise CorruptionError("a controller snapshot of another version", version=version)
        self.applications.clear()
        for chunk in chunks:
            try:
                record = msgspec.msgpack.decode(chunk, type=ApplicationRecord)
            except msgspec.DecodeError as error:
                raise CorruptionError(f"a controller snapshot is damaged: {error}") from error
            self.applications[record.name] = record


class JournalWriter:
    """Makes events durable and lets the table follow them.

    A log that cannot be written is lost to this controller: whoever has it now runs the
    applications, so everything ends here, for good.
    """

    def __init__(
        self,
        table: Journal,
        open_log: OpenLog,
        *,
        snapshot_events: int,
        on_failure: Callable[[], None],
    ) -> None:
        self._table = table
        self._open_log = open_log
        self._snapshot_events = snapshot_events
        self._on_failure = on_failure
        self._log: Log | None = None
        self._events = 0  # since the last snapshot
        self._closing = False
        self.failure: HeadraceError | None = None

    @property
    def applications(self) -> dict[str, ApplicationRecord]:
        return self._table.applications

    async def open(self) -> None:
        """Open the log and replay it into the table."""
        table = self._table
        self._log = await self._open_log(table.apply, table.snapshot, table.restore)

    async def append(self, kind: str, body: object) -> None:
        if self.failure is not None or self._log is None:
            raise UnavailableError("the controller has stopped")
        try:
            await self._log.append(kind, body)
        except HeadraceError as error:
            self.fail(error)
            raise
        self._events += 1
        if self._events >= self._snapshot_events:
            self._events = 0
            await self._log.write_snapshot()

    def fail(self, error: HeadraceError) -> None:
        if self.failure is not None or self._closing:
            return
        log.error("controller_failed", reason=str(error))
        self.failure = error
        self._on_failure()

    def begin_close(self) -> None:
        """What fails from here on fails because the controller ends."""
        self._closing = True

    async def close(self) -> None:
        if self._log is not None:
            await self._log.close()
