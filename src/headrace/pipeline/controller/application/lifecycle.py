"""States of containers and operators, and the table that moves an operator on.

container  NEW -> ALLOCATED -> ACTIVE -> KILLED (-> ALLOCATED under a new id)
operator   INACTIVE -> PENDING_DEPLOY -> ACTIVE -> PENDING_UNDEPLOY -> PENDING_DEPLOY
                                         ACTIVE -> INACTIVE
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from headrace.pipeline.controller.application.statistics import OperatorStatistics
from headrace.pipeline.controller.journal import Body
from headrace.pipeline.failures import Kind, kind_of, sentence
from headrace.pipeline.plan.physical import PhysicalOperator, PhysicalPlan
from headrace.wire.umbilical import messages as m


class ContainerState(Enum):
    NEW = "NEW"
    ALLOCATED = "ALLOCATED"
    ACTIVE = "ACTIVE"
    KILLED = "KILLED"


class OperatorState(Enum):
    INACTIVE = "INACTIVE"
    PENDING_DEPLOY = "PENDING_DEPLOY"
    ACTIVE = "ACTIVE"
    PENDING_UNDEPLOY = "PENDING_UNDEPLOY"


class Phase(Enum):
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"  # on request
    FINISHED = "FINISHED"  # by itself
    FAILED = "FAILED"


ENDED = frozenset({Phase.STOPPED, Phase.FINISHED, Phase.FAILED})


@dataclass(frozen=True, slots=True)
class Record:
    """Make this durable before going on."""

    kind: str
    body: Body


@dataclass(frozen=True, slots=True)
class Launch:
    container_id: str
    index: int


@dataclass(frozen=True, slots=True)
class Kill:
    container_id: str


@dataclass(frozen=True, slots=True)
class ResetEdges:
    """Void what was published after a window, for runs from `epoch` on to publish again; then say
    so with `on_edges_reset`."""

    edges: tuple[str, ...]
    window: int
    epoch: int


@dataclass(frozen=True, slots=True)
class PurgeEdges:
    """Everything up to this window may go."""

    window: int


@dataclass(frozen=True, slots=True)
class MakeEdges:
    """Let the plan's instances publish from the window after this one on, then say so with
    `on_edges_made`; or with `on_windows_passed` that those before them closed later ones."""

    plan: PhysicalPlan
    after: int
    streams: tuple[str, ...] = ()  # that they fill


Action: TypeAlias = Record | Launch | Kill | MakeEdges | ResetEdges | PurgeEdges


class Step(Enum):
    """What the deploy-state table asks for beside the next state."""

    NOTHING = 0
    DEPLOY = 1
    UNDEPLOY = 2
    STARTED = 3
    STOPPED = 4  # ended by itself
    FAILED = 5
    GONE = 6  # undeployed as asked: deploy again


_I, _PD = OperatorState.INACTIVE, OperatorState.PENDING_DEPLOY
_A, _PU = OperatorState.ACTIVE, OperatorState.PENDING_UNDEPLOY
_ACTIVE, _SHUTDOWN, _FAILED = m.DeployState.ACTIVE, m.DeployState.SHUTDOWN, m.DeployState.FAILED

# (state here, state reported; None = not reported) -> (next state, what follows)
DEPLOY_STEPS: dict[tuple[OperatorState, m.DeployState | None], tuple[OperatorState, Step]] = {
    (_PD, None): (_PD, Step.DEPLOY),
    (_PD, _ACTIVE): (_A, Step.STARTED),
    (_PD, _SHUTDOWN): (_A, Step.NOTHING),
    (_PD, _FAILED): (_A, Step.NOTHING),  # the failure is seen at the next heartbeat
    (_A, None): (_A, Step.NOTHING),  # deployed again if it stays so: `Deployment._on_missing`
    (_A, _ACTIVE): (_A, Step.NOTHING),
    (_A, _SHUTDOWN): (_I, Step.STOPPED),
    (_A, _FAILED): (_PU, Step.FAILED),
    (_PU, None): (_PD, Step.GONE),
    (_PU, _ACTIVE): (_PU, Step.UNDEPLOY),
    (_PU, _SHUTDOWN): (_PU, Step.UNDEPLOY),
    (_PU, _FAILED): (_PU, Step.UNDEPLOY),
    (_I, None): (_I, Step.NOTHING),
    (_I, _ACTIVE): (_I, Step.UNDEPLOY),
    (_I, _SHUTDOWN): (_I, Step.UNDEPLOY),
    (_I, _FAILED): (_I, Step.UNDEPLOY),
}


@dataclass(slots=True)
class Operator:
    physical: PhysicalOperator
    state: OperatorState = OperatorState.INACTIVE
    run: int = 0
    failures: int = 0  # since its last new checkpoint
    lost: int = 0  # of them, those with its container; until something in there has one
    passing: int = 0  # of them, for reasons that pass by themselves
    mistakes: int = 0  # times in a row that it ended with the same mistake
    mistake: str = ""
    cause: str = ""  # what was told of it since it was last started
    deploy_after_ms: int = 0
    roll_back_to: int | None = None  # with its next deployment
    until: int | None = None  # likewise: end when everything up to this window is read
    held: bool = False  # not to be deployed for now
    fresh: bool = False  # its next deployment begins a new checkpoint,
    activation: int | None = None  # whose windows come after this one
    sent: bool = False  # its deployment is on its way, or done
    cascaded: bool = False  # it began anew because its checkpoint was lost; until its next one
    stale: bool = False  # what is on its way is out of date: undeploy it when it has started
    outdated: int = 0  # deployments of runs up to this one are out of date
    last_error: str = ""
    progress_ms: int = 0  # when it last did something, or had nothing to do
    tasks_finished: int = -1  # of the batch it is in, as last reported
    statistics: OperatorStatistics = field(default_factory=OperatorStatistics)
    requests: list[m.StramToNodeRequest] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name in the logical plan, which all instances share."""
        return self.physical.logical.name

    @property
    def may_run(self) -> bool:
        running = self.state in (OperatorState.ACTIVE, OperatorState.PENDING_UNDEPLOY)
        return running or (self.state is OperatorState.PENDING_DEPLOY and self.sent)

    def take_down(self, run: int) -> bool:
        """Undeploy it, as soon as it can be; a deployment with what holds then will follow. `run`
        is the last one that was given out: whatever runs now, or starts late, is of it or older.
        False when there is nothing to undeploy."""
        if self.state is OperatorState.ACTIVE:
            self.state = OperatorState.PENDING_UNDEPLOY
        elif self.state is OperatorState.PENDING_DEPLOY and self.sent:
            self.stale = True
        elif self.state is not OperatorState.PENDING_UNDEPLOY:
            return False
        self.outdated = max(self.outdated, run)
        return True

    def on_failure(self, cause: str, *, lost: bool = False) -> None:
        """It failed; `lost`: with its container."""
        kind, found = kind_of(cause), sentence(cause)
        self.failures += 1
        self.lost += lost
        self.passing += kind is Kind.PASSING
        mistake = found if kind is Kind.MISTAKE else ""
        again = bool(mistake) and mistake == self.mistake
        self.mistake, self.mistakes = mistake, self.mistakes + 1 if again else int(bool(mistake))

    def on_progress(self, *, own: bool) -> None:
        """A new checkpoint, of its own or of a neighbour in its container: what took the container
        down is over, what takes this one down may not be."""
        self.failures = 0 if own else self.failures - self.lost
        self.lost = 0
        self.passing = min(self.passing, self.failures)
        if not self.failures:
            self.mistakes, self.mistake = 0, ""

    def is_outdated(self, run: int) -> bool:
        """Whether a deployment that has started is not the one that is wanted; run 0 is a container
        that does not tell."""
        return run <= self.outdated if run else self.stale


@dataclass(slots=True)
class Container:
    index: int
    operators: tuple[Operator, ...]
    id: str = ""
    state: ContainerState = ContainerState.NEW
    run: int = 0
    restarts: int = 0
    pid: int | None = None
    exit_status: int | None = None
    allocated_ms: int = 0
    heartbeat_ms: int = 0
    launch_after_ms: int | None = None
    kill_deadline_ms: int | None = None  # set: a kill is on its way
    counts_as_failure: bool = True
    missing_ms: int | None = None  # since when it does not report all that runs there
    told_to_end: bool = False  # by a heartbeat's answer
    ended: bool = False  # for good: it will not be launched again
    lost_ms: int | None = None  # when a loss was noticed; until its first new window
    recovery_ms: int | None = None  # how long the last recovery took
    stack_trace_wanted: bool = False
    stack_trace: str = ""
    last: m.ContainerHeartbeat | None = None

    @property
    def failures(self) -> int:
        return max(operator.failures for operator in self.operators)
