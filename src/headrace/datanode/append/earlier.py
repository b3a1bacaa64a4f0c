"""What producers sent again and an earlier range holds: acknowledged when enough disks hold it.

A producer's table travels with the seal, so a primary may be sent a batch that is in the range
before its own. Where that one ends in what too few disks hold, its end has to be healed first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from headrace.errors import StateError, ThrottledError
from headrace.runtime.interfaces import Clock
from headrace.sbp_client.ranges import are_held
from headrace.storage.layout import RangeKey
from headrace.wire.sbp import messages as m

_PAUSE_MIN = 0.05
_PAUSE_MAX = 0.2
_SECONDS_MAX = 0.5
"""Then the producer is told to come again: one that hears nothing would seal its range."""
_KNOWN_MAX = 10_000


class EarlierRanges:
    """Asks the placement manager, once for every range that is opened and asked about."""

    def __init__(
        self, clock: Clock, list_stream: Callable[[int], Awaitable[Sequence[m.Range]]]
    ) -> None:
        self._clock = clock
        self._list_stream = list_stream
        self._held: dict[RangeKey, None] = {}  # ranges before which nothing is in doubt

    async def wait_held(self, key: RangeKey, start: int, end: int) -> None:
        """Until as many disks hold [start, end), which lies before range `key`, as it takes.

        ThrottledError when that is not known in a moment, StorageError when it was given up.
        """
        pause = _PAUSE_MIN
        deadline = self._clock.monotonic() + _SECONDS_MAX
        while key not in self._held and not await self._ask(key, start, end):
            if self._clock.monotonic() >= deadline:
                raise ThrottledError("stored on fewer disks than promised so far", offset=start)
            await self._clock.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX)

    async def _ask(self, key: RangeKey, start: int, end: int) -> bool:
        try:
            ranges = await self._list_stream(key.stream_id)
        except StateError as error:
            if not error.retryable:
                raise
            return False
        if not any(range_.doubtful_offset >= 0 for range_ in ranges):
            if len(self._held) >= _KNOWN_MAX:
                self._held.clear()
            self._held[key] = None
        return are_held(ranges, start, end)
