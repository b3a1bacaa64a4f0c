"""Which ranges have gone quiet since their last append.

Time is counted in rounds of `idle_ms`. Ranges stand in the order of their last append, so that a
round looks at those that are quiet and not at the thousands that are not.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.config.storage import StorageSettings
from headrace.wire.sbp.messages import Durability

if TYPE_CHECKING:
    from headrace.storage.range.writer import RangeWriter


class ActiveRanges:
    """Ranges with appends since their last closing mark. Used from the event loop alone."""

    def __init__(self, settings: StorageSettings) -> None:
        # A `written` range is synced for its mark: thousands of them, with an append now and then,
        # would keep the disk busy with nothing else.
        self._rounds = {
            Durability.SYNCED: 1,
            Durability.WRITTEN: max(1, -(-settings.idle_file_ms // settings.idle_ms)),
        }
        self._last: dict[Durability, dict[RangeWriter, int]] = {level: {} for level in Durability}
        self._round = 0
        self._some = asyncio.Event()

    def note(self, log: RangeWriter) -> None:
        """It has just been written to."""
        ranges = self._last[log.durability]
        ranges.pop(log, None)
        ranges[log] = self._round
        self._some.set()

    def forget(self, log: RangeWriter) -> None:
        self._last[log.durability].pop(log, None)

    async def wait(self) -> None:
        """Until some range is active."""
        if not any(self._last.values()):
            self._some.clear()
            await self._some.wait()

    def take_quiet(self) -> list[RangeWriter]:
        """Ends a round: the ranges that were quiet for long enough, which are active no more."""
        self._round += 1
        quiet: list[RangeWriter] = []
        for level, ranges in self._last.items():
            # The round in which the last append came does not count: it may be over just now.
            latest = self._round - 1 - self._rounds[level]
            for log, last in ranges.items():
                if last > latest:
                    break
                quiet.append(log)
        for log in quiet:
            self.forget(log)
        return quiet
