"""How long `latestOffset` may wait for messages.

Spark asks the sources of a query one after the other, and asks again at once when none has
anything. A source that waits saves the idle query its loop, but it delays every other source of the
query, and `query.stop()`. So a wait starts short and grows only while this source is asked again
right after it answered: then nobody else waits in the same round. Two waiting sources see each
other's waits as gaps and both stay short. A gap is also what a trigger interval or a batch leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

WAIT_SECONDS_MIN = 0.05
WAIT_SECONDS_MAX = 0.8
GAP_SECONDS_MAX = 0.045  # Spark's own round takes 12 to 20 ms; below the shortest wait


@dataclass(slots=True)
class IdlePace:
    """Times are those of a monotonic clock."""

    _wait: float = WAIT_SECONDS_MIN
    _answered: float | None = None

    def on_asked(self, now: float) -> float:
        """How long this call may wait."""
        if self._answered is None or now - self._answered > GAP_SECONDS_MAX:
            self._wait = WAIT_SECONDS_MIN
        return self._wait

    def on_answered(self, now: float, *, idle: bool) -> None:
        self._answered = now
        self._wait = min(2 * self._wait, WAIT_SECONDS_MAX) if idle else WAIT_SECONDS_MIN
