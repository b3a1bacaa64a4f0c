"""What every decoder of payloads does: rows for the good ones, a reason for each bad one.

A decoder reads a block of payloads at once. A block that fails is halved until the bad payloads
stand alone, so that good blocks are never taken apart.

Formats that are decoded row by row make their columns with `to_array`, which is strict about types.
Decimals are bounded before anybody converts them: Arrow's own conversion ends the process for a
number like 1e-999999999, and Python's takes minutes for one of a million digits. The decimals of a
column have at most 38 digits; what is far beyond that is refused before either sees it.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ConfigError

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


DIGITS_MAX = 100

_PLAIN = (
    rf"^\s*[+-]?([0-9]{{1,{DIGITS_MAX}}}(\.[0-9]{{0,{DIGITS_MAX}}})?|\.[0-9]{{1,{DIGITS_MAX}}})"
    r"([eE][+-]?[0-9]{1,2})?\s*$"
)


def check_decimals(texts: pa.Array | pa.ChunkedArray, name: str) -> None:
    """UnreadableError for texts that Arrow must not be asked to convert; others have no texts."""
    kind = texts.type
    if pa.types.is_dictionary(kind):
        for chunk in texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]:
            check_decimals(chunk.dictionary, name)
        return
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        fits = pc.match_substring_regex(texts.cast(pa.string()), _PLAIN)
        if not pc.all(fits, min_count=0).as_py():
            raise UnreadableError(f"{name}: not a decimal")


def parse_decimal(value: Any) -> Decimal:
    """ValueError for one that no column could hold."""
    text = str(value)
    if len(text) > 2 * DIGITS_MAX:
        raise ValueError("a decimal of too many digits")
    found = Decimal(text)
    if not found.is_finite() or abs(found.adjusted()) > DIGITS_MAX:
        raise ValueError("a decimal of too many digits")
    if abs(int(found.as_tuple().exponent)) > DIGITS_MAX:
        raise ValueError("a decimal of too many digits")
    return found


Converter: TypeAlias = Callable[[Any], Any]
"""A value that is not None, as `pa.array` takes it; ValueError or TypeError if it does not fit."""


def to_array(values: Sequence[Any], convert: Converter, field: pa.Field) -> pa.Array:
    """UnreadableError for values that do not fit."""
    try:
        return pa.array([None if value is None else convert(value) for value in values], field.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError) as error:
        raise UnreadableError(f"{field.name}: {error}") from None


def converter(kind: pa.DataType) -> Converter:
    """From the values that JSON has to those of `kind`."""
    if pa.types.is_map(kind):
        return _map(converter(kind.key_type), converter(kind.item_type))
    if pa.types.is_list(kind):
        return _list(converter(kind.value_type))
    if pa.types.is_struct(kind):
        return _struct({each.name: converter(each.type) for each in kind})
    for matches, convert in _LEAVES:
        if matches(kind):
            return convert
    raise ConfigError(f"payloadFormat=json cannot read a column of type {kind}")


def _map(key: Converter, item: Converter) -> Converter:
    def convert(value: Any) -> Any:
        pairs = _a(dict, value).items()
        return [(key(name), None if each is None else item(each)) for name, each in pairs]

    return convert


def _list(item: Converter) -> Converter:
    def convert(value: Any) -> Any:
        return [None if each is None else item(each) for each in _a(list, value)]

    return convert


def _struct(fields: dict[str, Converter]) -> Converter:
    def convert(value: Any) -> Any:
        found = {name: _a(dict, value).get(name) for name in fields}
        return {name: None if each is None else fields[name](each) for name, each in found.items()}

    return convert


def _a(kind: type | tuple[type, ...], value: Any) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"a {type(value).__name__} does not fit")
    return value


def _timestamp(value: Any) -> datetime:
    """Without a zone it is UTC, as it is for Arrow."""
    at = datetime.fromisoformat(_a(str, value))
    return at.astimezone(UTC) if at.tzinfo is not None else at.replace(tzinfo=UTC)


_LEAVES: tuple[tuple[Callable[[pa.DataType], bool], Converter], ...] = (
    (pa.types.is_binary, lambda value: b64decode(_a(str, value), validate=True)),
    (pa.types.is_string, lambda value: _a(str, value)),
    (pa.types.is_boolean, lambda value: _a(bool, value)),
    (pa.types.is_integer, lambda value: _a(int, value)),
    (pa.types.is_floating, lambda value: float(_a((int, float), value))),
    (pa.types.is_decimal, lambda value: parse_decimal(_a((int, float, str), value))),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_date, lambda value: date.fromisoformat(_a(str, value))),
)
