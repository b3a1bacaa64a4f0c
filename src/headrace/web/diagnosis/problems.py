"""How a pipeline is, and everything that is wrong, worst first: decisions of the front page. Pure.

A pipeline is judged from the controller's view of it and from the last windows of its operators.
What is found wrong is in `findings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headrace.pipeline.controller.views import ApplicationView, UnreadableApplication, WindowPoint
from headrace.web.diagnosis.failures import LATELY_MS, errors
from headrace.web.diagnosis.findings import ENDED, LAG_SECONDS_NOTICE, findings
from headrace.web.diagnosis.stages import Stage, bottleneck, stages_of, watermark_ms
from headrace.web.diagnosis.types import (
    SEVERITIES,
    CatchUp,
    PipelineHealth,
    Problem,
    Situation,
    worst,
)

History = Mapping[int, Sequence[WindowPoint]]


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
        health.state in ENDED,
        -(health.lag_seconds or 0.0),
        health.name,
    )


def unreadable(summary: UnreadableApplication) -> PipelineHealth:
    """An application of which only the record is left."""
    problem = Problem(
        id=f"pipeline/{summary.name}/unreadable",
        kind="unreadable",
        severity="critical",
        subject="pipeline",
        name=summary.name,
        title=f"{summary.name} cannot be read by this version",
        detail=summary.last_error,
        next_step="Start the version of Headrace that submitted it, or deploy it again.",
        actions=("deploy",),
    )
    return PipelineHealth(
        name=summary.name,
        state=summary.state,
        severity="critical",
        sentence=problem.title,
        next_step=problem.next_step,
        problems=(problem,),
        package=summary.package,
    )


def health(view: ApplicationView, history: History, now_ms: int) -> PipelineHealth:
    stages = stages_of(view, history, now_ms)
    works = _works(view)
    told = _largest(one.trend.lag_seconds for one in stages)
    measured = view.lag_seconds  # by the log itself, whoever runs
    late = _late(told, measured, works)
    waits = (late or 0.0) >= LAG_SECONDS_NOTICE
    over = view.state in (*ENDED, "FAILED")  # nothing of it runs: what was, limits nothing
    limiting = None if over else bottleneck(stages)
    failures = errors(view.events)
    draft = PipelineHealth(
        name=view.name,
        state=view.state,
        severity="ok",
        sentence="",
        next_step="",
        lag_rows=sum(one.trend.lag_rows for one in stages) if measured is None else view.lag,
        # What stands still knows nothing of rows that came since.
        lag_seconds=late if works or late or measured is not None else None,
        keeps_up=works and not waits,
        catch_up=_catch_up(stages, waits=waits) if works else "unknown",
        catch_up_seconds=_catch_up_seconds(stages, waits=waits) if works else None,
        arrival_per_second=_sum_of_sources(stages, "arrival_per_second", over),
        rows_per_second=_sum_of_sources(stages, "rows_per_second", over),
        bottleneck=limiting,
        watermark_delay_seconds=_watermark_delay(history, now_ms),
        rows_late=view.rows_late,
        rows_late_lately=_lately(history, now_ms, "rows_late"),
        rows_dead=view.rows_bad,
        rows_dead_lately=_lately(history, now_ms, "rows_bad"),
        state_rows=_newest(history, "state_rows"),
        state_bytes=_newest(history, "state_bytes"),
        last_error=failures[0] if failures else None,
        package=view.package,
        restarts=view.restarts,
        containers=len(view.containers),
        containers_active=sum(one.state == "ACTIVE" for one in view.containers),
        window=view.window,
        committed_window=view.committed_window,
    )
    found = sorted(
        findings(view, draft, stages, now_ms), key=lambda one: SEVERITIES.index(one.severity)
    )
    return msgspec.structs.replace(
        draft,
        problems=tuple(found),
        severity=worst(tuple(one.severity for one in found)),
        sentence=found[0].title if found else _calm(draft),
        next_step=found[0].next_step if found else "",
    )


def _sum_of_sources(stages: Sequence[Stage], figure: str, over: bool) -> float:
    return 0.0 if over else sum(getattr(one.trend, figure) for one in stages if one.source)


def _works(view: ApplicationView) -> bool:
    """Whether all of it runs, so that its last figures are still true."""
    return (
        view.state == "RUNNING"
        and all(one.state == "ACTIVE" for one in view.containers)
        and not any(one.failures for one in view.operators)
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
    if not health.keeps_up:
        return f"Runs; {health.lag_rows:,} rows wait"
    return "Runs and keeps up"


def _late(told: float | None, measured: float | None, works: bool) -> float | None:
    """How long the oldest row has waited. Samples of the log go back to the controller's start at
    most; what a pipeline that works tells of its batches may go further."""
    if measured is None:
        return told
    return max(measured, told or 0.0) if measured and works else measured


def _largest(values: Iterable[float | None]) -> float | None:
    return max((one for one in values if one is not None), default=None)


def _catch_up(stages: Sequence[Stage], *, waits: bool) -> CatchUp:
    """Of the stage that takes longest. `waits`: some row has waited for long, which a stage that
    finishes no batch does not know of."""
    found = {one.trend.catch_up for one in stages if one.first}
    ways: tuple[CatchUp, ...] = ("never", "catching up", "caught up")
    way: CatchUp = next((way for way in ways if way in found), "unknown")
    return "never" if waits and way == "caught up" else way


def _catch_up_seconds(stages: Sequence[Stage], *, waits: bool) -> float | None:
    if _catch_up(stages, waits=waits) in ("never", "unknown"):
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
