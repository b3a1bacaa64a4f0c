"""Prometheus' text exposition format, version 0.0.4.

    # HELP name text
    # TYPE name counter|gauge|histogram
    name{label="value",...} number

A histogram has, for each set of labels, `name_bucket{...,le="bound"}` with the count of values up
to that bound, `name_sum` and `name_count`.

Pages are bounded whatever they describe. A label whose values people make up (topics, groups,
applications) has a limit, and what is beyond it is told as one sample named `other` (`bounded`). A
family holds at most SAMPLES_MAX samples; what does not fit is counted, never written.

A latency histogram with fixed bounds: one search and two additions for each value.

Plain integers, no locks: a histogram belongs to one event loop, and whoever reads it from another
thread may miss the newest value, nothing more.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, TypeAlias

LATENCY_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Upper ends of the buckets, the same everywhere, so that roles can be compared and added up."""


class Histogram:
    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_SECONDS) + 1)
        """Of each bucket by itself; the last has no upper end."""
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_SECONDS, seconds)] += 1
        self.seconds += seconds

    def observe_many(self, seconds: float, count: int) -> None:
        """As `observe`, of `count` values of the same size."""
        self.counts[bisect_left(LATENCY_SECONDS, seconds)] += count
        self.seconds += seconds * count

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, others: Iterable[Histogram]) -> Histogram:
        """This one with others in it."""
        for other in others:
            self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
            self.seconds += other.seconds
        return self


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SAMPLES_MAX = 5_000
LABEL_CHARACTERS_MAX = 200
OTHER = "other"
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_BOUNDS = (*(f"{bound:g}" for bound in LATENCY_SECONDS), "+Inf")

Number = int | float
Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


@dataclass(slots=True)
class Family:
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] | None = None
    """What every sample must name; None = anything."""
    samples: list[tuple[Mapping[str, str], Number | Histogram]] = field(default_factory=list)
    dropped: int = 0

    def __post_init__(self) -> None:
        assert _NAME.fullmatch(self.name), self.name
        assert (self.kind == "counter") == self.name.endswith("_total"), self.name

    def add(self, value: Number | Histogram, **labels: str) -> None:
        assert self.labels is None or tuple(labels) == self.labels, (self.name, tuple(labels))
        assert (self.kind == "histogram") == isinstance(value, Histogram), self.name
        if len(self.samples) >= SAMPLES_MAX:
            self.dropped += 1
        else:
            self.samples.append((labels, value))


def bounded(
    rows: Iterable[tuple[tuple[str, ...], Number]], limit: int
) -> list[tuple[tuple[str, ...], Number]]:
    """Rows of label values and a number; behind the first `limit` they become one, `other`.

    Give them in an order that lasts, oldest first: whoever has a row of its own keeps it.
    """
    kept, rest, left = [], None, 0
    width = 0
    for labels, value in rows:
        width = len(labels)
        if left < limit:
            kept.append((labels, value))
            left += 1
        else:
            rest = value if rest is None else rest + value
    if rest is not None:
        kept.append(((OTHER,) * width, rest))
    return kept


def format_families(families: Iterable[Family]) -> str:
    families = list(families)
    dropped = Family(
        "headrace_metrics_dropped", "gauge", "Samples left out because a family has too many."
    )
    for family in families:
        if family.dropped:
            dropped.add(family.dropped, family=family.name)
    return "".join(_format(one) for one in (*families, dropped) if one.samples)


def _format(family: Family) -> str:
    lines = [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
    for labels, value in family.samples:
        if isinstance(value, Histogram):
            lines += _format_histogram(family.name, labels, value)
        else:
            lines.append(f"{family.name}{_labels(labels)} {_number(value)}")
    return "\n".join(lines) + "\n"


def _format_histogram(name: str, labels: Mapping[str, str], histogram: Histogram) -> list[str]:
    counts = list(accumulate(histogram.counts))
    lines = [
        f"{name}_bucket{_labels({**labels, 'le': bound})} {count}"
        for bound, count in zip(_BOUNDS, counts, strict=True)
    ]
    lines.append(f"{name}_sum{_labels(labels)} {_number(histogram.seconds)}")
    lines.append(f"{name}_count{_labels(labels)} {counts[-1]}")
    return lines


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = (
        f'{name}="{value[:LABEL_CHARACTERS_MAX].translate(_ESCAPES)}"'
        for name, value in labels.items()
    )
    return "{" + ",".join(pairs) + "}"


def _number(value: Number) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
