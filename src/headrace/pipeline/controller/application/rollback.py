"""Taking operators back to an earlier window.

A rollback goes over all that reads the rolled-back rows: its queries are stopped everywhere, what
they published between containers after the window is voided, and only then are they started again
from that window. It is journalled when it begins and when everything runs from its window.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import InvalidArgumentError, UnavailableError
from headrace.ids import WindowId
from headrace.pipeline.controller.application.container_liveness import ContainerSupervision
from headrace.pipeline.controller.application.events import EventType
from headrace.pipeline.controller.application.lifecycle import Action, Phase, ResetEdges
from headrace.pipeline.controller.application.model import ApplicationModel
from headrace.pipeline.plan.edges import purge_window
from headrace.wire.umbilical.windows import NO_WINDOW, format_window


class Rollback:
    """At most one at a time; the journal's record says which."""

    def __init__(self, model: ApplicationModel, containers: ContainerSupervision) -> None:
        self._model = model
        self._containers = containers
        self.holds_deployments = False  # until what was published is voided
        self._reset_due = False
        begun = model.record.rollback
        if begun is not None and not model.finished:
            self.begin(begun.window, begun.operators)

    def on_rollback(
        self, window: WindowId, now_ms: int, names: Iterable[str] = (), reason: str = ""
    ) -> list[Action]:
        """Take these operators (all, unless some are named) and what reads them back to a window:
        everything after it is computed and published again."""
        self._model.check_running()
        if self._model.record.rollback is not None:
            raise UnavailableError("a rollback is under way; wait until it is done")
        if window != NO_WINDOW:
            self._model.grid.ordinal(window)
        if window > self._model.grid.window_at(now_ms):
            raise InvalidArgumentError("this window is yet to come", window=format_window(window))
        self._check_kept(window, now_ms)
        chosen = list(names) or [one.name for one in self._model.plan.logical.operators]
        for name in chosen:
            self._model.named(name)
        affected = sorted(self._model.downstream_of(chosen))
        self._check_begun(affected, window)
        self._model.add_event(
            now_ms, EventType.ROLL_BACK, reason, window=format_window(window), operators=affected
        )
        journal = self._model.journal("rollback", window=int(window), operators=affected)
        self.begin(int(window), affected)
        return [journal]

    def on_edges_reset(self) -> list[Action]:
        """Only runs that begin now may publish what was voided."""
        self.holds_deployments = False
        run = self._model.next_run()
        for operator in self._model.operators.values():
            if operator.roll_back_to is not None:
                operator.run = run
        return [self._model.journal("run", run=run)]

    def on_edges_not_reset(self) -> None:
        """The broker was out of reach: the next tick tries again."""
        self._reset_due = True

    def on_checkpoint_lost(self, names: Iterable[str], reason: str, now_ms: int) -> list[Action]:
        """A query's checkpoint is gone, or belongs to something else: all that reads it is
        computed again from the beginning, if what that takes is still kept and nobody was promised
        that a row comes once. Otherwise the application fails: nothing is guessed."""
        if self._model.phase is not Phase.RUNNING or self._model.record.rollback is not None:
            return []
        affected = self._model.downstream_of(names)
        strict = [
            name
            for name in sorted(affected)
            for one in self._model.named(name)[:1]
            if self._model.plan.attribute(one.physical, "PROCESSING_MODE") == "EXACTLY_ONCE"
        ]
        if strict:
            return self._containers.fail(
                f"{reason}; {', '.join(strict)} may not publish rows twice", now_ms
            )
        if any(one.cascaded for name in names for one in self._model.named(name)):
            return self._containers.fail(
                f"{reason}, again after everything was started anew", now_ms
            )
        try:
            actions = self.on_rollback(NO_WINDOW, now_ms, names, reason)
        except InvalidArgumentError as error:
            return self._containers.fail(f"{reason}; {error}", now_ms)
        for name in names:
            for one in self._model.named(name):
                one.cascaded = True
        return actions

    def begin(self, window: int, names: Iterable[str]) -> None:
        affected = [one for one in self._model.operators.values() if one.name in set(names)]
        for operator in affected:
            operator.roll_back_to = window
            operator.statistics.rewind(WindowId(window))
            operator.take_down(self._model.run)
        self._model.checkpoints.rewind({one.physical.id for one in affected}, WindowId(window))
        self.holds_deployments = self._reset_due = True

    def on_undeployed(self, now_ms: int) -> list[Action]:
        """Once nothing that is rolled back runs, what it published can be voided."""
        rollback = self._model.record.rollback
        if rollback is None or not self._reset_due:
            return []
        affected = [one for one in self._model.operators.values() if one.name in rollback.operators]
        if any(one.may_run for one in affected):
            return []
        self._reset_due = False
        names = set(rollback.operators)
        split = self._model.plan.split_streams
        edges = tuple(
            one.name
            for one in self._model.plan.logical.streams
            if one.name in split and one.source.operator in names
        )
        epoch = self._model.next_run()
        return [self._model.journal("run", run=epoch), ResetEdges(edges, rollback.window, epoch)]

    def on_started(self, now_ms: int) -> list[Action]:
        """The rollback is over when everything runs from its window."""
        if self._model.record.rollback is None or self._reset_due:
            return []
        if any(one.roll_back_to is not None for one in self._model.operators.values()):
            return []
        return [self._model.journal("rollback", window=None, operators=[])]

    def _check_kept(self, window: WindowId, now_ms: int) -> None:
        """What was purged cannot be read again."""
        purged = purge_window(
            self._model.grid,
            self._model.checkpoints.committed,
            now_ms=now_ms,
            rollback_retention_ms=self._model.settings.rollback_retention_ms,
        )
        if self._model.plan.split_streams and window < purged:
            raise InvalidArgumentError(
                "topics between containers keep windows for "
                "advanced.controller.rollback_retention_ms, and this one is older",
                window=format_window(window),
                oldest=format_window(purged),
            )

    def _check_begun(self, names: Iterable[str], window: WindowId) -> None:
        """What was before a checkpoint began is not in it."""
        for name in names:
            began = self._model.record.activations.get(name, NO_WINDOW)
            if window < began:
                raise InvalidArgumentError(
                    "its checkpoint began later: with other instances, a replay, or new state",
                    operator=name,
                    window=format_window(window),
                    began=format_window(began),
                )
