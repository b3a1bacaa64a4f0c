"""Bytes that others made: frame vectors of the reference description, headers written by flatc."""

from __future__ import annotations

import dataclasses
import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from flatbuffers import encode as flat_encode
from flatbuffers import number_types
from flatbuffers.table import Table

from headrace.wire.sbp import messages
from headrace.wire.sbp.flat import FlatField, Kind, Message, decode, encode
from headrace.wire.sbp.frames import Frame, FrameDecoder, encode_frame

HERE = Path(__file__).parent
FRAMES: dict[str, Any] = json.loads((HERE / "frames.json").read_text())
HEADERS: dict[str, Any] = json.loads((HERE / "flatc_headers.json").read_text())["headers"]
SCHEMA = Path(messages.__file__).with_name("headrace.fbs").read_text()


def table_named(name: str) -> type[Message]:
    cls = getattr(messages, name)
    assert issubclass(cls, Message)
    return cls  # type: ignore[no-any-return]  # checked above


@pytest.mark.parametrize("vector", FRAMES["frames"], ids=lambda vector: vector["name"])
def test_frame_vectors(vector: dict[str, Any]) -> None:
    wire = bytes.fromhex(vector["hex"])
    frame = Frame(
        vector["opcode"],
        vector["flags"],
        vector["stream_id"],
        bytes.fromhex(vector["header"]),
        bytes.fromhex(vector["payload"]),
    )
    assert FrameDecoder().feed(wire) == [frame]
    assert b"".join(encode_frame(frame)) == wire


def test_header_vectors() -> None:
    found = {
        vector["table"]: decode(table_named(vector["table"]), bytes.fromhex(vector["header"]))
        for vector in FRAMES["frames"]
        if "table" in vector
    }
    assert found == {
        "IdAllocationRequest": messages.IdAllocationRequest(3000, "dn-1"),
        "SystemErrorResponse": messages.SystemErrorResponse(messages.Status(5, "not leader")),
    }


@pytest.mark.parametrize("vector", FRAMES["crc32"], ids=lambda vector: vector["bytes"])
def test_the_frame_checksum_is_zlibs(vector: dict[str, Any]) -> None:
    payload = bytes.fromhex(vector["bytes"])
    assert zlib.crc32(payload) == vector["value"]
    wire = b"".join(encode_frame(Frame(1, 0, 1, b"", payload)))
    assert wire[-4:] == vector["value"].to_bytes(4, "big")


def build(cls: type[Message], value: dict[str, Any]) -> Message:
    """A message from flatc's JSON."""
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # every message is a dataclass
        if field.name not in value:
            continue
        spec: FlatField = field.metadata["flat"]
        raw = value[field.name]
        if spec.kind is Kind.TABLE:
            assert spec.table is not None
            raw = build(spec.table, raw)
        elif spec.kind is Kind.TABLES:
            assert spec.table is not None
            raw = tuple(build(spec.table, item) for item in raw)
        elif spec.kind is Kind.OCTETS:
            raw = bytes(raw)
        elif spec.kind is Kind.I64_VECTOR:
            raw = tuple(raw)
        arguments[field.name] = raw
    return cls(**arguments)


def test_flatc_headers_cover_every_message() -> None:
    assert set(HEADERS) == {
        name
        for name, cls in vars(messages).items()
        if isinstance(cls, type) and issubclass(cls, Message) and cls is not Message
    }


@pytest.mark.parametrize("name", HEADERS)
def test_headers_written_by_flatc(name: str) -> None:
    cls = table_named(name)
    expected = build(cls, HEADERS[name]["value"])
    assert decode(cls, bytes.fromhex(HEADERS[name]["hex"])) == expected
    assert decode(cls, encode(expected)) == expected


def read_with_runtime(cls: type[Message], data: bytes, position: int) -> Message:
    """Read our bytes with the standard runtime's Table, as generated code would."""
    table = Table(data, position)
    flags = {
        Kind.BOOL: number_types.BoolFlags, Kind.I8: number_types.Int8Flags,
        Kind.I16: number_types.Int16Flags, Kind.I32: number_types.Int32Flags,
        Kind.I64: number_types.Int64Flags,
    }  # fmt: skip
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # every message is a dataclass
        spec: FlatField = field.metadata["flat"]
        at = table.Offset(4 + 2 * spec.id)
        if not at:
            continue
        where = at + table.Pos
        if spec.kind in flags:
            assert where % flags[spec.kind].bytewidth == 0, "strict readers want alignment"
            arguments[field.name] = table.Get(flags[spec.kind], where)
        elif spec.kind is Kind.STRING:
            arguments[field.name] = table.String(where).decode()
            end = table.Indirect(where) + 4 + len(arguments[field.name].encode())
            assert data[end] == 0, "strict readers want the NUL"
        elif spec.kind is Kind.TABLE:
            assert spec.table is not None
            arguments[field.name] = read_with_runtime(spec.table, data, table.Indirect(where))
        else:
            arguments[field.name] = _vector_with_runtime(table, data, at, spec)
    return cls(**arguments)


def _vector_with_runtime(table: Table, data: bytes, at: int, spec: FlatField) -> object:
    start, count = table.Vector(at), table.VectorLen(at)
    if spec.kind is Kind.OCTETS:
        return data[start : start + count]
    if spec.kind is Kind.I64_VECTOR:
        assert start % 8 == 0
        return tuple(table.Get(number_types.Int64Flags, start + 8 * i) for i in range(count))
    assert spec.table is not None
    assert start % 4 == 0
    return tuple(
        read_with_runtime(spec.table, data, table.Indirect(start + 4 * i)) for i in range(count)
    )


@pytest.mark.parametrize("name", HEADERS)
def test_the_standard_runtime_reads_our_headers(name: str) -> None:
    cls = table_named(name)
    message = build(cls, HEADERS[name]["value"])
    data = encode(message)
    root = flat_encode.Get(number_types.UOffsetTFlags.packer_type, data, 0)
    assert read_with_runtime(cls, data, root) == message


def test_the_schema_says_what_the_classes_say() -> None:
    names = {
        Kind.BOOL: "bool", Kind.I8: "byte", Kind.I16: "short", Kind.I32: "int", Kind.I64: "long",
        Kind.STRING: "string", Kind.OCTETS: "[ubyte]", Kind.I64_VECTOR: "[long]",
    }  # fmt: skip
    written: dict[str, set[tuple[str, str, int, int]]] = {}
    for name, body in re.findall(r"^table (\w+) \{(.*?)^\}", SCHEMA, re.DOTALL | re.MULTILINE):
        written[name] = {
            (field, type_, int(default or 0), int(id_))
            for field, type_, default, id_ in re.findall(
                r"(\w+): (\S+)(?: = (-?\d+))? \(id: (\d+)\);", body
            )
        }
    declared: dict[str, set[tuple[str, str, int, int]]] = {}
    for name in HEADERS:
        declared[name] = set()
        for field in dataclasses.fields(table_named(name)):  # type: ignore[arg-type]
            spec: FlatField = field.metadata["flat"]
            inner = spec.table.__name__ if spec.table else ""
            type_ = names.get(spec.kind) or (inner if spec.kind is Kind.TABLE else f"[{inner}]")
            declared[name].add((field.name, type_, spec.default, spec.id))
    assert written == declared
