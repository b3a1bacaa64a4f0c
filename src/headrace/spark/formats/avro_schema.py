"""An Avro schema as a tree of types, and as the plain schema that fastavro reads and writes by.

The tree tells which columns a schema fits. The plain schema has neither logical types nor enums:
timestamps, dates, decimals and symbols are the numbers and bytes that they are made of. fastavro
would make Python objects of them, at a cost that a payload decides, and would take the symbol -1
for the last one. What a payload could use to take memory or the process down is refused here: a
type inside itself (fastavro reads it by recursion in C), arrays of items without bytes (a count
alone would make them), and nesting deeper than `DEPTH_MAX`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from fastavro import parse_schema
from fastavro.schema import SchemaParseException, UnknownType

from headrace.errors import ConfigError

DEPTH_MAX = 64
_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_ITEMS = {"array": "items", "map": "values"}
_MICROSECONDS = {"millis": 1000, "micros": 1}  # of one unit


@dataclass(frozen=True, slots=True)
class AvroType:
    """One type of a schema."""

    kind: str
    """Avro's type, or the logical type where it is one of those that are understood."""
    plain: Any
    """The type as fastavro takes it."""
    has_bytes: bool = True
    """Whether every value takes at least one byte."""
    fields: dict[str, AvroType] = field(default_factory=dict)
    items: AvroType | None = None
    branches: tuple[AvroType, ...] = ()
    symbols: tuple[str, ...] = ()
    scale: int = 0
    size: int = 0
    """Bytes of a fixed decimal; 0: as many as it takes."""
    unit_us: int = 1
    """Microseconds of one unit of a timestamp."""

    @property
    def nullable(self) -> bool:
        return self.kind == "null" or any(each.kind == "null" for each in self.branches)

    def solid(self) -> AvroType:
        """Give the type without the choice to be null."""
        others = [each for each in self.branches if each.kind != "null"]
        return others[0] if len(others) == 1 else self


def parse_record(text: str) -> tuple[AvroType, Any]:
    """Give the tree of a record's schema, and the schema for fastavro's reader and writer.

    ConfigError unless it is the schema of a record that can be read.
    """
    try:
        found = _Parser().parse(json.loads(text), 0)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"avroSchema is not JSON: {error}") from None
    if found.kind != "record":
        raise ConfigError(f"avroSchema must be a record, it is {found.kind}")
    try:
        parsed = parse_schema(found.plain)
    except (SchemaParseException, UnknownType) as error:
        raise ConfigError(f"avroSchema: {error}") from None
    return found, parsed


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}
        self._names = 0

    def parse(self, schema: Any, depth: int) -> AvroType:
        if depth > DEPTH_MAX:
            raise ConfigError(f"avroSchema is nested deeper than {DEPTH_MAX}")
        if isinstance(schema, list):
            branches = tuple(self.parse(each, depth + 1) for each in schema)
            return AvroType("union", [each.plain for each in branches], branches=branches)
        if isinstance(schema, str):
            schema = {"type": schema}
        kind = schema.get("type") if isinstance(schema, dict) else None
        if isinstance(kind, dict | list):
            return self.parse(kind, depth + 1)
        if kind in _PRIMITIVES:
            return _logical(AvroType(kind, kind, has_bytes=kind != "null"), schema)
        if kind in _ITEMS:
            item = self.parse(schema.get(_ITEMS[kind]), depth + 1)
            if kind == "array" and not item.has_bytes:
                raise ConfigError("avroSchema has an array of items without bytes")
            return AvroType(kind, {"type": kind, _ITEMS[kind]: item.plain}, items=item)
        if kind in ("record", "enum", "fixed"):
            return self._define(kind, schema, depth)
        if kind in self._named:
            return self._named[kind]
        raise ConfigError(f"avroSchema has a type that is not known before its use: {kind!r}")

    def _define(self, kind: str, schema: dict[str, Any], depth: int) -> AvroType:
        """Define a named type; fastavro gets a name of our own, which is never missing or twice."""
        self._names += 1
        plain: dict[str, Any] = {"type": kind, "name": f"named_{self._names}"}
        again: Any = plain["name"]
        if kind == "record":
            made = self._record(plain, schema.get("fields"), depth)
        elif kind == "enum":
            made = AvroType(kind, again := "int", symbols=_symbols(schema.get("symbols")))
        else:
            plain["size"] = size = schema.get("size")
            if type(size) is not int or size < 1:
                raise ConfigError(f"avroSchema has a fixed type of {size!r} bytes")
            made = _logical(AvroType(kind, plain, size=size), schema)
        name, space = schema.get("name"), schema.get("namespace")
        if isinstance(name, str):
            self._named[name] = self._named[f"{space}.{name}"] = replace(made, plain=again)
        return made

    def _record(self, plain: dict[str, Any], fields: Any, depth: int) -> AvroType:
        if not isinstance(fields, list) or not all(
            isinstance(each, dict) and isinstance(each.get("name"), str) for each in fields
        ):
            raise ConfigError("a record in avroSchema has no list of named fields")
        parts = {each["name"]: self.parse(each, depth + 1) for each in fields}
        plain["fields"] = [{"name": name, "type": each.plain} for name, each in parts.items()]
        return AvroType(
            "record", plain, has_bytes=any(each.has_bytes for each in parts.values()), fields=parts
        )


def _symbols(found: Any) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ConfigError("an enum in avroSchema has no symbols")
    return tuple(found)


def _logical(made: AvroType, schema: dict[str, Any]) -> AvroType:
    """Logical types that are not understood count as what they are made of, as Avro asks."""
    logical = schema.get("logicalType")
    if not isinstance(logical, str):
        return made
    if logical == "date" and made.kind == "int":
        return replace(made, kind="date")
    base, _, unit = logical.rpartition("-")
    if made.kind == "long" and base in ("timestamp", "local-timestamp") and unit in _MICROSECONDS:
        return replace(made, kind=base, unit_us=_MICROSECONDS[unit])
    if logical == "decimal" and made.kind in ("bytes", "fixed"):
        scale = schema.get("scale", 0)
        if type(scale) is not int or scale < 0:
            raise ConfigError(f"avroSchema has a decimal of scale {scale!r}")
        return replace(made, kind="decimal", scale=scale)
    return made


def with_checked_unions(parsed: Any) -> Any:
    """Give a copy of a parsed schema by which fastavro refuses the branches that a union lacks."""
    if isinstance(parsed, list):
        return _CheckedUnion([with_checked_unions(each) for each in parsed])
    if not isinstance(parsed, dict):
        return parsed
    return {
        key: [with_checked_unions(each) for each in value]
        if key == "fields"
        else with_checked_unions(value)
        for key, value in parsed.items()
    }


class _CheckedUnion(list[Any]):
    """A union for reading: a list, as fastavro wants it, that is asked for each branch.

    fastavro's C code would take the index -1 out of a payload for the last branch. It looks into a
    list by itself only where there is an item, so this one is empty and has its branches aside.
    """

    def __init__(self, branches: list[Any]) -> None:
        super().__init__()
        self._branches = branches

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self._branches):
            raise ValueError(f"a union has no branch {index}")
        return self._branches[index]
