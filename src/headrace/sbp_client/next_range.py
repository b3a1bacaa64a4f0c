"""Where a writer goes on when its range cannot: seal-and-new at the placement manager, and a
channel to the primary of the new range.

Sealing is idempotent: whoever repeats it, or comes second, gets the range that is writable now. A
new range whose primary cannot be reached is sealed in its turn: its node may have died just then.

That the new range starts behind a batch does not mean that the batch is acknowledged: it may be on
one disk alone. `wait_held` tells.
"""

from __future__ import annotations

import asyncio

from headrace.concurrency.retry import Backoff
from headrace.errors import DeadlineError, DiskFullError, HeadraceError, StateError
from headrace.net.sbp_channel import Channel
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.ranges import are_held
from headrace.wire.sbp.messages import Range

CONNECTS_MAX = 2  # to a new primary, before its range is sealed too


async def succeed(
    client: SbpClient, range_: Range, *, epoch: int, backoff: Backoff
) -> tuple[Range, Channel]:
    """The range after `range_` and a channel to its primary. Tries until `backoff` is over.

    FencedError, at once, when a higher epoch has the stream.
    """
    current = range_
    connects = CONNECTS_MAX
    cause: HeadraceError = DeadlineError("no range to go on in", stream_id=range_.stream_id)
    while True:
        try:
            async with asyncio.timeout(max(backoff.left, 0.001)):
                if connects >= CONNECTS_MAX:
                    current = await client.seal(current.stream_id, current.range_index, epoch)
                    connects = 0
                connects += 1
                return current, await connect(client, current)
        except TimeoutError:
            raise cause from None
        except (StateError, DiskFullError) as error:
            cause = error
            # The disk is that of a node, and the next one may have room.
            passes = error.retryable or isinstance(error, DiskFullError)
            if not passes or not await backoff.pause():
                raise


async def wait_held(
    client: SbpClient, stream_id: int, *, start: int, end: int, backoff: Backoff
) -> None:
    """Until as many disks hold [start, end) of sealed ranges as an acknowledgement takes.

    DeadlineError when that is not known in time: they may be stored, and may be lost yet.
    StorageError when they were lost, and given up.
    """
    cause: HeadraceError = DeadlineError(
        "stored on fewer disks than promised so far: the outcome is unknown",
        stream_id=stream_id,
        offset=start,
    )
    while True:
        try:
            async with asyncio.timeout(max(backoff.left, 0.001)):
                ranges = await client.list_ranges(stream_id)
        except TimeoutError:
            raise cause from None
        except StateError as error:
            if not error.retryable or not await backoff.pause():
                raise
            continue
        if are_held(ranges, start, end):
            return
        if not await backoff.pause():
            raise cause


async def connect(client: SbpClient, range_: Range) -> Channel:
    """A channel to the range's primary, in the time of one request."""
    return await client.node(range_).channel(timeout=client.settings.request_timeout_ms / 1000)
