"""What every decoder of payloads does: rows for the good ones, a reason for each bad one.

A decoder reads a block of payloads at once. A block that fails is halved until the bad payloads
stand alone, so that good blocks are never taken apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CORRUPT = "_corrupt"
REST = "_rest"
REASON_CHARACTERS_MAX = 200


class UnreadableError(Exception):
    """A block that holds at least one payload that does not fit; never leaves a decoder."""


class Bad(NamedTuple):
    """A payload that does not fit, by its place in the block."""

    row: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    table: pa.Table
    """The rows that could be read, in order."""
    rows: NDArray[np.int64] | None
    """The payload that each row came from; None when there is one row for each payload."""
    bad: list[Bad]
    taken: int | None = None
    """How many payloads these are of; None: of all. The others are to be decoded by themselves."""


class Decoder(Protocol):
    def __call__(self, payloads: pa.BinaryArray) -> Decoded: ...


def halve(
    payloads: pa.BinaryArray, schema: pa.Schema, read: Callable[[pa.BinaryArray], pa.Table]
) -> Decoded:
    """For formats with one row per payload; `read` raises UnreadableError for a block."""
    tables: list[pa.Table] = []
    bad: list[Bad] = []
    waiting = [(0, len(payloads))] if len(payloads) else []
    while waiting:
        begin, end = waiting.pop()
        try:
            tables.append(read(payloads.slice(begin, end - begin)))
        except UnreadableError as error:
            if end - begin == 1:
                bad.append(Bad(begin, reason_of(error)))
            else:
                middle = (begin + end) // 2
                waiting += [(middle, end), (begin, middle)]
    table = pa.concat_tables(tables) if tables else schema.empty_table()
    return Decoded(table, rows_without(bad, len(payloads)) if bad else None, bad)


def rows_without(bad: list[Bad], count: int) -> NDArray[np.int64]:
    import numpy as np

    return np.delete(np.arange(count), [each.row for each in bad])


def reason_of(error: BaseException) -> str:
    """One short line."""
    line = " ".join(str(error).split()) or type(error).__name__
    return line[:REASON_CHARACTERS_MAX]
