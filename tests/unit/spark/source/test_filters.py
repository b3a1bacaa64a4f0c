"""Filters as bounds: never narrower than what was asked."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from headrace.spark.source.filters import Bounds, bounds_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_US = 1_767_268_800_000_000


@pytest.mark.parametrize(
    ("filters", "bounds"),
    [
        ([], Bounds()),
        ([EqualTo(("partition",), 1)], Bounds(partition_start=1, partition_end=2)),
        ([In(("partition",), (3, 1))], Bounds(partition_start=1, partition_end=4)),
        ([GreaterThan(("offset",), 5)], Bounds(offset_start=6)),
        ([GreaterThanOrEqual(("offset",), 5)], Bounds(offset_start=5)),
        ([LessThan(("offset",), 5)], Bounds(offset_end=5)),
        ([LessThanOrEqual(("offset",), 5)], Bounds(offset_end=6)),
        (
            [GreaterThan(("offset",), 5), GreaterThan(("offset",), 3), LessThan(("offset",), 9)],
            Bounds(offset_start=6, offset_end=9),
        ),
        ([GreaterThanOrEqual(("timestamp",), NOON)], Bounds(time_start=NOON_US)),
        ([LessThan(("timestamp",), NOON)], Bounds(time_end=NOON_US)),
        (
            [EqualTo(("timestamp",), NOON.astimezone(timezone(timedelta(hours=2))))],
            Bounds(time_start=NOON_US, time_end=NOON_US + 1),
        ),
        # Everything else bounds nothing.
        ([Not(EqualTo(("offset",), 1))], Bounds()),
        ([IsNotNull(("offset",))], Bounds()),
        ([EqualNullSafe(("offset",), 1)], Bounds()),
        ([EqualTo(("offset",), None)], Bounds()),
        ([EqualTo(("offset",), 1.5)], Bounds()),
        ([EqualTo(("key",), b"x"), EqualTo(("a", "offset"), 1)], Bounds()),
    ],
)
def test_bounds(filters: list[Filter], bounds: Bounds) -> None:
    assert bounds_of(filters) == bounds
