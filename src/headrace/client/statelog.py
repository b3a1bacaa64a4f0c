"""Durable control state: a named stream of events with one writer, replayed at start.

A record is msgpack `[version, kind, body]`; batches carry RECORDS_STATE and an index. An event is
durable, then applied, in order, then answered. The log holds effects (times, ids, salts included),
so replaying it needs nothing but the log.

Snapshots are events too, of kind `$snapshot`: `[id, index, count, covers, chunk]`. `covers` is the
offset up to which events are contained; `id` is the offset of the first chunk. Events between
`covers` and the chunks (in flight when the snapshot was taken) are replayed on top of it. A
snapshot of which a chunk is missing is as if it had never been begun. Below `covers` of a complete
one the stream is trimmed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.client.owned_stream import OwnedStream
from headrace.client.sbp import SbpClient
from headrace.client.tasks import TaskSet
from headrace.errors import (
    CorruptionError,
    FormatError,
    HeadraceError,
    RemoteProtocolError,
    TooLargeError,
    UnavailableError,
)
from headrace.runtime.interfaces import Runtime
from headrace.wire.sbp.messages import Durability
from headrace.wire.sbp.records import (
    HEADER_BYTES,
    INDEXED,
    RECORDS_STATE,
    BatchHeader,
    encode_header,
    encode_index,
    index_of,
    split,
)

SNAPSHOT = "$snapshot"
SNAPSHOT_FORMAT = 1
BATCH_BYTES_MAX = 8 << 20  # also of a snapshot chunk
SNAPSHOT_WINDOW = 4  # chunks in flight: bounds what a large snapshot holds in memory twice
REPLAY_BYTES = 4 << 20

_log = logging.getLogger(__name__)

Apply = Callable[[int, str, Any], None]
Snapshot = Callable[[], tuple[int, Iterable[bytes]]]
Restore = Callable[[int, Iterable[bytes]], None]


@dataclass(slots=True)
class _Waiting:
    """A batch on its way: durable first, then its events are applied."""

    base_offset: int
    events: Sequence[tuple[int, str, Any]]
    events_bytes: int
    durable: asyncio.Future[int]
    applied: asyncio.Future[int] = field(repr=False)


@dataclass(slots=True)
class _Snapshot:
    """Chunks seen of one snapshot while scanning."""

    id: int
    version: int
    count: int
    covers: int
    chunks: list[bytes]

    @property
    def complete(self) -> bool:
        return len(self.chunks) == self.count


class StateLog:
    """Made by `open`, which replays. One writer per epoch; FencedError ends it."""

    def __init__(
        self,
        client: SbpClient,
        stream: OwnedStream,
        *,
        runtime: Runtime,
        apply: Apply,
        snapshot: Snapshot,
        version_max: int,
    ) -> None:
        self.stream = stream
        self.applied_offset = stream.next_offset
        """Events below it are part of the state."""
        self.bytes_since_snapshot = 0
        """Of events that a restart would replay: those that no complete snapshot contains."""
        self.snapshot_bytes = 0
        """Of the newest complete snapshot."""
        self._client = client
        self._runtime = runtime
        self._apply = apply
        self._snapshot = snapshot
        self._version_max = version_max
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._failure: HeadraceError | None = None
        self._snapshot_lock = asyncio.Lock()
        self._last_ms = 0
        self._tasks = TaskSet(f"state log {stream.stream_id}")
        self._tasks.start(self._apply_in_order(), name="apply")

    @classmethod
    async def open(
        cls,
        client: SbpClient,
        *,
        name: str,
        epoch: int,
        clean: bool,
        apply: Apply,
        snapshot: Snapshot,
        restore: Restore,
        runtime: Runtime,
        version_max: int = 1,
        replica_nums: int = 1,
    ) -> StateLog:
        """Find or create the stream, fence older writers, restore and replay.

        `restore` is called at most once and before any `apply`. Events or snapshots of a version
        above `version_max` were written by newer code: FormatError, nothing is guessed.
        """
        made = await client.create_stream(
            name=name, replica_nums=replica_nums, durability=Durability.SYNCED
        )
        stream = await OwnedStream.open(client, made.stream_id, epoch, clean=clean)
        try:
            snapshot_bytes, replayed_bytes = await _replay(
                client, stream, apply=apply, restore=restore, version_max=version_max
            )
        except BaseException:
            await stream.close()
            raise
        log = cls(
            client,
            stream,
            runtime=runtime,
            apply=apply,
            snapshot=snapshot,
            version_max=version_max,
        )
        log.snapshot_bytes = snapshot_bytes
        log.bytes_since_snapshot = replayed_bytes
        return log

    @property
    def epoch(self) -> int:
        return self.stream.epoch

    @property
    def failure(self) -> HeadraceError | None:
        """Why this log takes no more events, if so."""
        return self._failure or self.stream.failure

    async def append(self, kind: str, body: object, version: int = 1) -> int:
        """Make one event durable, apply it, return its offset."""
        return (await self.append_many([(kind, body)], version=version))[0]

    async def append_many(
        self, events: Sequence[tuple[str, object]], *, version: int = 1
    ) -> list[int]:
        """One batch: all of the events survive a crash, or none of them."""
        if not events:
            return []
        records = [msgspec.msgpack.encode((version, kind, body)) for kind, body in events]
        # What is applied is what a replay would see, not the caller's own objects.
        decoded = [_decode(record, self._version_max) for record in records]
        base = await asyncio.shield(self._enqueue(records, decoded))
        return [base + position for position in range(len(records))]

    def snapshot_due(self, bytes_min: int) -> bool:
        """At least `bytes_min` of events and as much as the last snapshot took.

        Without the second a state larger than `bytes_min` would be written over and over.
        """
        return self.bytes_since_snapshot >= max(bytes_min, self.snapshot_bytes)

    async def write_snapshot(self) -> int:
        """Write the whole state, then trim what it covers; returns the offset it covers.

        The state is taken at one moment between two applied events. A trim that fails is made up
        for by the next snapshot.
        """
        async with self._snapshot_lock:
            self._check()
            covers = self.applied_offset
            in_flight = sum(entry.events_bytes for entry in self._waiting)
            covered_bytes = self.bytes_since_snapshot - in_flight
            version, parts = self._snapshot()
            chunks = list(parts)
            id_ = self.stream.next_offset
            window: deque[asyncio.Future[int]] = deque()
            for index, chunk in enumerate(chunks or [b""]):
                body = (id_, index, len(chunks), covers, version, chunk)
                record = msgspec.msgpack.encode((SNAPSHOT_FORMAT, SNAPSHOT, body))
                window.append(self._enqueue([record]))
                if len(window) == SNAPSHOT_WINDOW:
                    await asyncio.shield(window.popleft())
            while window:
                await asyncio.shield(window.popleft())
            self.bytes_since_snapshot -= covered_bytes
            self.snapshot_bytes = sum(map(len, chunks))
            await self._client.trim(self.stream.stream_id, covers)
            return covers

    async def close(self) -> None:
        """Wait for what was appended, then stop. A clean stop needs no snapshot."""
        try:
            while self._waiting:
                await asyncio.wait([self._waiting[-1].applied])
        finally:
            self._failure = self._failure or UnavailableError("state log closed")
            await self._tasks.close()
            await self.stream.close()
            self._abandon(self._failure)

    def _enqueue(
        self, records: Sequence[bytes], events: Sequence[tuple[int, str, Any]] = ()
    ) -> asyncio.Future[int]:
        """One batch; resolves with its base offset once durable and applied.

        Without `events` the records are chunks of a snapshot.
        """
        self._check()
        body, header = self._batch(records)
        events_bytes = sum(map(len, records)) if events else 0
        base_offset = self.stream.next_offset
        durable = self.stream.append(header, [body])
        applied: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        applied.add_done_callback(_retrieve)
        self._waiting.append(_Waiting(base_offset, events, events_bytes, durable, applied))
        self.bytes_since_snapshot += events_bytes
        self._arrived.set()
        return applied

    def _batch(self, records: Sequence[bytes]) -> tuple[bytes, bytearray]:
        positions: list[int] = []
        position = 0
        for record in records:
            positions.append(position)
            position += len(record)
        if position > BATCH_BYTES_MAX:
            raise TooLargeError("state event too large", bytes=position, limit=BATCH_BYTES_MAX)
        body = b"".join((*records, encode_index(positions)))
        self._last_ms = max(self._last_ms, self._runtime.clock.now_ms())
        header = encode_header(
            base_offset=self.stream.next_offset,
            body=[body],
            record_count=len(records),
            base_timestamp=self._last_ms,
            max_timestamp=self._last_ms,
            attributes=RECORDS_STATE | INDEXED,
        )
        return body, header

    async def _apply_in_order(self) -> None:
        """The one queue: an event is applied after it is durable and after all before it."""
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            entry = self._waiting[0]
            await asyncio.wait([entry.durable])
            try:
                entry.durable.result()
                for version, kind, body in entry.events:
                    self._apply(version, kind, body)
            except HeadraceError as error:
                self._abandon(error)
                return
            except Exception as error:
                # State and log differ from here on, so no more events are taken.
                _log.exception("state event could not be applied")
                self._abandon(CorruptionError("an event could not be applied", cause=repr(error)))
                return
            self._waiting.popleft()
            self.applied_offset = entry.base_offset + max(1, len(entry.events))
            if not entry.applied.done():
                entry.applied.set_result(entry.base_offset)

    def _abandon(self, error: HeadraceError) -> None:
        self._failure = self._failure or error
        while self._waiting:
            applied = self._waiting.popleft().applied
            if not applied.done():
                applied.set_exception(error)

    def _check(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(self._failure.message, **self._failure.data)


async def _replay(
    client: SbpClient,
    stream: OwnedStream,
    *,
    apply: Apply,
    restore: Restore,
    version_max: int,
) -> tuple[int, int]:
    """Restore the newest complete snapshot, apply what follows it; returns the bytes of both.

    Two passes, because a snapshot stands after events that it does not contain: the first finds
    it and keeps only its chunks in memory.
    """
    ranges = await client.list_ranges(stream.stream_id)
    start = ranges[0].start_offset
    found = await _find_snapshot(client, stream, start, version_max)
    snapshot_bytes = applied_bytes = 0
    if found is not None:
        restore(found.version, found.chunks)
        snapshot_bytes = sum(map(len, found.chunks))
        start = found.covers
    async for offset, record in _records(client, stream, start):
        version, kind, body = _decode(record, version_max)
        if kind != SNAPSHOT and offset >= start:
            apply(version, kind, body)
            applied_bytes += len(record)
    return snapshot_bytes, applied_bytes


async def _find_snapshot(
    client: SbpClient, stream: OwnedStream, start: int, version_max: int
) -> _Snapshot | None:
    newest: _Snapshot | None = None
    seen: _Snapshot | None = None
    async for offset, record in _records(client, stream, start):
        _, kind, body = _decode(record, version_max)
        if kind != SNAPSHOT:
            continue
        try:
            id_, index, count, covers, version, chunk = msgspec.convert(
                body, tuple[int, int, int, int, int, bytes]
            )
        except msgspec.ValidationError as error:
            raise CorruptionError("unreadable snapshot chunk", offset=offset) from error
        if index == 0:
            seen = _Snapshot(id_, version, count, covers, [])
        if seen is None or seen.id != id_ or len(seen.chunks) != index:
            continue  # the rest of a snapshot whose beginning was trimmed or never written
        if count:  # 0: the state was empty, and the record stands for no chunk
            seen.chunks.append(chunk)
        if seen.complete:
            newest, seen = seen, None
    if newest is not None and newest.version > version_max:
        raise FormatError("snapshot of a newer version", found=newest.version, known=version_max)
    return newest


async def _records(
    client: SbpClient, stream: OwnedStream, start: int
) -> AsyncIterator[tuple[int, memoryview]]:
    """Every record from `start` to the writer's first own offset."""
    offset = start
    end = stream.next_offset
    while offset < end:
        fetched = await client.fetch(
            stream.stream_id, offset, max_bytes=REPLAY_BYTES, max_wait_ms=1000
        )
        if not fetched.pieces:
            raise UnavailableError("state log ends early", offset=offset, expected=end)
        for piece in fetched.pieces:
            for header, batch in split(piece):
                for position, record in enumerate(_split_records(header, batch)):
                    if header.base_offset + position >= start:
                        yield header.base_offset + position, record
        offset = fetched.next_offset


