"""Which messages a partition has seen already: ids within a window, bounded in number.

Off unless a setting says otherwise. An id is remembered once its batch has its offsets; a batch
that is then lost takes the whole partition's writer with it, and this window too. So nothing is
dropped on the strength of a message that was never stored. A window starts empty: after a restart,
or after its partition was opened anew, an id may be stored a second time.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

from headrace.wire.iggy import batch

if TYPE_CHECKING:
    from headrace.wire.iggy.batch import Positions

_ID_AT, _ID_BYTES = 8, 16
_NO_ID = bytes(_ID_BYTES)


class Window:
    """Ids in the order they came. Times are arguments, in seconds, and never go back."""

    def __init__(self, *, entries_max: int, seconds: float) -> None:
        self._entries_max = entries_max
        self._seconds = seconds
        self._seen: dict[bytes, float] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def __contains__(self, id_: bytes) -> bool:
        return id_ in self._seen

    def expire(self, now: float) -> None:
        oldest = now - self._seconds
        for id_, seen in list(self._seen.items()):
            if seen > oldest:
                break
            del self._seen[id_]

    def add(self, ids: Iterable[bytes], now: float) -> None:
        for id_ in ids:
            self._seen[id_] = now
        surplus = len(self._seen) - self._entries_max
        if surplus > 0:
            for id_ in list(self._seen)[:surplus]:
                del self._seen[id_]


def ids_of(area: memoryview, starts: Positions) -> list[bytes]:
    """The messages' ids as 16 bytes; all zero = the server shall give one."""
    import numpy as np

    gathered = batch.items(area, _ID_BYTES)[starts + np.uint32(_ID_AT)].tobytes()
    return [gathered[at : at + _ID_BYTES] for at in range(0, len(gathered), _ID_BYTES)]


def fresh(ids: list[bytes], window: Window) -> list[int]:
    """Positions of the messages to keep: not seen, and the first of their id in this batch."""
    kept, here = [], set()
    for position, id_ in enumerate(ids):
        if id_ != _NO_ID:
            if id_ in window or id_ in here:
                continue
            here.add(id_)
        kept.append(position)
    return kept


def given(ids: list[bytes], kept: list[int]) -> list[bytes]:
    """The ids to remember."""
    return [ids[position] for position in kept if ids[position] != _NO_ID]


def select(area: memoryview, starts: Positions, kept: list[int]) -> tuple[memoryview, Positions]:
    """The messages at these positions, as an area of their own."""
    import numpy as np

    bounds = list(pairwise([*starts.tolist(), len(area)]))
    pieces = [area[bounds[position][0] : bounds[position][1]] for position in kept]
    lengths = np.array([0, *map(len, pieces)], np.uint32)
    return memoryview(bytearray(b"".join(pieces))), np.cumsum(lengths, dtype=np.uint32)[:-1]
