"""What an application reads and writes, and OpenLineage's account of its runs.

A run begins when an application is submitted or resumed and ends when it finishes, fails or is
stopped; restarts of containers and of the controller belong to it. Its id is made of the
application's name and the moment it began, so that a controller that comes back goes on with it.

Datasets: topics as `headrace://host:port`, `stream/topic`; files and Delta tables by their path,
PostgreSQL tables as `postgres://host:port`, `database.schema.table`. Topics that the controller
makes between containers are nobody's dataset.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit
from uuid import NAMESPACE_URL, uuid5

from headrace.errors import HeadraceError
from headrace.net.addresses import format_address
from headrace.observability.lineage import Dataset, RunEvent, State
from headrace.observability.logging import get_logger
from headrace.pipeline.controller.application.application import Application
from headrace.pipeline.controller.application.events import Event, EventType
from headrace.pipeline.controller.application.lifecycle import Phase
from headrace.pipeline.plan.logical import READ_TOPIC
from headrace.runtime.interfaces import Executor, Runtime
from headrace.wire.umbilical.windows import format_window

log = get_logger(__name__)

WAITING_MAX = 1_000  # events that a slow collector has not taken; the oldest are dropped
CLOSE_SECONDS = 5.0
_STATES: dict[str, State] = {
    Phase.FINISHED.value: "COMPLETE",
    Phase.STOPPED.value: "ABORT",
    Phase.FAILED.value: "FAIL",
}
_BEGINS = (EventType.SUBMIT, EventType.RESUME)


class Sender(Protocol):
    """An `observability.lineage.Emitter`."""

    def send(self, event: RunEvent) -> None: ...

    def close(self) -> None: ...


class Lineage:
    """Hears what happens to applications and tells a collector, in order, without holding up."""

    def __init__(
        self,
        runtime: Runtime,
        open_sender: Callable[[], Sender],
        *,
        broker: tuple[str, int],
        namespace: str,
        interval_ms: int,
    ) -> None:
        self._open_sender = open_sender
        self._broker = f"headrace://{format_address(*broker)}"
        self._namespace = namespace
        self._interval_ms = interval_ms
        self._executor: Executor = runtime.executor("lineage", 1)
        self._sender: Sender | None = None
        self._waiting: deque[RunEvent] = deque(maxlen=WAITING_MAX)
        self._told_ms: dict[str, int] = {}
        self._sending: asyncio.Task[None] | None = None

    def on_event(self, application: Application, event: Event) -> None:
        if event.type in _BEGINS:
            self._tell(application, "START", event.time_ms)
        elif event.type is EventType.FINISH:
            state = _STATES.get(str(event.data.get("state")), "ABORT")
            self._tell(application, state, event.time_ms, event.reason)
            self._told_ms.pop(application.name, None)

    def on_tick(self, application: Application, now_ms: int) -> None:
        """Say from time to time that it runs, and how far it is."""
        before = self._told_ms.setdefault(application.name, now_ms)
        if not application.finished and now_ms - before >= self._interval_ms:
            self._tell(application, "RUNNING", now_ms)

    def _tell(self, application: Application, state: State, time_ms: int, error: str = "") -> None:
        self._told_ms[application.name] = time_ms
        inputs, outputs = datasets(application.record.plan, self._broker)
        rows = {} if state == "START" else _rows(application)
        self._waiting.append(
            RunEvent(
                state=state,
                time_ms=time_ms,
                run_id=run_id(application),
                namespace=self._namespace,
                job=application.name,
                inputs=tuple(_counted(one, rows) for one in inputs),
                outputs=tuple(_counted(one, rows) for one in outputs),
                error=error if state == "FAIL" else "",
                facts=_facts(application),
            )
        )
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._waiting:
                event = self._waiting.popleft()
                try:
                    await self._executor.run(self._send_one, event)
                except HeadraceError as error:
                    # Lineage is told, never waited for: a collector that is down loses it.
                    log.warning("lineage_not_told", job=event.job, reason=str(error))
        finally:
            self._sending = None

    def _send_one(self, event: RunEvent) -> None:
        if self._sender is None:
            self._sender = self._open_sender()
        self._sender.send(event)

    async def close(self) -> None:
        if self._sending is not None:
            sending = self._sending
            _, late = await asyncio.wait([sending], timeout=CLOSE_SECONDS)
            if late:
                self._waiting.clear()
                await asyncio.wait([sending])
        if self._sender is not None:
            await self._executor.run(self._sender.close)
        self._executor.close()


def run_id(application: Application) -> str:
    begins = [one.time_ms for one in application.events.list() if one.type in _BEGINS]
    began_ms = begins[-1] if begins else application.record.submitted_ms
    return str(uuid5(NAMESPACE_URL, f"headrace:{application.name}/{began_ms}"))


Named = tuple[str, Dataset]
"""An operator's name, and what it reads or writes."""


