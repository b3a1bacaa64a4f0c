"""Writing a window of rows once: what tasks stage, and what the driver closes.

Tasks stage their rows under the publisher's current run and tell the driver what they staged. The
driver closes the window with exactly that, so retried and speculative tasks leave no trace; a
window that was closed before is not published again. A server that does not know these commands
gets the rows directly, at least once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import xxhash

from headrace.errors import ConfigError
from headrace.wire.iggy.messages.extensions import StagedSpan

if TYPE_CHECKING:
    from headrace.spark.options import Target
    from headrace.spark.server import Server
    from headrace.wire.iggy.batch import Positions

T = TypeVar("T")

CALL_SECONDS = 60.0  # nothing here takes longer, retries included
IN_FLIGHT_MAX = 4  # requests of one task: the next is made while the server syncs the last

Piece = tuple[int | None, memoryview, "Positions"]
"""Messages for a partition, or for one of the server's choice."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which window of which publisher a write belongs to."""

    publisher: str
    run: str
    number: int
    last: bool = False
    """The publisher ends with it: a batch job has one window."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """What one task wrote. Without a window it is published already."""

    rows: int
    window: Window | None = None
    spans: tuple[StagedSpan, ...] = ()
    digest: bytes = b""


def check_delivery(server: Server, target: Target, delivery: str) -> bool:
    """Whether windows are published exactly once; ConfigError if they must and cannot be."""
    if delivery == "at-least-once":
        return False
    if server.publishes_windows():
        return True
    if delivery == "exactly-once":
        raise ConfigError(
            f"the server at {target.address} is a plain Iggy server, which cannot publish a window "
            "at once; set delivery=at-least-once, or delivery=auto to take what there is"
        )
    return False


def deliver(
    server: Server, target: Target, pieces: Iterable[Piece], window: Window | None
) -> Delivered:
    """Stage the pieces for a window, or send them; acknowledged on return."""
    if window is None:
        return Delivered(sum(_in_flight(server.send_soon(target, *piece) for piece in pieces)))
    digest = xxhash.xxh3_128()
    rows = 0

    def staged() -> Iterator[Future[StagedSpan]]:
        nonlocal rows
        for partition, area, starts in pieces:
            digest.update(area)
            rows += len(starts)
            yield server.stage_soon(target, window, partition, area, starts)

    spans = tuple(_in_flight(staged()))
    return Delivered(rows, window, spans, digest.digest())


def close(server: Server, delivered: Sequence[Delivered]) -> bool:
    """Publish what the tasks staged, in their order; False if the window was closed before."""
    windows = {each.window for each in delivered}
    if len(windows) != 1:
        raise ConfigError("the tasks of one write belong to different windows")
    (window,) = windows
    if window is None:
        return True
    spans = [span for each in delivered for span in each.spans]
    digest = xxhash.xxh3_128(b"".join(each.digest for each in delivered)).digest()
    return server.close_window(window, spans, digest)


def _in_flight(futures: Iterator[Future[T]]) -> Iterator[T]:
    """Their results in order, with a few under way at a time."""
    waiting: deque[Future[T]] = deque()
    for future in futures:
        waiting.append(future)
        if len(waiting) >= IN_FLIGHT_MAX:
            yield waiting.popleft().result(CALL_SECONDS)
    while waiting:
        yield waiting.popleft().result(CALL_SECONDS)
