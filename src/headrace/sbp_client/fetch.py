"""FETCH: reading from any replica of a range.

A fetch at a committed offset returns it or raises; it never returns fewer records than asked for
without saying so in `next_offset`. Replicas are asked one after the other (`Replicas` says in which
order): the next one when one fails, holds damaged bytes, does not know whether the offset is
committed, or is slow. After one pass over all of them the ranges are looked up afresh, and so on
until the deadline; where the placement manager knows that no living node has the offset, not for
long, and the error says so.

An empty answer means the end of the stream. Only the primary of an open range may give it, and in a
replicated stream only while its ranges are known to be fresh: the primary may have been cut off,
and the stream may go on elsewhere.

A reader on a data node's own machine reads the node's files itself (`LocalReads`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from headrace.concurrency.retry import Backoff
from headrace.concurrency.tasks import TaskSet
from headrace.errors import (
    CorruptionError,
    DeadlineError,
    HeadraceError,
    LostRecordsError,
    MissingRecordsError,
    OffsetOutOfRangeError,
    OffsetOverflowError,
    RangeNotFoundError,
    StateError,
    ThrottledError,
    UnavailableError,
)
from headrace.net.sbp_server import Payload
from headrace.runtime.interfaces import Executor, Runtime
from headrace.sbp_client.channels import ChannelPool, PieceReader
from headrace.sbp_client.metadata import MetadataClient
from headrace.sbp_client.ranges import Fetched, RangeMap, Replicas, Want, checked, typed
from headrace.storage.layout import Point
from headrace.storage.segments.reader import Stretch, StretchReader
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import raise_for_status
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import decode_header

STRETCH_BYTES_MAX = 64 << 20  # read of what was located once
READERS_MAX = 16  # files kept open: the one used longest ago is closed
AVOID_SECONDS = 60.0  # until a node is asked again whose files cannot be opened here
_THREADS = 2


class LocalReads:
    """Reads the files of data nodes that are on this machine.

    FETCH sends the bytes of a log through a socket. A reader on the node's own machine says so in
    its request (`FetchInfo.machine`). The node, after the same checks as ever, answers with a
    stretch of a file instead, and the reader reads that itself. So the node decides what may be
    read (the ticket, what is committed, what was trimmed) and the system whether this process may
    open the file.

    A path alone proves nothing: here it may lead to another file, of another node or in another
    container. So the file must be the very one, by machine, device and inode, and every batch in it
    is checked as the node checks it: its offset, its length, its checksum. Whatever does not hold
    is no error but a reason to ask for the bytes: the node knows about damage, and other replicas.

    A file that is removed stays readable for who has it open. A stretch is therefore asked for
    again after `STRETCH_BYTES_MAX`, so that nobody reads on for long in what retention removed.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._readers: dict[tuple[int, int], StretchReader] = {}  # by stream and next offset
        self._avoided: dict[str, float] = {}  # address -> until when
        self._tasks = TaskSet("local reads")
        self._threads: Executor | None = None
        self._machine = runtime.disk.machine()

    def machine(self, address: str) -> str:
        """What to tell that node; empty when its files are out of reach."""
        if self._avoided.get(address, float("-inf")) > self._runtime.clock.monotonic():
            return ""
        return self._machine

    async def go_on(self, want: Want) -> Fetched | None:
        """What follows in the file that the last read of the stream ended in."""
        reader = self._readers.pop((want.stream_id, want.offset), None)
        return None if reader is None else await self._run(self._read(reader, want))

    async def begin(
        self, address: str, range_: m.Range, stretch: m.FileStretch, want: Want
    ) -> Fetched | None:
        """The first batches of a stretch; None when they have to come as bytes."""
        stop = stretch.stop_offset
        if range_.end_offset >= 0:
            # A replica that has not learned the final end: what lies beyond it never happened.
            stop = min(stop, range_.end_offset)
        known = Stretch(
            stretch.binding,
            Point(stretch.start_position, stretch.start_offset),
            Point(stretch.stop_position, stop),
        )
        return await self._run(self._open(address, stretch, known, want))

    async def _run(self, work: Coroutine[Any, Any, Fetched | None]) -> Fetched | None:
        """To its end, whoever stops waiting: a file is not closed under a thread that reads it."""
        return await asyncio.shield(self._tasks.start(work))

    async def _open(
        self, address: str, stretch: m.FileStretch, known: Stretch, want: Want
    ) -> Fetched | None:
        disk = self._runtime.disk
        try:
            file = await self._executor.run(disk.open_same, stretch.path, stretch.identity)
        except HeadraceError:
            self._avoided[address] = self._runtime.clock.monotonic() + AVOID_SECONDS
            return None
        return await self._read(StretchReader(file, known), want)

    async def _read(self, reader: StretchReader, want: Want) -> Fetched | None:
        keep = False
        try:
            pieces = await self._executor.run(reader.read, want.offset, want.max_bytes)
            keep = bool(pieces) and not reader.is_over and reader.bytes < STRETCH_BYTES_MAX
        except HeadraceError:
            return None
        finally:
            if not keep:
                reader.close()
        if keep:
            self._keep(want.stream_id, reader)
        return Fetched(pieces, reader.next_offset, verified=True) if pieces else None

    def _keep(self, stream_id: int, reader: StretchReader) -> None:
        key = (stream_id, reader.next_offset)
        replaced = self._readers.pop(key, None)
        if replaced is not None:
            replaced.close()
        self._readers[key] = reader
        if len(self._readers) > READERS_MAX:
            self._readers.pop(next(iter(self._readers))).close()

    @property
    def _executor(self) -> Executor:
        if self._threads is None:
            self._threads = self._runtime.executor("local-reads", _THREADS)
        return self._threads

    async def close(self) -> None:
        await self._tasks.finish()
        while self._readers:
            self._readers.popitem()[1].close()
        if self._threads is not None:
            self._threads.close()


