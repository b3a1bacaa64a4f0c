"""Carries out what an application decided, in order: a record is durable before anything else
happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from headrace.errors import HeadraceError
from headrace.ids import WindowId
from headrace.observability.logging import get_logger
from headrace.pipeline.controller.application.lifecycle import (
    Action,
    Kill,
    Launch,
    MakeEdges,
    PurgeEdges,
    Record,
    ResetEdges,
)
from headrace.pipeline.controller.broker_edges import Edges
from headrace.pipeline.controller.container_launches import ContainerLaunches
from headrace.pipeline.controller.journal import JournalWriter
from headrace.pipeline.controller.lineage import Lineage
from headrace.pipeline.controller.running import ContainerProcesses, RunningApplication
from headrace.wire.umbilical import messages as m

log = get_logger(__name__)

LAUNCH_FAILED = 127  # exit status of a container that could not be started


class ActionPerformer:
    def __init__(
        self,
        journal: JournalWriter,
        launches: ContainerLaunches,
        processes: ContainerProcesses,
        edges: Edges,
        *,
        lineage: Lineage | None,
        now_ms: Callable[[], int],
    ) -> None:
        self._journal = journal
        self._launches = launches
        self._processes = processes
        self._edges = edges
        self._lineage = lineage
        self._now_ms = now_ms
        self._closing = False
        self.wake = asyncio.Event()  # set when the next tick may have something to do

    def begin_close(self) -> None:
        """Launch nothing any more."""
        self._closing = True

    async def perform(self, running: RunningApplication, actions: Sequence[Action]) -> None:
        """The caller holds the application's lock."""
        application = running.application
        done = True
        for action in actions:
            if isinstance(action, Record):
                await self._journal.append(action.kind, action.body)
            elif isinstance(action, Launch):
                await self._launch(running, action)
            elif isinstance(action, Kill):
                self._processes.kill(running, action.container_id)
            elif isinstance(action, MakeEdges):
                done = await self._make_edges(running, action) and done
            elif isinstance(action, ResetEdges):
                done = await self._reset_edges(running, action) and done
            elif isinstance(action, PurgeEdges):
                await self._purge_edges(running, action)
        for event in application.events.take_unrecorded():
            body = {"application": application.name, "event": event.to_json()}
            await self._journal.append("event", body)
            if self._lineage is not None:
                self._lineage.on_event(application, event)
        if application.finished:
            running.over.set()
        if actions and done:  # a heartbeat that changed nothing makes nothing due
            self.wake.set()

    async def perform_or_fail(self, running: RunningApplication, actions: Sequence[Action]) -> None:
        """For tasks that have nobody to tell: what stops the journal has stopped the controller."""
        try:
            await self.perform(running, actions)
        except HeadraceError as error:
            self._journal.fail(error)

    async def _launch(self, running: RunningApplication, action: Launch) -> None:
        if self._closing:
            return
        try:
            await self._launches.launch(running, action)
        except HeadraceError as error:
            application, now_ms = running.application, self._now_ms()
            report = m.ReportErrorRequest(action.container_id, (), f"not started: {error}")
            application.on_error(report, now_ms)
            actions = application.supervision.on_exit(action.container_id, LAUNCH_FAILED, now_ms)
            await self.perform(running, actions)

    async def _make_edges(self, running: RunningApplication, action: MakeEdges) -> bool:
        """False when the broker did not do it: the next tick tries again, in its own time."""
        application = running.application
        try:
            closed = await self._edges.closed(application.plan, action.streams)
            if closed <= action.after:
                await self._edges.make(action.plan, WindowId(action.after))
        except HeadraceError as error:
            log.warning("edges_not_made", application=application.name, reason=str(error))
            return False
        if closed > action.after:
            await self.perform(running, application.scaling.on_windows_passed(closed))
            return True
        running.edges_made = action.plan
        await self.perform(running, application.scaling.on_edges_made(self._now_ms()))
        return True

    async def _reset_edges(self, running: RunningApplication, action: ResetEdges) -> bool:
        application = running.application
        try:
            await self._edges.reset(
                application.plan,
                action.edges,
                window=WindowId(action.window),
                epoch=action.epoch,
            )
        except HeadraceError as error:
            log.warning("edges_not_reset", application=application.name, reason=str(error))
            application.rollback.on_edges_not_reset()
            return False
        await self.perform(running, application.rollback.on_edges_reset())
        return True

    async def _purge_edges(self, running: RunningApplication, action: PurgeEdges) -> None:
        """What was not purged now goes with the next purge."""
        try:
            await self._edges.purge(running.application.plan, WindowId(action.window))
        except HeadraceError as error:
            log.warning("edges_not_purged", application=running.application.name, reason=str(error))
