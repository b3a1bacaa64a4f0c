"""Carries out what `healing` decides, a bounded part of it each time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from headrace.errors import HeadraceError
from headrace.placement import healing
from headrace.placement.changes import Changes
from headrace.placement.metadata.records import Put, RangeRecord

SEALS_PER_ROUND = 32
JOINS_PER_ROUND = 64

_log = logging.getLogger(__name__)


class Mending:
    """For one term."""

    def __init__(self, changes: Changes, *, below: Callable[[int], int]) -> None:
        self._changes = changes
        self._ledger = changes.ledger
        self._state = changes.state
        self._below = below

    async def round(self) -> None:
        """Unfinished seals, then open ranges in trouble, then copies of sealed ones."""
        state, now_ms = self._state, self._ledger.monotonic_ms()
        unfinished = (r for r in state.sealing() if healing.can_finish(state, r))
        await self._seal(list(islice(unfinished, SEALS_PER_ROUND)), "seal still open")
        await self._seal(list(islice(healing.to_move(state, now_ms), SEALS_PER_ROUND)), "not moved")
        for record in list(islice(healing.to_mend(state, now_ms), JOINS_PER_ROUND)):
            await self._mend(record)
        await self._tell(self._state.unsettled())

    async def hurry(self) -> None:
        """Bring what is doubtful to enough nodes: writers wait for it."""
        now_ms = self._ledger.monotonic_ms()
        for record in list(islice(self._state.doubtful(), JOINS_PER_ROUND)):
            if healing.missing(self._state, record, now_ms) > 0:
                await self._mend(record)
        await self._tell(self._state.doubtful())

    async def _seal(self, records: Sequence[RangeRecord], otherwise: str) -> None:
        async def seal(record: RangeRecord) -> None:
            try:
                await self._changes.sealing.finish(record)
            except HeadraceError as error:
                _log.info("%s: range %s: %s", otherwise, record.key, error)

        await asyncio.gather(*map(seal, records))

    async def _mend(self, record: RangeRecord) -> None:
        """Let nodes join, and those go that are not needed."""
        async with self._ledger.mutex.hold(record.stream_id):
            state, now_ms = self._state, self._ledger.monotonic_ms()
            found = state.find(record.stream_id, record.range_index)
            if found is None or found.open:
                return
            wanted = healing.missing(state, found, now_ms)
            chosen: tuple[int, ...] = ()
            if wanted > 0 and healing.whole_copies(state, found):
                chosen = state.nodes.choose(
                    wanted,
                    at_least=0,
                    exclude=(*found.replicas, *found.joining),
                    beside=[
                        n
                        for n in (*found.replicas, *found.joining)
                        if not state.nodes.is_dead(n, now_ms)
                    ],
                    load=state.load,
                    below=self._below,
                )
            mended = healing.mended(state, found, chosen, now_ms)
            if mended != found:
                _log.info("range %s: joining %s", found.key, mended.joining)
                await self._ledger.commit([Put(mended)])

    async def _tell(self, records: Sequence[RangeRecord]) -> None:
        """Tell nodes what they have yet to hear, and note who holds a range whole by now."""
        pending = (
            (node_id, (record.stream_id, record.range_index))
            for record in records
            if not record.open
            for node_id in (*record.incomplete, *record.joining)
        )
        for node_id, key in await self._changes.telling.deliver_ranges(pending):
            await self._note_whole(node_id, key)
        for record in self._state.doubtful():
            await self._note_held(record)

    async def _note_held(self, record: RangeRecord) -> None:
        """Enough hold more of it than was known, if not all."""
        if healing.held_by_enough(record, self._state.told_held(record)) <= record.doubtful:
            return
        async with self._ledger.mutex.hold(record.stream_id):
            found = self._state.find(record.stream_id, record.range_index)
            if found is None:
                return
            held = healing.held_by_enough(found, self._state.told_held(found))
            if 0 <= found.doubtful < held:
                doubtful = held if held < found.content_end else -1
                await self._ledger.commit([Put(msgspec.structs.replace(found, doubtful=doubtful))])
                self._changes.telling.later((*found.replicas, *found.joining), found)

    async def _note_whole(self, node_id: int, key: tuple[int, int]) -> None:
        record = self._state.find(*key)
        if record is None or node_id not in (*record.incomplete, *record.joining):
            return  # it was whole before
        async with self._ledger.mutex.hold(key[0]):
            record = self._state.find(*key)
            if record is None or record.open:
                return
            now_ms = self._ledger.monotonic_ms()
            completed = healing.completed(self._state, record, node_id, now_ms)
            if completed != record:
                await self._ledger.commit([Put(completed)])
            if not completed.incomplete:
                self._state.forget_held(key)
            if completed.doubtful < 0 <= record.doubtful:
                self._changes.telling.later((*completed.replicas, *completed.joining), completed)
