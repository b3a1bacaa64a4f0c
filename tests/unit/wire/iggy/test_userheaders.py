"""User headers in both forms, and the message key inside them."""

from __future__ import annotations

import struct

import pytest

from headrace.errors import LocalProtocolError
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import DecodeError, Status
from headrace.wire.iggy.user_headers import (
    HeaderKind,
    UserHeader,
    convert_headers,
    decode_headers,
    encode_headers,
    key_header,
    split_key,
)

VALUES: list[tuple[bytes | str | bool | int | float, HeaderKind, bytes]] = [
    (b"\0\xff", HeaderKind.RAW, b"\0\xff"),
    ("text", HeaderKind.STRING, b"text"),
    (True, HeaderKind.BOOL, b"\x01"),
    (-2, HeaderKind.INT64, b"\xfe" + b"\xff" * 7),
    (0.5, HeaderKind.FLOAT64, struct.pack("<d", 0.5)),
]


@pytest.mark.parametrize(("value", "kind", "data"), VALUES)
def test_values(value: bytes | str | bool | int | float, kind: HeaderKind, data: bytes) -> None:
    header = UserHeader.of("name", value)
    assert (header.kind, header.value) == (kind, data)
    assert header.python_value() == value


def test_integers_of_every_width() -> None:
    for kind in HeaderKind:
        if "INT" in kind.name:
            size = int(kind.name.split("INT")[1]) // 8
            header = UserHeader(b"n", b"\xff" * size, kind)
            expected = -1 if kind.name.startswith("INT") else 256**size - 1
            assert header.python_value() == expected
            assert decode_headers(encode_headers([header])) == (header,)


def test_layouts() -> None:
    header = UserHeader.of("key", "v")
    assert encode_headers([header]) == b"\x02\x03\0\0\0key\x02\x01\0\0\0v"
    assert encode_headers([header], Dialect.A) == b"\x03\0\0\0key\x02\x01\0\0\0v"
    both = [header, UserHeader.of("n", 5)]
    for dialect in (Dialect.A, Dialect.B1, Dialect.B2):
        assert decode_headers(encode_headers(both, dialect), dialect) == tuple(both)
    narrow = encode_headers(both, Dialect.B1)
    assert convert_headers(narrow, Dialect.B1, Dialect.B2) == encode_headers(both)


@pytest.mark.parametrize(
    ("block", "status"),
    [
        (b"\x10\x01\0\0\0k\x01\x01\0\0\0v", Status.INVALID_HEADER_KIND),
        (b"\x02\0\0\0\0\x01\x01\0\0\0v", Status.INVALID_HEADER_KEY),
        (b"\x02\0\x01\0\0" + b"k" * 256 + b"\x01\x01\0\0\0v", Status.INVALID_HEADER_KEY),
        (b"\x02\x01\0\0\0k\x01\0\0\0\0", Status.INVALID_HEADER_VALUE),
        (b"\x02\x01\0\0\0k\x06\x03\0\0\0abc", Status.INVALID_HEADER_VALUE),
        (b"\x02\x01\0\0\0k\x00\x01\0\0\0v", Status.INVALID_HEADER_KIND),
        (b"\x02\x01\0\0\0k\x01\x05\0\0\0v", Status.INVALID_COMMAND),
        (b"\x02\x01\0\0", Status.INVALID_NUMBER_ENCODING),
    ],
)
def test_refused(block: bytes, status: Status) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_headers(block)
    assert caught.value.code == status
    with pytest.raises(DecodeError) as caught:
        convert_headers(block, Dialect.B2, Dialect.A)
    assert caught.value.code == status


def test_what_we_may_not_write() -> None:
    for header in (
        UserHeader(b"", b"v"),
        UserHeader(b"k", b""),
        UserHeader(b"k" * 256, b"v"),
        UserHeader(b"k", b"abc", HeaderKind.INT32),
    ):
        with pytest.raises(LocalProtocolError):
            encode_headers([header])
    with pytest.raises(LocalProtocolError):
        encode_headers([UserHeader(b"k", b"v" * 255)] * 400)
    with pytest.raises(LocalProtocolError):
        UserHeader.of("n", 2**63)


@pytest.mark.parametrize("length", [1, 254, 255, 256, 510, 511, 5000])
def test_keys_of_any_length(length: int) -> None:
    key = bytes(i % 251 for i in range(length))
    block = key_header(key)
    assert split_key(block) == (key, ())
    names = [header.key for header in decode_headers(block)]
    assert names == [b"headrace.key", *(b"headrace.key.%d" % i for i in range(1, len(names)))]
    assert all(header.kind is HeaderKind.RAW for header in decode_headers(block))


def test_no_key() -> None:
    assert key_header(None) == key_header(b"") == b""
    assert split_key(b"") == (None, ())


def test_other_headers_are_kept_whatever_the_order() -> None:
    other = (UserHeader.of("a", 1), UserHeader.of("headrace.keys", "no"), UserHeader.of("z", 2))
    parts = decode_headers(key_header(b"k" * 600))
    mixed = [parts[2], other[0], parts[0], other[1], parts[1], other[2]]
    assert split_key(encode_headers(mixed)) == (b"k" * 600, other)
