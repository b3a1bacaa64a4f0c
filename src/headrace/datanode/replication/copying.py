"""Batches from other replicas: for ranges that miss data, and for damaged ones.

`Peers` asks other data nodes with FETCH: the same reads that clients make, so a replica gives away
only what is committed. Sources that fail are skipped. Every batch is checked before it is stored.
`Copier` fills ranges that miss data; one that cannot be filled now is tried again, with growing
pauses.

`Repairer` finds damage before a reader does, and repairs it. Damage is found by reads (which then
fail), by the recovery at open, and by a scrub that reads everything stored, slowly, again and
again. A sealed range is repaired in place. An open one has to be sealed first: its replicas agree
only on what is committed, and its last file is being written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress

from headrace.concurrency.tasks import TaskSet
from headrace.config.datanode import DataNodeSettings
from headrace.errors import CorruptionError, HeadraceError, RemoteProtocolError, UnavailableError
from headrace.runtime.interfaces import Clock
from headrace.sbp_client.channels import ChannelPool, Connect, PieceReader
from headrace.sbp_client.ranges import end_of
from headrace.storage.layout import CorruptSpan, RangeKey
from headrace.storage.range.log import RangeLog
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import raise_for_status
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import HEADER_BYTES, BatchHeader, split, verify

_FETCH_SECONDS = 10.0
_SOURCES_SECONDS = 5.0
_PAUSE_MIN = 0.1
_PAUSE_MAX = 5.0
_REPAIR_PAUSE_MIN = 0.5
_REPAIR_PAUSE_MAX = 60.0
_SCRUB_BYTES = 1 << 20
_SCRUB_AFTER_START = 600.0  # a start has better things to do
_SCRUB_PAUSE_MIN = 0.1

_log = logging.getLogger(__name__)

FindSources = Callable[[RangeKey], Awaitable[Sequence[str]]]
"""Addresses of the other replicas of a range, as far as they are known now."""


class Peers:
    """Asks other data nodes."""

    def __init__(
        self, clock: Clock, connect_to: Callable[[str], Connect], find_sources: FindSources
    ) -> None:
        self._clock = clock
        self._links = ChannelPool(connect_to)
        self._find_sources = find_sources
        self._known: dict[RangeKey, tuple[float, Sequence[str]]] = {}

    async def close(self) -> None:
        await self._links.close()

    async def fetch_any(
        self, key: RangeKey, offset: int, max_bytes: int
    ) -> list[tuple[BatchHeader, memoryview]]:
        """Checked batches from the one that contains `offset`, of the first replica that has them.

        UnavailableError, with what each of them said, when none has.
        """
        said: list[str] = []
        for address in await self._sources(key):
            try:
                return await self.fetch(address, key, offset, max_bytes)
            except HeadraceError as error:
                said.append(f"{address}: {error}")
        self._known.pop(key, None)
        raise UnavailableError(
            "no replica has it", **key._asdict(), offset=offset, said="; ".join(said)
        )

    async def _sources(self, key: RangeKey) -> Sequence[str]:
        """Asked for now and then, not for every piece of a range."""
        now = self._clock.monotonic()
        until, sources = self._known.get(key, (0.0, ()))
        if now >= until:
            self._known = {k: known for k, known in self._known.items() if known[0] > now}
            sources = await self._find_sources(key)
            self._known[key] = (now + _SOURCES_SECONDS, sources)
        return sources

    async def fetch(
        self, address: str, key: RangeKey, offset: int, max_bytes: int
    ) -> list[tuple[BatchHeader, memoryview]]:
        info = m.FetchInfo(stream_id=key.stream_id, fetch_offset=offset, batch_max_bytes=max_bytes)
        request = m.FetchRequest(max_wait_ms=0, min_bytes=1, fetch_requests=(info,))
        reply = await self._links.to(address).call(Code.FETCH, request, timeout=_FETCH_SECONDS)
        response = reply.message
        if not isinstance(response, m.FetchResponse):
            raise RemoteProtocolError("unexpected answer to a fetch")
        raise_for_status(response.status)
        reader = PieceReader(reply.payload)
        found: list[tuple[BatchHeader, memoryview]] = []
        for result in response.fetch_responses:
            raise_for_status(result.status)
            whole = b"".join(reader.take(result.batch_length))
            found.extend(split(whole))
        _check(found, offset)
        return found


def _check(batches: Sequence[tuple[BatchHeader, memoryview]], offset: int) -> None:
    """Neighbours from `offset` on, with good checksums: other nodes' bytes are not believed."""
    if not batches:
        raise RemoteProtocolError("a replica answered with nothing", offset=offset)
    first = batches[0][0]
    if not first.base_offset <= offset < first.next_offset:
        raise RemoteProtocolError("another offset was asked for", offset=offset)
    expected = first.base_offset
    for header, batch in batches:
        if header.base_offset != expected:
            raise RemoteProtocolError("batches out of order", expected=expected)
        verify(batch[:HEADER_BYTES], [batch[HEADER_BYTES:]])
        expected = header.next_offset