_TORN_SECONDS = 1.0
"""How long a read waits for records that no living node has: one of them may be starting."""

_ELSEWHERE = (
    UnavailableError,
    DeadlineError,
    CorruptionError,
    RangeNotFoundError,
    ThrottledError,
)
"""What one replica says and another may not. NotPrimaryError is a RangeNotFoundError."""


class Fetcher:
    def __init__(
        self, client: MetadataClient, nodes: ChannelPool, replicas: Replicas, local: LocalReads
    ) -> None:
        settings = client.settings
        self._local = local
        self._client = client
        self._clock = client.runtime.clock
        self._nodes = nodes
        self._replicas = replicas
        self._request_timeout = settings.request_timeout_ms / 1000
        self._hedge_after = settings.hedge_after_ms / 1000
        self._ranges_age_max = settings.ranges_age_ms_max / 1000

    async def fetch(self, want: Want, *, max_wait_ms: int = 0, min_bytes: int = 1) -> Fetched:
        """Batches from the one that contains the wanted offset, of one range; `SbpClient.fetch`
        says what comes at the ends of a stream."""
        wait_until = self._clock.monotonic() + max_wait_ms / 1000
        backoff = Backoff(self._client.runtime, wait_until + self._request_timeout)
        fresh = False
        torn_at: float | None = None
        if want.local and (found := await self._local.go_on(want)) is not None:
            return found
        while True:
            ranges = self._client.known_ranges.get(want.stream_id)
            if ranges is None:
                fresh = True
                ranges = await self._client.ranges(want.stream_id)
            range_ = ranges.containing(want.offset)
            try:
                if range_ is None:
                    raise _no_range(ranges, want)
                fetched = await self._fetch_somewhere(range_, want, wait_until, min_bytes)
                if fetched.pieces or await self._is_end(range_, ranges, want):
                    return fetched
            except (StateError, OffsetOutOfRangeError, CorruptionError) as error:
                self._client.invalidate(want.stream_id)
                if not fresh:
                    fresh = True  # the answer may only mean that our ranges were old
                    continue
                now = self._clock.monotonic()
                waiting = now < wait_until
                if range_ is not None and 0 <= range_.held_offset <= want.offset:
                    torn_at = now if torn_at is None else torn_at
                    if now - torn_at >= _TORN_SECONDS:
                        raise _missing(range_, want) from error
                if not _worth_waiting(error, ranges, want.offset):
                    raise
                if isinstance(error, OffsetOutOfRangeError) and not waiting:
                    return Fetched([], want.offset)  # sealed, the next range is being made
                if not await backoff.pause():
                    raise

    async def _is_end(self, range_: m.Range, ranges: RangeMap, want: Want) -> bool:
        """Whether an empty answer of the primary may be believed."""
        age = self._clock.monotonic() - ranges.known_at
        if len(range_.replica_nodes) < 2 or age <= self._ranges_age_max or not want.check_end:
            return True
        try:
            await self._client.list_ranges(want.stream_id)
        except StateError:
            return True  # no placement manager: existing ranges are still read (F22)
        newer = (await self._client.ranges(want.stream_id)).containing(want.offset)
        return newer is not None and newer.range_index == range_.range_index

    async def _fetch_somewhere(
        self, range_: m.Range, want: Want, wait_until: float, min_bytes: int
    ) -> Fetched:
        """One pass over the replicas."""
        addresses = self._replicas.order(range_)
        if not addresses:
            raise UnavailableError("range without replicas", stream_id=range_.stream_id)
        wait_ms = self.wait_ms(wait_until)
        if len(addresses) == 1:
            return await self._fetch_at(addresses[0], range_, want, wait_ms, min_bytes)
        # At the tail of an open range the first one is expected to wait.
        patience = self._hedge_after + (wait_ms / 1000 if range_.end_offset < 0 else 0.0)
        race = _Race(self, range_, want, min_bytes, wait_until)
        return await race.run(addresses, patience if self._hedge_after else None)

    def wait_ms(self, until: float) -> int:
        return max(0, int((until - self._clock.monotonic()) * 1000))

    async def fetch_at_or_raise(
        self, address: str, range_: m.Range, want: Want, wait_ms: int, min_bytes: int
    ) -> Fetched:
        """One replica, and what its answer tells about it."""
        try:
            fetched = await self._fetch_at(address, range_, want, wait_ms, min_bytes)
        except HeadraceError as error:
            if isinstance(error, UnavailableError | DeadlineError):
                self._replicas.suspect(address)
            self._replicas.on_failed(range_, address)
            raise
        self._replicas.on_answered(range_, address)
        return fetched

    async def _fetch_at(
        self, address: str, range_: m.Range, want: Want, wait_ms: int, min_bytes: int
    ) -> Fetched:
        info = m.FetchInfo(
            stream_id=want.stream_id, fetch_offset=want.offset, batch_max_bytes=want.max_bytes
        )
        machine = self._local.machine(address) if want.local else ""
        if machine:
            asked = replace(info, machine=machine)
            response, payload = await self._call(address, [asked], wait_ms, min_bytes)
            stretch = next((each.stretch for each in response.fetch_responses), None)
            if stretch is not None:
                found = await self._local.begin(address, range_, stretch, want)
                self._replicas.on_files_read(address, here=found is not None)
                if found is not None:
                    return found
                response, payload = await self._call(address, [info], wait_ms, min_bytes)
        else:
            response, payload = await self._call(address, [info], wait_ms, min_bytes)
        (pieces,) = _results(address, [info], response, payload)
        if isinstance(pieces, HeadraceError):
            raise pieces
        return checked(pieces, range_, want.offset, address)

    async def ask(
        self, address: str, infos: Sequence[m.FetchInfo], wait_ms: int, min_bytes: int
    ) -> list[list[memoryview] | HeadraceError]:
        """Pieces or error per entry, whose request_index is its position."""
        return _results(address, infos, *await self._call(address, infos, wait_ms, min_bytes))

    async def _call(
        self, address: str, infos: Sequence[m.FetchInfo], wait_ms: int, min_bytes: int
    ) -> tuple[m.FetchResponse, Payload]:
        request = m.FetchRequest(
            max_wait_ms=wait_ms, min_bytes=min_bytes, fetch_requests=tuple(infos)
        )
        reply = await self._nodes.to(address).call(
            Code.FETCH, request, timeout=wait_ms / 1000 + self._request_timeout
        )
        response = typed(reply.message, m.FetchResponse)
        raise_for_status(response.status)
        return response, reply.payload

    async def offset_at(self, stream_id: int, timestamp_ms: int) -> int | None:
        """Base offset of the first batch whose newest record reaches the time."""
        for range_ in await self._client.list_ranges(stream_id):
            found = await self._find_time(range_, timestamp_ms)
            if found is not None:
                return found
        return None

    async def _find_time(self, range_: m.Range, timestamp_ms: int) -> int | None:
        info = m.FetchInfo(
            stream_id=range_.stream_id,
            fetch_offset=range_.start_offset,
            batch_max_bytes=1,
            start_timestamp=timestamp_ms,
        )
        errors: list[HeadraceError] = []
        for address in self._replicas.order(range_):
            try:
                (pieces,) = await self.ask(address, [info], 0, 1)
                if isinstance(pieces, OffsetOutOfRangeError):
                    return None
                if isinstance(pieces, HeadraceError):
                    raise pieces
            except _ELSEWHERE as error:
                errors.append(error)
                continue
            if not pieces:
                return None
            # A node looks through all its ranges of the stream; others may hold those between.
            base_offset = decode_header(pieces[0]).base_offset
            inside = range_.end_offset < 0 or base_offset < range_.end_offset
            return base_offset if inside else None
        raise errors[-1] if errors else UnavailableError("range without replicas")


