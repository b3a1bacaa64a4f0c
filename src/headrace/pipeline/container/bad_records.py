"""Which records make a batch fail: halve the batch's offset ranges until they stand alone. Pure.

`fails` runs a part of the batch and says why it failed, None when it did not. A part that holds one
record and fails is that record. Everything else went through, so the batch can go on without the
records that were found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from headrace.errors import CorruptionError
from headrace.spark.source.batch_plan import Offsets

RECORDS_MAX = 100  # bad ones of a batch: with more it is not the records
PROBES_MAX = 2_000


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Records [start, end) of a partition."""

    topic: str  # stream/topic
    partition: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class BadRecord:
    topic: str
    partition: int
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.topic} partition {self.partition} offset {self.offset}"


Ranges: TypeAlias = tuple[OffsetRange, ...]
Fails: TypeAlias = Callable[[Ranges], str | None]


class TooManyBadRecordsError(Exception):
    """The records are not what is wrong; never leaves the one who bisects."""


def find_bad_records(ranges: Sequence[OffsetRange], fails: Fails) -> list[BadRecord]:
    """All records that fail by themselves, in order. None at all: what failed was not a record."""
    bad: list[BadRecord] = []
    probes = 0
    waiting: list[tuple[Ranges, bool]] = [(tuple(each for each in ranges if len(each)), False)]
    while waiting:
        part, known_to_fail = waiting.pop()
        count = sum(map(len, part))
        if not count:
            continue
        reason: str | None = ""
        if not known_to_fail or count == 1:
            probes += 1
            if probes > PROBES_MAX:
                raise TooManyBadRecordsError(f"not found after {PROBES_MAX} tries")
            reason = fails(part)
        if reason is None:
            continue
        if count == 1:
            (only,) = part
            bad.append(BadRecord(only.topic, only.partition, only.start, reason))
            if len(bad) > RECORDS_MAX:
                raise TooManyBadRecordsError(f"more than {RECORDS_MAX} records fail")
            continue
        left, right = halve(part)
        probes += 1
        left_fails = fails(left) is not None
        if left_fails:
            waiting += [(right, False), (left, True)]
        else:  # something in here failed, so it is on the right
            waiting.append((right, True))
    return bad


def halve(ranges: Ranges) -> tuple[Ranges, Ranges]:
    """Two parts with the same number of records, or one more on the right."""
    left: list[OffsetRange] = []
    right: list[OffsetRange] = []
    wanted = sum(map(len, ranges)) // 2
    for each in ranges:
        middle = each.start + min(wanted, len(each))
        wanted -= middle - each.start
        left.append(replace(each, end=middle))
        right.append(replace(each, start=middle))
    return _filled(left), _filled(right)


def _filled(ranges: Sequence[OffsetRange]) -> Ranges:
    return tuple(each for each in ranges if len(each))


def batch_ranges(
    before: Sequence[Offsets], after: Sequence[Offsets], topics: Mapping[str, str]
) -> Ranges:
    """What a batch reads, partitions without news among it, by its sources' offsets around it.

    `topics` are names by uid. CorruptionError where no ranges can be told.
    """
    found: dict[tuple[str, int], OffsetRange] = {}
    for begin, end in zip(before, after, strict=True):
        for key, (generation, position) in end.positions.items():
            uid, partition = key
            start_generation, start = begin.positions.get(key, (generation, 0))
            if start_generation != generation or uid not in topics:
                raise CorruptionError("a topic was purged or made anew within the batch", uid=uid)
            place = (topics[uid], partition)
            each = OffsetRange(*place, end.begins.get(key, start), position)
            if found.setdefault(place, each) != each:
                raise CorruptionError("two sources read different parts of one topic", uid=uid)
    return tuple(sorted(found.values()))
