"""What a person sees of a message."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.web.broker_api import messages
from headrace.web.broker_api.arrow_reader import Table
from headrace.web.broker_api.arrow_worker import read_table
from headrace.web.broker_api.messages import Format, message_row
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.user_headers import UserHeader, encode_headers, key_header


def arrow(rows: int = 2) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"n": list(range(rows)), "raw": [b"\xff"] * rows, "none": [None] * rows})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("payload", "wanted", "form", "value"),
    [
        (b"", "auto", "empty", ""),
        (b'{"a":12345678901234567890123}', "auto", "json", '{\n  "a": 12345678901234567890123\n}'),
        (b"[1.10,1E2]", "auto", "json", "[\n  1.10,\n  1E2\n]"),
        (b"[1,2", "auto", "text", "[1,2"),
        (b'{"a": NaN}', "auto", "text", '{"a": NaN}'),
        ("grüße".encode(), "auto", "text", "grüße"),
        (b"\x00\x01", "auto", "hex", "0001"),
        (b"\xff\xff\xff\xff not arrow", "auto", "hex", "ffffffff206e6f74206172726f77"),
        (b'{"a":1}', "text", "text", '{"a":1}'),
        (b"\xffx", "text", "text", "�x"),
        (b'{"a":1}', "hex", "hex", b'{"a":1}'.hex()),
        (b"words", "json", "text", "words"),
        (b"words", "arrow", "hex", b"words".hex()),
    ],
)
def test_forms(payload: bytes, wanted: Format, form: str, value: str) -> None:
    row = message_row(0, Message(payload=payload), wanted)
    assert (row.format, row.value, row.truncated) == (form, value, False)


def test_arrow_is_shown_as_rows() -> None:
    for payload, rows in ((arrow(), 2), (arrow(200), 200)):
        assert messages.may_be_arrow(payload, "auto")
        found = read_table(payload)
        assert found is not None
        row = message_row(0, Message(payload=payload), "auto", Table(*found))
        assert (row.format, row.truncated) == ("arrow", rows > 50)
        assert row.table is not None
        assert [(one.name, one.type) for one in row.table.columns] == [
            ("n", "int64"),
            ("raw", "binary"),
            ("none", "null"),
        ]
        assert row.table.rows[:2] == [["0", "0xff", None], ["1", "0xff", None]]
        assert (len(row.table.rows), row.table.count) == (min(rows, 50), rows)


def test_what_is_long_is_cut_and_says_so() -> None:
    text = "ä" * messages.VALUE_BYTES_MAX
    row = message_row(0, Message(payload=b"x" + text.encode()))
    assert (row.format, row.truncated) == ("text", True)
    assert len(row.value.encode()) <= messages.VALUE_BYTES_MAX
    raw = message_row(0, Message(payload=bytes(10_000)))
    assert (raw.format, raw.truncated, len(raw.value)) == ("hex", True, 2 * messages.HEX_BYTES_MAX)


def test_key_and_headers_are_told_apart() -> None:
    named = [UserHeader.of("source", "web"), UserHeader.of("n", 7), UserHeader.of("b", b"\xfe")]
    headers = key_header(b"customer") + encode_headers(named)
    row = message_row(3, Message(payload=b"x", headers=headers, id=5, offset=9, timestamp_us=4_000))
    assert (row.partition, row.offset, row.timestamp_ms, row.key) == (3, 9, 4, "customer")
    assert [(one.name, one.kind, one.value) for one in row.headers] == [
        ("source", "string", "web"),
        ("n", "int64", "7"),
        ("b", "raw", "0xfe"),
    ]
    assert row.id == f"{5:032x}"


def test_headers_that_are_no_headers_harm_nobody() -> None:
    row = message_row(0, Message(payload=b"x", headers=b"\x01garbage"))
    assert (row.key, row.headers) == (None, [])