def _split_records(header: BatchHeader, batch: memoryview) -> Iterator[memoryview]:
    if header.records != RECORDS_STATE or not header.attributes & INDEXED:
        raise CorruptionError("not a batch of state events", offset=header.base_offset)
    index = index_of(header, batch)
    starts = [int.from_bytes(index[at : at + 4], "little") for at in range(0, len(index), 4)]
    end_of_records = header.records_end - HEADER_BYTES
    for start, end in zip(starts, [*starts[1:], end_of_records], strict=True):
        if not 0 <= start <= end <= end_of_records:
            raise RemoteProtocolError("record positions out of order", offset=header.base_offset)
        yield batch[HEADER_BYTES + start : HEADER_BYTES + end]


def _decode(record: bytes | memoryview, version_max: int) -> tuple[int, str, Any]:
    try:
        version, kind, body = msgspec.msgpack.decode(record, type=tuple[int, str, Any])
    except msgspec.MsgspecError as error:
        raise CorruptionError("unreadable state event") from error
    known = SNAPSHOT_FORMAT if kind == SNAPSHOT else version_max
    if version > known:
        raise FormatError("state event of a newer version", kind=kind, found=version, known=known)
    return version, kind, body


def _retrieve(applied: asyncio.Future[int]) -> None:
    """A caller may have been cancelled; `StateLog.failure` keeps the reason anyway."""
    if not applied.cancelled():
        applied.exception()
