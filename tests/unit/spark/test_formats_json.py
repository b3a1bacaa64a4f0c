"""JSON payloads as columns: bad rows stand alone, good ones never suffer."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError
from tests.unit.spark.formats_area import decode as decode_as

SCHEMA = pa.schema([("n", pa.int32()), ("s", pa.string()), ("_corrupt", pa.string())])


def decode(payloads: list[bytes], schema: pa.Schema = SCHEMA) -> list[dict[str, Any]]:
    return decode_as("json", payloads, schema)


def good(n: int | None, s: str | None) -> dict[str, Any]:
    return {"n": n, "s": s, "_corrupt": None}


def bad(payload: bytes) -> dict[str, Any]:
    return {"n": None, "s": None, "_corrupt": payload.decode(errors="replace")}


@pytest.mark.parametrize(
    "payload",
    [
        *(
            b"",
            b" ",
            b"oops",
            b"[1]",
            b"5",
            b"null",
            b'{"n": 1',
            b'{"n": 1}{"n": 2}',
            b'{"n": 1.5}',
        ),
        *(
            b'{"n": "1"}',
            b'{"n": 3000000000}',
            b'{"s": 5}',
            b'{"n": 1.0}',
            b"\xff\xfe",
            b"{}{}",
        ),
    ],
)
def test_a_bad_row_stands_alone(payload: bytes) -> None:
    around = b'{"n": 1, "s": "x"}'
    assert decode([around, payload, around]) == [good(1, "x"), bad(payload), good(1, "x")]
    assert decode([payload]) == [bad(payload)]


def test_of_a_key_that_stands_twice_the_last_counts() -> None:
    assert decode([b'{"n": 1, "s": "x", "n": 2}']) == [good(2, "x")]


def test_times_with_and_without_a_zone() -> None:
    schema = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("_corrupt", pa.string())])
    texts = ["2026-01-01T12:00:00Z", "2026-01-01T12:00:00", "2026-01-01 14:00:00.5+02:00", "noon"]
    rows = decode([b'{"at": "%s"}' % text.encode() for text in texts] + [b'{"at": null}'], schema)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    times = [noon, noon, noon.replace(microsecond=500_000), None, None]
    assert [row["at"] for row in rows] == times
    assert [row["_corrupt"] for row in rows] == [None] * 3 + ['{"at": "noon"}', None]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int8(), b"-128", -128),
        (pa.int8(), b"128", None),
        (pa.int64(), b"9223372036854775807", 2**63 - 1),
        (pa.int64(), b"9223372036854775808", None),
        (pa.int64(), b"99999999999999999999999999", None),
        (pa.int64(), b"true", None),
        (pa.float32(), b"1.5", 1.5),
        (pa.float64(), b"3", 3.0),
        (pa.float64(), b"1e999", None),
        (pa.float64(), b'"1.5"', None),
        (pa.bool_(), b"false", False),
        (pa.bool_(), b"0", None),
        (pa.date32(), b'"2026-02-28"', date(2026, 2, 28)),
        (pa.date32(), b'"2026-02-30"', None),
        (pa.string(), b'"\\u00fc\\n"', "\u00fc\n"),
        (pa.string(), b"1", None),
    ],
)
def test_plain_values_are_of_their_type_or_bad(kind: pa.DataType, text: bytes, value: Any) -> None:
    schema = pa.schema([("v", kind), ("_corrupt", pa.string())])
    payloads = [b'{"v": null}', b'{"v": %s}' % text, b'{"x": [{"v": 1}]}']
    rows = decode(payloads, schema)
    assert rows[0] == rows[2] == {"v": None, "_corrupt": None}
    assert rows[1] == {"v": value, "_corrupt": payloads[1].decode() if value is None else None}
    nested = pa.schema([*schema, ("w", pa.struct([("x", pa.int32())]))])
    assert [row["v"] for row in decode(payloads, nested)] == [None, value, None], "as Arrow has it"


def test_two_objects_in_one_payload_do_not_make_up_for_an_empty_one() -> None:
    payloads = [b'{"n": 1}{"n": 2}', b"", b'{"n": 3}']
    assert decode(payloads) == [bad(payloads[0]), bad(b""), good(3, None)]


def test_spaces_and_line_ends_around_tokens_mean_nothing() -> None:
    assert decode([b' {"n": 1} ', b'{\n  "n": 2,\r\n  "s": "y"\n}', b'{"n": 3}\n']) == [
        *(good(1, None), good(2, "y"), good(3, None)),
    ]


def test_other_keys_are_ignored_and_missing_ones_are_null() -> None:
    schema = pa.schema([("s", pa.string()), ("n", pa.int32())])
    assert decode([b'{"x": {"y": 1}}', b'{"n": 1}'], schema) == [
        {"s": None, "n": None},
        {"s": None, "n": 1},
    ]


def test_payloads_that_only_together_are_objects_are_bad_each() -> None:
    """As many objects as payloads, but not one each: rows must not shift."""
    payloads = [b"{}{}", b'{"x":', b"{}}", b'{"n": 1}']
    assert decode(payloads) == [*(bad(each) for each in payloads[:3]), good(1, None)]
    payloads = [b"{},{}", b'{"x": [1', b"{}]}"]
    assert decode(payloads) == [bad(each) for each in payloads]
    payloads = [b"{}\n{}", b'{"x": "', b'"}']
    assert decode(payloads) == [bad(each) for each in payloads]
    # All of these begin and end as objects do.
    payloads = [b"{}{}", b'{"x": {}', b"{}}", b'{"x": "}', b'{"}', b"{}\n{}", b"{},{}", b"{}x{}"]
    assert decode(payloads) == [bad(each) for each in payloads]
    only = pa.schema([("t", pa.map_(pa.string(), pa.int32())), ("_corrupt", pa.string())])
    found = decode([b"{},{}", b"{}{}"], only)
    assert [each["_corrupt"] for each in found] == ["{},{}", "{}{}"]


def test_text_is_checked_not_mended() -> None:
    payloads = [b'{"s": "a\nb"}', b'{"s": "\xff"}', b'{"x": "\xff"}', b'{"s": "\\ud800"}']
    assert decode(payloads) == [bad(each) for each in payloads]
    assert decode([b"{" + b'"x":{' * 100_000])[0]["n"] is None, "too deep"


def test_nesting_is_limited_whatever_stands_around_it() -> None:
    flat, deep = b'{"n": 1}', b'{"x":' * 100_000 + b"{}" + b"}" * 100_000
    lists = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    many = b'{"n": 1, "x": [' + b",".join([b"[{}]"] * 500) + b"]}"
    payloads = [flat, deep, many, lists, flat]
    assert [row["n"] for row in decode(payloads)] == [1, None, 1, None, 1]
    assert [row["n"] for row in decode([many] * 10)] == [1] * 10


@pytest.mark.parametrize("word", [b"NaN", b"Infinity", b"-Infinity", b"Inf"])
def test_numbers_that_json_does_not_have_are_bad(word: bytes) -> None:
    payloads = [b'{"n": 1, "x": %s}' % word, b'{"n": 1, "s": "%s"}' % word]
    assert decode(payloads) == [bad(payloads[0]), good(1, word.decode())]


def test_what_the_schema_does_not_name_is_the_rest() -> None:
    schema = pa.schema([("n", pa.int32()), ("_rest", pa.string())])
    plain = [b'{"n": 1}', b"{}"]
    assert decode(plain, schema) == [{"n": 1, "_rest": None}, {"n": None, "_rest": None}]
    rows = decode([*plain, b'{"a": 1.50, "n": 2, "b": {"c": "\xc3\xbc"}}'], schema)
    assert rows[:2] == decode(plain, schema)
    assert rows[2]["n"] == 2
    assert json.loads(rows[2]["_rest"]) == {"a": 1.5, "b": {"c": "\u00fc"}}
    assert "1.50" in rows[2]["_rest"], "as it was written"
    only = pa.schema([("_rest", pa.string()), ("_corrupt", pa.string())])
    assert decode([b'{"a":1}', b"5"], only) == [
        {"_rest": '{"a":1}', "_corrupt": None},
        {"_rest": None, "_corrupt": "5"},
    ]


def test_every_type() -> None:
    schema = pa.schema(
        [
            ("at", pa.timestamp("us", tz="UTC")),
            ("day", pa.date32()),
            ("price", pa.decimal128(10, 2)),
            ("ok", pa.bool_()),
            ("raw", pa.binary()),
            ("tags", pa.map_(pa.string(), pa.int64())),
            ("where", pa.struct([("day", pa.date32()), ("x", pa.float64())])),
            ("all", pa.list_(pa.int8())),
            ("_corrupt", pa.string()),
        ]
    )
    row = {
        "at": "2026-01-01T12:00:00.5+02:00",
        "day": "2026-01-02",
        "price": "12.30",
        "ok": True,
        "raw": "AP8=",
        "tags": {"a": 1, "b": None},
        "where": {"day": "2026-01-03", "x": 1, "other": 2},
        "all": [1, None],
    }
    (found,) = decode([json.dumps(row).encode()], schema)
    assert found == {
        "at": datetime(2026, 1, 1, 10, 0, 0, 500_000, UTC),
        "day": date(2026, 1, 2),
        "price": Decimal("12.30"),
        "ok": True,
        "raw": b"\x00\xff",
        "tags": [("a", 1), ("b", None)],
        "where": {"day": date(2026, 1, 3), "x": 1.0},
        "all": [1, None],
        "_corrupt": None,
    }
    wrongs: list[dict[str, Any]] = [
        {"at": "noon"},
        {"day": "2026-02-30"},
        {"price": "1.234"},
        {"ok": 1},
        {"raw": "?"},
        {"tags": {"a": "x"}},
        {"tags": [1]},
        {"where": []},
        {"all": [300]},
        {"all": [True]},
    ]
    for wrong in wrongs:
        payload = json.dumps({**row, **wrong}).encode()
        (one,) = decode([payload], schema)
        assert one["_corrupt"] == payload.decode(), wrong
        assert one["ok"] is None
    with pytest.raises(ConfigError, match="duration"):
        decode([b"{}"], pa.schema([("n", pa.duration("us"))]))


@settings(deadline=None)  # a loaded machine is no failure
@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(-(2**31), 2**31 - 1), st.text()),
            st.binary(max_size=12).filter(lambda data: b"{" not in data),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_any_mixture_keeps_its_order(rows: list[tuple[int, str] | bytes]) -> None:
    payloads, expected = [], []
    for row in rows:
        if isinstance(row, bytes):
            payloads.append(row)
            expected.append(bad(row))
        else:
            payloads.append(json.dumps({"n": row[0], "s": row[1]}).encode())
            expected.append(good(*row))
    assert decode(payloads) == expected