def _results(
    address: str, infos: Sequence[m.FetchInfo], response: m.FetchResponse, payload: Payload
) -> list[list[memoryview] | HeadraceError]:
    reader = PieceReader(payload)
    found: list[list[memoryview] | HeadraceError | None] = [None] * len(infos)
    for result in response.fetch_responses:
        pieces = [memoryview(piece) for piece in reader.take(result.batch_length)]
        if not 0 <= result.request_index < len(infos):
            continue
        info = infos[result.request_index]
        try:
            raise_for_status(result.status, stream_id=info.stream_id, offset=info.fetch_offset)
            found[result.request_index] = pieces
        except HeadraceError as error:
            found[result.request_index] = error
    return [UnavailableError("no result", peer=address) if each is None else each for each in found]


class _Race:
    """Replicas asked in turn, the next one also when the last is slow; the first answer wins."""

    def __init__(
        self, fetcher: Fetcher, range_: m.Range, want: Want, min_bytes: int, wait_until: float
    ) -> None:
        self._fetcher = fetcher
        self._range = range_
        self._want = want
        self._min_bytes = min_bytes
        self._wait_until = wait_until
        self._running: dict[asyncio.Task[Fetched], None] = {}  # ordered, for the simulator
        self._errors: list[HeadraceError] = []

    async def run(self, addresses: Sequence[str], patience: float | None) -> Fetched:
        left = list(addresses)
        slow = False
        try:
            while left or self._running:
                if left and (slow or not self._running):
                    self._start(left.pop(0), hedged=slow)
                done, _ = await asyncio.wait(
                    self._running,
                    timeout=patience if left else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                slow = not done
                for task in done:
                    fetched = self._finish(task)
                    if fetched is not None:
                        return fetched
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
        raise _retryable_first(self._errors)

    def _start(self, address: str, *, hedged: bool) -> None:
        wait_ms = 0 if hedged else self._fetcher.wait_ms(self._wait_until)
        work = self._fetcher.fetch_at_or_raise(
            address, self._range, self._want, wait_ms, self._min_bytes
        )
        self._running[asyncio.ensure_future(work)] = None

    def _finish(self, task: asyncio.Task[Fetched]) -> Fetched | None:
        del self._running[task]
        try:
            return task.result()
        except _ELSEWHERE as error:
            self._errors.append(error)
        except (OffsetOutOfRangeError, OffsetOverflowError) as error:
            if self._range.end_offset < 0:
                raise
            self._errors.append(error)  # the offset lies in the range: this replica lacks it
        return None


def _retryable_first(errors: Sequence[HeadraceError]) -> HeadraceError:
    """Choose among the errors of all replicas one that may pass, rather than one that will not."""
    passing = [error for error in errors if error.retryable]
    return (passing or list(errors))[-1]


def _no_range(ranges: RangeMap, want: Want) -> OffsetOutOfRangeError:
    resumed = ranges.lost_at(want.offset)
    if resumed is None:
        return OffsetOutOfRangeError(stream_id=want.stream_id, offset=want.offset)
    return LostRecordsError(
        f"the records up to {resumed} were lost, and given up",
        stream_id=want.stream_id,
        offset=want.offset,
        resumed=resumed,
    )


def _missing(range_: m.Range, want: Want) -> MissingRecordsError:
    last = range_.end_offset - 1
    return MissingRecordsError(
        f"offsets {range_.held_offset} to {last} of log stream {range_.stream_id} are on no living"
        f" data node; bring back one of its range {range_.range_index}, or see what"
        f" `headrace range accept-loss {range_.stream_id} {range_.range_index} --dry-run` says",
        offset=want.offset,
    )


def _worth_waiting(error: HeadraceError, ranges: RangeMap, offset: int) -> bool:
    lost = isinstance(error, LostRecordsError)
    if lost or isinstance(error, OffsetOverflowError) or offset < ranges.start:
        return False
    if isinstance(error, OffsetOutOfRangeError):
        return ranges.ends_at(offset)
    return error.retryable
