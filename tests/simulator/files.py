"""What a power cut does to one file.

A file has the bytes that a reader sees, the bytes that are durable, and the writes since the last
sync in their order. After a cut each page that these writes touched is found, on its own, as it was
after any number of them: nothing, some, all. The write that comes next on that page may be torn:
some of its 512-byte sectors are there, or a prefix that ends at any byte. The size is that after
any number of the writes, or between two of them. Pages lost below that size read as zeros.

This is harsher than any one file system: whoever survives it needs no file system's favours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.runtime.interfaces import Random

PAGE_BYTES = 4096
SECTOR_BYTES = 512

# What happened to a page is drawn from these; the middle ones are where recovery goes wrong.
_TORN_BY_SECTORS = 0.2
_TORN_AT_A_BYTE = 0.2


@dataclass(frozen=True, slots=True)
class _Write:
    """`data` put at `start`, after which the file has `size` bytes. A truncation writes zeros."""

    start: int
    data: bytes
    size: int

    def pages(self) -> range:
        return range(self.start // PAGE_BYTES, -(-(self.start + len(self.data)) // PAGE_BYTES))

    def apply(self, content: bytearray, low: int, high: int) -> None:
        """Put the part that falls into [low, high)."""
        low, high = max(low, self.start), min(high, self.start + len(self.data))
        if low < high:
            content[low:high] = self.data[low - self.start : high - self.start]


class FileContent:
    """The bytes of one file, whatever its names are."""

    def __init__(self) -> None:
        self.visible = bytearray()
        self.reserved_end = 0  # allocated up to here: a full disk still takes writes below it
        self._durable = bytearray()
        self._pending: list[_Write] = []

    def write(self, data: bytes, offset: int) -> None:
        _put(self.visible, data, offset)
        self._pending.append(_Write(offset, data, len(self.visible)))

    def truncate(self, length: int) -> None:
        old = len(self.visible)
        if length > old:
            self.visible.extend(bytes(length - old))
        else:
            del self.visible[length:]
        low, high = sorted((length, old))
        self._pending.append(_Write(low, bytes(high - low), length))

    def sync(self) -> None:
        # Only what is here now: another thread may append to the list meanwhile.
        count = len(self._pending)
        for write in self._pending[:count]:
            _put(self._durable, write.data, write.start)
            _resize(self._durable, write.size)
        del self._pending[:count]

    def forget_pending(self) -> None:
        """What is pending stays visible, and no later sync covers it."""
        self._pending.clear()

    def flip_bit(self, offset: int, bit: int) -> None:
        """Let the medium rot: readers see it, and so does whoever comes after a power cut."""
        for content in (self.visible, self._durable):
            if offset < len(content):
                content[offset] ^= 1 << bit

    def power_cut(self, random: Random) -> None:
        if self._pending:
            self._durable = self._survivor(random)
            self._pending.clear()
        self.visible = bytearray(self._durable)
        # A reservation is metadata of its own, and nothing ever synced it.
        self.reserved_end = 0

    def _survivor(self, random: Random) -> bytearray:
        content = bytearray(self._durable)
        _resize(content, max(len(content), *(w.start + len(w.data) for w in self._pending)))
        touched: dict[int, list[_Write]] = {}
        for write in self._pending:
            for page in write.pages():
                touched.setdefault(page, []).append(write)
        for page, writes in sorted(touched.items()):
            low = page * PAGE_BYTES
            kept = random.below(len(writes) + 1)
            for write in writes[:kept]:
                write.apply(content, low, low + PAGE_BYTES)
            if kept < len(writes):
                for torn_low, torn_high in _torn_parts(low, random):
                    writes[kept].apply(content, torn_low, torn_high)
        _resize(content, self._surviving_size(random))
        return content

    def _surviving_size(self, random: Random) -> int:
        sizes = [len(self._durable), *(write.size for write in self._pending)]
        chosen = random.below(len(sizes))
        low, high = sizes[chosen], sizes[min(chosen + 1, len(sizes) - 1)]
        if low < high and random.below(2):
            return low + random.below(high - low + 1)
        return low


def _torn_parts(page_start: int, random: Random) -> Iterator[tuple[int, int]]:
    kind = random.uniform()
    if kind < _TORN_BY_SECTORS:
        for start in range(page_start, page_start + PAGE_BYTES, SECTOR_BYTES):
            if random.below(2):
                yield start, start + SECTOR_BYTES
    elif kind < _TORN_BY_SECTORS + _TORN_AT_A_BYTE:
        yield page_start, page_start + random.below(PAGE_BYTES)


def _put(content: bytearray, data: bytes, offset: int) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))
