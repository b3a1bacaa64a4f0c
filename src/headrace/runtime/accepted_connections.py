"""The tasks of accepted connections: the half of a Listener that both runtimes share."""

from __future__ import annotations

import asyncio
from contextvars import Context

from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Connection, OnConnection

log = get_logger(__name__)


class AcceptedConnections:
    """One task per connection; it closes the connection when the handler returns or raises."""

    def __init__(self, on_connection: OnConnection) -> None:
        self._on_connection = on_connection
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, connection: Connection, context: Context | None = None) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._serve(connection), context=context)
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, connection: Connection) -> None:
        try:
            await self._on_connection(connection)
        except Exception as error:
            log.error("connection handler failed", peer=connection.peer, exc_info=error)
        finally:
            connection.close()
