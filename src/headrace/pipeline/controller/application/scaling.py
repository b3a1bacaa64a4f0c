"""Another number of instances of an operator while it runs.

Instances of a stateless operator change at one window: all are stopped, those that are behind the
furthest (by batches, or by windows that passed without any) are let run up to its window, and from
the next window on the new instances read and publish instead, each under a checkpoint of its own.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.errors import InvalidArgumentError, UnavailableError
from headrace.ids import WindowId
from headrace.pipeline.controller.application.changes import PlanChanges
from headrace.pipeline.controller.application.container_supervision import ContainerSupervision
from headrace.pipeline.controller.application.events import EventType
from headrace.pipeline.controller.application.lifecycle import (
    Action,
    ContainerState,
    MakeEdges,
    Operator,
    OperatorState,
)
from headrace.pipeline.controller.application.model import ApplicationModel
from headrace.pipeline.controller.journal import Scaling as ScalingRecord
from headrace.pipeline.plan.logical import Operator as LogicalOperator
from headrace.pipeline.plan.physical import PhysicalPlan, make_physical_plan


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
