"""What the proxies of tests have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from headrace.runtime.system.network import stop_accepting

_TURNS = 5  # of the loop, from accepting a connection to its task's first step


async def close(servers: Collection[asyncio.Server], tasks: Collection[asyncio.Task[None]]) -> None:
    """End servers and the tasks of their connections, in `tasks` from their first step on."""
    for server in servers:
        stop_accepting(server)
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    for server in servers:
        server.close()
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
