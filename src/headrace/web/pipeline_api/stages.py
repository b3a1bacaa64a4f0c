"""The stages of a pipeline, which of them limits it, and where its batches' time goes. Pure.

A stage is one operator as it runs in a container. Operators that are fused share their query's
batches, so Spark tells them apart no further: the stage that is named is the query's last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.pipeline.controller.application.history import WindowPoint
from headrace.web.diagnosis.types import Bottleneck
from headrace.web.pipeline_api.pipeline_trends import Trend, trend

BUSY_HIGH = 0.85  # of the time in batches: it cannot take much more
BUSY_SOME = 0.6
# Metrics of a batch's parts, as `reports` names them, in words.
_PHASES = {
    "ask_source_ms": "asking the broker for offsets",
    "plan_ms": "planning the query",
    "process_ms": "processing rows",
    "write_ahead_ms": "writing offsets to the checkpoint",
    "commit_ms": "committing the checkpoint",
}


@dataclass(frozen=True, slots=True)
class Stage:
    id: int
    operator: str
    container: str
    source: bool  # it reads a topic
    first: bool  # of its container's operators to read from outside
    terminal: bool  # its result leaves the container
    trend: Trend
    phases: Mapping[str, int]


def stages_of(
    view: Mapping[str, Any], history: Mapping[int, Sequence[WindowPoint]], now_ms: int
) -> list[Stage]:
    return [
        Stage(
            id=one["id"],
            operator=one["name"],
            container=one["container"],
            source=not one["inputs"],
            first=not one["inputs"] or any(not each["local"] for each in one["inputs"]),
            terminal=one["query"] is not None,
            trend=trend(history.get(one["id"], ()), now_ms),
            phases={name: int(one["metrics"][name]) for name in _PHASES if name in one["metrics"]},
        )
        for one in view["operators"]
    ]


def pressure(busy: float) -> str:
    """The colour of a stage, by name."""
    return "high" if busy >= BUSY_HIGH else "some" if busy >= BUSY_SOME else "low"


def bottleneck(stages: Sequence[Stage]) -> Bottleneck | None:
    """The busiest stage, of those in containers that rows wait for if there are such."""
    waiting = {one.container for one in stages if one.trend.lag_rows}
    running = [one for one in stages if one.trend.batch_ms]
    candidates = [one for one in running if one.container in waiting] or running
    if not candidates:
        return None
    limiting = max(candidates, key=lambda one: (round(one.trend.busy, 2), one.terminal, one.id))
    phase = _phase(limiting, stages)
    if not waiting and limiting.trend.busy < BUSY_SOME:
        return None  # nothing limits it
    return Bottleneck(
        operator=limiting.operator,
        container=limiting.container,
        busy=round(limiting.trend.busy, 3),
        batch_ms=limiting.trend.batch_ms,
        phase=phase,
        reason=_reason(limiting, phase),
    )


def _phase(limiting: Stage, stages: Sequence[Stage]) -> str:
    """What most of the time goes to; told of a query's first operator."""
    found: dict[str, int] = {}
    for one in stages:
        if one.container == limiting.container and one.phases:
            found = dict(one.phases)
    return max(found, key=lambda name: found[name]) if found else ""


def _reason(limiting: Stage, phase: str) -> str:
    seconds = limiting.trend.batch_ms / 1000
    mostly = f", mostly {_PHASES[phase]}" if phase else ""
    return (
        f"{limiting.operator} is in batches {limiting.trend.busy:.0%} of the time"
        f" ({seconds:.1f} s each{mostly})"
    )


def watermark_ms(history: Mapping[int, Sequence[WindowPoint]]) -> int | None:
    """The one that is furthest behind."""
    newest = [points[-1].watermark_ms for points in history.values() if points]
    return min((one for one in newest if one), default=None)
