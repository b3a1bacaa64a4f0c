"""Shapes of requests, those of the protocol's published description among them."""

from __future__ import annotations

import struct

import pytest

from headrace.wire.iggy.detection import candidates, hint
from headrace.wire.iggy.dialects import CLASSIC, Dialect
from headrace.wire.iggy.messages.messages import Message, decode_messages, decode_send, encode_send
from headrace.wire.iggy.messages.topics import Compression, CreateTopic, is_published_form
from headrace.wire.iggy.primitives import Partitioning

A, B = frozenset((Dialect.A,)), frozenset((Dialect.B1, Dialect.B2))
STREAM = b"\x02\x01s"


def published(name: bytes, *, size: int | None, topic_id: int = 0, expiry: int = 0) -> bytes:
    body = struct.pack("<IIB", topic_id, 3, len(name)) + name + struct.pack("<I", expiry)
    return body + (b"" if size is None else struct.pack("<Q", size)) + b"\x02"


@pytest.mark.parametrize("size", [None, 0, 5_000_000_000, 2**64 - 1])
@pytest.mark.parametrize("length", [1, 2, 13, 14, 255])
def test_published_create_topic(length: int, size: int | None) -> None:
    name = b"n" * length
    rest = published(name, size=size, topic_id=9, expiry=90)
    assert len(rest) == (14 if size is None else 22) + length
    assert candidates(302, STREAM + rest) == A
    assert CreateTopic.decode(STREAM + rest, Dialect.A) == CreateTopic(
        "s", 3, Compression.NONE, 90_000_000, size or 0, 2, name.decode(), topic_id=8
    )


def test_published_zeros_leave_it_to_the_server() -> None:
    request = CreateTopic.decode(STREAM + published(b"t", size=None), Dialect.A)
    assert (request.topic_id, request.message_expiry_us, request.max_size_bytes) == (None, 0, 0)


@pytest.mark.parametrize("length", [1, 2, 100, 246, 254, 255])
def test_real_forms_are_not_taken_for_it(length: int) -> None:
    for dialect in (Dialect.A, Dialect.B1, Dialect.B2):
        for compression in Compression:
            for expiry in (0, 1, 300_000_000, 2**64 - 1):
                request = CreateTopic("s", 2, compression, expiry, 0, 1, "t" * length)
                data = request.encode(dialect)
                assert CreateTopic.decode(data, dialect) == request
                assert dialect in candidates(302, data)
                if dialect is Dialect.A:
                    assert not is_published_form(data[3:])


def test_two_forms_of_one_length_say_nothing() -> None:
    # B with an expiry of "never" and a name of 246 bytes: its fourth expiry byte could be the
    # length of a published name, and the sum agrees.
    data = CreateTopic("s", 2, Compression.NONE, 2**64 - 1, 0, 1, "t" * 246).encode()
    assert is_published_form(data[3:])
    assert candidates(302, data) == CLASSIC


def published_index(payload: bytes) -> bytes:
    """Move each entry's end from where clients write it (byte 4) to where the text says (8)."""
    metadata = struct.unpack_from("<I", payload)[0]
    count_at = metadata
    (count,) = struct.unpack_from("<I", payload, count_at)
    at = count_at + 4
    table = bytearray(payload)
    for entry in range(count):
        _, end, _ = struct.unpack_from("<IIQ", payload, at + 16 * entry)
        struct.pack_into("<QII", table, at + 16 * entry, 0, end, 0)
    return bytes(table)


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("dialect", [Dialect.A, Dialect.B1, Dialect.B2])
def test_published_index(count: int, dialect: Dialect) -> None:
    messages = [Message(b"m%d" % n, id=n) for n in range(count)]
    sent = encode_send("s", "t", Partitioning.to_partition(0), messages)
    payload = sent.encode(dialect)
    moved = published_index(payload)
    assert moved != payload
    assert candidates(101, moved) == candidates(101, payload) != CLASSIC
    assert decode_messages(decode_send(moved, dialect).area) == messages


def test_hints() -> None:
    assert hint(12) == B
    assert hint(9000) == hint(9008) == {Dialect.B2}
    assert hint(1) == hint(200) == CLASSIC
