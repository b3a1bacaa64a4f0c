"""Changes while an application runs: properties, replay, operators that come and go, and
their numbers of instances.

Each is journalled before it takes effect and then reaches the containers as a redeployment of the
queries it concerns; the others go on. New operators are deployed where the plan puts them, removed
ones are undeployed, and one that now has to publish to other containers is started again; an
operator that stays must go on reading what its checkpoint was made from, so a change of its inputs
is refused.

Instances of a stateless operator change at one window: all are stopped, those that are behind the
furthest (by batches, or by windows that passed without any) are let run up to its window, and from
the next window on the new instances read and publish instead, each under a checkpoint of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from headrace.errors import InvalidArgumentError, UnavailableError
from headrace.ids import WindowId
from headrace.pipeline.controller.application.container_liveness import ContainerSupervision
from headrace.pipeline.controller.application.events import EventType
from headrace.pipeline.controller.application.lifecycle import (
    Action,
    ContainerState,
    MakeEdges,
    Operator,
    OperatorState,
)
from headrace.pipeline.controller.application.model import ApplicationModel
from headrace.pipeline.controller.application.operator_requests import (
    OperatorRequests,
    live_properties,
)
from headrace.pipeline.controller.journal import Scaling as ScalingRecord
from headrace.pipeline.declare.declarations import check_position
from headrace.pipeline.plan.logical import READ_TOPIC, LogicalPlan
from headrace.pipeline.plan.logical import Operator as LogicalOperator
from headrace.pipeline.plan.physical import PhysicalOperator, PhysicalPlan, make_physical_plan


class Queries:
    """The Spark queries that run an application's operators."""

    def __init__(self, model: ApplicationModel) -> None:
        self._model = model

    def restart(self, names: Iterable[str]) -> list[Action]:
        """Undeploy what runs these operators; the deployment that follows has the new values. The
        record comes before that of the change: a controller that knows the change then also knows
        that what it finds running may be without it."""
        fused = {below for name in names for below in self.fused_below(name)}
        concerned = [one for one in self._model.operators.values() if one.name in fused]
        ids = [one.physical.id for one in concerned if one.take_down(self._model.run)]
        return [self._model.journal("outdated", operators=ids, run=self._model.run)] if ids else []

    def fused_below(self, name: str) -> set[str]:
        """The operator and those that its queries lead to, as far as its containers reach."""
        wanted = {one.physical.id for one in self._model.named(name)}
        for operator in self._model.plan.operators:
            if any(one.local and one.source in wanted for one in operator.inputs):
                wanted.add(operator.id)
        return {self._model.plan.by_id[one].logical.name for one in wanted}


class Changes:
    """New values of properties, and topics that are read again."""

    def __init__(
        self, model: ApplicationModel, requests: OperatorRequests, queries: Queries
    ) -> None:
        self._model = model
        self._requests = requests
        self._queries = queries

    def on_property(
        self, name: str, values: Mapping[str, Any], now_ms: int
    ) -> tuple[list[int], list[Action]]:
        """Set properties of an operator, for now and for every later deployment.

        Live ones count from the next batch on: the ids of the requests that the operator's
        instances will confirm are returned. For others its queries are started again.
        """
        self._model.check_running()
        operators = self._model.named(name)
        logical = operators[0].physical.logical
        if unknown := sorted(set(values) - set(logical.properties)):
            raise InvalidArgumentError(
                "no such property", operator=name, property=", ".join(unknown)
            )
        plain = {key: _plain(value) for key, value in values.items()}
        self._model.add_event(now_ms, EventType.SET_PROPERTY, operator=name, values=plain)
        journal = self._model.journal("property", operator=name, values=plain)
        if set(values) <= live_properties(logical):
            return [self._requests.set_properties(one, plain) for one in operators], [journal]
        return [], [*self._queries.restart([name]), journal]

    def on_replay(self, name: str, starting: str, now_ms: int) -> list[Action]:
        """Read a topic again, from `starting` (as in Application.topic): what reads it in its
        container starts under a new checkpoint, and so without its state."""
        self._model.check_running()
        if self._model.named(name)[0].physical.logical.function != READ_TOPIC:
            raise InvalidArgumentError("only a topic can be read again", operator=name)
        check_position("the start of a replay", starting)
        affected = sorted(self._queries.fused_below(name))
        self._model.add_event(now_ms, EventType.REPLAY, operator=name, starting=starting)
        beginning = [one for each in affected for one in self._model.named(each)]
        for operator in beginning:
            operator.fresh = True
        generation = self._model.journal(
            "generation",
            operators=affected,
            properties={name: {"starting": starting}},
            ids=[one.physical.id for one in beginning],
        )
        return [*self._queries.restart(affected), generation]


