"""How the connections of a server take turns, so that none of them holds up the loop.

A connection is served without a pause up to REQUESTS_MAX requests or SECONDS_MAX; if it has sent
more than that, it gives way: it goes on when all who gave way before it have, a few of them in each
turn of the loop. A turn is therefore short whatever arrives, and what has a time to be kept, such
as heartbeats and leases, is on time. Whoever waits for an answer before it asks again never gives
way: it lets the loop turn by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque

REQUESTS_MAX = 32
SECONDS_MAX = 0.005
WAITED_SECONDS = 0.000_05
"""Whoever received something in less time did not wait for it."""
_IN_A_TURN_MAX = 8


class Fairness:
    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def give_way(self) -> None:
        """Returns when it is this connection's turn again, never in the same turn of the loop."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._go_on)
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _go_on(self) -> None:
        for _ in range(min(_IN_A_TURN_MAX, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():  # its connection may be over
                turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._go_on)
