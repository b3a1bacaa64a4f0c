"""Which ranges have gone quiet: in rounds, without a look at the busy ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from headrace.config.datanode import StorageSettings
from headrace.storage.segments.segment import SegmentWriter
from headrace.storage.shared import ActiveRanges
from headrace.wire.sbp.messages import Durability

SETTINGS = StorageSettings(idle_ms=500, idle_file_ms=1500)


@dataclass(eq=False)
class OneRange:
    durability: Durability


def one_range(level: Durability) -> SegmentWriter:
    return cast(SegmentWriter, OneRange(level))


async def test_quiet_for_a_whole_round_or_as_long_as_files_are_kept() -> None:
    active = ActiveRanges(SETTINGS)
    synced, written = one_range(Durability.SYNCED), one_range(Durability.WRITTEN)
    for log in (synced, written):
        active.note(log)
    assert active.take_quiet() == []  # the last append may be a moment ago
    assert active.take_quiet() == [synced]
    assert active.take_quiet() == []
    assert active.take_quiet() == [written]
    assert active.take_quiet() == []


async def test_an_append_starts_the_time_again() -> None:
    active = ActiveRanges(SETTINGS)
    busy, quiet = one_range(Durability.SYNCED), one_range(Durability.SYNCED)
    active.note(quiet)
    for _ in range(3):
        active.note(busy)
        found = active.take_quiet()
        assert busy not in found
    assert active.take_quiet() == [busy]


async def test_a_range_that_is_gone_is_not_quiet() -> None:
    active = ActiveRanges(SETTINGS)
    sealed = one_range(Durability.SYNCED)
    active.note(sealed)
    active.forget(sealed)
    assert [active.take_quiet() for _ in range(3)] == [[], [], []]
