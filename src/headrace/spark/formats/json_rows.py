"""JSON payloads as typed columns.

Arrow's reader parses a million objects a second and core, several times what Spark's from_json
does. It is stricter: a number is not text, 1.5 is no int, a key stands once. Arrow counts objects,
not payloads, and a lone `null` or very deep nesting crashes it (seen in 26.0.1). So it is shown
nothing but what msgspec has found to be exactly one object per payload, at a tenth of its cost:
payloads are framed by a number that their authors cannot know.

What Arrow does not read as JSON means it (maps, binary as base64) is read row by row by msgspec,
those columns only; dates are read as text and cast. Where all columns are plain values (text,
numbers, booleans, times) msgspec reads everything: it takes only the fields that are wanted, in a
third of the time that Arrow takes for a whole object, and is as strict; of a key that stands twice
the last one counts.
"""

from __future__ import annotations

from decimal import Decimal
from operator import attrgetter
from secrets import randbits
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from headrace.errors import ConfigError
from headrace.spark.formats.decoding import (
    DIGITS_MAX,
    REST,
    Converter,
    Decoded,
    UnreadableError,
    converter,
    halve,
    parse_decimal,
    to_array,
)

_BRACE, _CLOSING_BRACE = b"{}"


def is_flat(kind: pa.DataType) -> bool:
    """Whether a column of this type can be read here."""
    return _python_type(kind) is not None


