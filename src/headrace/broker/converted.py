"""What polls made of stored messages, kept for the next reader of the same ones.

Batches for clients of dialect C; and checksums for the others of what came from dialect C. Stored
messages never change, so what was made of them stays right. Several consumers read the same place,
and a conversion costs several times what sending the stored bytes does; so the last ones are kept,
up to a bound.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence

from headrace.runtime.interfaces import Buffer
from headrace.wire.iggy.batch import with_checksums
from headrace.wire.iggy.vsr_batch import encode_batches

_KEPT_BYTES_MIN = 4096  # less is made as fast as it is found
_OFFSET = struct.Struct("<Q")
_OFFSET_AT = 24  # in a message
_NO_CHECKSUM = bytes(8)


class Converted:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[tuple[bool, int, int, int], list[memoryview]] = OrderedDict()

    @property
    def bytes(self) -> int:
        return self._bytes

    def batches(self, stream_id: int, partition: int, slices: Sequence[memoryview]) -> list[Buffer]:
        """Slices of consecutive messages, each as one batch of dialect C where it fits."""
        return [made for messages in slices for made in self._get(stream_id, messages, partition)]

    def summed(self, stream_id: int, slices: Sequence[memoryview]) -> list[memoryview]:
        """The slices, those that have no checksums with them."""
        return [
            messages if messages[:8] != _NO_CHECKSUM else self._get(stream_id, messages)[0]
            for messages in slices
        ]

    def _get(self, stream_id: int, messages: memoryview, partition: int = -1) -> list[memoryview]:
        """As batches of that partition, or with checksums."""
        if len(messages) < _KEPT_BYTES_MIN:
            return _make(messages, partition)
        (first,) = _OFFSET.unpack_from(messages, _OFFSET_AT)
        key = (partition < 0, stream_id, first, len(messages))
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        made = _make(messages, partition)
        self._kept[key] = made
        self._bytes += sum(map(len, made))
        while self._bytes > self._bytes_max:
            self._bytes -= sum(map(len, self._kept.popitem(last=False)[1]))
        return made


def _make(messages: memoryview, partition: int) -> list[memoryview]:
    if partition < 0:
        return [with_checksums(messages)]
    return encode_batches(messages, partition=partition)
