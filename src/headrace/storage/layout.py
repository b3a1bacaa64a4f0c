"""Values that the storage hands out, and the layout of the data directory.

lock                          held while a process owns the directory
format.json                   format version and store uuid
journal                       redo journal of groups that dirtied many files; see `journal`
clean-stop                    present only after a clean stop; consumed at open
streams/<stream>/deleted      the stream is being removed; finished at open
streams/<stream>/deleted-<range>   so is one range of it
streams/<stream>/<range>/range.json
streams/<stream>/<range>/attachment   what the range was made with; means nothing to the storage
streams/<stream>/<range>/<base offset, 20 digits>.log     batches and marks, append-only
streams/<stream>/<range>/<base offset, 20 digits>.index   sparse index and checkpoint
streams/<stream>/<range>/<base offset, 20 digits>.draft   a segment being repaired; gone at open
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headrace.wire.sbp.messages import Durability

STREAMS = "streams"
LOCK = "lock"
CLEAN_STOP = "clean-stop"
JOURNAL = "journal"
DELETED = "deleted"
RANGE_METADATA = "range.json"
ATTACHMENT = "attachment"
LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
DRAFT_SUFFIX = ".draft"
_BASE_DIGITS = 20


class RangeKey(NamedTuple):
    stream_id: int
    range_index: int


class Point(NamedTuple):
    """A place between two batches of a segment: byte position and the offset that follows."""

    position: int
    offset: int


class CorruptSpan(NamedTuple):
    """Offsets [start, end) whose synced bytes are damaged on this disk."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    base: int
    end: int
    bytes: int  # of batches, marks excluded, so that replicas agree
    max_timestamp: int


@dataclass(frozen=True, slots=True)
class RangeState:
    key: RangeKey
    start: int
    end: int  # -1 while open
    next_offset: int
    writer_epoch: int
    durability: Durability
    sealed: bool
    failed: bool  # a write or sync failed: no more appends until it is sealed
    corrupt: tuple[CorruptSpan, ...]
    truncated_bytes: int  # torn tail that the recovery at open cut off
    replicas: tuple[int, ...] = ()
    ack_quorum: int = 1
    final: bool = False  # the end is decided and will never be another
    missing: tuple[int, int] | None = None  # [next, end) of a final range, to be copied


def stream_folder(folder: str, stream_id: int) -> str:
    return f"{folder}/{STREAMS}/{stream_id}"


def range_folder(folder: str, key: RangeKey) -> str:
    return f"{folder}/{STREAMS}/{key.stream_id}/{key.range_index}"


def format_base(base: int) -> str:
    return f"{base:0{_BASE_DIGITS}d}"


def parse_base(name: str) -> int | None:
    """The base offset in a segment file's name, or None for any other name."""
    stem = name.removesuffix(LOG_SUFFIX)
    if stem == name or len(stem) != _BASE_DIGITS or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem)
