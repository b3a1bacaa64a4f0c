"""Bytes from one connection to another and back, until either ends. It looks at none of them."""

from __future__ import annotations

import asyncio

from headrace.errors import HeadraceError
from headrace.runtime.interfaces import Connection

_CLOSE_SECONDS = 5.0


async def relay(first: Connection, second: Connection) -> None:
    """Memory is bounded: a side that does not keep up stops the reading of the other."""
    pumps = [asyncio.create_task(_pump(first, second)), asyncio.create_task(_pump(second, first))]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Nothing is awaited before both are closing: whoever cancels twice leaves none open.
        for pump in pumps:
            pump.cancel()
        first.close()  # what is queued is still sent
        second.close()
        await _wait_ended(pumps, first, second)


async def _pump(source: Connection, target: Connection) -> None:
    try:
        while data := await source.receive():
            target.write((data,))
            await target.drain()
    except HeadraceError:
        return  # one of them broke: both end


async def _wait_ended(pumps: list[asyncio.Task[None]], *connections: Connection) -> None:
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await asyncio.gather(*pumps, return_exceptions=True)
            await asyncio.gather(*(connection.wait_closed() for connection in connections))
    except TimeoutError:
        pass  # a peer that takes nothing any more
    finally:
        for connection in connections:
            connection.abort()
