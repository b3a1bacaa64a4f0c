"""How much of the disk streams of anonymous peers may take, all together.

Whoever may append without a credential could otherwise fill the disk for everybody. What is stored
is counted now and then; what was accepted since, and might not be stored yet, counts beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.errors import ShareFullError
from headrace.runtime.interfaces import Clock
from headrace.storage.range.log import RangeLog

_COUNT_SECONDS = 1.0


class PlainShare:
    """Nothing may be taken before `limit` is set."""

    def __init__(self, clock: Clock, logs: Callable[[], Iterable[RangeLog]]) -> None:
        self.limit = 0
        self._clock = clock
        self._logs = logs
        self._counted = float("-inf")
        self._stored = 0
        self._before = 0  # taken in the last period, and maybe on its way to the disk still
        self._now = 0

    @property
    def used(self) -> int:
        return self._stored + self._before + self._now

    def take(self, size: int) -> None:
        """ShareFullError when it does not fit."""
        now = self._clock.monotonic()
        if now - self._counted >= _COUNT_SECONDS:
            self._counted = now
            self._stored = sum(map(_stored_bytes, self._logs()))
            self._before, self._now = self._now, 0
        if self.used + size > self.limit:
            raise ShareFullError(
                "plain streams have used their share of the disk; delete or trim some, or raise "
                "advanced.data_node.plain_streams_percent_max",
                limit=self.limit,
            )
        self._now += size


def _stored_bytes(log: RangeLog) -> int:
    if log.writer_epoch >= 0:
        return 0
    return sum(segment.bytes for segment in log.segments())
