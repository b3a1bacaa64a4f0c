"""The tables of the Wireshark dissectors, from the ones the codecs use.

Written by `python -m tests.generated_pages`, which also checks that the file is up to date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import IntEnum
from typing import Any

PATH = "src/headrace/cli/wireshark/headrace_tables.lua"

_HEAD = """-- Names, codes and layouts of the three protocols.
-- Generated from src/headrace/wire by `python -m tests.generated_pages`; do not edit.
"""
_WORD = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_LUA_WORDS = frozenset(("end", "function", "repeat", "local", "not", "nil", "in", "return"))


def text() -> str:
    tables = {"sbp": sbp(), "iggy": iggy(), "umbilical": umbilical()}
    return f"{_HEAD}return {_lua(tables, 0)}\n"


def _lua(value: Any, depth: int) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        return "{" + ", ".join(_lua(each, depth + 1) for each in value) + "}"
    assert isinstance(value, Mapping)
    items = [f"{_key(key)} = {_lua(each, depth + 1)}" for key, each in value.items()]
    flat = "{" + ", ".join(items) + "}"
    if depth > 1 and len(flat) + 2 * depth < 110:
        return flat
    indent = "  " * (depth + 1)
    return "{\n" + "".join(f"{indent}{each},\n" for each in items) + "  " * depth + "}"


def _key(key: Any) -> str:
    if isinstance(key, int):
        return f"[{int(key)}]"
    return key if _WORD.match(key) and key not in _LUA_WORDS else f'["{key}"]'


def _named(kind: type[IntEnum]) -> dict[int, str]:
    return {int(each): each.name for each in kind}


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def sbp() -> dict[str, Any]:
    from headrace.wire.sbp import messages
    from headrace.wire.sbp.errors import StatusCode
    from headrace.wire.sbp.opcodes import TABLE

    tables: dict[str, Any] = {}
    for name, kind in vars(messages).items():
        if not isinstance(kind, type) or not issubclass(kind, messages.Message):
            continue
        if kind is messages.Message:
            continue
        rows: dict[int, Any] = {}
        for field in fields(kind):  # type: ignore[arg-type]  # every message is a dataclass
            flat = field.metadata["flat"]
            rows[flat.id] = {"name": field.name, "kind": flat.kind.name.lower()}
            if flat.table is not None:
                rows[flat.id]["table"] = flat.table.__name__
        tables[name] = {"filter": snake(name), "fields": rows}
    opcodes: dict[int, Any] = {}
    for row in TABLE.values():
        described: dict[str, Any] = {"name": row.name}
        if row.request is not None:
            described["request"] = row.request.__name__
        if row.response is not None:
            described["response"] = row.response.__name__
        opcodes[int(row.code)] = described
    return {"opcodes": opcodes, "status": _named(StatusCode), "tables": tables}


def _codec_names() -> dict[int, str]:
    from headrace.wire.iggy import fields as wire
    from headrace.wire.iggy import primitives

    kinds: dict[str, Any] = {
        "u8": wire.U8, "u32": wire.U32, "u64": wire.U64, "f32": wire.F32, "flag": wire.Flag,
        "str8": wire.Str8, "str32": wire.Str32, "id": wire.Id, "partition": wire.Partition,
        "requested_id": wire.RequestedId, "optional_partition": wire.OptionalPartition,
        "classic_u8": wire.ClassicU8, "classic_u64": wire.ClassicU64,
        "reference": primitives.Reference, "consumer": primitives.ConsumerField,
        "strategy": primitives.StrategyField,
    }  # fmt: skip
    return {id(alias.__metadata__[0]): name for name, alias in kinds.items()}


_ONE_BYTE = {"compression": "classic_u8"}  # an enumeration, told as its number


def _layout_of(kind: type, names: Mapping[int, str]) -> Iterator[list[str]]:
    """The fields up to the first that the dissector knows no layout for."""
    from headrace.wire.iggy.fields import Body, _layout

    if not issubclass(kind, Body):
        return
    for name, codec in _layout(kind):
        layout = names.get(id(codec)) or _ONE_BYTE.get(name)
        if layout is None:
            return
        yield [name, layout]


def iggy() -> dict[str, Any]:
    from headrace.wire.iggy.commands import TABLE
    from headrace.wire.iggy.detection import _CONSUMER_COMMANDS, _NAMED
    from headrace.wire.iggy.dialects import _CRATES, _RELEASES
    from headrace.wire.iggy.errors import Status
    from headrace.wire.iggy.primitives import ConsumerKind, PartitioningKind, StrategyKind
    from headrace.wire.iggy.vsr import frames

    names = _codec_names()
    commands: dict[int, Any] = {}
    for row in TABLE.values():
        commands[row.code] = {
            "name": row.name,
            "request": list(_layout_of(row.request, names)),
            "response": list(_layout_of(row.response, names)),
        }
    return {
        "commands": commands,
        "status": _named(Status),
        "versions": {version: dialect.name for version, dialect in _CRATES.items()},
        "releases": {version: dialect.name for version, dialect in _RELEASES.items()},
        "consumer_tails": _CONSUMER_COMMANDS,
        "named": _NAMED,
        "operations": frames.OPERATIONS,
        "results": dict.fromkeys(sorted(frames.RESULTS), True),
        "evictions": _named(frames.Eviction),
        "consumers": _named(ConsumerKind),
        "partitionings": _named(PartitioningKind),
        "strategies": _named(StrategyKind),
    }


def umbilical() -> dict[str, Any]:
    from headrace.wire.umbilical._generated import hadoop_rpc_pb2, umbilical_pb2
    from headrace.wire.umbilical.codec import TABLE

    messages: dict[str, Any] = {}
    enums: dict[str, Any] = {}
    for module in (hadoop_rpc_pb2, umbilical_pb2):
        for described in module.DESCRIPTOR.message_types_by_name.values():
            _describe(described, messages, enums)
    methods = umbilical_pb2.DESCRIPTOR.services_by_name["StreamingContainerUmbilicalProtocol"]
    calls = {
        name: {
            "request": _short(methods.methods_by_name[name].input_type.full_name),
            "response": _short(methods.methods_by_name[name].output_type.full_name),
        }
        for name in TABLE
    }
    return {"calls": calls, "messages": messages, "enums": enums}


def _short(full_name: str) -> str:
    return full_name.removeprefix("headrace.umbilical.").removeprefix("headrace.hadoop.")


def _describe(described: Any, messages: dict[str, Any], enums: dict[str, Any]) -> None:
    kinds = {
        number: name.removeprefix("TYPE_").lower()
        for name, number in vars(type(described.fields[0])).items()
        if name.startswith("TYPE_")
    } if described.fields else {}  # fmt: skip
    rows: dict[int, Any] = {}
    for field in described.fields:
        row: dict[str, Any] = {"name": snake(field.name), "kind": kinds[field.type]}
        if field.message_type is not None:
            row["message"] = _short(field.message_type.full_name)
        if field.enum_type is not None:
            name = _short(field.enum_type.full_name)
            row["enum"] = name
            enums[name] = {value.number: value.name for value in field.enum_type.values}
        rows[field.number] = row
    name = _short(described.full_name)
    messages[name] = {"filter": snake(name.split(".")[-1]), "fields": rows}
    for inner in described.nested_types:
        _describe(inner, messages, enums)
