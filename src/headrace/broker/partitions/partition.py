"""One open partition: the only writer of its SBP stream, and the reads that polls are made of.

Each SEND becomes one record batch (several when it is large) whose records are the messages in
canonical form, so a poll is a slice of the stored bytes. Offsets are dense, in the order of the
`append` calls; timestamps never go back.
"""

from __future__ import annotations

import asyncio
import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from headrace.broker.partitions import message_dedup
from headrace.broker.partitions.stored_sizes import describe
from headrace.broker.poll.readahead import (
    Batch,
    ReadAhead,
    batches_of,
    index_of,
    messages_of,
    split_batches,
)
from headrace.broker.sessions.request_dedup import Request
from headrace.concurrency.retry import retry
from headrace.config.broker import BrokerSettings
from headrace.errors import (
    CorruptionError,
    LostRecordsError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OffsetOverflowError,
    StateError,
    StorageError,
    UnavailableError,
)
from headrace.observability import tracing
from headrace.runtime.interfaces import Buffer, Runtime
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.owned_stream import OwnedStream
from headrace.wire.iggy import batch
from headrace.wire.sbp import records
from headrace.wire.sbp.messages import SegmentInfo

if TYPE_CHECKING:
    from headrace.wire.iggy.batch import Positions

_ATTRIBUTES = records.RECORDS_IGGY | records.INDEXED
_NUMBERED = records.NUMBERED | records.UNSUMMED
_FRAMED = _NUMBERED | records.FRAMED
_NO_SOURCE = (0, -1, -1)
_serials = itertools.count()
_TIMESTAMP_AT = 32  # in a message
_RECOVERED_BYTES = 1 << 20
"""Of the end of a log that is looked at for the requests it holds."""


@dataclass(slots=True)
class Slice:
    """Messages of consecutive offsets."""

    first: int = 0
    count: int = 0
    bytes: int = 0
    pieces: list[memoryview] = field(default_factory=list)
    stored: list[Batch] = field(default_factory=list)
    """The batches that the pieces are of."""
    full: bool = False
    unsummed: bool = False
    """Some messages have no checksums; see `records.UNSUMMED`."""

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def counts(self, some: slice) -> list[int]:
        """How many messages some of the pieces have: of the first and the last batch perhaps not
        all."""
        if self.count == len(self.pieces):
            return [1] * len(self.pieces[some])
        counts = [header.record_count for header, _, _ in self.stored[some]]
        counts[0] -= self.skipped(some)
        counts[-1] -= max(0, self.stored[some][-1][0].next_offset - self.first - self.count)
        return counts

    def number_of(self, offset: int) -> int:
        """Of the piece that begins there; behind the last for the offset after all of them."""
        if offset <= self.first:
            return 0
        return bisect_left(self.stored, offset, key=_base_of)

    def skipped(self, some: slice) -> int:
        """How many messages of its batch are before the first of these pieces."""
        begin: int = self.stored[some.start][0].base_offset
        return max(0, self.first - begin)


_Source: TypeAlias = tuple[int, int, int]
"""Where a batch comes from, told in its header: an attribute, then publisher and window or session
and number of a request."""


class StoredRequest(NamedTuple):
    """What is in the log of a numbered request."""

    first: int
    messages: int


