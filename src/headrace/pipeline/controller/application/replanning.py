"""Changes of the graph while it runs: operators that come and go, and other numbers of instances.

Only what is concerned is touched. New operators are deployed where the plan puts them, removed ones
are undeployed, and one that now has to publish to other containers is started again; an operator
that stays must go on reading what its checkpoint was made from, so a change of its inputs is
refused.

Instances of a stateless operator change at one window: all are stopped, those that are behind the
furthest (by batches, or by windows that passed without any) are let run up to its window, and from
the next window on the new instances read and publish instead, each under a checkpoint of its own.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.errors import InvalidArgumentError, UnavailableError
from headrace.ids import WindowId
from headrace.pipeline.controller.application.changes import Changes
from headrace.pipeline.controller.application.events import EventType
from headrace.pipeline.controller.application.lifecycle import (
    Action,
    ContainerState,
    MakeEdges,
    Operator,
    OperatorState,
)
from headrace.pipeline.controller.journal import Scaling
from headrace.pipeline.plan.logical import LogicalPlan
from headrace.pipeline.plan.logical import Operator as LogicalOperator
from headrace.pipeline.plan.physical import PhysicalOperator, PhysicalPlan, make_physical_plan


class Replanning(Changes):
    def plan_with(self, plan: LogicalPlan) -> PhysicalPlan:
        """What a changed plan would be; InvalidArgumentError when it cannot be changed to."""
        self._check_running()
        if self.record.rollback is not None or self.record.scaling is not None:
            raise UnavailableError("another change is under way; wait until it is done")
        if plan.name != self.name:
            raise InvalidArgumentError("an application keeps its name", name=plan.name)
        after = make_physical_plan(plan, self.plan.identities)
        for operator in after.operators:
            before = self.plan.by_id.get(operator.id)
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
        before = self.plan
        names = {one.name for one in before.logical.operators}
        kept = {one.name for one in after.logical.operators}
        self._event(now_ms, EventType.CHANGE_PLAN)
        for name in sorted(kept - names):
            self._event(now_ms, EventType.CREATE_OPERATOR, operator=name)
        for name in sorted(names - kept):
            self._event(now_ms, EventType.REMOVE_OPERATOR, operator=name)
        changed = {
            one.logical.name
            for one in after.operators
            if one.id in before.by_id and _differs(before.by_id[one.id], one)
        }
        switched = [self._plan_record(after), *self._switch(after, now_ms)]
        activated = [self._activate(name) for name in sorted(kept - names)]
        return [
            *self._restart_queries(changed),
            *switched,
            *activated,
            *self._launch_due(now_ms),
        ]

    def _activate(self, name: str) -> Action:
        """An operator that comes new begins where what it reads would recover; one that was there
        before has a checkpoint that says where it was."""
        inputs = [one.source for each in self.named(name) for one in each.physical.inputs]
        reached = [self.checkpoints.recovery(one) for one in inputs]
        window = max([self.checkpoints.committed, *reached])
        return self._journal("activation", operator=name, window=int(window))

    def on_instances(self, name: str, instances: int, now_ms: int) -> list[Action]:
        """Begin to change how many instances an operator has."""
        operator = self.named(name)[0].physical.logical
        if operator.instances == instances:
            return []
        if operator.attributes.get("STATELESS") is not True:
            raise InvalidArgumentError(
                "only a stateless operator's rows can be shared anew: declare it STATELESS=True",
                operator=name,
            )
        changed = replace(operator, instances=instances, isolate=True)
        after = self._plan_scaled(changed)
        if self.record.rollback is not None or self.record.scaling is not None:
            raise UnavailableError("another change is under way; wait until it is done")
        before = {(one.stream, one.local) for one in self.named(name)[0].physical.inputs}
        for one in after.named(name):
            if {(each.stream, each.local) for each in one.inputs} != before or any(
                each.local for each in one.inputs
            ):
                raise InvalidArgumentError(
                    "it has to read from other containers, before and after: declare it with "
                    "isolate=True and let it read an operator, not a topic",
                    operator=name,
                )
        self._check_running()
        self._event(
            now_ms, EventType.PARTITION, operator=name, old=operator.instances, new=instances
        )
        self._begin_scaling(name)
        return [self._journal("scale", operator=name, instances=instances, window=None)]

    def on_edges_made(self, now_ms: int) -> list[Action]:
        """New instances may publish: from here on there are only they."""
        scaling = self.record.scaling
        assert scaling is not None, "edges are made for somebody"
        assert scaling.window is not None
        name = scaling.operator
        operator = self.named(name)[0].physical.logical
        after = self._plan_scaled(replace(operator, instances=scaling.instances, isolate=True))
        record = self._plan_record(after, scaled=(name, scaling.window))
        self._scaling_done = True
        actions = [record, *self._switch(after, now_ms)]
        run = self._next_run()
        for one in self.named(name):
            one.held, one.until, one.activation, one.run = False, None, None, run
            container = self.container(one.physical.container)
            if container.state in (ContainerState.ACTIVE, ContainerState.ALLOCATED):
                one.state = OperatorState.PENDING_DEPLOY
        return [*actions, self._journal("run", run=run), *self._launch_due(now_ms)]

    def on_windows_passed(self, window: WindowId) -> list[Action]:
        """An instance that had nothing to do let windows pass after its last batch: the change is
        at the last of them, which all instances are let reach."""
        scaling = self.record.scaling
        assert scaling is not None, "edges are made for somebody"
        return self._change_at(scaling, window)

    def _change_at(self, scaling: Scaling, window: WindowId) -> list[Action]:
        """Once every instance has reached this window, which some may have yet to do."""
        self._let_catch_up(self.named(scaling.operator), window)
        return [
            self._journal(
                "scale",
                operator=scaling.operator,
                instances=scaling.instances,
                window=int(window),
            )
        ]

    def _begin_scaling(self, name: str) -> None:
        self._scaling_done = False
        for operator in self.named(name):
            operator.held = True
            operator.take_down(self._run)

    def _continue_scaling(self, now_ms: int) -> list[Action]:
        """Called with every tick: what the next step is, if the last one is done."""
        scaling = self.record.scaling
        if scaling is None or self._scaling_done:
            self._scaling_done = self._scaling_done and scaling is not None
            return []
        operators = self.named(scaling.operator)
        if scaling.window is None:
            if any(one.may_run for one in operators):
                return []
            window = max(self.checkpoints.newest(one.physical.id) for one in operators)
            return self._change_at(scaling, window)
        if any(not one.held and one.state is not OperatorState.INACTIVE for one in operators):
            return []
        logical = operators[0].physical.logical
        after = self._plan_scaled(replace(logical, instances=scaling.instances, isolate=True))
        split = self.plan.split_streams
        streams = tuple(
            one.name
            for one in self.plan.logical.streams
            if one.name in split and one.source.operator == scaling.operator
        )
        return [MakeEdges(after, scaling.window, streams)]

    def _let_catch_up(self, operators: list[Operator], window: WindowId) -> None:
        for operator in operators:
            if self.checkpoints.newest(operator.physical.id) < window:
                operator.held, operator.until = False, int(window)
                container = self.container(operator.physical.container)
                if container.state in (ContainerState.ACTIVE, ContainerState.ALLOCATED):
                    operator.state = OperatorState.PENDING_DEPLOY

    def _plan_scaled(self, changed: LogicalOperator) -> PhysicalPlan:
        logical = self.plan.logical
        operators = tuple(changed if one.name == changed.name else one for one in logical.operators)
        return make_physical_plan(replace(logical, operators=operators), self.plan.identities)

    def _switch(self, after: PhysicalPlan, now_ms: int) -> list[Action]:
        """The new plan in place of the old one; new operators wait to be deployed."""
        known = set(self.operators)
        self.plan = after
        self.checkpoints = self.checkpoints.change_plan(after)
        self._enroll()
        run = self._next_run()
        for container in self.containers:
            if container.state is ContainerState.NEW:
                container.launch_after_ms = now_ms
                continue
            for operator in container.operators:
                if operator.physical.id not in known:
                    operator.state, operator.run = OperatorState.PENDING_DEPLOY, run
        return [self._journal("run", run=run)]

    def _plan_record(self, after: PhysicalPlan, scaled: tuple[str, int] | None = None) -> Action:
        return self._journal(
            "plan",
            plan={**self.record.plan, **after.logical.to_json()},
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
