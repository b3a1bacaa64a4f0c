"""What is wrong with a pipeline, and what to do about it: decisions of the front page. Pure.

A pipeline is judged from the controller's view of it and from the last windows of its operators.
Each finding is a sentence that names the part, and a next step that its reader can take now. The
thresholds are for people who are woken by them: what repairs itself is no more than a notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from headrace.pipeline.history import WindowPoint
from headrace.web.pipeline_errors import errors
from headrace.web.pipeline_stages import Stage, bottleneck, stages_of, watermark_ms
from headrace.web.pipeline_trends import HORIZON_MS
from headrace.web.problems_types import (
    SEVERITIES,
    Bottleneck,
    CatchUp,
    PipelineHealth,
    Problem,
    Severity,
    Situation,
    worst,
)

View = Mapping[str, Any]  # what `Controller.show` gives
History = Mapping[int, Sequence[WindowPoint]]

LAG_SECONDS_NOTICE = 10.0
LAG_SECONDS_CRITICAL = 300.0
CATCH_UP_SECONDS_LONG = 900.0
SILENT_MS = 60_000  # no batch for so long although rows wait
HEARTBEAT_MS = 15_000
WATERMARK_SECONDS = 3600.0
STATE_BYTES_LARGE = 1 << 30
RESTARTS_MANY = 3  # of a container, in the events that are kept of the last ten minutes
LATELY_MS = 600_000
_ENDED = ("STOPPED", "FINISHED")


def situation(
    pipelines: Iterable[PipelineHealth], others: Iterable[Problem], now_ms: int
) -> Situation:
    """Everything, worst first."""
    healths = sorted(pipelines, key=_rank)
    problems = sorted(
        [*(one for health in healths for one in health.problems), *others],
        key=lambda one: (SEVERITIES.index(one.severity), one.subject, one.name),
    )
    return Situation(
        now_ms=now_ms,
        severity=worst(tuple(one.severity for one in problems)),
        problems=tuple(problems),
        pipelines=tuple(healths),
    )


def _rank(health: PipelineHealth) -> tuple[int, bool, float, str]:
    return (
        SEVERITIES.index(health.severity),
        health.state in _ENDED,
        -(health.lag_seconds or 0.0),
        health.name,
    )


def unreadable(summary: View) -> PipelineHealth:
    """An application of which only the record is left."""
    problem = Problem(
        id=f"pipeline/{summary['name']}/unreadable",
        kind="unreadable",
        severity="critical",
        subject="pipeline",
        name=summary["name"],
        title=f"{summary['name']} cannot be read by this version",
        detail=str(summary.get("last_error") or ""),
        next_step="Start the version of Headrace that submitted it, or deploy it again.",
        actions=("deploy",),
    )
    return PipelineHealth(
        name=summary["name"],
        state=summary["state"],
        severity="critical",
        sentence=problem.title,
        next_step=problem.next_step,
        problems=(problem,),
        package=summary.get("package", ""),
    )


def health(view: View, history: History, now_ms: int) -> PipelineHealth:
    stages = stages_of(view, history, now_ms)
    limiting = bottleneck(stages)
    failures = errors(view["events"])
    draft = PipelineHealth(
        name=view["name"],
        state=view["state"],
        severity="ok",
        sentence="",
        next_step="",
        lag_rows=sum(one.trend.lag_rows for one in stages),
        lag_seconds=_largest(one.trend.lag_seconds for one in stages),
        catch_up=_catch_up(stages),
        catch_up_seconds=_catch_up_seconds(stages),
        arrival_per_second=sum(one.trend.arrival_per_second for one in stages if one.source),
        rows_per_second=sum(one.trend.rows_per_second for one in stages if one.source),
        bottleneck=limiting,
        watermark_delay_seconds=_watermark_delay(history, now_ms),
        rows_late=view["rows_late"],
        rows_late_lately=_lately(history, now_ms, "rows_late"),
        rows_dead=view["rows_bad"],
        rows_dead_lately=_lately(history, now_ms, "rows_bad"),
        state_rows=_newest(history, "state_rows"),
        state_bytes=_newest(history, "state_bytes"),
        last_error=failures[0] if failures else None,
        package=view["package"],
        restarts=view["restarts"],
        containers=len(view["containers"]),
        containers_active=sum(one["state"] == "ACTIVE" for one in view["containers"]),
        window=view["window"],
        committed_window=view["committed_window"],
    )
    found = sorted(
        _problems(view, draft, stages, now_ms), key=lambda one: SEVERITIES.index(one.severity)
    )
    return msgspec.structs.replace(
        draft,
        problems=tuple(found),
        severity=worst(tuple(one.severity for one in found)),
        sentence=found[0].title if found else _calm(draft),
        next_step=found[0].next_step if found else "",
    )


def _calm(health: PipelineHealth) -> str:
    if health.state == "STOPPED":
        return "Stopped; resume it to go on from its checkpoints"
    if health.state == "FINISHED":
        return "Finished: everything that was there is processed"
    if health.state == "STOPPING":
        return "Stopping: the last batches are let through"
    if health.window is None:
        return "Runs; no window yet"
    return "Runs and keeps up"


def _problems(
    view: View, health: PipelineHealth, stages: Sequence[Stage], now_ms: int
) -> Iterator[Problem]:
    if health.state in _ENDED:
        return
    if health.state == "FAILED":
        yield _failed(health)
        return
    yield from _of_containers(view, now_ms)
    yield from _of_operators(view)
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
        detail=_first_line(error.text) if error else "",
        actions=("errors", "resume", "logs"),
        operator=error.operator if error else "",
    )


def _of_containers(view: View, now_ms: int) -> Iterator[Problem]:
    name = view["name"]
    for one in view["containers"]:
        number = one["index"] + 1
        if one["state"] == "KILLED":
            wait = max(0, (one["restart_at_ms"] or now_ms) - now_ms) / 1000
            lately = _restarts_lately(view, one, now_ms)
            severity: Severity = "critical" if lately >= RESTARTS_MANY else "warning"
            yield _problem(
                name,
                "container down",
                severity,
                f"Container {number} of {name} is down, starts again in {wait:.0f} s",
                "It goes on from its checkpoint by itself. If it comes down again, its log says"
                " why.",
                detail=f"exit status {one['exit_status']}, {lately} times in ten minutes",
                actions=("logs", "errors"),
                container=one["id"],
            )
        elif one["state"] in ("NEW", "ALLOCATED"):
            yield _problem(
                name,
                "container starting",
                "notice",
                f"Container {number} of {name} is starting",
                "Nothing to do: Spark needs some seconds.",
                container=one["id"],
            )
        elif (one["heartbeat_age_ms"] or 0) > HEARTBEAT_MS:
            yield _problem(
                name,
                "container silent",
                "critical",
                f"Container {number} of {name} has said nothing for "
                f"{one['heartbeat_age_ms'] / 1000:.0f} s",
                "It is replaced when its time-out is over. Look at its stack trace, or kill it"
                " to have it replaced now.",
                actions=("kill", "logs"),
                container=one["id"],
            )


def _of_operators(view: View) -> Iterator[Problem]:
    seen = set()
    for one in view["operators"]:
        if one["failures"] and one["name"] not in seen:
            seen.add(one["name"])
            yield _problem(
                view["name"],
                "operator fails",
                "critical",
                f"{one['name']} of {view['name']} fails again and again",
                "Read the error beside its log line; the same rows are tried until it is fixed"
                " or its attempts are used up.",
                detail=_first_line(one["last_error"] or ""),
                actions=("errors", "logs"),
                operator=one["name"],
                container=one["container"],
            )


def _of_lag(view: View, health: PipelineHealth, stages: Sequence[Stage]) -> Iterator[Problem]:
    for one in stages:
        silent = one.trend.silent_ms or 0
        if one.trend.lag_rows and silent > SILENT_MS:
            yield _problem(
                health.name,
                "standing still",
                "critical",
                f"{one.operator} of {health.name} has finished no batch for "
                f"{silent / 1000:.0f} s, and {one.trend.lag_rows:,} rows wait",
                "Its stack trace shows what it waits for; killing the container starts it anew.",
                actions=("kill", "logs"),
                operator=one.operator,
                container=one.container,
            )
    late = health.lag_seconds or 0.0
    if late < LAG_SECONDS_NOTICE or not health.lag_rows:
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


def _faster(view: View, limiting: Bottleneck | None) -> str:
    if limiting is None:
        return "Give it more cores, or take more messages per batch (messages_max)."
    if _can_scale(view, limiting):
        return f"Run {limiting.operator} in more containers (scale)."
    if limiting.busy < 0.6:
        return "It waits between batches: shorten its trigger or raise messages_max."
    return (
        f"Give {limiting.operator} more cores or memory (VCORES, MEMORY_MB), or split it"
        " with isolate."
    )


def _can_scale(view: View, limiting: Bottleneck | None) -> bool:
    """An operator that keeps no state, as far as its reports tell, and reads others' rows."""
    if limiting is None:
        return False
    copies = [one for one in view["operators"] if one["name"] == limiting.operator]
    return all(one["inputs"] and "state_rows" not in one["metrics"] for one in copies)


