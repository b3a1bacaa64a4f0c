"""CSV, Arrow and protobuf payloads as columns."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError
from tests.unit.spark.formats_area import decode

# --- csv ------------------------------------------------------------------------------------------

CSV = pa.schema([("n", pa.int32()), ("s", pa.string()), ("_corrupt", pa.string())])


def csv(payloads: list[bytes], **options: Any) -> list[dict[str, Any]]:
    return decode("csv", payloads, CSV, **options)


def good(n: int | None, s: str | None) -> dict[str, Any]:
    return {"n": n, "s": s, "_corrupt": None}


def bad(payload: bytes) -> dict[str, Any]:
    return {"n": None, "s": None, "_corrupt": payload.decode(errors="replace")}


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"1", b"1,2,3", b"x,y", b"1,x\n2,y", b"1,x\n", b"1,x\r\n2,y", b'1,"x'),
        *(b"3000000000,x", b"1.5,x", b"1,\xff", b"\n"),
    ],
)
def test_a_bad_record_stands_alone(payload: bytes) -> None:
    assert csv([b"1,x", payload, b"2,y"]) == [good(1, "x"), bad(payload), good(2, "y")]
    assert csv([payload]) == [bad(payload)]


def test_records_are_fields_in_order() -> None:
    payloads = [b"1,x", b"2,", b',""', b'3,"a ""b"", c"', b'4,"two\nlines"', "5,ü".encode()]
    assert csv(payloads) == [
        *(good(1, "x"), good(2, None), good(None, ""), good(3, 'a "b", c')),
        *(good(4, "two\nlines"), good(5, "ü")),
    ]
    assert csv([b"1;x,y"], csv_delimiter=";") == [good(1, "x,y")]
    kinds = pa.schema(
        [
            ("d", pa.date32()),
            ("t", pa.timestamp("us", tz="UTC")),
            ("p", pa.decimal128(6, 2)),
            ("b", pa.bool_()),
        ]
    )
    assert decode("csv", [b"2026-01-02,2026-01-02T03:04:05.5Z,1.5,true"], kinds) == [
        {
            "d": date(2026, 1, 2),
            "t": datetime(2026, 1, 2, 3, 4, 5, 500_000, UTC),
            "p": Decimal("1.50"),
            "b": True,
        }
    ]
    with pytest.raises(ConfigError, match="cannot read column l"):
        decode("csv", [b""], pa.schema([("l", pa.list_(pa.int8()))]))


def test_records_that_only_together_are_records_are_bad_each() -> None:
    payloads = [b'1,"x', b'y",2', b"3,z\n4,w", b"5,v"]
    assert csv(payloads) == [*(bad(each) for each in payloads[:3]), good(5, "v")]


_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)


@settings(deadline=None)  # a loaded machine is no failure
@given(st.lists(st.one_of(st.tuples(st.integers(-5, 5), _TEXTS), st.just(None)), min_size=1))
def test_any_mixture_keeps_its_order(rows: list[tuple[int, str] | None]) -> None:
    payloads, expected = [], []
    for row in rows:
        if row is None:
            payloads.append(b'0,"')
            expected.append(bad(b'0,"'))
        else:
            quoted = row[1].replace('"', '""')
            payloads.append(f'{row[0]},"{quoted}"'.encode())
            expected.append(good(*row))
    assert csv(payloads) == expected


# --- arrow ----------------------------------------------------------------------------------------


def stream(*batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_an_arrow_payload_is_as_many_rows_as_it_holds() -> None:
    schema = pa.schema([("offset", pa.int64()), ("n", pa.int32()), ("s", pa.string())])
    payloads = [
        stream(rows(n=pa.array([1, 2], pa.int64()), s=["a", None])),
        stream(rows(n=pa.array([], pa.int64()))),
        stream(rows(s=pa.array(["x", "x"]).dictionary_encode(), z=[1, 2])),
        stream(rows(n=pa.array([3], pa.int8())), rows(n=pa.array([4], pa.int8()))),
    ]
    found = decode("arrow", payloads, schema, message_columns=("offset",))
    assert [tuple(row.values()) for row in found] == [
        *((100, 1, "a"), (100, 2, None), (102, None, "x"), (102, None, "x")),
        *((103, 3, None), (103, 4, None)),
    ]


def test_a_bad_arrow_payload_is_one_row() -> None:
    schema = pa.schema([("n", pa.int32()), ("_corrupt", pa.binary())])
    fine = stream(rows(n=pa.array([1, 2], pa.int32())))
    torn = stream(rows(s=["long enough", "to have", "offsets"]))
    at = torn.rindex((7 + 11).to_bytes(4, "little"))
    wild = torn[:at] + b"\xff\xff\xff\x7f" + torn[at + 4 :]
    for payload in (b"", b"oops", fine[:-40], stream(rows(n=[2**40])), stream(rows(n=["x"])), wild):
        found = decode("arrow", [fine, payload, fine], schema)
        assert [row["n"] for row in found] == [1, 2, None, 1, 2], payload
        assert [row["_corrupt"] for row in found] == [None, None, payload, None, None]


# --- protobuf -------------------------------------------------------------------------------------


def descriptor() -> descriptor_pb2.FileDescriptorProto:
    """message Order { string sku = 1; optional int32 qty = 2; repeated Line lines = 3; ... }."""
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kinds = descriptor_pb2.FieldDescriptorProto
    color = file.enum_type.add(name="Color")
    color.value.add(name="NONE", number=0)
    color.value.add(name="RED", number=1)
    line = file.message_type.add(name="Line")
    line.field.add(name="price", number=1, type=kinds.TYPE_DOUBLE, label=kinds.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    order.oneof_decl.add(name="_qty")
    single = {"label": kinds.LABEL_OPTIONAL}
    many = {"label": kinds.LABEL_REPEATED}
    order.field.add(name="sku", number=1, type=kinds.TYPE_STRING, **single)
    order.field.add(
        name="qty", number=2, type=kinds.TYPE_INT32, proto3_optional=True, oneof_index=0, **single
    )
    order.field.add(name="lines", number=3, type=kinds.TYPE_MESSAGE, type_name=".shop.Line", **many)
    order.field.add(name="color", number=4, type=kinds.TYPE_ENUM, type_name=".shop.Color", **single)
    order.field.add(
        name="at",
        number=5,
        type=kinds.TYPE_MESSAGE,
        type_name=".google.protobuf.Timestamp",
        **single,
    )
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, **single)
    entry.field.add(name="value", number=2, type=kinds.TYPE_BYTES, **single)
    order.field.add(
        name="tags", number=6, type=kinds.TYPE_MESSAGE, type_name=".shop.Order.TagsEntry", **many
    )
    return file


FILES = descriptor_pb2.FileDescriptorSet(file=[descriptor()]).SerializeToString()
ORDER = {"protobuf_descriptor": FILES, "protobuf_message": "shop.Order"}
ORDER_SCHEMA = pa.schema(
    [
        ("sku", pa.string()),
        ("qty", pa.int32()),
        ("lines", pa.list_(pa.struct([("price", pa.float64())]))),
        ("color", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("tags", pa.map_(pa.string(), pa.binary())),
        ("_corrupt", pa.binary()),
    ]
)


def order(**fields: Any) -> bytes:
    from google.protobuf import timestamp_pb2

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(descriptor())
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    return message(**fields).SerializeToString()


def test_protobuf_messages_are_rows() -> None:
    full = order(
        sku="a",
        qty=0,
        lines=[{"price": 1.5}, {}],
        color=1,
        at={"seconds": 1_700_000_000, "nanos": 500_000_000},
        tags={"k": b"\xff"},
    )
    found = decode("protobuf", [full, b"\xff", b""], ORDER_SCHEMA, **ORDER)
    assert found[0] == {
        "sku": "a",
        "qty": 0,
        "lines": [{"price": 1.5}, {"price": 0.0}],
        "color": "RED",
        "at": datetime(2023, 11, 14, 22, 13, 20, 500_000, UTC),
        "tags": [("k", b"\xff")],
        "_corrupt": None,
    }
    assert found[1] == {**dict.fromkeys(ORDER_SCHEMA.names), "_corrupt": b"\xff"}
    assert found[2] == {
        **dict.fromkeys(ORDER_SCHEMA.names),
        **{"sku": "", "lines": [], "color": "NONE", "tags": []},
    }


@pytest.mark.parametrize(
    ("column", "options", "text"),
    [
        (("sku", pa.int32()), {}, "does not fit"),
        (("lines", pa.string()), {}, "does not fit"),
        (("nothing", pa.string()), {}, "no field nothing"),
        (("sku", pa.string()), {"protobuf_message": "shop.Nothing"}, "no message shop.Nothing"),
        (("sku", pa.string()), {"protobuf_descriptor": b"\xff"}, "not a descriptor set"),
    ],
)
def test_columns_that_are_no_fields_are_refused(
    column: tuple[str, pa.DataType], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        decode("protobuf", [b""], pa.schema([column]), **{**ORDER, **options})


def test_a_descriptor_without_its_imports_is_refused() -> None:
    file = descriptor()
    file.dependency.append("elsewhere.proto")
    alone = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    with pytest.raises(ConfigError, match="include_imports"):
        decode("protobuf", [b""], ORDER_SCHEMA, **{**ORDER, "protobuf_descriptor": alone})
