"""Durable control state: a named stream of events with one writer, replayed at start.

A record is msgpack `[version, kind, body]`; batches carry RECORDS_STATE and an index. An event is
durable, then applied, in order, then answered. The log holds effects (times, ids, salts included),
so replaying it needs nothing but the log.

Snapshots are events too, of kind `$snapshot`: `[id, index, count, covers, chunk]`. `covers` is the
offset up to which events are contained; `id` is the offset of the first chunk. Events between
`covers` and the chunks (in flight when the snapshot was taken) are replayed on top of it. A
snapshot of which a chunk is missing is as if it had never been begun. Below `covers` of a complete
one the stream is trimmed.

A log with one replica writes each batch twice, the second right behind the first (see
`state_replay`), and is trimmed one snapshot later, because nobody else could give back what its
disk damaged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.concurrency.tasks import TaskSet
from headrace.errors import (
    CorruptionError,
    HeadraceError,
    TooLargeError,
    UnavailableError,
)
from headrace.runtime.interfaces import Runtime
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.owned_stream import OwnedStream
from headrace.sbp_client.state_replay import (
    SNAPSHOT,
    SNAPSHOT_FORMAT,
    Apply,
    Replayed,
    Restore,
    decode_event,
    replay,
)
from headrace.wire.sbp.messages import Durability
from headrace.wire.sbp.records import (
    COPIED,
    COPY,
    INDEXED,
    RECORDS_STATE,
    encode_header,
    encode_index,
)

BATCH_BYTES_MAX = 8 << 20  # also of a snapshot chunk
SNAPSHOT_WINDOW = 4  # chunks in flight: bounds what a large snapshot holds in memory twice

_log = logging.getLogger(__name__)

Snapshot = Callable[[], tuple[int, Iterable[bytes]]]


@dataclass(slots=True)
class _Waiting:
    """A batch on its way: durable first, then its events are applied."""

    base_offset: int
    end_offset: int
    events: Sequence[tuple[int, str, Any]]
    events_bytes: int
    durable: Sequence[asyncio.Future[int]]
    applied: asyncio.Future[int] = field(repr=False)


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
        copies: bool,
        replayed: Replayed,
    ) -> None:
        self.stream = stream
        self.applied_offset = stream.next_offset
        """Events below it are part of the state."""
        self.bytes_since_snapshot = replayed.events_bytes
        """The size of events that a restart would replay: no complete snapshot contains them."""
        self.snapshot_bytes = replayed.snapshot_bytes
        """The size of the newest complete snapshot."""
        self._covered = replayed.covers
        self._damaged = replayed.damaged
        self._copies = copies
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
        above `version_max` were written by newer code: FormatError, nothing is guessed. Damage is
        gone round where a copy holds the same or its loss was accepted; else CorruptionError.
        """
        made = await client.create_stream(
            name=name, replica_nums=replica_nums, durability=Durability.SYNCED
        )
        stream = await OwnedStream.open(client, made.stream_id, epoch, clean=clean)
        try:
            replayed = await replay(
                client,
                stream.stream_id,
                stream.next_offset,
                apply=apply,
                restore=restore,
                version_max=version_max,
            )
        except BaseException as error:
            await stream.close()
            if isinstance(error, CorruptionError):
                error.data["log"] = name
            raise
        return cls(
            client,
            stream,
            runtime=runtime,
            apply=apply,
            snapshot=snapshot,
            version_max=version_max,
            copies=replica_nums == 1,
            replayed=replayed,
        )

    @property
    def epoch(self) -> int:
        return self.stream.epoch

    @property
    def failure(self) -> HeadraceError | None:
        """Why this log takes no more events, if so."""
        return self._failure or self.stream.failure

    async def append(self, kind: str, body: object, version: int = 1) -> int:
        """Make one event durable, apply it, return its offset.

        `applied_offset` then lies behind the event, and behind nothing that is not durable: a
        `StateFollower` that has applied everything below it knows the event.
        """
        return (await self.append_many([(kind, body)], version=version))[0]

    async def append_many(
        self, events: Sequence[tuple[str, object]], *, version: int = 1
    ) -> list[int]:
        """One batch: all of the events survive a crash, or none of them."""
        if not events:
            return []
        records = [msgspec.msgpack.encode((version, kind, body)) for kind, body in events]
        # What is applied is what a replay would see, not the caller's own objects.
        decoded = [decode_event(record, self._version_max) for record in records]
        base = await asyncio.shield(self._enqueue(records, decoded))
        return [base + position for position in range(len(records))]

    def snapshot_due(self, bytes_min: int) -> bool:
        """At least `bytes_min` of events and as much as the last snapshot took.

        Without the second a state larger than `bytes_min` would be written over and over. Also
        where the log was found damaged: a snapshot leaves that behind.
        """
        due = self.bytes_since_snapshot >= max(bytes_min, self.snapshot_bytes)
        return due or self._damaged

    async def write_snapshot(self) -> int:
        """Write the whole state, then trim what it covers; returns the offset it covers.

        The state is taken at one moment between two applied events. A trim that fails is made up
        for by the next snapshot. Without replicas the snapshot before is kept, with all that
        followed it: should this one be damaged, nothing is lost.
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
            self._damaged = False
            before, self._covered = self._covered, covers
            await self._client.trim(self.stream.stream_id, before if self._copies else covers)
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
        body = _body(records)
        self._last_ms = max(self._last_ms, self._runtime.clock.now_ms())
        events_bytes = sum(map(len, records)) if events else 0
        base_offset = self.stream.next_offset
        durable = [self._append(body, len(records), COPIED if self._copies else 0)]
        if self._copies:  # it is never refused where the first one was taken
            durable.append(self._append(body, len(records), COPY))
        applied: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        applied.add_done_callback(_retrieve)
        end_offset = self.stream.next_offset
        self._waiting.append(
            _Waiting(base_offset, end_offset, events, events_bytes, durable, applied)
        )
        self.bytes_since_snapshot += events_bytes
        self._arrived.set()
        return applied

    def _append(self, body: bytes, record_count: int, copy: int) -> asyncio.Future[int]:
        header = encode_header(
            base_offset=self.stream.next_offset,
            body=[body],
            record_count=record_count,
            base_timestamp=self._last_ms,
            max_timestamp=self._last_ms,
            attributes=RECORDS_STATE | INDEXED | copy,
        )
        return self.stream.append(header, [body], bounded=copy != COPY)

    async def _apply_in_order(self) -> None:
        """The one queue: an event is applied after it is durable and after all before it."""
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            entry = self._waiting[0]
            await asyncio.wait(entry.durable)
            try:
                for durable in entry.durable:
                    durable.result()
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
            self.applied_offset = entry.end_offset
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


def _body(records: Sequence[bytes]) -> bytes:
    positions: list[int] = []
    position = 0
    for record in records:
        positions.append(position)
        position += len(record)
    if position > BATCH_BYTES_MAX:
        raise TooLargeError("state event too large", bytes=position, limit=BATCH_BYTES_MAX)
    return b"".join((*records, encode_index(positions)))


def _retrieve(applied: asyncio.Future[int]) -> None:
    """A caller may have been cancelled; `StateLog.failure` keeps the reason anyway."""
    if not applied.cancelled():
        applied.exception()
