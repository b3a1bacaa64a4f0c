"""A latency histogram with fixed bounds: one search and two additions for each value.

Plain integers, no locks: a histogram belongs to one event loop, and whoever reads it from another
thread may miss the newest value, nothing more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

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
