"""How a server under pressure asks its peers to pause, in `throttle_time_ms`.

Levels go from 0 (empty) to 1 (full: the next one is refused). Below three quarters nobody is asked
to pause; from there the pause rises to what it takes, roughly, to work off what is queued. A peer
whose APPEND was refused (status 1429) is always told when to come again.

Channels honour it: the next request to that node is delayed by it, heartbeats are not.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.wire.sbp.errors import StatusCode
from headrace.wire.sbp.messages import OK, AppendResponse, FetchResponse, Message

LEVEL_START = 0.75
ROLE_PAUSE_MS_MAX = 500  # 128 MiB before a disk of 250 MB/s
CONNECTION_PAUSE_MS_MAX = 50  # 32 MiB that are being worked on
REFUSED_PAUSE_MS_MIN = 100
HONOURED_SECONDS_MAX = 30.0
"""Whatever a peer says: a longer pause would look like a dead channel."""


def pause_ms(level: float, longest_ms: int) -> int:
    """Nothing below the start, `longest_ms` when full."""
    over = (min(level, 1.0) - LEVEL_START) / (1.0 - LEVEL_START)
    return max(0, round(over * longest_ms))


def with_pause(message: Message, pause: int) -> Message:
    """The answer to an APPEND or FETCH with that pause in it; others are not throttled."""
    if isinstance(message, AppendResponse):
        for result in message.append_responses:
            if result.status is not OK and _is_refused(result.status):
                pause = max(pause, REFUSED_PAUSE_MS_MIN)
        return replace(message, throttle_time_ms=pause) if pause else message
    if pause and isinstance(message, FetchResponse):
        return replace(message, throttle_time_ms=pause)
    return message


def _is_refused(status: object) -> bool:
    return getattr(status, "code", 0) == StatusCode.TOO_MANY_REQUESTS


def seconds_of(milliseconds: object) -> float:
    """How long to pause for what a peer sent; 0 or negative is none."""
    if not isinstance(milliseconds, int) or milliseconds <= 0:
        return 0.0
    return min(milliseconds / 1000, HONOURED_SECONDS_MAX)