class FlatDecoder:
    """For columns that are all flat."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        names = {f"c{i}": each.name for i, each in enumerate(schema)}
        fields: list[Any] = [
            (name, _python_type(each.type) | None, None)  # type: ignore[operator]  # none is None
            for name, each in zip(names, schema, strict=True)
        ]
        row = msgspec.defstruct("Row", fields, rename=names, gc=False)
        self._row: type = row
        self._lines = msgspec.json.Decoder(row)
        self._framed = msgspec.json.Decoder(list[row | int])  # type: ignore[valid-type]  # made at run time

    def read(self, payloads: pa.BinaryArray) -> pa.Table:
        """One row for each; UnreadableError if one of them does not fit."""
        try:
            payloads.cast(pa.string())  # msgspec does not look at the text that it skips
            rows = self._rows(payloads)
            arrays = [
                _column(list(map(attrgetter(f"c{i}"), rows)), each.type)
                for i, each in enumerate(self._schema)
            ]
        except (msgspec.MsgspecError, pa.ArrowInvalid, ValueError, ArithmeticError) as error:
            raise UnreadableError(str(error)) from None
        except RecursionError:
            raise UnreadableError("too deep") from None
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def _rows(self, payloads: pa.BinaryArray) -> list[Any]:
        if not _look_like_objects(payloads):
            return self._framed_rows(payloads)
        # Between payloads stands `}`, a line end and `{`. Nowhere in an object stands that: in text
        # a line end is refused, elsewhere a comma is missing. So where a payload ends an object
        # ends, each payload holds at least one, and if there are as many, exactly one.
        found = self._lines.decode_lines(joined(payloads, b"\n"))
        if len(found) != len(payloads):
            raise UnreadableError("not exactly one object")
        return found

    def _framed_rows(self, payloads: pa.BinaryArray) -> list[Any]:
        """Framed by a number that their authors cannot know: spaces around objects are fine."""
        frame = randbits(62)
        text = b"".join((b"[", joined(payloads, b",%d," % frame), b"]"))
        found = self._framed.decode(text)
        rows = found[::2]
        if len(found) != 2 * len(payloads) - 1 or found[1::2] != [frame] * (len(payloads) - 1):
            raise UnreadableError("not exactly one object")
        if not all(type(row) is self._row for row in rows):
            raise UnreadableError("not an object")
        return rows


def joined(payloads: pa.BinaryArray, separator: bytes) -> pa.Buffer:
    """Whole at a time; the offsets of `payloads` may start anywhere."""
    lists = pa.ListArray.from_arrays(pa.array([0, len(payloads)], pa.int32()), payloads)
    return pc.binary_join(lists, separator).buffers()[2] or pa.py_buffer(b"")


def _look_like_objects(payloads: pa.BinaryArray) -> bool:
    """Whether each begins and ends as an object does."""
    _, offsets, data = payloads.buffers()
    bounds = np.frombuffer(offsets, np.int32)[payloads.offset :][: len(payloads) + 1]
    if np.diff(bounds).min() < len("{}"):
        return False
    text = np.frombuffer(data, np.uint8)
    begins, ends = text[bounds[:-1]], text[bounds[1:] - 1]
    return bool((begins == _BRACE).all() and (ends == _CLOSING_BRACE).all())


def _python_type(kind: pa.DataType) -> type | None:
    if pa.types.is_boolean(kind):
        return bool
    if pa.types.is_integer(kind):
        return int
    if pa.types.is_floating(kind):
        return float
    is_text = pa.types.is_string(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    return str if is_text else None


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return _timestamps(pa.array(values, pa.string()), kind)
    if pa.types.is_date(kind):
        return pa.array(values, pa.string()).cast(kind)
    return pa.array(values, kind)


def _timestamps(texts: pa.Array, kind: pa.TimestampType) -> pa.Array:
    """A time without a zone is UTC. Where some have one and some have none, neither way works:
    the block is then halved until each part is of one sort."""
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        return texts.cast(pa.timestamp(kind.unit)).view(kind)


_BLOCK_BYTES_MIN = 1 << 16


class _Object(msgspec.Struct):
    """Any object: the names of its fields do not matter here."""


_FRAMED = msgspec.json.Decoder(list[_Object | int])
_FAR_OFF = rf"[0-9.][eE][+-]?[0-9]{{3,}}|[0-9]{{{DIGITS_MAX},}}"
_NUMBERS = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)
_FIELDS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


class JsonDecoder:
    """One row per payload, which must be one object."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._with_rest = REST in schema.names
        fields = [each for each in schema if each.name != REST]
        self._names = frozenset(each.name for each in fields)
        self._slow = [each for each in fields if _needs_rows(each.type)]
        quick = [each for each in fields if not _needs_rows(each.type)]
        self._quick = pa.schema(quick)
        self._read_as = pa.schema([each.with_type(_read_as(each.type)) for each in quick])
        self._decimals = {each.name: each.type for each in fields if _has_decimals(each.type)}
        self._converters: list[Converter] = [converter(each.type) for each in self._slow]
        self._rows = _row_decoder(self._slow)
        flat = bool(fields) and not self._with_rest and all(is_flat(each.type) for each in fields)
        self._read = FlatDecoder(schema).read if flat else self._read_any

    def __call__(self, payloads: pa.BinaryArray) -> Decoded:
        return halve(payloads, self._schema, self._read)

    def _read_any(self, payloads: pa.BinaryArray) -> pa.Table:
        try:
            payloads.cast(pa.string())
        except pa.ArrowInvalid:
            raise UnreadableError("not UTF-8 text") from None
        _check_framing(payloads)
        if self._decimals:
            _check_decimals(payloads, self._decimals)
        lines = joined(payloads, b"\n")
        columns: dict[str, Any] = {}
        if self._with_rest:
            quick = self._parse(lines, len(payloads), unknown="error", none_if_unknown=True)
            if quick is None:
                columns[REST] = self._rest(payloads)
            else:
                columns[REST] = pa.nulls(len(payloads), self._schema.field(REST).type)
        else:
            quick = None
        if quick is None:
            quick = self._parse(lines, len(payloads), unknown="ignore")
        assert quick is not None
        columns.update(zip(quick.column_names, quick.columns, strict=True))
        if self._slow:
            columns.update(self._slow_columns(payloads))
        return pa.Table.from_arrays(
            [columns[name] for name in self._schema.names], schema=self._schema
        )

    def _parse(
        self, lines: pa.Buffer, count: int, *, unknown: str, none_if_unknown: bool = False
    ) -> pa.Table | None:
        if not len(self._read_as):
            if none_if_unknown:
                return None
            return pa.table({"_": pa.nulls(count)}).select([])
        try:
            table = pyarrow.json.read_json(
                pa.BufferReader(lines),
                pyarrow.json.ReadOptions(
                    use_threads=False, block_size=max(_BLOCK_BYTES_MIN, lines.size + 1)
                ),
                pyarrow.json.ParseOptions(
                    explicit_schema=self._read_as, unexpected_field_behavior=unknown
                ),
            ).select(self._read_as.names)
            if table.num_rows != count:
                raise UnreadableError("not exactly one object")
            return table.cast(self._quick) if self._quick != self._read_as else table
        except pa.ArrowInvalid as error:
            if none_if_unknown:
                return None
            raise UnreadableError(str(error)) from None

    def _slow_columns(self, payloads: pa.BinaryArray) -> dict[str, pa.Array]:
        try:
            rows = self._rows.decode(_array(payloads, b","))
        except (msgspec.DecodeError, RecursionError) as error:
            raise UnreadableError(str(error)) from None
        found = {}
        for i, (each, convert) in enumerate(zip(self._slow, self._converters, strict=True)):
            values = [getattr(row, f"c{i}") for row in rows]
            found[each.name] = to_array(values, convert, each)
        return found

    def _rest(self, payloads: pa.BinaryArray) -> pa.Array:
        """The fields that the schema does not name, as one object; null where there are none."""
        texts = []
        for fields in _FIELDS.decode(_array(payloads, b",")):
            rest = {name: value for name, value in fields.items() if name not in self._names}
            texts.append(msgspec.json.encode(rest).decode() if rest else None)
        return pa.array(texts, self._schema.field(REST).type)


