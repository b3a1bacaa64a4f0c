"""The layout of the data directory, a range's metadata, and the values that the storage hands out.

lock                          held while a process owns the directory
format.json                   format version and store uuid
journal                       redo journal of groups that dirtied many files; see `journal`
clean-stop                    present only after a clean stop; consumed at open
streams/<stream>/deleted      the stream is being removed; finished at open
streams/<stream>/deleted-<range>   so is one range of it
streams/<stream>/<range>/range.json   what must survive of a range beside its batches
streams/<stream>/<range>/attachment   what the range was made with; means nothing to the storage
streams/<stream>/<range>/<base offset, 20 digits>.log     batches and marks, append-only
streams/<stream>/<range>/<base offset, 20 digits>.index   sparse index and checkpoint
streams/<stream>/<range>/<base offset, 20 digits>.draft   a segment being repaired; gone at open

`range.json` is one JSON object, a newline, and the CRC32C of the object as 8 hexadecimal digits:
people can read the file, and a flipped bit in an end offset or an epoch is noticed rather than
believed. An attachment stands behind its CRC32C, big-endian.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from headrace.errors import CorruptionError
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


_VERSION = 1


class RangeMetadata(msgspec.Struct, frozen=True, kw_only=True):
    start: int
    end: int = -1  # -1 while open
    sealed: bool = False
    writer_epoch: int = -1
    durability: Durability = Durability.SYNCED
    reserved: bool = False  # control state: may use the disk space kept free for it
    replicas: tuple[int, ...] = ()  # node ids, the primary first; means nothing to the storage
    ack_quorum: int = 1  # replicas that hold an offset before it may be read
    decided: bool = False  # the end came from the placement manager
    incomplete: bool = False  # sealed, but the disk does not hold everything below the end yet
    doubtful: int = -1  # final: what lies from here on may not be read yet; -1: all may be
    attached_bytes: int = -1  # of the file beside it; 0: nothing, said so; -1: nothing was said
    version: int = _VERSION

    @property
    def final(self) -> bool:
        """Whether the end is decided for ever. A node that is alone decides it by sealing."""
        return self.sealed and (self.decided or self.ack_quorum == 1)

    @property
    def complete(self) -> bool:
        """Whether every offset below the end is known to be synced here."""
        return self.sealed and not self.incomplete


_DECODER = msgspec.json.Decoder(RangeMetadata)


def encode_metadata(metadata: RangeMetadata) -> bytes:
    text = msgspec.json.encode(metadata)
    return b"%s\n%08x\n" % (text, crc32c(text))


def decode_metadata(data: bytes, path: str) -> RangeMetadata:
    text, _, rest = data.partition(b"\n")
    if rest != b"%08x\n" % crc32c(text):
        raise CorruptionError("range metadata fails its checksum", path=path)
    try:
        metadata = _DECODER.decode(text)
    except msgspec.DecodeError as error:
        raise CorruptionError(f"range metadata is not readable: {error}", path=path) from error
    if metadata.version != _VERSION:
        raise CorruptionError("unknown range metadata", path=path, version=metadata.version)
    return metadata


def encode_attachment(data: bytes) -> bytes:
    """Behind its CRC32C, big-endian."""
    crc: int = crc32c(data)
    return crc.to_bytes(4, "big") + data


def decode_attachment(data: bytes, path: str) -> bytes:
    if data[:4] != crc32c(data[4:]).to_bytes(4, "big"):
        raise CorruptionError("attachment fails its checksum", path=path)
    return data[4:]
