"""FlatBuffers headers: what is left out, what is bounded, what is refused."""

from __future__ import annotations

import dataclasses
import struct
from dataclasses import dataclass

import pytest

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.sbp import flat, messages
from headrace.wire.sbp.flat import FlatField, Message, decode, encode, i32, i64, string
from headrace.wire.sbp.messages import (
    AppendInfo,
    AppendRequest,
    DataNode,
    DescribeStreamsRequest,
    IdAllocationRequest,
    Range,
    RangeCriteria,
    Status,
    Stream,
)


def absent(data: bytes, id: int) -> bool:
    """Whether field `id` of the root table is left out."""
    (root,) = struct.unpack_from("<I", data)
    vtable = root - struct.unpack_from("<i", data, root)[0]
    entries = (struct.unpack_from("<H", data, vtable)[0] - 4) // 2
    return id >= entries or struct.unpack_from("<H", data, vtable + 4 + 2 * id) == (0,)


def test_defaults_are_left_out_unless_marked() -> None:
    data = encode(Range(stream_id=7))
    assert not absent(data, 0)
    assert absent(data, 1)
    assert absent(data, 2)
    assert not absent(data, 3)  # end_offset: the original's default was 0, "sealed at 0"
    assert absent(data, 6)
    assert absent(encode(IdAllocationRequest()), 1)


def test_an_absent_end_offset_reads_as_open() -> None:
    assert decode(Range, encode(RangeCriteria(stream_id=5))).end_offset == -1


def test_a_table_of_defaults_is_not_an_absent_one() -> None:
    info = decode(AppendInfo, encode(AppendInfo(range=Range())))
    assert info.range == Range()
    assert decode(AppendInfo, encode(AppendInfo())).range is None


@dataclass(frozen=True, slots=True)
class LaterStream(Message):
    """A stream as a later version might write it."""

    stream_id: int = i64(0, -1)
    replica_nums: int = flat.i8(1)
    name: str = string(3)
    color: str = string(9)
    owner: DataNode | None = flat.table(10, DataNode)  # noqa: RUF009  # declares a field
    weight: int = i32(11)


def test_unknown_fields_are_ignored() -> None:
    later = LaterStream(5, 2, "orders", "red", DataNode(1, "x"), 9)
    assert decode(Stream, encode(later)) == Stream(5, 2, 0, "orders")


def test_a_shorter_table_of_an_earlier_version_gets_defaults() -> None:
    assert decode(LaterStream, encode(Stream(5, 2, 7, "n"))) == LaterStream(5, 2, "n")


def test_values_that_do_not_fit_are_our_own_error() -> None:
    for message in (Status(code=40_000), Stream(replica_nums=300), Status(message="\ud800")):
        with pytest.raises(LocalProtocolError):
            encode(message)
    with pytest.raises(LocalProtocolError):
        encode(DescribeStreamsRequest(stream_ids=(1 << 63,)))


def aliased(count: int) -> bytes:
    """An AppendRequest whose `count` offsets all point at one AppendInfo."""
    tables = bytearray(encode(AppendRequest(1, (AppendInfo(Range(1), 0, 5),))))
    (root,) = struct.unpack_from("<I", tables)
    vtable = root - struct.unpack_from("<i", tables, root)[0]
    (position,) = struct.unpack_from("<H", tables, vtable + 4 + 2)
    field = root + position
    vector = field + struct.unpack_from("<I", tables, field)[0]
    target = vector + 4 + struct.unpack_from("<I", tables, vector + 4)[0]
    # A longer vector behind everything, its offsets wrapping back is impossible (they are
    # unsigned), so the target is copied behind the vector together with its vtable.
    moved = len(tables)
    tables += struct.pack("<I", count) + bytes(4 * count)
    shift = len(tables) - target + (-(len(tables) - target)) % 8
    tables += bytes(target + shift - len(tables))
    copy = bytes(tables[target:moved])
    tables += copy
    back = struct.unpack_from("<i", tables, target)[0]
    struct.pack_into("<i", tables, target + shift, back + shift)
    for slot in range(count):
        here = moved + 4 + 4 * slot
        struct.pack_into("<I", tables, here, target + shift - here)
    struct.pack_into("<I", tables, field, moved - field)
    return bytes(tables)