class Copier:
    """Copies what incomplete ranges miss; a few at a time."""

    def __init__(
        self,
        clock: Clock,
        settings: DataNodeSettings,
        peers: Peers,
        *,
        is_kept: Callable[[RangeLog], bool],
        on_complete: Callable[[RangeLog], None],
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._peers = peers
        self._is_kept = is_kept
        self._on_complete = on_complete
        self._wanted: dict[RangeKey, None] = {}
        self._room = asyncio.Semaphore(settings.copy_ranges_max)
        self._tasks = TaskSet("copying")
        self.copied_bytes = 0

    def want(self, log: RangeLog) -> None:
        """Fill the range in the background; more than once is fine."""
        if log.key not in self._wanted and log.missing is not None:
            self._wanted[log.key] = None
            self._tasks.start(self._fill(log), name=f"range {log.key}")

    async def close(self) -> None:
        await self._tasks.close()

    async def _fill(self, log: RangeLog) -> None:
        pause = _PAUSE_MIN
        try:
            while log.missing is not None and self._is_kept(log):
                before = log.durable_offset
                try:
                    async with self._room:
                        await self._copy_some(log)
                except HeadraceError as error:
                    _log.info("copy of %s waits: %s", log.key, error)
                if log.durable_offset > before:
                    pause = _PAUSE_MIN
                elif log.missing is not None:
                    await self._clock.sleep(pause)
                    pause = min(2 * pause, _PAUSE_MAX)
        finally:
            del self._wanted[log.key]
        if log.missing is None:
            self._on_complete(log)

    async def _copy_some(self, log: RangeLog) -> None:
        """One answer of another replica, whole; others get their turn afterwards."""
        missing = log.missing
        if missing is None:
            return
        offset, end = missing
        fetched = await self._peers.fetch_any(log.key, offset, self._settings.copy_bytes)
        batches = [(header, batch) for header, batch in fetched if header.base_offset < end]
        if batches[-1][0].next_offset > end:
            raise CorruptionError("a batch crosses the range's end", end=end, **log.key._asdict())
        synced: list[asyncio.Future[None]] = []
        try:
            for _, batch in batches:
                header = bytearray(batch[:HEADER_BYTES])
                synced.append(log.copy(header, [batch[HEADER_BYTES:]], verified=True))
                self.copied_bytes += len(batch)
        finally:
            results = await asyncio.gather(*synced, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result


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
        pause = _REPAIR_PAUSE_MIN
        while True:
            left = [log for log in self._damaged() if not await self._repair(log)]
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause if left else None):
                    await self._wake.wait()
            pause = min(2 * pause, _REPAIR_PAUSE_MAX) if left else _REPAIR_PAUSE_MIN

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