class PlanChanges:
    """Operators that come and go."""

    def __init__(
        self, model: ApplicationModel, containers: ContainerSupervision, queries: Queries
    ) -> None:
        self._model = model
        self._containers = containers
        self._queries = queries

    def plan_with(self, plan: LogicalPlan) -> PhysicalPlan:
        """What a changed plan would be; InvalidArgumentError when it cannot be changed to."""
        self._model.check_running()
        if self._model.record.rollback is not None or self._model.record.scaling is not None:
            raise UnavailableError("another change is under way; wait until it is done")
        if plan.name != self._model.name:
            raise InvalidArgumentError("an application keeps its name", name=plan.name)
        after = make_physical_plan(plan, self._model.plan.identities)
        for operator in after.operators:
            before = self._model.plan.by_id.get(operator.id)
            if before is not None and _sources(before) != _sources(operator):
                raise InvalidArgumentError(
                    "its checkpoint belongs to what it reads now: create an operator of another "
                    "name instead",
                    operator=operator.logical.name,
                )
            if before is not None and before.logical.instances != operator.logical.instances:
                raise InvalidArgumentError(
                    "the number of instances is changed by itself", operator=operator.logical.name
                )
        return after

    def on_plan(self, after: PhysicalPlan, now_ms: int) -> list[Action]:
        """`after` is what `plan_with` said, and its edges are made."""
        before = self._model.plan
        names = {one.name for one in before.logical.operators}
        kept = {one.name for one in after.logical.operators}
        self._model.add_event(now_ms, EventType.CHANGE_PLAN)
        for name in sorted(kept - names):
            self._model.add_event(now_ms, EventType.CREATE_OPERATOR, operator=name)
        for name in sorted(names - kept):
            self._model.add_event(now_ms, EventType.REMOVE_OPERATOR, operator=name)
        changed = {
            one.logical.name
            for one in after.operators
            if one.id in before.by_id and _differs(before.by_id[one.id], one)
        }
        switched = [self.plan_record(after), *self.switch(after, now_ms)]
        activated = [self._activate(name) for name in sorted(kept - names)]
        return [
            *self._queries.restart(changed),
            *switched,
            *activated,
            *self._containers.launch_due(now_ms),
        ]

    def _activate(self, name: str) -> Action:
        """An operator that comes new begins where what it reads would recover; one that was there
        before has a checkpoint that says where it was."""
        inputs = [one.source for each in self._model.named(name) for one in each.physical.inputs]
        reached = [self._model.checkpoints.recovery(one) for one in inputs]
        window = max([self._model.checkpoints.committed, *reached])
        return self._model.journal("activation", operator=name, window=int(window))

    def switch(self, after: PhysicalPlan, now_ms: int) -> list[Action]:
        """The new plan in place of the old one; new operators wait to be deployed."""
        known = set(self._model.operators)
        self._model.change_plan(after)
        run = self._model.next_run()
        for container in self._model.containers:
            if container.state is ContainerState.NEW:
                container.launch_after_ms = now_ms
                continue
            for operator in container.operators:
                if operator.physical.id not in known:
                    operator.state, operator.run = OperatorState.PENDING_DEPLOY, run
        return [self._model.journal("run", run=run)]

    def plan_record(self, after: PhysicalPlan, scaled: tuple[str, int] | None = None) -> Action:
        return self._model.journal(
            "plan",
            plan={**self._model.record.plan, **after.logical.to_json()},
            operator_ids=dict(after.identities.operators),
            container_ids=dict(after.identities.containers),
            scaled=list(scaled) if scaled is not None else None,
        )


def _sources(operator: PhysicalOperator) -> set[tuple[str, str, bool]]:
    return {(one.stream, one.port, one.local) for one in operator.inputs}


def _differs(before: PhysicalOperator, after: PhysicalOperator) -> bool:
    """Whether it must be deployed anew: who publishes to it does not matter."""
    return (before.logical, before.outputs, before.query, before.container) != (
        after.logical,
        after.outputs,
        after.query,
        after.container,
    )


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InvalidArgumentError("a property is text, a number, a truth value or null")


