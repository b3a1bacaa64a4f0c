"""Reading a state log back: snapshot, events, and what to do about damage.

A log with one replica holds everything twice: a batch (attribute COPIED) is followed by another one
with the same records (COPY). A stretch that cannot be read is explained where it was such a second
one, or is followed by it; its records then come from there. What neither explains is lost: events
that were acknowledged, and that nobody may leave out unasked. An operator who accepts the loss
(`headrace control-log salvage`) adds a record of kind `$lost`, `[[start, end], ...]`; replays go
round these stretches, and round events behind them that no longer fit.

Going on without what a control log lost, when its operator says so.

Offline: the caller leads nothing and serves nobody meanwhile. What is accepted is written into the
log itself (see `state_replay`), so that whoever opens it next knows without being told.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from headrace.errors import (
    CorruptionError,
    FormatError,
    LostRecordsError,
    RemoteProtocolError,
    UnavailableError,
)
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.owned_stream import OwnedStream
from headrace.wire.sbp.records import (
    COPIED,
    COPY,
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
LOST = "$lost"
REPLAY_BYTES = 4 << 20

OWN_KINDS = (SNAPSHOT, LOST)
"""Records of the log itself, which nobody applies."""
_log = logging.getLogger(__name__)

Apply = Callable[[int, str, Any], None]
Restore = Callable[[int, Iterable[bytes]], None]


class OffsetSpan(NamedTuple):
    """Offsets, half-open."""

    start: int
    end: int


@dataclass(slots=True)
class Replayed:
    """What a replay read, and what it met."""

    covers: int
    """Below it the snapshot holds everything."""
    end: int
    """Below it everything was applied."""
    snapshot_bytes: int = 0
    events_bytes: int = 0
    damaged: bool = False
    gap: int | None = None
    """Where the first accepted loss begins: events behind it may not fit."""


@dataclass(slots=True)
class SnapshotFound:
    """Chunks seen of one snapshot while scanning."""

    id: int
    version: int
    count: int
    covers: int
    chunks: list[bytes]

    @property
    def complete(self) -> bool:
        return len(self.chunks) == self.count


@dataclass(slots=True)
class Examined:
    """A log as one pass over it shows it."""

    start: int
    snapshot: SnapshotFound | None = None
    held_by_copy: list[OffsetSpan] = field(default_factory=list)
    """Could not be read, but a copy holds the same."""
    lost: list[OffsetSpan] = field(default_factory=list)
    """Could not be read at all."""
    accepted: list[OffsetSpan] = field(default_factory=list)
    """Losses that an operator accepted."""

    @property
    def covers(self) -> int:
        """What lies below it is in the snapshot."""
        return self.start if self.snapshot is None else self.snapshot.covers

    @property
    def missing(self) -> list[OffsetSpan]:
        """Lost, needed, and not accepted."""
        return [
            span
            for span in self.lost
            if span.end > self.covers
            and not any(ok.start <= span.start and span.end <= ok.end for ok in self.accepted)
        ]


async def replay(
    client: SbpClient,
    stream_id: int,
    end: int,
    *,
    apply: Apply,
    restore: Restore,
    version_max: int,
    again: bool = False,
) -> Replayed:
    """Restore the newest complete snapshot and apply what follows it, at least up to `end`.

    Two passes, because a snapshot stands after events that it does not contain: the first finds
    it and keeps only its chunks in memory. With `again` the state holds events already; where no
    snapshot replaces them, `restore` is called without chunks.
    """
    found = await examine(client, stream_id, end, version_max=version_max)
    if found.missing:
        raise CorruptionError(
            "a control log is damaged and has no other copy of what it lost; `headrace control-log"
            " salvage` says what that is, and lets the server start without it",
            spans=found.missing,
        )
    for span in found.held_by_copy:
        _log.warning("control log %d damaged at %s, read from its copy", stream_id, span)
    needed = [span for span in (*found.held_by_copy, *found.lost) if span.end > found.covers]
    gap = min((span.start for span in found.lost if span.end > found.covers), default=None)
    done = Replayed(found.covers, end, damaged=bool(needed), gap=gap)
    if found.snapshot is not None:
        restore(found.snapshot.version, found.snapshot.chunks)
        done.snapshot_bytes = sum(map(len, found.snapshot.chunks))
    elif again:
        restore(1, ())
    reader = StateReader(client, stream_id, found.covers, end)
    async for offset, record in reader.records():
        event = decode_event(record, version_max)
        if event[1] not in OWN_KINDS:
            done.events_bytes += len(record)
            apply_event(apply, event, offset, gap)
    done.end = reader.offset
    return done


def apply_event(apply: Apply, event: tuple[int, str, Any], offset: int, gap: int | None) -> None:
    """Behind a gap, which an operator accepted, an event that does not fit is left out."""
    if gap is None or offset < gap:
        apply(*event)
    else:
        _apply_if_it_fits(apply, event, offset)


def _apply_if_it_fits(apply: Apply, event: tuple[int, str, Any], offset: int) -> None:
    """Behind accepted losses: what an event changes may be part of what was lost."""
    try:
        apply(*event)
    except Exception:  # whatever a state without the lost events makes of it; it is named below
        _log.exception("event %r at %d no longer fits, and is left out", event[1], offset)


async def examine(client: SbpClient, stream_id: int, end: int, *, version_max: int) -> Examined:
    """Read a log up to `end` for its newest complete snapshot and its damage."""
    ranges = await client.list_ranges(stream_id)
    reader = StateReader(client, stream_id, ranges[0].start_offset, end)
    found = Examined(reader.offset, held_by_copy=reader.held_by_copy, lost=reader.lost)
    seen: SnapshotFound | None = None
    async for offset, record in reader.records():
        _, kind, body = decode_event(record, version_max)
        if kind == LOST:
            found.accepted += _convert(body, list[OffsetSpan], offset)
        if kind != SNAPSHOT:
            continue
        id_, index, count, covers, version, chunk = _convert(
            body, tuple[int, int, int, int, int, bytes], offset
        )
        if index == 0:
            seen = SnapshotFound(id_, version, count, covers, [])
        if seen is None or seen.id != id_ or len(seen.chunks) != index:
            continue  # the rest of a snapshot whose beginning was trimmed or never written
        if count:  # 0: the state was empty, and the record stands for no chunk
            seen.chunks.append(chunk)
        if seen.complete:
            found.snapshot, seen = seen, None
    newest = found.snapshot
    if newest is not None and newest.version > version_max:
        raise FormatError("snapshot of a newer version", found=newest.version, known=version_max)
    return found


def _convert(body: Any, type_: Any, offset: int) -> Any:
    try:
        return msgspec.convert(body, type_)
    except msgspec.ValidationError as error:
        raise CorruptionError("unreadable record of a state log", offset=offset) from error


class StateReader:
    """One pass over a log: every record once, from its copy where it cannot be read itself.

    `records` reads up to an end that is known; `read` goes on for as long as somebody asks.
    """

    def __init__(
        self, client: SbpClient, stream_id: int, start: int, end: int | None = None
    ) -> None:
        self.offset = start
        """The next one to be fetched."""
        self.held_by_copy: list[OffsetSpan] = []
        self.lost: list[OffsetSpan] = []
        self._client = client
        self._stream_id = stream_id
        self._start = start
        self._end = end
        self._hole: OffsetSpan | None = None
        self._copied_to = start  # up to here the last batch that was read has its copy

    @property
    def read_to(self) -> int:
        """Below it every record was returned. A hole that nothing explains yet lies behind it."""
        hole = self._hole
        if hole is None or hole.end <= self._copied_to:
            return self.offset
        return max(hole.start, min(self._copied_to, hole.end))

    async def records(self) -> AsyncIterator[tuple[int, memoryview]]:
        """Every record up to the end, and what follows it in the last fetch."""
        assert self._end is not None
        while self.offset < self._end:
            found = await self.read(max_wait_ms=1000)
            if found is None:
                raise UnavailableError(
                    "state log ends early", offset=self.offset, expected=self._end
                )
            for each in found:
                yield each
        if self._hole is not None:
            self._explain(self._hole, self._hole.end)

    async def read(
        self, *, max_wait_ms: int, check_end: bool = True
    ) -> list[tuple[int, memoryview]] | None:
        """The records of one fetch, with their offsets; None at the end of the log.

        A fetch that meets damage returns none, and the next one goes on behind it.
        """
        try:
            fetched = await self._client.fetch(
                self._stream_id,
                self.offset,
                max_bytes=REPLAY_BYTES,
                max_wait_ms=max_wait_ms,
                check_end=check_end,
            )
        except CorruptionError as error:
            return self._miss(error.span(self.offset)[1])
        except LostRecordsError as error:  # an operator has given them up
            return self._miss(error.resumed)
        if not fetched.pieces:
            return None
        found: list[tuple[int, memoryview]] = []
        for piece in fetched.pieces:
            for header, batch in split(piece):
                for base_offset in self._originals(header):
                    records = enumerate(_split_records(header, batch), base_offset)
                    found += [each for each in records if each[0] >= self._start]
        self.offset = fetched.next_offset
        return found

    def _miss(self, after: int) -> list[tuple[int, memoryview]]:
        end = after if self._end is None else min(after, self._end)
        self._hole = OffsetSpan(self.offset if self._hole is None else self._hole.start, end)
        self.offset = after
        return []

    def _originals(self, header: BatchHeader) -> Iterator[int]:
        """Where the records of a batch belong: nowhere if they are a copy that nobody needs."""
        copy = bool(header.attributes & COPY)
        hole = self._hole
        if hole is not None:
            original = header.base_offset - header.record_count
            held = copy and max(hole.start, self._copied_to) <= original
            self._explain(hole, original if held else hole.end)
            self._hole = None
            if held:
                yield original
        if not copy:
            yield header.base_offset
            copies = header.record_count if header.attributes & COPIED else 0
            self._copied_to = header.next_offset + copies

    def _explain(self, hole: OffsetSpan, held_from: int) -> None:
        """Copies alone below `_copied_to`, held by a copy from `held_from` on, the rest is lost."""
        lost = OffsetSpan(max(hole.start, self._copied_to), held_from)
        if lost.start < lost.end:
            self.lost.append(lost)
            around = OffsetSpan(hole.start, lost.start), OffsetSpan(lost.end, hole.end)
            self.held_by_copy += [span for span in around if span.start < span.end]
        else:
            self.held_by_copy.append(hole)


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


def decode_event(record: bytes | memoryview, version_max: int) -> tuple[int, str, Any]:
    """Version, kind and body of one record; CorruptionError, FormatError."""
    try:
        version, kind, body = msgspec.msgpack.decode(record, type=tuple[int, str, Any])
    except msgspec.MsgspecError as error:
        raise CorruptionError("unreadable state event") from error
    known = SNAPSHOT_FORMAT if kind in OWN_KINDS else version_max
    if version > known:
        raise FormatError("state event of a newer version", kind=kind, found=version, known=known)
    return version, kind, body


_ANY_VERSION = 1 << 31  # what the events say is not looked at


@dataclass(frozen=True, slots=True)
class Condition:
    """What a control log has lost, for a person to decide on."""

    name: str
    stream_id: int
    end: int
    examined: Examined
    times: dict[OffsetSpan, tuple[int, int]]
    """Lost spans -> when the events before and after them were written, ms; 0 unknown."""


async def look_at(client: SbpClient, name: str, stream_id: int) -> Condition:
    """Read the whole log."""
    _, end = await client.bounds(stream_id)
    examined = await examine(client, stream_id, end, version_max=_ANY_VERSION)
    times = {
        span: (
            await _time_at(client, stream_id, span.start - 1, examined.start, end),
            await _time_at(client, stream_id, span.end, examined.start, end),
        )
        for span in examined.missing
    }
    return Condition(name, stream_id, end, examined, times)


async def _time_at(client: SbpClient, stream_id: int, offset: int, start: int, end: int) -> int:
    if not start <= offset < end:
        return 0
    fetched = await client.fetch(stream_id, offset, max_bytes=1, max_wait_ms=1000)
    return max((h.max_timestamp for piece in fetched.pieces for h, _ in split(piece)), default=0)


async def accept_losses(
    client: SbpClient, name: str, epoch: int, losses: Sequence[OffsetSpan]
) -> None:
    """From now on the log is replayed without these; durable on return."""
    made = await client.create_stream(name=name)
    stream = await OwnedStream.open(client, made.stream_id, epoch)
    try:
        record = msgspec.msgpack.encode((SNAPSHOT_FORMAT, LOST, losses))
        body = record + encode_index([0])
        header = encode_header(
            base_offset=stream.next_offset,
            body=[body],
            record_count=1,
            base_timestamp=client.runtime.clock.now_ms(),
            max_timestamp=client.runtime.clock.now_ms(),
            attributes=RECORDS_STATE | INDEXED,
        )
        await stream.append(header, [body])
    finally:
        await stream.close()
