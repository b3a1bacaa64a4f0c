"""What publishers have staged: one stream for each, whose batches are nobody's messages yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from headrace.broker.partitions.stored_sizes import StoredPartition
from headrace.broker.windows import publishers as p
from headrace.concurrency.locks import KeyedLock
from headrace.errors import (
    FencedError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OffsetOverflowError,
    ThrottledError,
)
from headrace.runtime.interfaces import Buffer, Runtime
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.owned_stream import OwnedStream
from headrace.wire.iggy import batch
from headrace.wire.iggy.refusals import StagedDataGoneError
from headrace.wire.sbp import records
from headrace.wire.sbp.messages import Durability

_ATTRIBUTES = records.RECORDS_IGGY | records.INDEXED | records.PUBLISHED
_SCAN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Ownership:
    """Under which lease the broker writes its own logs, and how often they are kept."""

    epoch: int
    clean: bool
    replicas: int
    on_fenced: Callable[[], None]


@dataclass(frozen=True, slots=True)
class StagingFigures:
    """How much is staged and belongs to no closed window, when that was last looked at."""

    messages: int = 0
    bytes: int = 0
    """On disk, of whole files."""
    oldest_ms: int = 0
    """How long the publisher that was silent longest has staged nothing."""

    @classmethod
    def of(cls, held: Iterable[StoredPartition], now_ms: int) -> StagingFigures:
        waiting = [stored for stored in held if stored.messages_count]
        return cls(
            sum(stored.messages_count for stored in waiting),
            sum(stored.size_bytes for stored in waiting),
            max((max(0, now_ms - newest(stored)) for stored in waiting), default=0),
        )


def newest(stored: StoredPartition) -> int:
    """When the last batch of a staging stream came, in milliseconds; 0 when there is none."""
    return max((segment.max_timestamp for segment in stored.segments), default=0)


class Staging:
    """Used after `start`.

    What was staged under this leader is remembered, a line for each batch, so that a window can be
    checked without reading all of it.
    """

    def __init__(self, runtime: Runtime, client: SbpClient) -> None:
        self._runtime = runtime
        self._client = client
        self._ownership: Ownership
        self._record: Callable[[p.Event], Awaitable[None]]
        self._opening = KeyedLock()
        self._streams: dict[int, OwnedStream] = {}
        self._known: dict[int, dict[int, tuple[int, int]]] = {}
        """By publisher and offset: messages, window."""

    def start(self, ownership: Ownership, record: Callable[[p.Event], Awaitable[None]]) -> None:
        self._ownership, self._record = ownership, record

    async def close(self) -> None:
        for stream in self._streams.values():
            await stream.close()

    async def append(
        self, publisher: p.Publisher, window: int, area: memoryview, starts: batch.Positions
    ) -> int:
        """Store messages as they came, durably; returns the offset of their batch."""
        stream = await self._stream_of(publisher)
        now_ms = self._runtime.clock.now_ms()
        body: list[Buffer] = [area, batch.build_index(starts)]
        while True:
            header = records.encode_header(
                base_offset=stream.next_offset,
                body=body,
                record_count=len(starts),
                base_timestamp=now_ms,
                max_timestamp=now_ms,
                attributes=_ATTRIBUTES,
                producer_id=publisher.uid,
                sequence=window,
            )
            try:
                stored = stream.append(header, body)
            except ThrottledError:
                await stream.flush()
                continue
            offset = await stored
            self._known.setdefault(publisher.uid, {})[offset] = (len(starts), window)
            return offset

    async def window_of(self, publisher: p.Publisher, span: p.StagedBatch) -> int:
        """For which of the publisher's windows it was staged; StagedDataGoneError."""
        count, window = self._known.get(publisher.uid, {}).get(span.staged, (-1, -1))
        if count == span.count:
            return window
        header, _ = await self.read(publisher, span)
        if header.producer_id != publisher.uid:
            raise StagedDataGoneError("staged by somebody else", staged=span.staged)
        return header.sequence

    async def read_all(
        self, publisher: p.Publisher, spans: Sequence[p.StagedBatch]
    ) -> AsyncGenerator[tuple[records.BatchHeader, memoryview], None]:
        """One after the other, the next one read while the last is in use."""
        loop = asyncio.get_running_loop()
        ahead: asyncio.Task[tuple[records.BatchHeader, memoryview]] | None = None
        try:
            for number, span in enumerate(spans):
                read = ahead or loop.create_task(self.read(publisher, span))
                ahead = None
                if number + 1 < len(spans):
                    ahead = loop.create_task(self.read(publisher, spans[number + 1]))
                yield await read
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    async def read(
        self, publisher: p.Publisher, span: p.StagedBatch
    ) -> tuple[records.BatchHeader, memoryview]:
        try:
            fetched = await self._client.fetch(publisher.stream_id, span.staged, max_bytes=1)
        except (OffsetOutOfRangeError, OffsetOverflowError):
            raise StagedDataGoneError("not staged (any more)", staged=span.staged) from None
        for piece in fetched.pieces:
            for header, view in records.split(piece):
                if header.base_offset == span.staged and header.record_count == span.count:
                    return header, view
        raise StagedDataGoneError("not staged (any more)", staged=span.staged)

    async def trim(self, publisher: p.Publisher) -> None:
        """Forget what closed windows staged, up to what a later one has."""
        offset = start = (await self._client.bounds(publisher.stream_id))[0]
        known = self._known.get(publisher.uid, {})
        while True:
            if offset in known:
                count, window = known[offset]
                if window > publisher.last:
                    break
                offset += count
                continue
            fetched = await self._client.fetch(publisher.stream_id, offset, max_bytes=_SCAN_BYTES)
            headers = [h for piece in fetched.pieces for h, _ in records.split(piece)]
            kept = [h for h in headers if h.sequence > publisher.last]
            offset = kept[0].base_offset if kept else fetched.next_offset
            if kept or not headers:
                break
        if offset > start:
            await self.trim_to(publisher, offset)

    async def end(self, publisher: p.Publisher) -> int:
        """Behind everything that is staged now."""
        return (await self._client.bounds(publisher.stream_id))[1]

    async def trim_to(self, publisher: p.Publisher, offset: int) -> None:
        """Forget what was staged before this one, whatever for."""
        known = self._known.get(publisher.uid, {})
        for staged in [staged for staged in known if staged < offset]:
            del known[staged]
        if offset > (await self._client.bounds(publisher.stream_id))[0]:
            await self._client.trim(publisher.stream_id, offset)

    async def forget(self, uid: int) -> None:
        self._known.pop(uid, None)
        stream = self._streams.pop(uid, None)
        if stream is not None:
            await stream.close()

    async def retain(self, living: Callable[[int], bool]) -> None:
        for uid in [uid for uid in {**self._streams, **self._known} if not living(uid)]:
            await self.forget(uid)

    async def _stream_of(self, publisher: p.Publisher) -> OwnedStream:
        stream = self._streams.get(publisher.uid)
        if stream is not None and stream.failure is None:
            return stream
        async with self._opening.hold(publisher.uid):
            stream = self._streams.get(publisher.uid)
            if stream is not None and stream.failure is None:
                return stream
            if stream is not None:
                await stream.close()
            self._streams[publisher.uid] = opened = await self._open(publisher)
            return opened

    async def _open(self, publisher: p.Publisher) -> OwnedStream:
        if publisher.stream_id < 0:
            made = await self._client.create_stream(
                name=f"p/staging/{publisher.uid}",
                replica_nums=self._ownership.replicas,
                durability=Durability.SYNCED,
            )
            await self._record(p.StagingMade(publisher.uid, made.stream_id))
        try:
            return await OwnedStream.open(
                self._client, publisher.stream_id, self._ownership.epoch, clean=False
            )
        except FencedError:
            self._ownership.on_fenced()
            raise NotLeaderError("another broker leads") from None
