"""Classic framing: events, limits, and what a frame may cost before its bytes are there."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.iggy.classic_frames import (
    BadLength,
    OtherFraming,
    RequestDecoder,
    RequestFrame,
    ResponseDecoder,
    TooLarge,
    encode_request,
    encode_response,
)

PING = struct.pack("<II", 4, 1)


def request(code: int, payload: bytes) -> bytes:
    return b"".join(encode_request(code, [payload]))


def test_frames_come_out_whole_whatever_the_pieces() -> None:
    data = request(38, b"login") + PING + request(101, b"x" * 1000)
    whole = RequestDecoder().feed(data)
    assert [(f.code, bytes(f.payload)) for f in whole if isinstance(f, RequestFrame)] == [
        (38, b"login"),
        (1, b""),
        (101, b"x" * 1000),
    ]
    for size in (1, 2, 3, 7, 9, 64):
        decoder = RequestDecoder()
        events = [e for at in range(0, len(data), size) for e in decoder.feed(data[at : at + size])]
        assert events == whole
        assert decoder.buffered_bytes == 0


def test_payloads_are_writable_and_owned() -> None:
    data = request(101, b"abc") + request(101, b"def")
    first, second = RequestDecoder().feed(data)
    assert isinstance(first, RequestFrame)
    assert isinstance(second, RequestFrame)
    first.payload[:] = b"xyz"
    assert bytes(second.payload) == b"def"
    assert data.count(b"abc") == 1


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_length_below_four_is_skipped(length: int) -> None:
    data = PING + struct.pack("<I", length) + b"\xff" * length + PING
    events = RequestDecoder().feed(data)
    assert [type(event) for event in events] == [RequestFrame, BadLength, RequestFrame]
    decoder = RequestDecoder()
    assert [e for byte in data for e in decoder.feed(bytes([byte]))] == events


def test_a_first_length_of_zero_is_another_framing() -> None:
    decoder = RequestDecoder()
    assert decoder.feed(bytes(3)) == []
    assert decoder.feed(bytes(253) + PING) == [OtherFraming()]
    assert decoder.feed(PING) == []


def test_a_later_length_of_zero_is_only_bad() -> None:
    assert RequestDecoder().feed(PING + bytes(4))[1:] == [BadLength(0)]


def test_the_limit_depends_on_the_command() -> None:
    decoder = RequestDecoder(frame_bytes_max=100, send_frame_bytes_max=1000)
    assert len(decoder.feed(request(101, b"x" * 996))) == 1
    assert len(decoder.feed(request(33, b"x" * 96))) == 1
    assert decoder.feed(struct.pack("<II", 101, 33)) == [TooLarge(33, 101)]
    assert decoder.feed(PING) == []  # nobody knows where the next frame starts

    decoder = RequestDecoder(frame_bytes_max=100, send_frame_bytes_max=1000)
    assert decoder.feed(struct.pack("<I", 101)) == []  # it may yet be a SEND
    assert decoder.feed(struct.pack("<I", 101)) == []
    decoder = RequestDecoder(frame_bytes_max=100, send_frame_bytes_max=1000)
    assert decoder.feed(struct.pack("<I", 1001)) == [TooLarge(None, 1001)]


def test_the_rest_of_a_large_frame_is_received_in_place() -> None:
    frame = b"".join(encode_request(7, [b"x" * 10_000]))
    decoder = RequestDecoder()
    assert decoder.room(0, 100_000) is None
    assert decoder.feed(frame[:100]) == []
    assert decoder.room(101, 100_000) is None  # too little came
    assert decoder.room(100, len(frame) - 1) is None  # too much to come
    room = decoder.room(100, len(frame))
    assert room is not None
    assert decoder.buffered_bytes == len(frame)
    room[:] = frame[100:]
    event = decoder.complete()
    assert isinstance(event, RequestFrame)
    assert (event.code, bytes(event.payload)) == (7, b"x" * 10_000)
    assert decoder.buffered_bytes == 0
    assert [type(event) for event in decoder.feed(frame)] == [RequestFrame]


def test_many_small_frames_are_decoded_a_few_at_a_time() -> None:
    ping, half = b"".join(encode_request(1)), b"".join(encode_request(2, [b"abc"]))
    decoder = RequestDecoder()
    found = decoder.feed(ping * 10 + half[:-1], 4)
    counts = [len(found)]
    while events := decoder.more(4):
        counts.append(len(events))
    assert counts == [4, 4, 2]
    assert decoder.more(4) == []
    assert [event.code for event in decoder.feed(half[-1:]) if isinstance(event, RequestFrame)] == [
        2
    ]


@pytest.mark.parametrize("piece", [64 << 10, 700_000, 6 << 20])
def test_large_frames_in_pieces_among_small_ones(piece: int) -> None:
    payloads = [b"a", b"b" * (3 << 20), b"", b"c" * (5 << 20), b"d"]
    data = b"".join(b"".join(encode_request(101, [payload])) for payload in payloads)
    decoder = RequestDecoder()
    found = list[bytes]()
    for start in range(0, len(data), piece):
        events = decoder.feed(data[start : start + piece], 2)
        while events:
            for event in events:
                assert isinstance(event, RequestFrame)
                assert event.code == 101
                assert not event.payload.readonly
                found.append(bytes(event.payload))
            events = decoder.more(2)
        assert decoder.buffered_bytes <= start + piece
    assert found == payloads
    assert decoder.buffered_bytes == 0


def test_a_frame_above_the_limit_gets_no_room() -> None:
    decoder = RequestDecoder(frame_bytes_max=1000, send_frame_bytes_max=1000)
    assert [type(event) for event in decoder.feed(struct.pack("<II", 2000, 7))] == [TooLarge]
    assert decoder.room(0, 100_000) is None


def test_a_stated_length_costs_nothing() -> None:
    tracemalloc.start()
    try:
        decoder = RequestDecoder()
        decoder.feed(struct.pack("<II", 60 << 20, 101) + b"x" * 100)
        answers = ResponseDecoder()
        answers.feed(struct.pack("<II", 0, 60 << 20) + b"x" * 100)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoder.buffered_bytes == answers.buffered_bytes == 108
    assert peak < 64 * 1024


def test_responses() -> None:
    data = b"".join(
        [*encode_response(0), *encode_response(40), *encode_response(0, [b"ab", b"cd"])]
    )
    whole = [(f.status, bytes(f.payload)) for f in ResponseDecoder().feed(data)]
    assert whole == [(0, b""), (40, b""), (0, b"abcd")]
    decoder = ResponseDecoder()
    single = [f for byte in data for f in decoder.feed(bytes([byte]))]
    assert [(f.status, bytes(f.payload)) for f in single] == whole


def test_a_success_of_one_byte_has_no_body() -> None:
    frames = ResponseDecoder().feed(struct.pack("<II", 0, 1) + struct.pack("<II", 3, 0))
    assert [(f.status, len(f.payload)) for f in frames] == [(0, 0), (3, 0)]


def test_a_response_above_the_limit_is_refused_at_its_head() -> None:
    with pytest.raises(RemoteProtocolError):
        ResponseDecoder(response_bytes_max=100).feed(struct.pack("<II", 0, 101))


def test_what_cannot_be_framed() -> None:
    with pytest.raises(LocalProtocolError):
        encode_response(0, [b"x"])
    with pytest.raises(LocalProtocolError):
        encode_response(3, [b"abc"])
