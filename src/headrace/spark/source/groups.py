"""Positions of a query as offsets of a consumer group, so that every tool sees its lag.

Spark's checkpoint stays the position: nothing is ever read from the group, so two queries on one
group only overwrite what others see. Spark asks for `latestOffset(start)` only once the batch that
ended at `start` is in its commit log, so that is when the batch counts as finished.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.spark.options import SourceOptions
from headrace.spark.source.offsets import Key, Offsets, SourceState

if TYPE_CHECKING:
    from headrace.spark.source.reading import Reading

STORE_SECONDS = 5.0  # how long an idle query waits for the broker to take its position

log = logging.getLogger(__name__)


def due(finished: Offsets, state: SourceState, stored: dict[Key, int]) -> dict[Key, int]:
    """The last messages read, where they are not stored yet.

    A group's offset is that of the last message that was read; where none was, there is none.
    """
    found = {}
    for key, _, each in state.partitions():
        generation, next_offset = finished.positions.get(key, (each.generation, 0))
        same = finished.cluster == state.cluster and generation == each.generation
        if same and 0 < next_offset <= each.end and stored.get(key) != next_offset - 1:
            found[key] = next_offset - 1
    return found


class GroupOffsets:
    """Stores in the background. A failure is told in the log once, and never ends a query."""

    def __init__(self, options: SourceOptions, reading: Reading) -> None:
        self._options = options
        self._reading = reading
        self._stored: dict[Key, int] = {}
        self._pending: tuple[asyncio.Task[None], dict[Key, int]] | None = None
        self._latest: tuple[Offsets, SourceState] | None = None
        self._told = ""

    async def on_finished(self, finished: Offsets, state: SourceState) -> None:
        if self._options.consumer_group:
            self._latest = (finished, state)
            if self._pending is not None and self._pending[0].done():
                await self._settle()
            self._store()

    async def on_idle(self) -> None:
        """Spark may end this process as soon as it learns that there is nothing new."""
        if await self._settle():
            self._store()
            await self._settle()

    def _store(self) -> None:
        """One at a time, and then the latest."""
        if self._latest is None or self._pending is not None:
            return
        finished, state = self._latest
        wanted = due(finished, state, self._stored)
        if wanted:
            names = {topic.uid: topic.topic for topic in state.topics}
            offsets = {(names[uid], partition): at for (uid, partition), at in wanted.items()}
            target, group = self._options.target, self._options.consumer_group
            work = self._reading.store(target, group, offsets)
            self._pending = (asyncio.get_running_loop().create_task(work), wanted)

    async def _settle(self) -> bool:
        """Whether something was stored; what takes longer than one waits for goes on."""
        if self._pending is None:
            return False
        task, wanted = self._pending
        done, _ = await asyncio.wait({task}, timeout=STORE_SECONDS)
        if not done:
            return self._tell("no answer in time")
        self._pending = None
        try:
            task.result()
        except HeadraceError as error:
            return self._tell(str(error))
        self._stored.update(wanted)
        return True

    def _tell(self, reason: str) -> bool:
        if reason != self._told:
            self._told = reason
            log.warning(
                "offsets of group %s are not stored: %s", self._options.consumer_group, reason
            )
        return False
