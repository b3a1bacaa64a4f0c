"""A range's metadata file, `range.json`: what must survive beside the batches.

One JSON object, a newline, and the CRC32C of the object as 8 hexadecimal digits: people can read
it, and a flipped bit in an end offset or an epoch is noticed rather than believed.
"""

from __future__ import annotations

import msgspec
from crc32c import crc32c

from headrace.errors import CorruptionError
from headrace.wire.sbp.messages import Durability

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
