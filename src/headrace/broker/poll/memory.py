"""Memory that is used again: taking it from the system anew costs as much as a conversion."""

from __future__ import annotations

from headrace.wire.iggy.vsr.batch import fresh_memory

_AT_HAND_BYTES_MAX = 2 * 1024 * 1024
_AT_HAND_MAX = 8


class MemoryAtHand:
    """A few buffers, each lent again once nobody views it."""

    def __init__(self) -> None:
        self._lent: list[bytearray] = []

    def take(self, length: int) -> memoryview:
        if length > _AT_HAND_BYTES_MAX:
            return fresh_memory(length)
        for memory in self._lent:
            if length <= len(memory) <= 2 * length and is_free(memory):
                return memoryview(memory)[:length]
        memory = bytearray(length)
        self._lent.insert(0, memory)
        del self._lent[_AT_HAND_MAX:]
        return memoryview(memory)


def is_free(memory: bytearray) -> bool:
    """Whether nobody views it: while somebody does, its length cannot change."""
    try:
        memory.append(memory.pop())
    except BufferError:
        return False
    return True
