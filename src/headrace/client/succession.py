"""Where a writer goes on when its range cannot: seal-and-new at the placement manager, and a
channel to the primary of the new range.

Sealing is idempotent: whoever repeats it, or comes second, gets the range that is writable now. A
new range whose primary cannot be reached is sealed in its turn: its node may have died just then.
"""

from __future__ import annotations

import asyncio

from headrace.client.retry import Backoff
from headrace.client.sbp import SbpClient
from headrace.errors import DeadlineError, DiskFullError, HeadraceError, StateError
from headrace.net.sbp_channel import Channel
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


async def connect(client: SbpClient, range_: Range) -> Channel:
    """A channel to the range's primary, in the time of one request."""
    return await client.node(range_).channel(timeout=client.settings.request_timeout_ms / 1000)
