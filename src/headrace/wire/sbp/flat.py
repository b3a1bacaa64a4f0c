"""FlatBuffers for the header tables, driven by the field declarations of the message classes.

A header is one plain root table: u32 offset of the table, no identifier, no size prefix, all
integers little-endian.

    table    i32 distance back to its vtable, then the inline fields
    vtable   u16 bytes of the vtable, u16 bytes of the table, u16 position per field id (0 = absent)
    string   u32 length, UTF-8 bytes, NUL; octets are the same without NUL
    vector   u32 count, then i64 values, or u32 offsets of tables

An offset counts from the field that holds it. Writing goes front to back: vtable, table, then what
the table refers to; equal vtables are shared. A table starts 4 bytes after a multiple of 8, so its
8-byte fields, which stand first, are aligned as strict readers want. A scalar that equals its
default, an empty string and an empty vector are left out. We read any alignment.

Reading trusts nothing. Every position is checked against the buffer, fields may not overlap,
unknown fields are skipped. Offsets may point many times at one subtable, so the work is counted: a
buffer whose parts are its own pays no more than its length, and about twice the length is where we
stop. The depth is that of the message classes, which refer to no class above themselves.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from operator import attrgetter, itemgetter, ne
from typing import Any, TypeAlias, TypeVar, dataclass_transform

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.sbp import header_cache

Buffer: TypeAlias = bytes | bytearray | memoryview


class Message:
    """Base of every header table."""

    __slots__ = ()


M = TypeVar("M", bound=Message)


@dataclass_transform(frozen_default=True)
def message(cls: type[M]) -> type[M]:
    """Declares a header table: a dataclass that nobody changes.

    That is left to the type checker: a dataclass that is frozen at run time takes several times as
    long to make, and a few are made for every request.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


class Kind(Enum):
    BOOL = auto()
    I8 = auto()
    I16 = auto()
    I32 = auto()
    I64 = auto()
    STRING = auto()
    OCTETS = auto()
    TABLE = auto()
    TABLES = auto()
    I64_VECTOR = auto()


@dataclass(frozen=True, slots=True)
class FlatField:
    id: int
    kind: Kind
    default: int = 0
    written: bool = False  # write the field even when it holds its default
    table: type[Message] | None = None


def _field(spec: FlatField, default: object) -> Any:
    return field(default=default, metadata={"flat": spec})


def boolean(id: int) -> Any:
    return _field(FlatField(id, Kind.BOOL), False)


def i8(id: int, default: int = 0) -> Any:
    return _field(FlatField(id, Kind.I8, default), default)


def i16(id: int, default: int = 0) -> Any:
    return _field(FlatField(id, Kind.I16, default), default)


def i32(id: int, default: int = 0, *, written: bool = False) -> Any:
    return _field(FlatField(id, Kind.I32, default, written), default)


def i64(id: int, default: int = 0, *, written: bool = False) -> Any:
    return _field(FlatField(id, Kind.I64, default, written), default)


def string(id: int) -> Any:
    return _field(FlatField(id, Kind.STRING), "")


def octets(id: int) -> Any:
    return _field(FlatField(id, Kind.OCTETS), b"")


def table(id: int, of: type[Message]) -> Any:
    return _field(FlatField(id, Kind.TABLE, table=of), None)


def tables(id: int, of: type[Message]) -> Any:
    return _field(FlatField(id, Kind.TABLES, table=of), ())


def i64_vector(id: int) -> Any:
    return _field(FlatField(id, Kind.I64_VECTOR), ())


_SCALARS = {
    Kind.BOOL: ("?", 1),
    Kind.I8: ("b", 1),
    Kind.I16: ("h", 2),
    Kind.I32: ("i", 4),
    Kind.I64: ("q", 8),
}
_REFERENCE = ("I", 4)
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_VTABLE_HEAD = struct.Struct("<HH")
_WRITE_LAYOUTS_MAX = 1024  # per class; few sets of present fields occur, but values are not ours
_READ_LAYOUTS_MAX = 64  # per class; a writer uses a handful
_WORK_FACTOR = 2
_WORK_FREE = 4096  # lets the smallest header teach us its vtables
_REFERENCE_WORK = 8  # an offset and what stands first where it points
_LAYOUT_WORK = 64  # a vtable not seen before costs as much time as this many bytes
_PADDING = tuple(bytes(n) for n in range(8))
_ABSENT: dict[Kind, object] = {
    Kind.STRING: "",
    Kind.OCTETS: b"",
    Kind.TABLE: None,
    Kind.TABLES: (),
    Kind.I64_VECTOR: (),
}