class PartitionLog:
    """Made by `open`."""

    def __init__(
        self,
        runtime: Runtime,
        client: SbpClient,
        owned: OwnedStream,
        settings: BrokerSettings,
        ahead: ReadAhead,
        on_commit: Callable[[int], None],
    ) -> None:
        self._clock = runtime.clock
        self._next_id = int.from_bytes(runtime.random.bytes(16), "little") >> 1  # never overflows
        self._client = client
        self._owned = owned
        self._ahead = ahead
        self._on_commit = on_commit
        self._read_ahead_bytes = settings.read_ahead_bytes
        self._batch_bytes_max = settings.batch_bytes_max
        self._pending_bytes_max = settings.pending_bytes_max
        self._pending_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._window: message_dedup.Window | None = None
        if settings.deduplication:
            self._window = message_dedup.Window(
                entries_max=settings.deduplication_entries_max,
                seconds=settings.deduplication_ms / 1000,
            )
        self.stream_id = owned.stream_id
        self.serial = next(_serials)
        """No other log of this process has it: one that is opened again may have other messages."""
        self.start_offset = 0
        """The oldest retained offset."""
        self.committed = owned.next_offset
        """The offset after the last acknowledged message: what polls may see."""
        self.last_timestamp_us = 0
        self.size_bytes = 0
        self.segments: list[SegmentInfo] = []
        self.closed_segments: list[SegmentInfo] = []
        self._refreshed_at = -1  # what `committed` was then
        self._opened_at = owned.next_offset
        self._requests: dict[Request, StoredRequest] | None = None
        self._disowned = False
        self._attempts: dict[int, int] = {}
        """By publisher: the newest attempt to append a window of its."""

    @classmethod
    async def open(
        cls,
        runtime: Runtime,
        client: SbpClient,
        settings: BrokerSettings,
        ahead: ReadAhead,
        *,
        stream_id: int,
        epoch: int,
        clean: bool,
        on_commit: Callable[[int], None] = lambda _: None,
    ) -> PartitionLog:
        """`on_commit` is told the new value whenever `committed` grows."""
        owned = await OwnedStream.open(client, stream_id, epoch, clean=clean)
        log = cls(runtime, client, owned, settings, ahead, on_commit)
        # It may have been sealed just now: its data nodes learn in a moment where it ends, and
        # whoever sends or polls first after a change of leaders is to wait, not to be refused.
        seconds = client.settings.metadata_timeout_ms / 1000
        await retry(runtime, lambda _: log.refresh(), seconds)
        log.last_timestamp_us = await log._newest_timestamp()
        return log

    # -- figures

    @property
    def failed(self) -> bool:
        return self._disowned or self._owned.failure is not None

    @property
    def failure(self) -> Exception | None:
        return self._owned.failure

    @property
    def messages_count(self) -> int:
        return self.committed - self.start_offset

    @property
    def next_offset(self) -> int:
        """The offset that the next message gets, once those on their way are acknowledged."""
        return self.committed

    @property
    def current_offset(self) -> int:
        """The offset of the last message; 0 when there is none, as clients expect."""
        return max(self.committed - 1, 0)

    async def refresh_if_written(self) -> None:
        """Segments close only by appends: what was known before is still so without one."""
        if self._refreshed_at != self.committed:
            await self.refresh()

    async def refresh(self) -> None:
        """Learn start, size and segments from the data nodes."""
        committed = self.committed
        stored = (await describe(self._client, [self.stream_id])).get(self.stream_id)
        if stored is None:  # being deleted, or its data node has it no more: say so
            await self._client.list_ranges(self.stream_id)
            raise UnavailableError("partition cannot be described", stream_id=self.stream_id)
        self.start_offset = stored.start_offset
        self.segments, self.closed_segments = stored.segments, stored.closed_segments
        self.size_bytes = stored.size_bytes
        self._refreshed_at = committed

    async def _newest_timestamp(self) -> int:
        if self.committed == self.start_offset:
            return 0
        try:
            fetched = await self._client.fetch(self.stream_id, self.committed - 1, max_bytes=1)
        except (StateError, StorageError):
            # Its end is not on enough disks yet, or lost: the segments know it to a millisecond.
            return max((1000 * (each.max_timestamp + 1) for each in self.segments), default=0)
        newest = 0
        for stored in split_batches(fetched.pieces):
            newest = _timestamp_us(stored, stored[0].record_count - 1)
        return newest

    # -- writing

    async def append(
        self,
        area: memoryview,
        starts: Positions,
        request: Request | None = None,
        *,
        framed: bool = False,
    ) -> int:
        """Store messages, all in this partition; returns the first offset once all are durable.

        Takes over the buffer: it is stamped in place and becomes the log's. Of a numbered request
        that an earlier owner of this log stored, only what it did not store is. Messages of such
        requests are `framed` or have no checksums.
        """
        stored = None
        if request is not None:
            known = self._requests
            if known is None:
                known = await self.recover()
            if known and (stored := known.get(request)) is not None:
                if stored.messages >= len(starts):
                    return stored.first
                area, starts = batch.subset(
                    area, starts, stored.messages, len(starts) - stored.messages
                )
                framed = False  # these count from another message
        await self._wait_for_room(len(area))
        # Nothing is awaited until every part has its offsets: they are consecutive.
        first = self._owned.next_offset if stored is None else stored.first
        span = None
        if tracing.active:
            span = tracing.begin(
                "headrace.log.append", stream_id=self.stream_id, offset=first, messages=len(starts)
            )
        # Dialect C has checksums of its own, which were checked; those of the stored form are made
        # for whoever reads them.
        source = None if request is None else (_FRAMED if framed else _NUMBERED, *request)
        if self._window is None:
            answers, dropped = self._place(area, starts, source), False
        else:
            answers, dropped = self._place_new(self._window, area, starts, source)
        end = self._owned.next_offset
        try:
            for answer in answers:
                await answer
            if dropped:
                await self._owned.flush()  # it is in an earlier batch, perhaps still on its way
        finally:
            if span is not None:
                span.end()
        # The callbacks of answers that came together may still be queued, but the sender's next
        # poll must see its messages.
        self._commit(end)
        return first

    async def publish(
        self, area: memoryview, starts: Positions, *, publisher: int, window: int, attempt: int
    ) -> tuple[int, list[asyncio.Future[int]]]:
        """As `append`, of a publisher's window, which the batches name; does not wait for them.

        Returns the first offset. What an earlier attempt asked for, and comes late, is refused: the
        later one has looked at what is there, and appends the rest itself. Messages are not looked
        at for duplicates: a window is published once by itself. Their checksums are made for
        whoever reads them; Spark does not.
        """
        await self._wait_for_room(len(area))
        self._check_attempt(publisher, attempt)
        first = self._owned.next_offset
        source = (records.PUBLISHED | records.UNSUMMED, publisher, window)
        return first, self._place(area, starts, source)

    async def begin(self, publisher: int, attempt: int) -> None:
        """Nothing of the publisher's earlier attempts is appended from now on, and what they
        appended is below `committed`."""
        self._check_attempt(publisher, attempt)
        await self.flush()

    def _check_attempt(self, publisher: int, attempt: int) -> None:
        if attempt < self._attempts.get(publisher, attempt):
            raise NotLeaderError("a later attempt publishes the window", publisher=publisher)
        self._attempts[publisher] = attempt

    async def _wait_for_room(self, length: int) -> None:
        while (
            not self._disowned
            and self._pending_bytes
            and self._pending_bytes + length > self._pending_bytes_max
        ):
            self._room.clear()
            await self._room.wait()
        if self._disowned:
            raise NotLeaderError("another broker leads the partition", stream_id=self.stream_id)

    def _place(
        self, area: memoryview, starts: Positions, source: _Source | None
    ) -> list[asyncio.Future[int]]:
        timestamp_us = max(self._clock.now_us(), self.last_timestamp_us)
        self.last_timestamp_us = timestamp_us
        parts = batch.split(area, starts, self._batch_bytes_max)
        if len(parts) > 1:
            source = _unframed(source)
        return [
            self._append_batch(part, part_starts, timestamp_us, source)
            for part, part_starts in parts
        ]

    def _place_new(
        self,
        window: message_dedup.Window,
        area: memoryview,
        starts: Positions,
        source: _Source | None,
    ) -> tuple[list[asyncio.Future[int]], bool]:
        """Without the messages whose id was seen; also says whether there were any."""
        now = self._clock.monotonic()
        window.expire(now)
        ids = message_dedup.ids_of(area, starts)
        kept = message_dedup.fresh(ids, window)
        dropped = len(kept) < len(ids)
        if dropped:
            area, starts = message_dedup.select(area, starts, kept)
            source = _unframed(source)
        answers = self._place(area, starts, source) if kept else []
        window.add(message_dedup.given(ids, kept), now)
        return answers, dropped

    def _append_batch(
        self,
        area: memoryview,
        starts: Positions,
        timestamp_us: int,
        source: _Source | None,
    ) -> asyncio.Future[int]:
        base_offset = self._owned.next_offset
        attribute, who, which = source or _NO_SOURCE
        batch.stamp(
            area,
            starts,
            base_offset=base_offset,
            timestamp_us=timestamp_us,
            new_ids=None if attribute & records.FRAMED else self._new_ids,
            summed=not attribute & records.UNSUMMED,
        )
        body: list[Buffer] = [area, batch.build_index(starts)]
        header = records.encode_header(
            base_offset=base_offset,
            body=body,
            record_count=len(starts),
            base_timestamp=timestamp_us // 1000,
            max_timestamp=timestamp_us // 1000,
            attributes=_ATTRIBUTES | attribute,
            producer_id=who,
            sequence=which,
        )
        length = len(header) + len(body[0]) + len(body[1])
        answer = self._owned.append(header, body)
        self._pending_bytes += length
        end = base_offset + len(starts)
        answer.add_done_callback(lambda done: self._on_answer(done, end, length))
        return answer

    def _new_ids(self, count: int) -> bytes:
        """Consecutive numbers from a random one: no less unique, and 16 KB of kernel randomness for
        each batch took as long as its checksums. Ids are no secrets."""
        first = self._next_id
        self._next_id += count
        return batch.consecutive_ids(first, count)

    def _on_answer(self, answer: asyncio.Future[int], end: int, length: int) -> None:
        self._pending_bytes -= length
        self._room.set()
        if not answer.cancelled() and answer.exception() is None:
            self.size_bytes += length
            self._commit(end)

    def _commit(self, end: int) -> None:
        if end > self.committed:
            self.committed = end
            self._on_commit(end)

    async def recover(self) -> dict[Request, StoredRequest]:
        """Numbered requests among the last batches that were here when this log was opened.

        Read when it is first asked for: most logs are never sent such requests.
        """
        found: dict[Request, StoredRequest] = {}
        end = self._opened_at
        average = max(1, self.size_bytes // max(1, self.messages_count))
        position = max(self.start_offset, end - max(1, _RECOVERED_BYTES // average))
        while position < end:
            try:
                fetched = await self._client.fetch(
                    self.stream_id, position, max_bytes=_RECOVERED_BYTES
                )
            except CorruptionError as error:  # what is there no more cannot be repeated either
                position = error.span(position)[1]
                continue
            except LostRecordsError as error:
                position = error.resumed
                continue
            before = position
            for piece in fetched.pieces:
                for header, _ in records.split(piece):
                    position = max(position, header.next_offset)
                    if header.attributes & records.NUMBERED and header.base_offset < end:
                        request = Request(header.producer_id, header.sequence)
                        first, count = found.get(request, (header.base_offset, 0))
                        found[request] = StoredRequest(first, count + header.record_count)
            if position == before:
                break
        self._requests = found
        return found

    async def sync(self) -> None:
        """Everything acknowledged is on disk afterwards, whatever the stream's durability."""
        ranges = await self._client.list_ranges(self.stream_id)
        await self._client.describe_range(self.stream_id, ranges[-1].range_index, sync=True)

    async def trim(self, offset: int) -> None:
        """Forget whole segments below `offset`."""
        if offset > self.start_offset:
            await self._client.trim(self.stream_id, offset)
            await self.refresh()

    def disown(self) -> None:
        """Begin nothing more; what is on its way goes on."""
        self._disowned = True
        self._room.set()

    async def flush(self) -> None:
        await self._owned.flush()

    async def close(self) -> None:
        self._ahead.drop(self.stream_id)
        await self._owned.close()

    # -- reading

    async def read(self, offset: int, count: int, *, bytes_max: int, from_us: int = 0) -> Slice:
        """Up to `count` messages from `offset` on (or from the oldest retained one).

        Stops growing past `bytes_max`, but returns at least one message where there is one.
        Messages before `from_us` are passed over.
        """
        position = max(offset, self.start_offset)
        found = Slice(full=count == 0)
        while not found.full and position < self.committed:
            try:
                batches = self._ahead.get(self.stream_id, position)
                if not batches:
                    batches = await self._fetch(position, count - found.count, bytes_max)
            except OffsetOverflowError:
                break
            except (StateError, StorageError):
                if found.count:  # the next poll begins there, and is told
                    break
                raise
            except LostRecordsError as error:
                if found.count:
                    break
                position = error.resumed
                continue
            except OffsetOutOfRangeError:
                if found.count:
                    break
                await self.refresh()  # trimmed under our feet
                if position >= self.start_offset:
                    raise
                position = self.start_offset
                continue
            if not batches:
                break
            position = self._take(found, batches, position, count, bytes_max, from_us)
        return found

    def read_kept(self, offset: int, count: int, *, bytes_max: int) -> Slice | None:
        """As `read`, of what is in memory; None when that is not all of it."""
        position = max(offset, self.start_offset)
        found = Slice()
        while not found.full and position < self.committed:
            batches = self._ahead.get(self.stream_id, position)
            if not batches:
                wanted = self._bytes_wanted(count - found.count, bytes_max)
                batches = self._fetch_cached(position, wanted)
            if not batches:
                return None
            position = self._take(found, batches, position, count, bytes_max, 0)
        return found

    async def _fetch(self, position: int, count: int, bytes_max: int) -> Sequence[Batch]:
        """Batches from the one that contains `position`, where possible enough for `count`."""
        wanted = self._bytes_wanted(count, bytes_max)
        batches = self._fetch_cached(position, wanted)
        if not batches:
            fetched = await self._client.fetch(self.stream_id, position, max_bytes=wanted)
            batches = split_batches(fetched.pieces)
            self._ahead.put(self.stream_id, batches)
        return batches

    def _fetch_cached(self, position: int, wanted: int) -> Sequence[Batch]:
        batches = batches_of(self._owned.read_cached(position, wanted))
        self._ahead.put(self.stream_id, batches)
        return batches

    def _bytes_wanted(self, count: int, bytes_max: int) -> int:
        """How many bytes `count` messages take, judging by those stored; plus some slack."""
        messages = max(self.messages_count, 1)
        expected = count * (self.size_bytes // messages + 1) * 5 // 4
        return min(max(expected, self._read_ahead_bytes), bytes_max)

    def _take(
        self,
        found: Slice,
        batches: Iterable[Batch],
        position: int,
        count: int,
        bytes_max: int,
        from_us: int,
    ) -> int:
        """Add what fits of these batches; returns the next offset to ask for."""
        for stored in batches:
            header = stored[0]
            records_here, base_offset = header.record_count, header.base_offset
            skip = position - base_offset
            if not 0 <= skip < records_here:
                raise StorageError(
                    "the log skipped offsets",
                    stream_id=self.stream_id,
                    expected=position,
                    found=base_offset,
                )
            if from_us and _timestamp_us(stored, skip) < from_us:
                position = header.next_offset  # one batch, one timestamp
                continue
            # A data node may know of acknowledgements before we do; replies agree with `committed`.
            end = min(base_offset + records_here, self.committed)
            wanted = min(end - position, count - found.count)
            if wanted <= 0:
                found.full = True
                return position
            messages = messages_of(stored)
            if wanted != records_here:
                messages = batch.slice_batch(messages, index_of(stored), skip, wanted)
            if found.count and found.bytes + len(messages) > bytes_max:
                found.full = True
                return position
            if not found.count:
                found.first = position
            found.count += wanted
            found.bytes += len(messages)
            found.pieces.append(messages)
            found.stored.append(stored)
            if header.attributes & records.UNSUMMED:
                found.unsummed = True
            position += wanted
            if found.count >= count or found.bytes >= bytes_max:
                found.full = True
                return position
        return position

    async def offset_at(self, timestamp_us: int) -> int:
        """Where to start looking for messages of that time or later."""
        return await self._client.offset_at(self.stream_id, timestamp_us // 1000)


def _unframed(source: _Source | None) -> _Source | None:
    """For messages that are no longer those their frames' checksums were made for."""
    if source is None:
        return None
    attribute, who, which = source
    return attribute & ~records.FRAMED, who, which


def _base_of(stored: Batch) -> int:
    return stored[0].base_offset


def _timestamp_us(stored: Batch, record: int) -> int:
    message = batch.slice_batch(messages_of(stored), index_of(stored), record, 1)
    return int.from_bytes(message[_TIMESTAMP_AT : _TIMESTAMP_AT + 8], "little")
