"""What the front page says: problems, each with what to do next, and how every pipeline is."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["critical", "warning", "notice", "ok"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "notice", "ok")  # worst first
CatchUp = Literal["caught up", "catching up", "never", "unknown"]
Subject = Literal["pipeline", "node", "range", "group", "topic", "broker"]
# A button that helps; the page knows how to ask for it.
Action = Literal["resume", "scale", "kill", "logs", "errors", "dead letters", "deploy"]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, in a sentence, and the next step."""

    id: str  # the same as long as the problem is the same
    kind: str
    severity: Severity
    subject: Subject
    name: str
    title: str
    detail: str = ""
    next_step: str = ""
    actions: tuple[Action, ...] = ()
    operator: str = ""
    container: str = ""


class Bottleneck(msgspec.Struct, frozen=True, kw_only=True):
    """The stage that limits a pipeline."""

    operator: str
    container: str
    busy: float  # share of the time that it spent in batches
    batch_ms: int
    phase: str  # what most of a batch's time goes to
    reason: str


class LastError(msgspec.Struct, frozen=True, kw_only=True):
    """The newest error, taken apart where its text says more."""

    time_ms: int
    text: str
    operator: str = ""
    container: str = ""
    window: str = ""
    record: str = ""  # topic, partition and offset of the row that failed
    log_file: str = ""
    log_offset: int = -1
    log_line: str = ""  # what the container wrote just before


class PipelineHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline in a line; `problems` worst first."""

    name: str
    state: str
    severity: Severity
    sentence: str
    next_step: str
    problems: tuple[Problem, ...] = ()
    lag_rows: int = 0  # in its topics, not committed by the slowest query
    lag_seconds: float | None = None  # age of the oldest row that waits
    keeps_up: bool = False  # it runs, and no row waits for long
    catch_up: CatchUp = "unknown"
    catch_up_seconds: float | None = None
    arrival_per_second: float = 0.0
    rows_per_second: float = 0.0
    bottleneck: Bottleneck | None = None
    watermark_delay_seconds: float | None = None
    rows_late: int = 0
    rows_late_lately: int = 0
    rows_dead: int = 0
    rows_dead_lately: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    last_error: LastError | None = None
    package: str = ""
    restarts: int = 0
    containers: int = 0
    containers_active: int = 0
    window: str | None = None
    committed_window: str | None = None


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """The front page: everything that is wrong, worst first, then all pipelines."""

    now_ms: int
    severity: Severity
    problems: tuple[Problem, ...]
    pipelines: tuple[PipelineHealth, ...]


def worst(severities: tuple[Severity, ...]) -> Severity:
    return min(severities, key=SEVERITIES.index, default="ok")
