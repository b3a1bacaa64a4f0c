"""The stages of a pipeline, which of them limits it, and where its batches' time goes. Pure.

A stage is one operator as it runs in a container. Operators that are fused share their query's
batches, so Spark tells them apart no further: the stage that is named is the query's last one.

A `Trend` says where an operator's last windows lead: rates, the age of what waits, the time to
catch up. The rows that arrived by a point are those taken until then and those that waited then.
So the age of the next row to take is the time since as many had arrived as are taken now, and what
arrives in a second is what is taken in it and the growth of the lag.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.pipeline.controller.views import ApplicationView, WindowPoint
from headrace.web.diagnosis.types import Bottleneck, CatchUp

HORIZON_MS = 60_000  # rates are taken over so much
POINTS_MIN = 3  # a slope through fewer says nothing
DRAIN_MIN = 0.01  # rows per second; a lag that falls slower than this stands
BUSY_HIGH = 0.85  # of the time in batches: it cannot take much more
BUSY_SOME = 0.6
# Metrics of a batch's parts, as a container's reports name them, in words.
_PHASES = {
    "ask_source_ms": "asking the broker for offsets",
    "plan_ms": "planning the query",
    "process_ms": "processing rows",
    "write_ahead_ms": "writing offsets to the checkpoint",
    "commit_ms": "committing the checkpoint",
}


@dataclass(frozen=True, slots=True)
class Trend:
    lag_rows: int = 0
    lag_seconds: float | None = None
    catch_up: CatchUp = "unknown"
    catch_up_seconds: float | None = None
    rows_per_second: float = 0.0
    arrival_per_second: float = 0.0
    busy: float = 0.0
    batch_ms: int = 0  # on average
    silent_ms: int | None = None  # since the last window; None before the first


def trend(points: Sequence[WindowPoint], now_ms: int) -> Trend:
    """`points` oldest first."""
    if not points:
        return Trend()
    last = points[-1]
    recent = [one for one in points if now_ms - one.at_ms <= HORIZON_MS] or [last]
    rate = _rate(recent, now_ms)
    slope = _slope(recent)
    arrival = max(0.0, rate + (slope or 0.0))
    catch_up, seconds = _catch_up(last.lag, slope)
    return Trend(
        lag_rows=last.lag,
        lag_seconds=_age_seconds(points, arrival, now_ms),
        catch_up=catch_up,
        catch_up_seconds=seconds,
        rows_per_second=rate,
        arrival_per_second=arrival,
        busy=_busy(recent, now_ms),
        batch_ms=round(sum(one.duration_ms for one in recent) / len(recent)),
        silent_ms=max(0, now_ms - last.at_ms),
    )


def _taken(point: WindowPoint) -> int:
    """A topic's operator has no input: its rows are seen where they leave it."""
    return point.rows_in or point.rows_out


def _rate(recent: Sequence[WindowPoint], now_ms: int) -> float:
    span_ms = max(now_ms, recent[-1].at_ms) - recent[0].at_ms
    return sum(map(_taken, recent[1:])) * 1000 / span_ms if span_ms > 0 else 0.0


def _slope(recent: Sequence[WindowPoint]) -> float | None:
    """Growth of the lag in rows per second, by least squares; None for too few points."""
    if len(recent) < POINTS_MIN:
        return None
    times = [(one.at_ms - recent[0].at_ms) / 1000 for one in recent]
    time_mean = sum(times) / len(times)
    lag_mean = sum(one.lag for one in recent) / len(recent)
    spread = sum((at - time_mean) ** 2 for at in times)
    if spread == 0:
        return None
    together = sum(
        (at - time_mean) * (one.lag - lag_mean) for at, one in zip(times, recent, strict=True)
    )
    return together / spread


def _catch_up(lag: int, slope: float | None) -> tuple[CatchUp, float | None]:
    if lag == 0:
        return "caught up", 0.0
    if slope is None:
        return "unknown", None
    return ("never", None) if slope > -DRAIN_MIN else ("catching up", lag / -slope)


def _age_seconds(points: Sequence[WindowPoint], arrival: float, now_ms: int) -> float | None:
    """How long ago the oldest row that waits came in."""
    if points[-1].lag == 0:
        return 0.0
    taken, arrived = 0, []  # (time, rows that had arrived by then)
    for index, one in enumerate(points):
        taken += _taken(one) if index else 0
        arrived.append((one.at_ms, taken + one.lag))
    at = next(index for index, (_, count) in enumerate(arrived) if count >= taken)
    time_ms, count = arrived[at]
    if at == 0:  # it came in before the first point we remember
        before = (count - taken) / arrival if arrival > 0 else 0.0
        return (now_ms - time_ms) / 1000 + before
    earlier_ms, earlier = arrived[at - 1]
    share = (taken - earlier) / (count - earlier)
    return max(0.0, (now_ms - earlier_ms - share * (time_ms - earlier_ms)) / 1000)


def _busy(recent: Sequence[WindowPoint], now_ms: int) -> float:
    """Share of the time spent in batches, from the start of the first to the end of the last."""
    span_ms = recent[-1].at_ms - recent[0].at_ms + recent[0].duration_ms
    if span_ms <= 0 or now_ms - recent[-1].at_ms > HORIZON_MS:
        return 0.0
    return min(1.0, sum(one.duration_ms for one in recent) / span_ms)


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
    view: ApplicationView, history: Mapping[int, Sequence[WindowPoint]], now_ms: int
) -> list[Stage]:
    return [
        Stage(
            id=one.id,
            operator=one.name,
            container=one.container,
            source=not one.inputs,
            first=not one.inputs or any(not each.local for each in one.inputs),
            terminal=one.query is not None,
            trend=trend(history.get(one.id, ()), now_ms),
            phases={name: int(one.metrics[name]) for name in _PHASES if name in one.metrics},
        )
        for one in view.operators
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