def _check_framing(payloads: pa.BinaryArray) -> None:
    """Whether each payload is exactly one object: between two frames stands one object."""
    frame = randbits(62)
    text = _array(payloads, b",%d," % frame)
    try:
        found = _FRAMED.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UnreadableError(str(error)) from None
    if len(found) != 2 * len(payloads) - 1 or found[1::2].count(frame) != len(payloads) - 1:
        raise UnreadableError("not exactly one object")
    if set(map(type, found[::2])) != {_Object}:
        raise UnreadableError("not an object")


def _check_decimals(payloads: pa.BinaryArray, kinds: dict[str, pa.DataType]) -> None:
    """Whether Arrow may be asked to convert them; few texts look as if not, and those are read."""
    suspects = pc.match_substring_regex(payloads, _FAR_OFF)
    if not pc.any(suspects).as_py():
        return
    for payload in payloads.filter(suspects).to_pylist():
        try:
            row = _NUMBERS.decode(payload)
            for name, kind in kinds.items():
                _check_decimal(row.get(name), kind)
        except (msgspec.DecodeError, RecursionError, ValueError, ArithmeticError) as error:
            raise UnreadableError(str(error)) from None


def _check_decimal(value: Any, kind: pa.DataType) -> None:
    """What does not fit the type is found elsewhere."""
    if pa.types.is_decimal(kind):
        if isinstance(value, str | int | Decimal) and not isinstance(value, bool):
            parse_decimal(value)
    elif pa.types.is_struct(kind) and isinstance(value, dict):
        for each in kind:
            _check_decimal(value.get(each.name), each.type)
    elif pa.types.is_list(kind) and isinstance(value, list):
        for item in value:
            _check_decimal(item, kind.value_type)


def _has_decimals(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) or any(
        _has_decimals(kind.field(i).type) for i in range(kind.num_fields)
    )


def _array(payloads: pa.BinaryArray, separator: bytes) -> bytes:
    """One JSON array of them."""
    return b"".join((b"[", joined(payloads, separator), b"]"))


def _row_decoder(fields: list[pa.Field]) -> msgspec.json.Decoder[list[Any]]:
    """A list of objects of which only these fields are kept, as attributes c0, c1, ..."""
    names = {f"c{i}": each.name for i, each in enumerate(fields)}
    row = msgspec.defstruct("Row", [(name, Any, None) for name in names], rename=names)
    return msgspec.json.Decoder(list[row])  # type: ignore[valid-type]  # made at run time


def _needs_rows(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind) or pa.types.is_binary(kind):
        return True
    return any(_needs_rows(kind.field(i).type) for i in range(kind.num_fields))


def _read_as(kind: pa.DataType) -> pa.DataType:
    """What Arrow reads a column as, before it is cast."""
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_read_as(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_read_as(kind.value_type)))
    if not (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_timestamp(kind)
    ):
        raise ConfigError(f"payloadFormat=json cannot read a column of type {kind}")
    return kind
