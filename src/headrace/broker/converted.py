"""Batches of dialect C made for polls, kept for the next reader of the same messages.

Stored messages never change, so what was made of them stays right. Several consumers read the same
place, and a conversion costs several times what sending the stored bytes does; so the last ones are
kept, up to a bound.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from headrace.runtime.interfaces import Buffer
from headrace.wire.iggy.vsr_batch import encode_batch

_KEPT_BYTES_MIN = 4096  # less is made as fast as it is found
_OFFSET_AT = 24  # in a message


class Converted:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._batches: OrderedDict[tuple[int, int, int], memoryview] = OrderedDict()

    @property
    def bytes(self) -> int:
        return self._bytes

    def get(self, stream_id: int, partition: int, slices: Sequence[memoryview]) -> list[Buffer]:
        """Each slice of consecutive messages as one batch."""
        return [self._get(stream_id, partition, messages) for messages in slices]

    def _get(self, stream_id: int, partition: int, messages: memoryview) -> memoryview:
        if len(messages) < _KEPT_BYTES_MIN:
            return encode_batch(messages, partition=partition)
        first = int.from_bytes(messages[_OFFSET_AT : _OFFSET_AT + 8], "little")
        key = (stream_id, first, len(messages))
        found = self._batches.get(key)
        if found is not None:
            self._batches.move_to_end(key)
            return found
        made = encode_batch(messages, partition=partition)
        self._batches[key] = made
        self._bytes += len(made)
        while self._bytes > self._bytes_max:
            self._bytes -= len(self._batches.popitem(last=False)[1])
        return made
