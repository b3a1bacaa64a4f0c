"""Changes while an application runs: properties, rollback, replay, recording.

Each is journalled before it takes effect and then reaches the containers as a redeployment of the
queries it concerns; the others go on. A rollback goes over all that reads the rolled-back rows:
its queries are stopped everywhere, what they published between containers after the window is
voided, and only then are they started again from that window.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.errors import InvalidArgumentError, UnavailableError
from headrace.ids import WindowId
from headrace.pipeline.controller.application.deployment import Deployment
from headrace.pipeline.controller.application.events import EventType
from headrace.pipeline.controller.application.lifecycle import Action, Operator, Phase, ResetEdges
from headrace.pipeline.declare.declarations import check_position
from headrace.pipeline.plan.edges import purge_window
from headrace.pipeline.plan.logical import READ_TOPIC
from headrace.pipeline.plan.logical import Operator as LogicalOperator
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.windows import NO_WINDOW, format_window

SET_PROPERTY = "setProperty"


class Changes(Deployment):
    _request_id: int = 0

    def on_property(
        self, name: str, values: Mapping[str, Any], now_ms: int
    ) -> tuple[list[int], list[Action]]:
        """Set properties of an operator, for now and for every later deployment.

        Live ones count from the next batch on: the ids of the requests that the operator's
        instances will confirm are returned. For others its queries are started again.
        """
        self._check_running()
        operators = self.named(name)
        logical = operators[0].physical.logical
        if unknown := sorted(set(values) - set(logical.properties)):
            raise InvalidArgumentError(
                "no such property", operator=name, property=", ".join(unknown)
            )
        plain = {key: _plain(value) for key, value in values.items()}
        self._event(now_ms, EventType.SET_PROPERTY, operator=name, values=plain)
        journal = self._journal("property", operator=name, values=plain)
        if set(values) <= live_properties(logical):
            return [self._ask(one, SET_PROPERTY, plain) for one in operators], [journal]
        return [], [*self._restart_queries([name]), journal]

    def on_rollback(
        self, window: WindowId, now_ms: int, names: Iterable[str] = (), reason: str = ""
    ) -> list[Action]:
        """Take these operators (all, unless some are named) and what reads them back to a window:
        everything after it is computed and published again."""
        self._check_running()
        if self.record.rollback is not None:
            raise UnavailableError("a rollback is under way; wait until it is done")
        if window != NO_WINDOW:
            self.grid.ordinal(window)
        if window > self.grid.window_at(now_ms):
            raise InvalidArgumentError("this window is yet to come", window=format_window(window))
        self._check_kept(window, now_ms)
        chosen = list(names) or [one.name for one in self.plan.logical.operators]
        for name in chosen:
            self.named(name)
        affected = sorted(self.downstream_of(chosen))
        self._check_begun(affected, window)
        self._event(
            now_ms, EventType.ROLL_BACK, reason, window=format_window(window), operators=affected
        )
        journal = self._journal("rollback", window=int(window), operators=affected)
        self._begin_rollback(int(window), affected)
        return [journal]

    def on_edges_reset(self) -> list[Action]:
        """Only runs that begin now may publish what was voided."""
        self._deploy_held = False
        run = self._next_run()
        for operator in self.operators.values():
            if operator.roll_back_to is not None:
                operator.run = run
        return [self._journal("run", run=run)]

    def on_edges_not_reset(self) -> None:
        """The broker was out of reach: the next tick tries again."""
        self._reset_due = True

    def on_checkpoint_lost(self, names: Iterable[str], reason: str, now_ms: int) -> list[Action]:
        """A query's checkpoint is gone, or belongs to something else: all that reads it is
        computed again from the beginning, if what that takes is still kept and nobody was promised
        that a row comes once. Otherwise the application fails: nothing is guessed."""
        if self.phase is not Phase.RUNNING or self.record.rollback is not None:
            return []
        affected = self.downstream_of(names)
        strict = [
            name
            for name in sorted(affected)
            for one in self.named(name)[:1]
            if self.plan.attribute(one.physical, "PROCESSING_MODE") == "EXACTLY_ONCE"
        ]
        if strict:
            return self._fail(f"{reason}; {', '.join(strict)} may not publish rows twice", now_ms)
        if any(one.cascaded for name in names for one in self.named(name)):
            return self._fail(f"{reason}, again after everything was started anew", now_ms)
        try:
            actions = self.on_rollback(NO_WINDOW, now_ms, names, reason)
        except InvalidArgumentError as error:
            return self._fail(f"{reason}; {error}", now_ms)
        for name in names:
            for one in self.named(name):
                one.cascaded = True
        return actions

    def on_replay(self, name: str, starting: str, now_ms: int) -> list[Action]:
        """Read a topic again, from `starting` (as in Application.topic): what reads it in its
        container starts under a new checkpoint, and so without its state."""
        self._check_running()
        if self.named(name)[0].physical.logical.function != READ_TOPIC:
            raise InvalidArgumentError("only a topic can be read again", operator=name)
        check_position("the start of a replay", starting)
        affected = sorted(self._fused_below(name))
        self._event(now_ms, EventType.REPLAY, operator=name, starting=starting)
        beginning = [one for each in affected for one in self.named(each)]
        for operator in beginning:
            operator.fresh = True
        generation = self._journal(
            "generation",
            operators=affected,
            properties={name: {"starting": starting}},
            ids=[one.physical.id for one in beginning],
        )
        return [*self._restart_queries(affected), generation]

    def on_recording(self, name: str, windows: int, now_ms: int, *, start: bool) -> str:
        """Have every instance keep sample rows of its next windows (or stop it); the recording's
        id, which is also the name of its folder."""
        self._check_running()
        self._request_id += 1
        id_ = f"{name}-{now_ms}"
        kind = m.RequestType.START_RECORDING if start else m.RequestType.STOP_RECORDING
        for operator in self.named(name):
            self.on_request(
                m.StramToNodeRequest(
                    operator.physical.id,
                    kind,
                    request_id=self._request_id,
                    recording_id=id_,
                    num_windows=windows,
                )
            )
        self._event(now_ms, EventType.RECORDING, operator=name, recording=id_, started=start)
        return id_

    # how they take effect

    def _restart_queries(self, names: Iterable[str]) -> list[Action]:
        """Undeploy what runs these operators; the deployment that follows has the new values. The
        record comes before that of the change: a controller that knows the change then also knows
        that what it finds running may be without it."""
        fused = {below for name in names for below in self._fused_below(name)}
        concerned = [one for one in self.operators.values() if _name(one) in fused]
        ids = [one.physical.id for one in concerned if one.take_down(self._run)]
        return [self._journal("outdated", operators=ids, run=self._run)] if ids else []

    def _fused_below(self, name: str) -> set[str]:
        """The operator and those that its queries lead to, as far as its containers reach."""
        wanted = {one.physical.id for one in self.named(name)}
        for operator in self.plan.operators:
            if any(one.local and one.source in wanted for one in operator.inputs):
                wanted.add(operator.id)
        return {self.plan.by_id[one].logical.name for one in wanted}

    def _begin_rollback(self, window: int, names: Iterable[str]) -> None:
        affected = [one for one in self.operators.values() if _name(one) in set(names)]
        for operator in affected:
            operator.roll_back_to = window
            operator.statistics.rewind(WindowId(window))
            operator.take_down(self._run)
        self.checkpoints.rewind({one.physical.id for one in affected}, WindowId(window))
        self._deploy_held = self._reset_due = True

    def _on_undeployed(self, now_ms: int) -> list[Action]:
        """Once nothing that is rolled back runs, what it published can be voided."""
        rollback = self.record.rollback
        if rollback is None or not self._reset_due:
            return []
        affected = [one for one in self.operators.values() if _name(one) in rollback.operators]
        if any(one.may_run for one in affected):
            return []
        self._reset_due = False
        names = set(rollback.operators)
        split = self.plan.split_streams
        edges = tuple(
            one.name
            for one in self.plan.logical.streams
            if one.name in split and one.source.operator in names
        )
        epoch = self._next_run()
        return [self._journal("run", run=epoch), ResetEdges(edges, rollback.window, epoch)]

    def _on_started(self, now_ms: int) -> list[Action]:
        """The rollback is over when everything runs from its window."""
        if self.record.rollback is None or self._reset_due:
            return []
        if any(one.roll_back_to is not None for one in self.operators.values()):
            return []
        return [self._journal("rollback", window=None, operators=[])]

    def _check_kept(self, window: WindowId, now_ms: int) -> None:
        """What was purged cannot be read again."""
        purged = purge_window(
            self.grid,
            self.checkpoints.committed,
            now_ms=now_ms,
            rollback_retention_ms=self._settings.rollback_retention_ms,
        )
        if self.plan.split_streams and window < purged:
            raise InvalidArgumentError(
                "topics between containers keep windows for "
                "advanced.controller.rollback_retention_ms, and this one is older",
                window=format_window(window),
                oldest=format_window(purged),
            )

    def _check_begun(self, names: Iterable[str], window: WindowId) -> None:
        """What was before a checkpoint began is not in it."""
        for name in names:
            began = self.record.activations.get(name, NO_WINDOW)
            if window < began:
                raise InvalidArgumentError(
                    "its checkpoint began later: with other instances, a replay, or new state",
                    operator=name,
                    window=format_window(window),
                    began=format_window(began),
                )

    def _ask(self, operator: Operator, cmd: str, arguments: Mapping[str, Any]) -> int:
        self._request_id += 1
        values = {name: _value(value) for name, value in arguments.items()}
        self.on_request(
            m.StramToNodeRequest(
                operator.physical.id,
                m.RequestType.CUSTOM,
                cmd=cmd,
                request_id=self._request_id,
                arguments=values,
            )
        )
        return self._request_id

    def _check_running(self) -> None:
        if self.phase is not Phase.RUNNING:
            raise InvalidArgumentError(
                f"the application is {self.phase.value}; resume it first", name=self.name
            )


def _name(operator: Operator) -> str:
    return operator.physical.logical.name


def live_properties(operator: LogicalOperator) -> set[str]:
    value = operator.attributes.get("LIVE_PROPERTIES")
    return set(json.loads(value.text)) if isinstance(value, m.Json) else set()


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InvalidArgumentError("a property is text, a number, a truth value or null")


def _value(value: Any) -> m.Value:
    plain = value is None or isinstance(value, bool | int | float | str)
    return value if plain else m.Json(json.dumps(value))
