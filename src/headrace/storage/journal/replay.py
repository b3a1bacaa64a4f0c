"""Replay of the redo journal, at every open, before any segment is looked at.

What the journal holds is written to the segment files once more and synced there; only then is the
journal declared empty. A cut on the way is followed by the same replay. A record is passed over
when its range is gone, when its segment was trimmed away, or when the file holds a mark of a later
group in its place: that write was repeated after it had failed.

Damage among acknowledged records is reported, and what is known about them (which file, up to which
point) goes to the recovery of that segment, so that what is missing there is not taken for a tail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from headrace.errors import CorruptionError
from headrace.observability.logging import get_logger
from headrace.runtime import Disk, Executor, File
from headrace.storage.journal.records import (
    ALL_RANGES,
    HALVES_START,
    NOTE_BYTES,
    NOTE_POSITIONS,
    FoundRecord,
    GenerationScan,
    JournalLayout,
    JournalNote,
    JournalRecord,
    RecordKind,
    decode_note,
    encode_note,
    seed_of,
)
from headrace.storage.layout import (
    JOURNAL,
    LOG_SUFFIX,
    RANGE_METADATA,
    Point,
    RangeKey,
    decode_metadata,
    format_base,
    range_folder,
)
from headrace.storage.segments.formats import MARK_BYTES, binding_of, decode_mark

log = get_logger(__name__)

SegmentKey = tuple[RangeKey, int]


@dataclass(slots=True)
class Replayed:
    """What recovery and the new journal have to know."""

    next_generation: int = 0
    half_bytes: int = 0  # of the file that is there; 0 = there is none
    records: int = 0
    damaged: int = 0
    known: dict[SegmentKey, Point] = field(default_factory=dict)
    """Segments hold at least so much, synced, or should: the journal may have lost it."""


@dataclass(slots=True)
class _Contents:
    used: bool  # there are records, needed or not
    files: dict[SegmentKey, list[FoundRecord]] = field(default_factory=dict)
    damaged: int = 0
    known: dict[SegmentKey, Point] = field(default_factory=dict)


async def replay(
    disk: Disk, executor: Executor, folder: str, store_uuid: UUID, *, threads: int
) -> Replayed:
    """Bring every acknowledged write to its file, durably, and empty the journal."""
    path = f"{folder}/{JOURNAL}"
    if not await executor.run(disk.exists, path):
        return Replayed()
    file = await executor.run(disk.open, path)
    try:
        note = await executor.run(read_note, file, seed_of(store_uuid))
        if note is None:
            if file.size() > HALVES_START:
                raise CorruptionError(
                    "the journal's notes are damaged: acknowledged batches may be in it; move the "
                    "file away to open the log without them",
                    path=path,
                )
            return Replayed()  # a cut left it half made
        contents = await executor.run(_read_contents, file, seed_of(store_uuid), note)
        written = await _write_files(disk, executor, folder, store_uuid, file, contents, threads)
        for segment, end in written.items():
            contents.known[segment] = max(contents.known.get(segment, end), end)
        next_generation = note.oldest
        if contents.used:
            next_generation = note.oldest + 2  # above every generation that is there
            empty = JournalNote(next_generation, 0, note.half_bytes)
            await executor.run(write_note, file, seed_of(store_uuid), empty)
    finally:
        file.close()
    count = sum(map(len, contents.files.values()))
    if count:
        log.info("journal replayed", records=count, files=len(contents.files))
    return Replayed(next_generation, note.half_bytes, count, contents.damaged, contents.known)


def read_note(file: File, seed: int) -> JournalNote | None:
    """The newer of the two notes that can be read."""
    notes = [decode_note(file.pread(NOTE_BYTES, at), seed) for at in NOTE_POSITIONS]
    return max((note for note in notes if note is not None), default=None)


def write_note(file: File, seed: int, note: JournalNote) -> None:
    """Durable on return. The newer one stays as it is: it is what counts if this is cut."""
    first, second = (decode_note(file.pread(NOTE_BYTES, at), seed) for at in NOTE_POSITIONS)
    newer_first = first is not None and (second is None or first > second)
    file.pwrite([encode_note(note, seed)], NOTE_POSITIONS[newer_first])
    file.sync_data()


def _read_contents(file: File, seed: int, note: JournalNote) -> _Contents:
    layout = JournalLayout(seed, note.half_bytes)
    generations = (note.oldest, note.oldest + 1)
    found = [
        each for generation in generations for each in GenerationScan(file, layout, generation)
    ]
    contents = _Contents(used=bool(found))
    newest = max((each.record.group for each in found), default=-1)
    _check_order(found, note, newest, contents)
    forgotten: set[tuple[int, int]] = set()
    for each in reversed(found):
        record = each.record
        if record.kind == RecordKind.FORGET:
            if each.intact:
                forgotten.add(record.key)
            continue
        if record.key in forgotten or (record.key.stream_id, ALL_RANGES) in forgotten:
            continue
        segment = (record.key, record.base)
        if each.intact:
            contents.files.setdefault(segment, []).append(each)
        elif record.group < newest:
            _note_damage(each, contents)
    for records in contents.files.values():
        records.reverse()
    return contents


def _check_order(
    found: Sequence[FoundRecord], note: JournalNote, newest: int, contents: _Contents
) -> None:
    """Count the places where records are missing although a later group was written."""
    expected = (note.first, 0)
    for each in found:
        record = each.record
        if (record.group, record.part) != expected and expected[0] < newest:
            contents.damaged += 1
            log.error(
                "journal records damaged",
                generation=record.generation,
                group=expected[0],
                found=record.group,
            )
        last = record.part + 1 == record.parts
        expected = (record.group + 1, 0) if last else (record.group, record.part + 1)


def _note_damage(found: FoundRecord, contents: _Contents) -> None:
    record = found.record
    contents.damaged += 1
    log.error(
        "journal record damaged", stream_id=record.key.stream_id,
        range_index=record.key.range_index, end_offset=record.end_offset,
    )  # fmt: skip
    end = _end_of(record)
    segment = (record.key, record.base)
    contents.known[segment] = max(contents.known.get(segment, end), end)


def _end_of(record: JournalRecord) -> Point:
    """Where the batches that it brings end; a mark alone needs no place, see `Scan`."""
    length = record.length if record.length > MARK_BYTES else 0
    return Point(record.position + length, record.end_offset)


async def _write_files(
    disk: Disk,
    executor: Executor,
    folder: str,
    store_uuid: UUID,
    journal: File,
    contents: _Contents,
    threads: int,
) -> dict[SegmentKey, Point]:
    """How far each file is synced now."""
    items = list(contents.files.items())
    shares = min(threads, len(items))
    results = await asyncio.gather(
        *(
            executor.run(_write_some, disk, folder, store_uuid, journal, items[share::shares])
            for share in range(shares)
        )
    )
    return {segment: end for share in results for segment, end in share.items()}


def _write_some(
    disk: Disk,
    folder: str,
    store_uuid: UUID,
    journal: File,
    items: Iterable[tuple[SegmentKey, list[FoundRecord]]],
) -> dict[SegmentKey, Point]:
    written: dict[SegmentKey, Point] = {}
    for (key, base), records in items:
        place = range_folder(folder, key)
        if not disk.exists(f"{place}/{RANGE_METADATA}"):
            continue  # the stream was deleted
        path = f"{place}/{format_base(base)}{LOG_SUFFIX}"
        is_new = not disk.exists(path)
        if is_new and _was_removed(disk, place, base, records[-1].record.end_offset):
            continue
        file = disk.open(path, create=is_new)
        try:
            for each in records:
                if _write_record(file, journal, each, binding_of(store_uuid, key, base)):
                    written[key, base] = _end_of(each.record)
            file.sync_data()
        finally:
            file.close()
        if is_new or records[0].record.position == 0:  # its name may be as unsynced as its bytes
            disk.sync_folder(place)
    return written


def _was_removed(disk: Disk, place: str, base: int, end_offset: int) -> bool:
    """Whether a missing file was trimmed away, or lies above a sealed end."""
    path = f"{place}/{RANGE_METADATA}"
    try:
        metadata = decode_metadata(disk.read(path), path)
    except CorruptionError:  # the range's own recovery reports it
        return False
    return end_offset <= metadata.start or (metadata.sealed and base >= metadata.end)


def _write_record(file: File, journal: File, found: FoundRecord, binding: int) -> bool:
    """False when something later stands there."""
    position, length = found.record.position, found.record.length
    payload = journal.pread(length, found.at)
    ours = decode_mark(payload, 0, binding=binding, position=position)
    there = decode_mark(file.pread(MARK_BYTES, position), 0, binding=binding, position=position)
    if ours is not None and there is not None and there.group > ours.group:
        return False
    # Also when the bytes are there already: after a failed sync the kernel may hold pages for clean
    # that never reached the disk, and the sync that follows would report success without them.
    file.pwrite([payload], position)
    return True
