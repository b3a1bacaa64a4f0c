"""Stored consumer offsets: the state, and the writer that makes many stores one append.

Keys hold uids and the partition's generation, so what belonged to a deleted topic or a purged
partition can never be mistaken for something else; such rests are pruned at start.

Log events: `offsets` with body `[[topic uid, partition, generation, kind, consumer, offset], ...]`
in the order the stores arrived; offset -1 deletes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple, Protocol

import msgspec

from headrace.errors import FormatError, UnavailableError

VERSION = 1
EVENT = "offsets"
DELETED = -1
CHUNK_ENTRIES = 10_000


class Kind(IntEnum):
    CONSUMER = 1
    GROUP = 2


class Place(NamedTuple):
    """One partition's life: a purge starts another."""

    topic_uid: int
    partition: int
    generation: int


class Reader(NamedTuple):
    kind: int
    consumer: int
    """The consumer's u32 key, or the group's uid."""


class StoredOffset(NamedTuple):
    """Up to where a reader has consumed a partition."""

    place: Place
    reader: Reader
    offset: int


class Offsets:
    """The state. Pure."""

    def __init__(self) -> None:
        self._stored: dict[Place, dict[Reader, int]] = {}

    def get(self, place: Place, reader: Reader) -> int | None:
        readers = self._stored.get(place)
        return None if readers is None else readers.get(reader)

    def lowest(self, place: Place) -> int | None:
        return min(self._stored.get(place, {}).values(), default=None)

    def put(self, entry: StoredOffset) -> None:
        if entry.offset != DELETED:
            self._stored.setdefault(entry.place, {})[entry.reader] = entry.offset
            return
        readers = self._stored.get(entry.place)
        if readers is not None:
            readers.pop(entry.reader, None)
            if not readers:
                del self._stored[entry.place]

    def beyond(self, place: Place, next_offset: int) -> list[StoredOffset]:
        """What must be stored instead where the log came back shorter than the offsets say."""
        last = next_offset - 1  # of an empty log this is DELETED
        return [
            StoredOffset(place, reader, last)
            for reader, offset in self._stored.get(place, {}).items()
            if offset > last
        ]

    def retain(self, *, place: Callable[[Place], bool], reader: Callable[[Reader], bool]) -> None:
        """Keep what still means something. Needs no event: uids never come back, so a replay
        prunes the same."""
        kept = {}
        for where, readers in self._stored.items():
            if place(where):
                living = {who: offset for who, offset in readers.items() if reader(who)}
                if living:
                    kept[where] = living
        self._stored = kept

    def entries(self) -> Iterator[StoredOffset]:
        for place, readers in self._stored.items():
            for reader, offset in readers.items():
                yield StoredOffset(place, reader, offset)

    def forget(self, place: Callable[[Place], bool]) -> None:
        """Let go of these places; what is stored of them is another's to know."""
        self._stored = {p: readers for p, readers in self._stored.items() if not place(p)}


class LoggedOffsets:
    """The offsets of the places that one log keeps: what a `StateLog` applies and takes snapshots
    of. Entries of a place that another log keeps by now mean nothing any more."""

    def __init__(self, offsets: Offsets, kept_elsewhere: Callable[[Place], bool]) -> None:
        self._offsets = offsets
        self._kept_elsewhere = kept_elsewhere

    def apply(self, version: int, kind: str, body: object) -> None:
        if version != VERSION or kind != EVENT:
            raise FormatError("offsets event of a newer version", version=version, kind=kind)
        self._put(_unpack(body))

    def _put(self, entries: Iterable[StoredOffset]) -> None:
        for entry in entries:
            if not self._kept_elsewhere(entry.place):
                self._offsets.put(entry)

    def snapshot(self) -> tuple[int, Iterator[bytes]]:
        return VERSION, self._chunks()

    def _chunks(self) -> Iterator[bytes]:
        rows = [
            pack(entry)
            for entry in self._offsets.entries()
            if not self._kept_elsewhere(entry.place)
        ]
        for start in range(0, len(rows), CHUNK_ENTRIES):
            yield msgspec.msgpack.encode(rows[start : start + CHUNK_ENTRIES])

    def restore(self, version: int, chunks: Iterable[bytes]) -> None:
        if version != VERSION:
            raise FormatError("offsets snapshot of a newer version", version=version)
        self._offsets.forget(lambda place: not self._kept_elsewhere(place))
        for chunk in chunks:
            self._put(_unpack(msgspec.msgpack.decode(chunk)))


def pack(entry: StoredOffset) -> list[int]:
    return [*entry.place, *entry.reader, entry.offset]


def _unpack(body: object) -> Iterator[StoredOffset]:
    for row in msgspec.convert(body, list[tuple[int, int, int, int, int, int]]):
        yield StoredOffset(Place(*row[:3]), Reader(*row[3:5]), row[5])


class Log(Protocol):
    """The part of a StateLog this needs: durable and applied when it returns."""

    async def append(self, kind: str, body: object, version: int = 1) -> int: ...


class OffsetWriter:
    """Group commit: stores that arrive during one append travel together in the next."""

    def __init__(self, log: Log, *, entries_max: int = 4096) -> None:
        self._log = log
        self._entries_max = entries_max
        self._waiting: list[tuple[list[StoredOffset], asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def store(self, entries: list[StoredOffset]) -> None:
        """Returns when they are durable and visible. All or none of them."""
        if self._closed:
            raise UnavailableError("the broker is stopping")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((entries, done))
        if self._task is None:
            self._task = asyncio.create_task(self._write())
        await done

    async def _write(self) -> None:
        try:
            while self._waiting:
                group = self._take()
                rows = [pack(entry) for entries, _ in group for entry in entries]
                try:
                    await self._log.append(EVENT, rows, VERSION)
                except Exception as error:
                    for _, done in group:
                        if not done.done():
                            done.set_exception(error)
                    continue
                for _, done in group:
                    if not done.done():
                        done.set_result(None)
        finally:
            self._task = None

    def _take(self) -> list[tuple[list[StoredOffset], asyncio.Future[None]]]:
        count = size = 0
        for entries, _ in self._waiting:
            if count and size + len(entries) > self._entries_max:
                break
            count += 1
            size += len(entries)
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    async def close(self) -> None:
        """Finish what was asked for, take nothing new."""
        self._closed = True
        if self._task is not None:
            await self._task
