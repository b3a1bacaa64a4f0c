"""JSON payloads as columns: bad rows stand alone, good ones never suffer."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.json_rows import decode_json

SCHEMA = pa.schema([("n", pa.int32()), ("s", pa.string()), ("_corrupt", pa.string())])


def decode(payloads: list[bytes], schema: pa.Schema = SCHEMA) -> list[dict[str, Any]]:
    offsets = np.zeros(len(payloads) + 1, np.int64)
    np.cumsum([len(payload) for payload in payloads], out=offsets[1:])
    found = decode_json(np.frombuffer(b"".join(payloads), np.uint8), offsets, schema)
    assert found.schema.equals(schema)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


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
            b'{"n": 1, "n": 2}',
            b"\xff\xfe",
            b"{}{}",
        ),
    ],
)
def test_a_bad_row_stands_alone(payload: bytes) -> None:
    around = b'{"n": 1, "s": "x"}'
    assert decode([around, payload, around]) == [good(1, "x"), bad(payload), good(1, "x")]
    assert decode([payload]) == [bad(payload)]


def test_two_objects_in_one_payload_do_not_make_up_for_an_empty_one() -> None:
    payloads = [b'{"n": 1}{"n": 2}', b"", b'{"n": 3}']
    assert decode(payloads) == [bad(payloads[0]), bad(b""), good(3, None)]


def test_spaces_and_line_ends_around_tokens_mean_nothing() -> None:
    assert decode([b' {"n": 1} ', b'{\n  "n": 2,\r\n  "s": "y"\n}', b'{"n": 3}\n']) == [
        *(good(1, None), good(2, "y"), good(3, None)),
    ]


def test_other_keys_are_ignored_missing_ones_are_null_and_the_text_is_optional() -> None:
    schema = pa.schema([("s", pa.string()), ("n", pa.int32())])
    assert decode([b'{"x": {"y": 1}}', b"oops", b'{"n": 1}'], schema) == [
        {"s": None, "n": None},
        {"s": None, "n": None},
        {"s": None, "n": 1},
    ]
    assert decode([]) == []


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(-(2**31), 2**31 - 1), st.text()),
            st.binary(max_size=12).filter(lambda data: b"{" not in data),
        ),
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
