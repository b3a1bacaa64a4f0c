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
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        await asyncio.gather(_end(first), _end(second))


async def _end(connection: Connection) -> None:
    connection.close()  # what is queued is still sent
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await connection.wait_closed()
    except TimeoutError:
        connection.abort()


async def _pump(source: Connection, target: Connection) -> None:
    try:
        while data := await source.receive():
            target.write((data,))
            await target.drain()
    except HeadraceError:
        return  # one of them broke: both end
