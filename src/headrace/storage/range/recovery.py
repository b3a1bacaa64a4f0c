"""Recovery of one range, at every open: blocking, in a thread.

Closed segments (a successor exists, or the range is sealed) were synced before they were closed; a
valid index file makes a scan of them unnecessary. The last segment of an open range, or of one that
is still being copied, is scanned from its checkpoint. A torn tail is cut off and the cut is synced
before anything is written after it, because what was cut away must not come back beside newer
bytes. Running it twice gives the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from uuid import UUID

import msgspec

from headrace.config.datanode import StorageSettings
from headrace.errors import CorruptionError, StorageError
from headrace.observability.logging import get_logger
from headrace.runtime import Disk, File
from headrace.storage.layout import (
    DRAFT_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    RANGE_METADATA,
    CorruptSpan,
    Point,
    RangeKey,
    RangeMetadata,
    decode_metadata,
    encode_metadata,
    format_base,
    parse_base,
)
from headrace.storage.segments.formats import Checkpoint, binding_of, encode_checkpoint
from headrace.storage.segments.scan import CHUNK_BYTES, Scan, Scanner
from headrace.storage.segments.segment import Segment, load_checkpoint

log = get_logger(__name__)


@dataclass(slots=True)
class RecoveredRange:
    key: RangeKey
    folder: str
    metadata: RangeMetadata
    segments: list[Segment] = field(default_factory=list)
    next_offset: int = 0
    truncated_bytes: int = 0
    tail_bytes: int = 0  # kept above every position that the files note as synced
    unsynced: str = ""  # a file that is to be synced before anyone relies on the range


def recover_range(
    disk: Disk,
    folder: str,
    key: RangeKey,
    store_uuid: UUID,
    settings: StorageSettings,
    known: Mapping[tuple[RangeKey, int], Point],
) -> RecoveredRange | None:
    """The range in `folder`; None when its creation never finished, or its removal just has."""
    names = disk.list(folder)
    for name in names:
        if name.endswith(DRAFT_SUFFIX):  # a repair that was cut short
            disk.remove(f"{folder}/{name}")
    bases = sorted(base for base in map(parse_base, names) if base is not None)
    if RANGE_METADATA not in names:
        if bases:
            raise CorruptionError("segments without range metadata", path=folder)
        disk.remove_tree(folder)
        return None
    path = f"{folder}/{RANGE_METADATA}"
    found = RecoveredRange(key, folder, decode_metadata(disk.read(path), path))
    bases = _drop_outside(disk, found, bases)
    for base, successor in _with_successors(bases):
        found.segments.append(
            _recover_segment(
                disk, found, base, successor, store_uuid, settings, known.get((key, base))
            )
        )
    _conclude(disk, found)
    return found


def _drop_outside(disk: Disk, found: RecoveredRange, bases: list[int]) -> list[int]:
    """Finish an interrupted trim; drop segments that start at or above a sealed end."""
    metadata = found.metadata
    limit = metadata.end if metadata.sealed else None
    kept = [
        base
        for base, successor in _with_successors(bases)
        if (successor is None or successor > metadata.start) and (limit is None or base < limit)
    ]
    _remove(disk, found.folder, [base for base in bases if base not in kept])
    return kept


def _with_successors(bases: list[int]) -> Iterable[tuple[int, int | None]]:
    return zip_longest(bases, bases[1:])


def _remove(disk: Disk, folder: str, bases: list[int]) -> None:
    for base in bases:
        disk.remove(f"{folder}/{format_base(base)}{LOG_SUFFIX}")
        disk.remove(f"{folder}/{format_base(base)}{INDEX_SUFFIX}")
    if bases:
        disk.sync_folder(folder)


def _recover_segment(
    disk: Disk,
    found: RecoveredRange,
    base: int,
    successor: int | None,
    store_uuid: UUID,
    settings: StorageSettings,
    known: Point | None,
) -> Segment:
    metadata = found.metadata
    known_end = metadata.end if metadata.complete else None
    upper = successor if successor is not None else known_end
    segment = Segment(found.key, found.folder, base, binding_of(store_uuid, found.key, base))
    checkpoint = load_checkpoint(disk, found.key, base, segment.index_path)
    if checkpoint is not None and upper is not None and checkpoint.end.offset > upper:
        checkpoint = None  # made before the end was lowered, or before the successor existed
    if known is not None and upper is not None and known.offset > upper:
        known = None
    file = disk.open(segment.path)
    try:
        size = file.size()
        covered = checkpoint is not None and checkpoint.end.position <= size
        if checkpoint is not None and not covered:
            known = max(known or checkpoint.end, checkpoint.end)
        if checkpoint is not None and covered and checkpoint.end.offset == upper:
            segment = _adopt(segment, checkpoint)
            segment.saved_position = segment.position
        else:
            scan = Scanner(
                file,
                size=size,
                base=base,
                binding=segment.binding,
                index_interval_bytes=settings.index_interval_bytes,
                checkpoint=checkpoint if covered else None,
                known=known,
                synced_offset=upper or 0,
                stop_offset=metadata.end if upper is None and metadata.sealed else upper,
            ).run()
            segment = _adopt(segment, scan.checkpoint)
            if upper is None:
                _cut_torn_tail(file, segment.path, found, scan)
                segment.saved_position = checkpoint.end.position if checkpoint and covered else 0
            else:
                _save_index(disk, segment)
                if successor is None and segment.saved_position and segment.end_offset == upper:
                    file.truncate(segment.position)  # the end was lowered: give the tail back
    finally:
        file.close()
    segment.closed = upper is not None
    _report(segment, found)
    return segment


def _adopt(segment: Segment, checkpoint: Checkpoint) -> Segment:
    return Segment.from_checkpoint(
        segment.key, segment.folder, segment.base, segment.binding, checkpoint
    )


def _cut_torn_tail(file: File, path: str, found: RecoveredRange, scan: Scan) -> None:
    """Cut off what is torn and make what is kept durable, before anyone relies on it.

    The syncs of open ranges are left to the caller, who makes them side by side.
    """
    end = scan.checkpoint.end.position
    if scan.torn_bytes:
        file.truncate(end)
        found.truncated_bytes += scan.torn_bytes
    found.tail_bytes = end - scan.noted_position
    # Written again, not only synced: after a failed sync the kernel may hold pages for clean that
    # never reached the disk, and a later sync would report success without them.
    position = scan.synced_position
    while position < end:
        data = file.pread(min(CHUNK_BYTES, end - position), position)
        position += file.pwrite([data], position)
    if not scan.torn_bytes and scan.synced_position >= end:
        return
    if found.metadata.sealed:
        file.sync_data()  # what follows here may rely on it
    else:
        found.unsynced = path


def _save_index(disk: Disk, segment: Segment) -> None:
    try:
        data = encode_checkpoint(segment.key, segment.base, segment.checkpoint())
        disk.write_atomic(segment.index_path, data)
    except StorageError as error:  # the index only saves time; the disk may be full
        log.warning("index not saved", path=segment.index_path, error=str(error))
    else:
        segment.saved_position = segment.position


def _report(segment: Segment, found: RecoveredRange) -> None:
    for start, end in segment.spans:
        log.error("corrupt batches or mark", path=segment.path, start=start, end=end)
    if found.truncated_bytes and not segment.closed:
        log.warning("torn tail cut off", path=segment.path, bytes=found.truncated_bytes)


def _conclude(disk: Disk, found: RecoveredRange) -> None:
    metadata, segments = found.metadata, found.segments
    for segment, successor in pairwise(segments):
        if segment.end_offset < successor.base:  # a whole file between them is missing
            segment.spans.append(CorruptSpan(segment.end_offset, successor.base))
            segment.end_offset = successor.base
    if metadata.complete:
        found.next_offset = metadata.end
        return
    if segments and segments[-1].end_offset < metadata.start:
        # A `written` range lost its tail after it was trimmed there: the log goes on at the start.
        _remove(disk, found.folder, [segment.base for segment in segments])
        segments.clear()
        found.unsynced = ""  # nobody relies on what is gone
    found.next_offset = segments[-1].end_offset if segments else metadata.start
    if metadata.sealed and found.next_offset >= metadata.end:
        _complete(disk, found)


def _complete(disk: Disk, found: RecoveredRange) -> None:
    """The last batch was copied just before the stop; what is kept of the tail is synced by now."""
    metadata = msgspec.structs.replace(found.metadata, incomplete=False)
    for segment in found.segments[-1:]:
        _save_index(disk, segment)
        segment.closed = True
    disk.write_atomic(f"{found.folder}/{RANGE_METADATA}", encode_metadata(metadata))
    found.metadata = metadata
