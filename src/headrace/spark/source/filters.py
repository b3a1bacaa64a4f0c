"""Filters on partition, offset and timestamp as bounds of a batch read.

They only spare reading: every filter is evaluated by Spark again, so a bound may be wider than what
was asked, never narrower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

FOREVER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """Half-open ranges; timestamps are microseconds."""

    partition_start: int = 0
    partition_end: int = FOREVER
    offset_start: int = 0
    offset_end: int = FOREVER
    time_start: int = 0
    time_end: int = FOREVER

    @property
    def timed(self) -> bool:
        return self.time_start > 0 or self.time_end < FOREVER


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """All of the filters hold; those on anything else are passed over."""
    bounds = Bounds()
    for each in filters:
        attribute = getattr(each, "attribute", None)
        if isinstance(attribute, tuple) and len(attribute) == 1 and attribute[0] in _NARROW:
            values = each.value if isinstance(each, In) else (getattr(each, "value", None),)
            bounds = _NARROW[attribute[0]](bounds, each, tuple(values))
    return bounds


def _range(each: Filter, values: tuple[int, ...]) -> tuple[int, int]:
    """The range that one comparison with whole numbers leaves."""
    match each:
        case EqualTo() | In():
            return min(values), max(values) + 1
        case GreaterThan():
            return values[0] + 1, FOREVER
        case GreaterThanOrEqual():
            return values[0], FOREVER
        case LessThan():
            return 0, values[0]
        case LessThanOrEqual():
            return 0, values[0] + 1
    return 0, FOREVER


def _by_partition(bounds: Bounds, each: Filter, values: tuple[Any, ...]) -> Bounds:
    if not values or not all(type(value) is int for value in values):
        return bounds
    start, end = _range(each, values)
    return replace(
        bounds,
        partition_start=max(bounds.partition_start, start),
        partition_end=min(bounds.partition_end, end),
    )


def _by_offset(bounds: Bounds, each: Filter, values: tuple[Any, ...]) -> Bounds:
    if not values or not all(type(value) is int for value in values):
        return bounds
    start, end = _range(each, values)
    return replace(
        bounds,
        offset_start=max(bounds.offset_start, start),
        offset_end=min(bounds.offset_end, end),
    )


def _by_time(bounds: Bounds, each: Filter, values: tuple[Any, ...]) -> Bounds:
    if not values or not all(isinstance(value, datetime) for value in values):
        return bounds
    start, end = _range(each, tuple(_microseconds(value) for value in values))
    return replace(
        bounds, time_start=max(bounds.time_start, start), time_end=min(bounds.time_end, end)
    )


def _microseconds(moment: datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


_NARROW: dict[str, Callable[[Bounds, Filter, tuple[Any, ...]], Bounds]] = {
    "partition": _by_partition,
    "offset": _by_offset,
    "timestamp": _by_time,
}
