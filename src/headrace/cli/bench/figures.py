"""What a load run measures: latencies in a histogram of fixed precision, messages per second.

A latency falls into a bucket that is at most 1/128 of it wide, whatever its size, so percentiles
up to 99.99 are right to under one percent and a run of any length takes the same memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99)
_BITS = 7  # 128 buckets for each doubling
_UNIT = 1e-6


class Latencies:
    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total = 0.0
        self.max = 0.0

    def record(self, seconds: float, count: int = 1) -> None:
        index = _index(int(seconds / _UNIT))
        self._counts[index] = self._counts.get(index, 0) + count
        self.count += count
        self.total += seconds * count
        self.max = max(self.max, seconds)

    def merge(self, other: Latencies) -> None:
        for index, count in other._counts.items():
            self._counts[index] = self._counts.get(index, 0) + count
        self.count += other.count
        self.total += other.total
        self.max = max(self.max, other.max)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """Seconds that so many percent of the values do not exceed."""
        wanted, seen = round(percent / 100 * self.count, 6), 0
        for index in sorted(self._counts):
            seen += self._counts[index]
            if seen >= wanted:
                return min(self.max, _upper(index) * _UNIT)
        return self.max

    def to_json(self) -> dict[str, Any]:
        return {
            **{_name(each): round(self.percentile(each) * 1e3, 4) for each in PERCENTILES},
            "max": round(self.max * 1e3, 4),
            "mean": round(self.mean * 1e3, 4),
        }

    def curve(self) -> list[list[float]]:
        """[percent, milliseconds], closer and closer to 100: what the plot is made of."""
        points = [0.0, *(100 - 100 / 2 ** (step / 4) for step in range(1, 57))]
        points = [each for each in points if self.count and (100 - each) / 100 * self.count >= 1]
        return [[round(each, 6), round(self.percentile(each) * 1e3, 4)] for each in points]


def _name(percent: float) -> str:
    return f"p{percent:g}"


def _index(value: int) -> int:
    shift = max(0, value.bit_length() - _BITS - 1)
    return (shift << _BITS) + (value >> shift)


def _upper(index: int) -> int:
    """The largest value of a bucket."""
    if index < 2 << _BITS:
        return index
    shift = (index >> _BITS) - 1
    base = index - (shift << _BITS)
    return ((base + 1) << shift) - 1


@dataclass(slots=True)
class TrafficFigures:
    """Producers or consumers, all together."""

    started: float = 0.0
    ended: float = 0.0
    messages: int = 0
    bytes: int = 0
    requests: int = 0
    empty: int = 0
    """Polls that found nothing."""
    latencies: Latencies = field(default_factory=Latencies)
    slots: dict[int, list[int]] = field(default_factory=dict)
    """Second of the run -> [messages, bytes]."""

    def add(self, at: float, seconds: float, messages: int, size: int) -> None:
        """A request that took so long and was answered at this moment."""
        self.requests += 1
        self.latencies.record(seconds)
        self.messages += messages
        self.bytes += size
        self.ended = max(self.ended, at)
        slot = self.slots.setdefault(int(at - self.started), [0, 0])
        slot[0] += messages
        slot[1] += size

    @property
    def seconds(self) -> float:
        return max(self.ended - self.started, 1e-9)

    def to_json(self) -> dict[str, Any]:
        return {
            "messages": self.messages,
            "bytes": self.bytes,
            "requests": self.requests,
            "empty_polls": self.empty,
            "seconds": round(self.seconds, 3),
            "messages_per_second": round(self.messages / self.seconds, 1),
            "bytes_per_second": round(self.bytes / self.seconds, 1),
            "latency_ms": self.latencies.to_json(),
            "latency_curve": self.latencies.curve(),
            "per_second": [[second, *self.slots[second]] for second in sorted(self.slots)],
        }


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of this run beside the same of an earlier one."""

    name: str
    before: float
    now: float
    better: bool | None
    """None where the difference is too small to mean anything."""

    @property
    def percent(self) -> float:
        return 100 * (self.now - self.before) / self.before if self.before else 0.0


_NOISE_PERCENT = 5.0


def compare(report: dict[str, Any], before: dict[str, Any]) -> list[Change]:
    """Throughput and latencies of the sides that both runs have."""
    changes = []
    for side in ("produce", "consume"):
        if side in report and side in before:
            for figure in ("messages_per_second", "bytes_per_second"):
                pair = before[side][figure], report[side][figure]
                changes.append(_change(f"{side} {figure}", *pair, higher=True))
    for side in ("produce", "consume", "end_to_end"):
        if side in report and side in before:
            now, old = report[side]["latency_ms"], before[side]["latency_ms"]
            for figure in _shared(now, old):
                changes.append(_change(f"{side} {figure} ms", old[figure], now[figure]))
    return changes


def differing(report: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Settings in which two runs are not alike, so that their figures may not be either."""
    now, old = report["settings"], before["settings"]
    names = {*now, *old} - {"stream", "topic", "seconds", "warmup_seconds"}
    return sorted(name for name in names if now.get(name) != old.get(name))


def _shared(now: dict[str, float], old: dict[str, float]) -> Iterable[str]:
    return [each for each in ("p50", "p95", "p99", "p99.9", "max") if each in now and each in old]


def _change(name: str, before: float, now: float, *, higher: bool = False) -> Change:
    made = Change(name, before, now, None)
    if abs(made.percent) < _NOISE_PERCENT:
        return made
    return Change(name, before, now, (now > before) == higher)
