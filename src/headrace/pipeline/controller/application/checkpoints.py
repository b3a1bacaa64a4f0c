"""Recovery checkpoints and the committed window.

    recovery(op)  = newest own checkpoint <= min(recovery(downstream))
    committed     = min of recovery over all operators

An operator without a query of its own keeps no checkpoint: it is as far as those it feeds. Neither
number ever moves back, because reported checkpoints only grow; tests/property/
test_pipeline_model.py holds this against a search over all assignments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container

from headrace.ids import OperatorId, WindowId
from headrace.pipeline.plan.physical import PhysicalPlan
from headrace.wire.umbilical.windows import NO_WINDOW

CHECKPOINTS_MAX = 1000  # reported and not yet passed by `recovery`; the oldest are forgotten


class Checkpoints:
    def __init__(self, plan: PhysicalPlan, committed: WindowId = NO_WINDOW) -> None:
        """`committed` is what an earlier life of the controller had reached: every operator
        recovers at least there."""
        self._plan = plan
        self._reported: dict[OperatorId, list[WindowId]] = {
            operator.id: [] for operator in plan.operators if operator.query
        }
        self._recovery = dict.fromkeys(plan.by_id, committed)
        self.committed = committed

    def on_checkpoint(self, operator: OperatorId, window: WindowId) -> bool:
        """Whether it is news; a repeated heartbeat brings old ones."""
        reported = self._reported.get(operator)
        if reported is None or window <= self.newest(operator):
            return False
        reported.append(window)
        # Dropping an old one can only hold `recovery` back, never move it too far.
        del reported[:-CHECKPOINTS_MAX]
        return True

    def rewind(self, operators: Container[OperatorId], window: WindowId) -> None:
        """These go back to `window` and report what comes after it again. The committed window
        stays: what was promised is not taken back, it only grows later."""
        for operator in self._plan.by_id:
            if operator in operators:
                self._recovery[operator] = min(self._recovery[operator], window)
                reported = self._reported.get(operator, [])
                del reported[bisect_right(reported, window) :]

    def newest(self, operator: OperatorId) -> WindowId:
        reported = self._reported.get(operator)
        return reported[-1] if reported else self._recovery[operator]

    def recovery(self, operator: OperatorId) -> WindowId:
        return self._recovery[operator]

    def update(self, frozen: Container[OperatorId] = ()) -> WindowId:
        """Compute again; `frozen` operators (about to be deployed) keep what they have."""
        for operator in reversed(self._plan.operators):
            if operator.id not in frozen:
                self._recovery[operator.id] = self._recovery_of(operator.id)
        demanded = [self._recovery[one.id] for one in self._plan.operators if one.query]
        self.committed = max(self.committed, min(demanded, default=NO_WINDOW))
        return self.committed

    def _recovery_of(self, operator: OperatorId) -> WindowId:
        before = self._recovery[operator]
        below = [self._recovery[one] for one in self._plan.downstream[operator]]
        reported = self._reported.get(operator)
        if reported is None:
            return max(before, min(below, default=before))
        bound = min(below, default=None)
        count = len(reported) if bound is None else bisect_right(reported, bound)
        if count == 0:
            return before
        chosen = reported[count - 1]
        del reported[: count - 1]
        return max(before, chosen)

    def change_plan(self, plan: PhysicalPlan) -> Checkpoints:
        """The same for another plan: known operators keep what they have, new ones begin at the
        committed window."""
        after = Checkpoints(plan, self.committed)
        for operator in plan.operators:
            if operator.id in self._recovery:
                after._recovery[operator.id] = self._recovery[operator.id]
            if operator.id in self._reported and operator.id in after._reported:
                after._reported[operator.id] = self._reported[operator.id]
        return after