class _Never:
    """Equals nothing: stands for the default of a field that is always written."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]  # never a key


@dataclass(frozen=True, slots=True)
class _WriteLayout:
    """How a table looks when a given set of its fields is present."""

    vtable: bytes
    inline: struct.Struct  # distance to the vtable, then the scalars; references are left zero
    scalars: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    references: tuple[tuple[int, int, FlatField], ...]  # position in the table, index, field


@dataclass(frozen=True, slots=True)
class _ReadLayout:
    """What one vtable says about the fields that we know."""

    table_bytes: int
    inline: struct.Struct
    arrange: Callable[[list[Any]], tuple[Any, ...]]
    references: tuple[tuple[int, int, FlatField], ...]  # position in the table, index, field


class _Plan:
    """Everything worked out once per message class."""

    def __init__(self, cls: type[Message]) -> None:
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # every message is a dataclass
        self.cls = cls
        self.specs: tuple[FlatField, ...] = tuple(f.metadata["flat"] for f in fields)
        self.defaults = tuple(_ABSENT.get(s.kind, s.default) for s in self.specs)
        self.omitted = tuple(
            _Never() if s.written else default
            for s, default in zip(self.specs, self.defaults, strict=True)
        )
        self.values = _tuple_getter(attrgetter, [f.name for f in fields])
        self.vtable_bytes = 4 + 2 * (1 + max((s.id for s in self.specs), default=-1))
        self.write_layouts: dict[tuple[bool, ...], _WriteLayout] = {}
        self.read_layouts: dict[bytes, _ReadLayout] = {}
        self.templates: dict[int, header_cache.HeaderTemplate | None] = {}  # by bytes of the header
        self.learned = 0

    def write_layout(self, present: tuple[bool, ...]) -> _WriteLayout:
        layout = self.write_layouts.get(present)
        if layout is None:
            if len(self.write_layouts) >= _WRITE_LAYOUTS_MAX:
                self.write_layouts.clear()
            layout = self.write_layouts[present] = self._make_write_layout(present)
        return layout

    def _make_write_layout(self, present: tuple[bool, ...]) -> _WriteLayout:
        indexes = [i for i, here in enumerate(present) if here]
        indexes.sort(key=lambda i: (-_inline_of(self.specs[i])[1], i))
        count = max((self.specs[i].id for i in indexes), default=-1) + 1
        entries = [0] * count
        position = 4
        code = "<i"
        scalars: list[int] = []
        references: list[tuple[int, int, FlatField]] = []
        for i in indexes:
            spec = self.specs[i]
            letter, size = _inline_of(spec)
            entries[spec.id] = position
            if spec.kind in _SCALARS:
                code += letter
                scalars.append(i)
            else:
                code += f"{size}x"
                references.append((position, i, spec))
            position += size
        vtable = struct.pack(f"<HH{count}H", 4 + 2 * count, position, *entries)
        return _WriteLayout(
            vtable, struct.Struct(code), _tuple_getter(itemgetter, scalars), tuple(references)
        )

    def make_read_layout(self, entries_known: bytes) -> _ReadLayout:
        """From a vtable without its first u16 and without the fields that we do not know."""
        table_bytes, *entries = struct.unpack(f"<{len(entries_known) // 2}H", entries_known)
        present = sorted(
            (entries[spec.id], i)
            for i, spec in enumerate(self.specs)
            if spec.id < len(entries) and entries[spec.id]
        )
        position = 4
        code = "<4x"
        slots = {i: len(present) + i for i in range(len(self.specs))}  # absent: from the defaults
        references: list[tuple[int, int, FlatField]] = []
        for slot, (start, i) in enumerate(present):
            letter, size = _inline_of(self.specs[i])
            if start < position:
                raise RemoteProtocolError("fields of a table overlap")
            code += f"{start - position}x{letter}"
            position = start + size
            slots[i] = slot
            if self.specs[i].kind not in _SCALARS:
                references.append((start, slot, self.specs[i]))
        if position > table_bytes:
            raise RemoteProtocolError("field outside its table")
        order = [slots[i] for i in range(len(self.specs))]
        layout = _ReadLayout(
            table_bytes, struct.Struct(code), _tuple_getter(itemgetter, order), tuple(references)
        )
        if len(self.read_layouts) >= _READ_LAYOUTS_MAX:
            self.read_layouts.clear()
        self.read_layouts[entries_known] = layout
        return layout


def _inline_of(spec: FlatField) -> tuple[str, int]:
    return _SCALARS.get(spec.kind, _REFERENCE)


def _tuple_getter(getter: Any, keys: list[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """`attrgetter` or `itemgetter` that gives a tuple whatever the number of keys."""
    if not keys:
        return lambda _: ()
    get = getter(*keys)
    return get if len(keys) > 1 else lambda source: (get(source),)


_plans: dict[type[Message], _Plan] = {}  # worked out at first use; classes are few and fixed


def _plan(cls: type[Message]) -> _Plan:
    plan = _plans.get(cls)
    if plan is None:
        plan = _plans[cls] = _Plan(cls)
    return plan


def encode(message: Message) -> bytes:
    """The message as a FlatBuffer. LocalProtocolError when a value does not fit its field."""
    out = bytearray(4)
    try:
        root = _write_table(out, message, {})
    except (struct.error, UnicodeEncodeError) as error:
        name = type(message).__name__
        raise LocalProtocolError(f"{name} holds a value its field cannot carry") from error
    _U32.pack_into(out, 0, root)
    return bytes(out)


def _write_table(out: bytearray, message: Message, vtables: dict[bytes, int]) -> int:
    plan = _plan(type(message))
    values = plan.values(message)
    layout = plan.write_layout(tuple(map(ne, values, plan.omitted)))
    vtable = vtables.get(layout.vtable)
    if vtable is None:
        out += _PADDING[-len(out) % 2]
        vtable = vtables[layout.vtable] = len(out)
        out += layout.vtable
    out += _PADDING[(4 - len(out)) % 8]
    table = len(out)
    out += layout.inline.pack(table - vtable, *layout.scalars(values))
    for position, index, spec in layout.references:
        target = _write_reference(out, values[index], spec, vtables)
        _U32.pack_into(out, table + position, target - table - position)
    return table


def _write_reference(out: bytearray, value: Any, spec: FlatField, vtables: dict[bytes, int]) -> int:
    if spec.kind is Kind.TABLE:
        return _write_table(out, value, vtables)
    if spec.kind is Kind.I64_VECTOR:
        out += _PADDING[(4 - len(out)) % 8]
        position = len(out)
        out += struct.pack(f"<I{len(value)}q", len(value), *value)
        return position
    out += _PADDING[-len(out) % 4]
    position = len(out)
    if spec.kind is Kind.TABLES:
        out += _U32.pack(len(value)) + bytes(4 * len(value))
        for slot, item in enumerate(value, start=1):
            target = _write_table(out, item, vtables)
            here = position + 4 * slot
            _U32.pack_into(out, here, target - here)
    elif spec.kind is Kind.STRING:
        text = value.encode()
        out += _U32.pack(len(text)) + text + b"\0"
    else:
        out += _U32.pack(len(value)) + value
    return position


def decode(cls: type[M], data: Buffer) -> M:
    """Read a `cls` from bytes that may be anything; RemoteProtocolError when they are not one."""
    if len(data) < 4:
        raise RemoteProtocolError("header too short for a FlatBuffer", bytes=len(data))
    plan = _plan(cls)
    template = plan.templates.get(len(data))
    message: M
    if template is not None and isinstance(data, bytes):
        message = template.read(data)
        if message is not None:
            return message
    reader = _Reader(data)
    (root,) = _U32.unpack_from(data)
    message = reader.table(cls, root)
    if len(data) <= header_cache.HEADER_BYTES_MAX and plan.learned < header_cache.LEARNED_MAX:
        _learn(plan, bytes(data), root)
    return message


def _learn(plan: _Plan, data: bytes, root: int) -> None:
    """Keep a template of the header that was just read, in place of the last of its length."""
    plan.learned += 1
    if len(plan.templates) >= header_cache.TEMPLATES_MAX:
        plan.templates.clear()
    structure = [(0, 4)]
    try:
        plan.templates[len(data)] = header_cache.HeaderTemplate(
            _trace(plan, data, root, structure), structure, data
        )
    except ValueError:
        plan.templates[len(data)] = None


def _trace(
    plan: _Plan, data: bytes, position: int, structure: list[tuple[int, int]]
) -> header_cache.TableTrace:
    """Where everything in a good table stands. ValueError when not all of it is scalars."""
    vtable = position - _I32.unpack_from(data, position)[0]
    vtable_bytes, _ = _VTABLE_HEAD.unpack_from(data, vtable)
    structure += [(position, position + 4), (vtable, vtable + vtable_bytes)]
    entries = struct.unpack_from(f"<{vtable_bytes // 2 - 2}H", data, vtable + 4)
    arguments: list[Any] = []
    for spec, default in zip(plan.specs, plan.defaults, strict=True):
        start = position + entries[spec.id] if spec.id < len(entries) and entries[spec.id] else 0
        letter, size = _inline_of(spec)
        if not start:
            arguments.append(header_cache.Constant(default))
        elif spec.kind in _SCALARS:
            arguments.append(header_cache.Scalar(start, letter, size))
        elif spec.table is None:
            raise ValueError("of any length")
        else:
            structure.append((start, start + size))
            target = start + _U32.unpack_from(data, start)[0]
            arguments.append(_trace_tables(spec, data, target, structure))
    return header_cache.TableTrace(plan.cls, arguments)


def _trace_tables(
    spec: FlatField, data: bytes, position: int, structure: list[tuple[int, int]]
) -> header_cache.TableTrace | list[header_cache.TableTrace]:
    assert spec.table is not None
    plan = _plan(spec.table)
    if spec.kind is Kind.TABLE:
        return _trace(plan, data, position, structure)
    (count,) = _U32.unpack_from(data, position)
    starts = range(position + 4, position + 4 + 4 * count, 4)
    structure.append((position, position + 4 + 4 * count))
    return [
        _trace(plan, data, start + _U32.unpack_from(data, start)[0], structure) for start in starts
    ]


class _Reader:
    """One decoding: the buffer, and how much work it may still cause."""

    __slots__ = ("data", "end", "work")

    def __init__(self, data: Buffer) -> None:
        self.data = data if isinstance(data, bytes) else memoryview(data)
        self.end = len(data)
        self.work = _WORK_FACTOR * self.end + _WORK_FREE

    def table(self, cls: type[Message], position: int) -> Any:
        self._spend(_REFERENCE_WORK)
        data, end = self.data, self.end
        if position + 4 > end:
            raise RemoteProtocolError("table outside the header")
        vtable = position - _I32.unpack_from(data, position)[0]
        if not 0 <= vtable <= end - 4:
            raise RemoteProtocolError("vtable outside the header")
        vtable_bytes, _ = _VTABLE_HEAD.unpack_from(data, vtable)
        if vtable_bytes < 4 or vtable_bytes % 2 or vtable + vtable_bytes > end:
            raise RemoteProtocolError("vtable of an impossible length", bytes=vtable_bytes)
        plan = _plan(cls)
        known = bytes(data[vtable + 2 : vtable + min(vtable_bytes, plan.vtable_bytes)])
        layout = plan.read_layouts.get(known)
        if layout is None:
            self._spend(_LAYOUT_WORK)
            layout = plan.make_read_layout(known)
        if position + layout.table_bytes > end:
            raise RemoteProtocolError("table ends outside the header")
        values: list[Any] = list(layout.inline.unpack_from(data, position))
        for start, slot, spec in layout.references:
            values[slot] = self._reference(position + start + values[slot], spec)
        values += plan.defaults
        return cls(*layout.arrange(values))

    def _reference(self, position: int, spec: FlatField) -> Any:
        if spec.table is not None and spec.kind is Kind.TABLE:
            return self.table(spec.table, position)
        self._spend(_REFERENCE_WORK)
        data = self.data
        start = position + 4
        if start > self.end:
            raise RemoteProtocolError("vector outside the header")
        (count,) = _U32.unpack_from(data, position)
        item_bytes = 4 if spec.kind is Kind.TABLES else 8 if spec.kind is Kind.I64_VECTOR else 1
        if count * item_bytes > self.end - start:
            raise RemoteProtocolError("vector longer than the header", count=count)
        if spec.table is not None:
            offsets = struct.unpack_from(f"<{count}I", data, start)
            table, of = self.table, spec.table
            return tuple([table(of, start + 4 * i + offset) for i, offset in enumerate(offsets)])
        self._spend(count * item_bytes)
        if spec.kind is Kind.I64_VECTOR:
            return struct.unpack_from(f"<{count}q", data, start)
        octets = bytes(data[start : start + count])
        if spec.kind is Kind.OCTETS:
            return octets
        try:
            return octets.decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError("string is not UTF-8") from error

    def _spend(self, work: int) -> None:
        self.work -= work
        if self.work < 0:
            raise RemoteProtocolError("header refers to its parts too many times")