def test_one_subtable_may_be_referred_to_a_little_but_not_without_end() -> None:
    few = decode(AppendRequest, aliased(3))
    assert len(few.append_requests) == 3
    assert len(set(few.append_requests)) == 1
    with pytest.raises(RemoteProtocolError, match="too many times"):
        decode(AppendRequest, aliased(100_000))


def test_work_is_bounded_by_the_length_of_the_header(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = 0
    original = flat._Reader.table

    def counting(self: flat._Reader, cls: type[Message], position: int) -> object:
        nonlocal tables
        tables += 1
        return original(self, cls, position)

    monkeypatch.setattr(flat._Reader, "table", counting)
    data = aliased(100_000)
    with pytest.raises(RemoteProtocolError):
        decode(AppendRequest, data)
    assert tables <= len(data) // 4 + 1024


def test_honest_headers_of_any_size_pass_the_work_limit() -> None:
    infos = tuple(AppendInfo() for _ in range(20_000))
    assert decode(AppendRequest, encode(AppendRequest(0, infos))).append_requests == infos
    ids = tuple(range(50_000))
    assert decode(DescribeStreamsRequest, encode(DescribeStreamsRequest(0, ids))).stream_ids == ids


def test_a_vector_longer_than_the_header_is_refused_before_it_is_made() -> None:
    data = bytearray(encode(DescribeStreamsRequest(0, (1, 2))))
    position = data.index(struct.pack("<Iqq", 2, 1, 2))
    for count in (3, 1 << 20, 0xFFFFFFFF):
        struct.pack_into("<I", data, position, count)
        with pytest.raises(RemoteProtocolError, match="longer"):
            decode(DescribeStreamsRequest, bytes(data))


def test_strings_must_be_utf8() -> None:
    data = encode(Status(1, "aaaa")).replace(b"aaaa", b"a\xff\xffa")
    with pytest.raises(RemoteProtocolError, match="UTF-8"):
        decode(Status, data)


def test_overlapping_fields_are_refused() -> None:
    data = bytearray(encode(Range(stream_id=1, start_offset=2)))
    (root,) = struct.unpack_from("<I", data)
    vtable = root - struct.unpack_from("<i", data, root)[0]
    first = struct.unpack_from("<H", data, vtable + 4)[0]
    struct.pack_into("<H", data, vtable + 4 + 2 * 2, first + 1)
    with pytest.raises(RemoteProtocolError, match="overlap"):
        decode(Range, bytes(data))


def test_layouts_remembered_from_peers_are_bounded() -> None:
    plan = flat._plan(Stream)
    for name_at in range(4, 1000):
        vtable = struct.pack("<HHHHHH", 12, name_at + 4, 0, 0, 0, name_at)
        table = struct.pack("<i", len(vtable)) + bytes(name_at) + bytes(8)
        header = struct.pack("<I", 4 + len(vtable)) + vtable + table
        try:
            decode(Stream, header)
        except RemoteProtocolError:
            continue
    assert len(plan.read_layouts) <= 64
    assert all(len(key) <= 2 + 2 * 5 for key in plan.read_layouts)


def test_no_message_class_contains_itself() -> None:
    """The depth of decoding is the depth of the classes."""

    def depth(cls: type[Message], above: tuple[type[Message], ...]) -> int:
        assert cls not in above, f"{cls.__name__} contains itself"
        inner = [
            spec.table
            for field in dataclasses.fields(cls)  # type: ignore[arg-type]
            if (spec := _spec(field)).table is not None
        ]
        return 1 + max((depth(each, (*above, cls)) for each in inner if each), default=0)

    deepest = max(
        depth(cls, ())
        for cls in vars(messages).values()
        if isinstance(cls, type) and issubclass(cls, Message) and cls is not Message
    )
    assert deepest <= 6


def _spec(field: dataclasses.Field[object]) -> FlatField:
    spec = field.metadata["flat"]
    assert isinstance(spec, FlatField)
    return spec


def test_field_ids_are_unique_in_each_class() -> None:
    for cls in vars(messages).values():
        if isinstance(cls, type) and issubclass(cls, Message) and cls is not Message:
            ids = [_spec(field).id for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
            assert sorted(ids) == list(range(len(ids))), cls.__name__