def _of_rows(health: PipelineHealth) -> Iterator[Problem]:
    if health.rows_dead_lately:
        yield _problem(
            health.name,
            "dead rows",
            "warning",
            f"{health.rows_dead_lately:,} rows of {health.name} were set aside lately",
            "Look at the dead letters and their reasons, fix the cause, then send them again.",
            detail=f"{health.rows_dead:,} in all",
            actions=("dead letters",),
        )
    if health.rows_late_lately:
        yield _problem(
            health.name,
            "late rows",
            "warning",
            f"{health.rows_late_lately:,} rows of {health.name} came too late and were dropped",
            "Allow more delay in withWatermark, or find out which producer sends old rows.",
            detail=f"{health.rows_late:,} in all",
        )


def _of_state(health: PipelineHealth) -> Iterator[Problem]:
    delay = health.watermark_delay_seconds or 0.0
    if delay > WATERMARK_SECONDS and health.catch_up == "caught up":
        yield _problem(
            health.name,
            "watermark behind",
            "notice",
            f"The watermark of {health.name} is {span(delay)} behind",
            "No newer rows came: windows stay open until they do. See whether a producer stopped.",
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
    """In the largest unit that leaves a number worth reading."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]


def _largest(values: Iterable[float | None]) -> float | None:
    return max((one for one in values if one is not None), default=None)


def _catch_up(stages: Sequence[Stage]) -> CatchUp:
    """Of the stage that takes longest."""
    found = {one.trend.catch_up for one in stages if one.first}
    ways: tuple[CatchUp, ...] = ("never", "catching up", "caught up")
    return next((way for way in ways if way in found), "unknown")


def _catch_up_seconds(stages: Sequence[Stage]) -> float | None:
    if _catch_up(stages) in ("never", "unknown"):
        return None
    return _largest(one.trend.catch_up_seconds for one in stages if one.first)


def _watermark_delay(history: History, now_ms: int) -> float | None:
    at = watermark_ms(history)
    return None if at is None else max(0.0, (now_ms - at) / 1000)


def _lately(history: History, now_ms: int, field: str) -> int:
    return sum(
        getattr(one, field)
        for points in history.values()
        for one in points
        if now_ms - one.at_ms <= LATELY_MS
    )


def _newest(history: History, field: str) -> int:
    return sum(getattr(points[-1], field) for points in history.values() if points)


def _restarts_lately(view: View, container: View, now_ms: int) -> int:
    prefix = container["id"].rpartition(".")[0]
    return sum(
        one["type"] == "StopContainer"
        and now_ms - one["time_ms"] <= LATELY_MS
        and str(one.get("container", "")).rpartition(".")[0] == prefix
        for one in view["events"]
    )


__all__ = ["HORIZON_MS", "health", "situation", "span", "unreadable"]