class Scaling:
    """At most one operator at a time; the journal's record says which, and how far it is."""

    def __init__(
        self,
        model: ApplicationModel,
        containers: ContainerSupervision,
        plan_changes: PlanChanges,
    ) -> None:
        self._model = model
        self._containers = containers
        self._plan_changes = plan_changes
        self._done = False  # this change is, and its record is on its way
        begun = model.record.scaling
        if begun is not None and not model.finished:
            self._begin(begun.operator)
            if begun.window is not None:
                self._let_catch_up(model.named(begun.operator), WindowId(begun.window))

    def on_instances(self, name: str, instances: int, now_ms: int) -> list[Action]:
        """Begin to change how many instances an operator has."""
        operator = self._model.named(name)[0].physical.logical
        if operator.instances == instances:
            return []
        if operator.attributes.get("STATELESS") is not True:
            raise InvalidArgumentError(
                "only a stateless operator's rows can be shared anew: declare it STATELESS=True",
                operator=name,
            )
        changed = replace(operator, instances=instances, isolate=True)
        after = self._plan_scaled(changed)
        if self._model.record.rollback is not None or self._model.record.scaling is not None:
            raise UnavailableError("another change is under way; wait until it is done")
        before = {(one.stream, one.local) for one in self._model.named(name)[0].physical.inputs}
        for one in after.named(name):
            if {(each.stream, each.local) for each in one.inputs} != before or any(
                each.local for each in one.inputs
            ):
                raise InvalidArgumentError(
                    "it has to read from other containers, before and after: declare it with "
                    "isolate=True and let it read an operator, not a topic",
                    operator=name,
                )
        self._model.check_running()
        self._model.add_event(
            now_ms, EventType.PARTITION, operator=name, old=operator.instances, new=instances
        )
        self._begin(name)
        return [self._model.journal("scale", operator=name, instances=instances, window=None)]

    def on_edges_made(self, now_ms: int) -> list[Action]:
        """New instances may publish: from here on there are only they."""
        scaling = self._model.record.scaling
        assert scaling is not None, "edges are made for somebody"
        assert scaling.window is not None
        name = scaling.operator
        operator = self._model.named(name)[0].physical.logical
        after = self._plan_scaled(replace(operator, instances=scaling.instances, isolate=True))
        record = self._plan_changes.plan_record(after, scaled=(name, scaling.window))
        self._done = True
        actions = [record, *self._plan_changes.switch(after, now_ms)]
        run = self._model.next_run()
        for one in self._model.named(name):
            one.held, one.until, one.activation, one.run = False, None, None, run
            container = self._model.container(one.physical.container)
            if container.state in (ContainerState.ACTIVE, ContainerState.ALLOCATED):
                one.state = OperatorState.PENDING_DEPLOY
        return [*actions, self._model.journal("run", run=run), *self._containers.launch_due(now_ms)]

    def on_windows_passed(self, window: WindowId) -> list[Action]:
        """An instance that had nothing to do let windows pass after its last batch: the change is
        at the last of them, which all instances are let reach."""
        scaling = self._model.record.scaling
        assert scaling is not None, "edges are made for somebody"
        return self._change_at(scaling, window)

    def _change_at(self, scaling: ScalingRecord, window: WindowId) -> list[Action]:
        """Once every instance has reached this window, which some may have yet to do."""
        self._let_catch_up(self._model.named(scaling.operator), window)
        return [
            self._model.journal(
                "scale",
                operator=scaling.operator,
                instances=scaling.instances,
                window=int(window),
            )
        ]

    def _begin(self, name: str) -> None:
        self._done = False
        for operator in self._model.named(name):
            operator.held = True
            operator.take_down(self._model.run)

    def on_tick(self, now_ms: int) -> list[Action]:
        """Called with every tick: what the next step is, if the last one is done."""
        scaling = self._model.record.scaling
        if scaling is None or self._done:
            self._done = self._done and scaling is not None
            return []
        operators = self._model.named(scaling.operator)
        if scaling.window is None:
            if any(one.may_run for one in operators):
                return []
            window = max(self._model.checkpoints.newest(one.physical.id) for one in operators)
            return self._change_at(scaling, window)
        if any(not one.held and one.state is not OperatorState.INACTIVE for one in operators):
            return []
        logical = operators[0].physical.logical
        after = self._plan_scaled(replace(logical, instances=scaling.instances, isolate=True))
        split = self._model.plan.split_streams
        streams = tuple(
            one.name
            for one in self._model.plan.logical.streams
            if one.name in split and one.source.operator == scaling.operator
        )
        return [MakeEdges(after, scaling.window, streams)]

    def _let_catch_up(self, operators: list[Operator], window: WindowId) -> None:
        for operator in operators:
            if self._model.checkpoints.newest(operator.physical.id) < window:
                operator.held, operator.until = False, int(window)
                container = self._model.container(operator.physical.container)
                if container.state in (ContainerState.ACTIVE, ContainerState.ALLOCATED):
                    operator.state = OperatorState.PENDING_DEPLOY

    def _plan_scaled(self, changed: LogicalOperator) -> PhysicalPlan:
        logical = self._model.plan.logical
        operators = tuple(changed if one.name == changed.name else one for one in logical.operators)
        return make_physical_plan(
            replace(logical, operators=operators), self._model.plan.identities
        )