def datasets(plan: Mapping[str, Any], broker: str) -> tuple[list[Named], list[Named]]:
    """What an application reads and what it writes."""
    inputs: list[Named] = []
    outputs: list[Named] = []
    for operator in plan.get("operators", ()):
        name, attributes = operator["name"], operator.get("attributes", {})
        if operator["class"] in ("", READ_TOPIC):
            inputs.append((name, Dataset(broker, str(operator["properties"]["topic"]))))
        if attributes.get("OUTPUT_TOPIC"):
            outputs.append((name, Dataset(broker, str(attributes["OUTPUT_TOPIC"]))))
        if isinstance(attributes.get("STORE"), Mapping):
            found = _store(attributes["STORE"])
            if found is not None:
                outputs.append((name, found))
    return inputs, outputs


def _store(arguments: Mapping[str, Any]) -> Dataset | None:
    """A console keeps nothing."""
    if "table" in arguments:
        return _table(str(arguments.get("address", "")), str(arguments["table"]))
    if "path" in arguments:
        return _file(str(arguments["path"]))
    return None


def _file(path: str) -> Dataset:
    parts = urlsplit(path)
    if parts.scheme and parts.netloc:
        return Dataset(f"{parts.scheme}://{parts.hostname or parts.netloc}", parts.path.lstrip("/"))
    return Dataset("file", parts.path)


def _table(address: str, table: str) -> Dataset:
    """A connection string that stands somewhere else is not looked up: it holds a password."""
    qualified = table if "." in table else f"public.{table}"
    if address.startswith(("env:", "file:")):
        return Dataset("postgres", qualified)
    if "://" in address:
        parts = urlsplit(address)
        host, port, database = parts.hostname or "", parts.port, parts.path.lstrip("/")
    else:
        words = dict(word.split("=", 1) for word in address.split() if "=" in word)
        host, database = words.get("host", ""), words.get("dbname", "")
        port = int(words["port"]) if words.get("port", "").isdecimal() else None
    where = f"postgres://{format_address(host or 'localhost', port or 5432)}"
    return Dataset(where, f"{database}.{qualified}" if database else qualified)


def _rows(application: Application) -> dict[str, int]:
    rows: dict[str, int] = {}
    for operator in application.operators.values():
        name = operator.physical.logical.name
        rows[name] = rows.get(name, 0) + operator.statistics.rows_out
    return rows


def _counted(named: Named, rows: Mapping[str, int]) -> Dataset:
    name, dataset = named
    return Dataset(dataset.namespace, dataset.name, rows.get(name))


def _facts(application: Application) -> dict[str, Any]:
    return {
        "package": application.record.package,
        "committedWindow": format_window(application.checkpoints.committed),
        "restarts": sum(one.restarts for one in application.containers),
        "lag": sum(
            one.statistics.lag for one in application.operators.values() if not one.physical.inputs
        ),
    }
