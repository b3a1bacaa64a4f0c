"""What is wrong with a pipeline, and what to do about it. Pure.

Each finding is a sentence that names the part, and a next step that its reader can take now. The
thresholds are for people who are woken by them: what repairs itself is no more than a notice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headrace.pipeline.controller.views import ApplicationView
from headrace.web.diagnosis.failures import failing_containers, failures, first_line
from headrace.web.diagnosis.stages import BUSY_SOME, Stage
from headrace.web.diagnosis.types import Bottleneck, PipelineHealth, Problem, Severity

LAG_SECONDS_NOTICE = 10.0
LAG_SECONDS_CRITICAL = 300.0
CATCH_UP_SECONDS_LONG = 900.0
SILENT_MS = 60_000  # no batch for so long although rows wait
HEARTBEAT_MS = 15_000
WATERMARK_SECONDS = 3600.0
STATE_BYTES_LARGE = 1 << 30
ENDED = ("STOPPED", "FINISHED")


def findings(
    view: ApplicationView, health: PipelineHealth, stages: Sequence[Stage], now_ms: int
) -> Iterator[Problem]:
    """What is wrong with a pipeline whose figures are known."""
    if health.state in ENDED:
        return
    if health.state == "FAILED":
        yield _failed(health)
        return
    yield from failures(view, now_ms)
    yield from _of_containers(view)
    yield from _of_lag(view, health, stages)
    yield from _of_rows(health)
    yield from _of_state(health)


def _problem(
    name: str, kind: str, severity: Severity, title: str, next_step: str, **more: Any
) -> Problem:
    place = more.get("operator") or more.get("container") or ""
    return Problem(
        id="/".join(filter(None, ("pipeline", name, kind, place))),
        kind=kind,
        severity=severity,
        subject="pipeline",
        name=name,
        title=title,
        next_step=next_step,
        **more,
    )


def _failed(health: PipelineHealth) -> Problem:
    error = health.last_error
    return _problem(
        health.name,
        "failed",
        "critical",
        f"{health.name} failed and is not tried again",
        "Read the error and its log line. Deploy the fix, or resume if the cause is gone:"
        " it goes on from its checkpoints.",
        detail=first_line(error.text) if error else "",
        actions=("errors", "resume", "logs"),
        operator=error.operator if error else "",
    )


def _of_containers(view: ApplicationView) -> Iterator[Problem]:
    """Those that start for the first time, and those that run and say nothing."""
    name, failing = view.name, failing_containers(view)
    for one in view.containers:
        number = one.index + 1
        if one.state in ("NEW", "ALLOCATED") and one.id not in failing:
            yield _problem(
                name,
                "container starting",
                "notice",
                f"Container {number} of {name} is starting",
                "Nothing to do: Spark needs some seconds.",
                container=one.id,
            )
        elif one.state == "ACTIVE" and (age_ms := one.heartbeat_age_ms or 0) > HEARTBEAT_MS:
            yield _problem(
                name,
                "container silent",
                "critical",
                f"Container {number} of {name} has said nothing for {age_ms / 1000:.0f} s",
                "It is replaced when its time-out is over. Look at its stack trace, or kill it"
                " to have it replaced now.",
                actions=("kill", "logs"),
                container=one.id,
            )


def _of_lag(
    view: ApplicationView, health: PipelineHealth, stages: Sequence[Stage]
) -> Iterator[Problem]:
    failing = failing_containers(view)  # what waits for them is of the same cause
    told = set(failing)
    for one in stages:
        silent_ms: float = one.trend.silent_ms or 0
        if one.trend.lag_rows and silent_ms > SILENT_MS and one.container not in failing:
            told.add(one.container)
            yield _still(health.name, one.operator, one.container, silent_ms, one.trend.lag_rows)
    for each in view.operators:  # as the log itself has it
        silent_ms = min(each.still_ms or 0, 1000 * (each.lag_seconds or 0.0))
        if each.lag and silent_ms > SILENT_MS and each.container not in told:
            yield _still(health.name, each.name, each.container, silent_ms, each.lag)
    late = health.lag_seconds or 0.0
    if late < LAG_SECONDS_NOTICE or not health.lag_rows or failing:
        return
    limiting = health.bottleneck
    rates = (
        f"{health.arrival_per_second:,.0f} rows/s arrive, {health.rows_per_second:,.0f} are"
        f" processed; {health.lag_rows:,} wait"
    )
    if health.catch_up == "never":
        yield _problem(
            health.name,
            "falls behind",
            "critical" if late >= LAG_SECONDS_CRITICAL else "warning",
            f"{health.name} is {span(late)} behind and does not catch up",
            _faster(view, limiting),
            detail=f"{rates}. {limiting.reason}." if limiting else rates,
            actions=("scale",) if _can_scale(view, limiting) else ("logs",),
            operator=limiting.operator if limiting else "",
        )
    elif health.catch_up == "catching up":
        left = health.catch_up_seconds or 0.0
        yield _problem(
            health.name,
            "catching up",
            "warning" if left > CATCH_UP_SECONDS_LONG else "notice",
            f"{health.name} is {span(late)} behind and caught up in about {span(left)}",
            _faster(view, limiting) if left > CATCH_UP_SECONDS_LONG else "Nothing to do.",
            detail=rates,
        )


def _still(name: str, operator: str, container: str, silent_ms: float, rows: int) -> Problem:
    return _problem(
        name,
        "standing still",
        "critical",
        f"{operator} of {name} has finished no batch for {silent_ms / 1000:.0f} s, and"
        f" {rows:,} rows wait",
        "Its stack trace shows what it waits for; killing the container starts it anew.",
        actions=("kill", "logs"),
        operator=operator,
        container=container,
    )


def _faster(view: ApplicationView, limiting: Bottleneck | None) -> str:
    if limiting is None:
        return "Give it more cores, or take more messages per batch (messages_max)."
    if _can_scale(view, limiting):
        return f"Run {limiting.operator} in more containers (scale)."
    if limiting.busy < BUSY_SOME:
        return "It waits between batches: shorten its trigger or raise messages_max."
    if _keeps_state(view, limiting):
        return f"Give {limiting.operator} more cores or memory (VCORES, MEMORY_MB)."
    return (
        f"Give {limiting.operator} more cores (VCORES); if it keeps no state, declare it"
        " STATELESS=True and run it in more containers."
    )


def _can_scale(view: ApplicationView, limiting: Bottleneck | None) -> bool:
    """Only what is declared to keep no state can be shared anew."""
    if limiting is None:
        return False
    declared = view.declared.get(limiting.operator, {})
    return declared.get("attributes", {}).get("STATELESS") is True


def _keeps_state(view: ApplicationView, limiting: Bottleneck) -> bool:
    """As far as its reports tell."""
    copies = [one for one in view.operators if one.name == limiting.operator]
    return any("state_rows" in one.metrics for one in copies)


def _of_rows(health: PipelineHealth) -> Iterator[Problem]:
    if health.rows_dead_lately:
        yield _problem(
            health.name,
            "dead rows",
            "warning",
            f"{health.rows_dead_lately:,} bad rows of {health.name} were set aside or dropped",
            "Look at the dead letters and their reasons, fix the cause, then send them again.",
            detail=_in_all(health.rows_dead, health.rows_dead_lately),
            actions=("dead letters",),
        )
    if health.rows_late_lately:
        yield _problem(
            health.name,
            "late rows",
            "warning",
            f"{health.rows_late_lately:,} rows of {health.name} came too late and were dropped",
            "Allow more delay in withWatermark, or find out which producer sends old rows.",
            detail=_in_all(health.rows_late, health.rows_late_lately),
        )


def _of_state(health: PipelineHealth) -> Iterator[Problem]:
    delay = health.watermark_delay_seconds or 0.0
    # Where nothing arrives the watermark stands, as it should.
    arrives = health.arrival_per_second > 0 and health.catch_up == "caught up"
    if delay > WATERMARK_SECONDS and arrives:
        yield _problem(
            health.name,
            "watermark behind",
            "notice",
            f"The watermark of {health.name} is {span(delay)} behind, although rows arrive",
            "Windows stay open until newer rows come. See which producer sends old ones, or whose"
            " clock is wrong.",
        )
    if health.state_bytes > STATE_BYTES_LARGE:
        yield _problem(
            health.name,
            "large state",
            "warning",
            f"{health.name} keeps {health.state_bytes / (1 << 30):.1f} GiB of state",
            "A watermark lets old state go; without one it grows for ever.",
            detail=f"{health.state_rows:,} rows",
        )


def span(seconds: float) -> str:
    """Write seconds in the largest unit that leaves a number worth reading."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _in_all(count: int, lately: int) -> str:
    return f"{count:,} in all" if count > lately else ""
