"""Finds damage before a reader does, and mends it from other replicas.

Damage is found by reads (which then fail), by the recovery at open, and by a scrub that reads
everything stored, slowly, again and again. A sealed range is mended in place. An open one has to be
sealed first: its replicas agree only on what is committed, and its last file is being written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from headrace.concurrency.tasks import TaskSet
from headrace.config.datanode import DataNodeSettings
from headrace.datanode.replication.copying import Peers
from headrace.errors import CorruptionError, HeadraceError
from headrace.runtime.interfaces import Clock
from headrace.sbp_client.fetched import end_of
from headrace.storage.layout import CorruptSpan, RangeKey
from headrace.storage.range.log import RangeLog

_PAUSE_MIN = 0.5
_PAUSE_MAX = 60.0
_SCRUB_BYTES = 1 << 20
_SCRUB_AFTER_START = 600.0  # a start has better things to do
_SCRUB_PAUSE_MIN = 0.1

_log = logging.getLogger(__name__)


class Repairer:
    def __init__(
        self,
        clock: Clock,
        settings: DataNodeSettings,
        peers: Peers,
        *,
        logs: Callable[[], list[RangeLog]],
        ask_seal: Callable[[RangeKey, str], None],
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._peers = peers
        self._logs = logs
        self._ask_seal = ask_seal
        self._wake = asyncio.Event()
        self._tasks = TaskSet("repair")
        self.repaired_spans = 0

    def start(self) -> None:
        self._tasks.start(self._repair_forever(), name="damage")
        if self._settings.scrub_interval_ms:
            self._tasks.start(self._scrub_forever(), name="scrub")

    def on_damage(self) -> None:
        """A read met some; look for it now."""
        self._wake.set()

    async def close(self) -> None:
        await self._tasks.close()

    # Repair

    async def _repair_forever(self) -> None:
        """Sleeps until damage is found; then tries until it is mended."""
        pause = _PAUSE_MIN
        while True:
            left = [log for log in self._damaged() if not await self._repair(log)]
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause if left else None):
                    await self._wake.wait()
            pause = min(2 * pause, _PAUSE_MAX) if left else _PAUSE_MIN

    def _damaged(self) -> list[RangeLog]:
        """That other replicas can mend."""
        return [log for log in self._logs() if len(log.replicas) > 1 and log.state().corrupt]

    async def _repair(self, log: RangeLog) -> bool:
        """Whether nothing is left to be mended."""
        if not log.sealed:
            self._ask_seal(log.key, "damaged on disk")
            return False
        if not log.final or log.missing is not None:
            return False  # it will be soon
        for span in log.state().corrupt:
            try:
                await self._mend(log, span)
            except HeadraceError as error:
                _log.warning("damage of %s at %s not mended: %s", log.key, span, error)
                return False
        return True

    async def _mend(self, log: RangeLog, span: CorruptSpan) -> None:
        async def batches() -> AsyncIterator[memoryview]:
            offset = span.start
            while offset < span.end:
                fetched = await self._peers.fetch_any(log.key, offset, self._settings.copy_bytes)
                for header, batch in fetched:
                    yield batch
                    offset = header.next_offset

        await log.repair(span, batches())
        self.repaired_spans += 1
        _log.warning("damage of %s at %s mended from another replica", log.key, span)

    # Scrub

    async def _scrub_forever(self) -> None:
        interval = self._settings.scrub_interval_ms / 1000
        await self._clock.sleep(min(interval, _SCRUB_AFTER_START))
        while True:
            started = self._clock.monotonic()
            for log in self._logs():
                await self._scrub(log)
            left = interval - (self._clock.monotonic() - started)
            await self._clock.sleep(max(left, _SCRUB_PAUSE_MIN))

    async def _scrub(self, log: RangeLog) -> None:
        """Read it all: what is read is checked."""
        offset = log.start_offset
        while offset < log.durable_offset:
            read = _SCRUB_BYTES
            try:
                views = await log.read_durable(offset, _SCRUB_BYTES)
                read = sum(map(len, views))
                offset = end_of(views)
            except CorruptionError as error:
                self.on_damage()
                offset = _after(log, offset)
                _log.error("scrub found damage in %s: %s", log.key, error)
            except HeadraceError:
                return  # removed, trimmed or closing: nothing to be found here any more
            await self._clock.sleep(read / self._settings.scrub_bytes_per_second)


def _after(log: RangeLog, offset: int) -> int:
    """Behind the damage at `offset`."""
    spans = [span for span in log.state().corrupt if span.start <= offset < span.end]
    return spans[0].end if spans else log.durable_offset
