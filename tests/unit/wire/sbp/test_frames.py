"""Framing rules: what is taken, what is skipped, what ends the connection."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.sbp.flat import Buffer
from headrace.wire.sbp.frames import (
    FRAME_BYTES_MAX,
    BadFrame,
    Frame,
    FrameDecoder,
    encode_frame,
)


def wire(frame: Frame) -> bytes:
    return b"".join(encode_frame(frame))


PING = Frame(1, 0, 5, b"", b"sbp")
OTHER = Frame(0x1001, 0, 6, b"head", b"body")


def broken_checksum(frame: Frame) -> bytes:
    data = bytearray(wire(frame))
    data[-1] ^= 1
    return bytes(data)


def wrong_magic(payload_bytes: int = 10) -> bytes:
    data = bytearray(wire(Frame(1, 0, 1, b"hdr", bytes(payload_bytes))))
    data[4] = 0x18
    return bytes(data)


def test_two_frames_in_one_buffer() -> None:
    """The original took the second frame of a buffer for damage."""
    assert FrameDecoder().feed(wire(PING) + wire(OTHER)) == [PING, OTHER]


def test_an_incomplete_frame_is_not_an_error() -> None:
    decoder = FrameDecoder()
    data = wire(OTHER)
    assert decoder.feed(data[:-1]) == []
    assert decoder.inside_frame
    assert decoder.feed(data[-1:]) == [OTHER]
    assert not decoder.inside_frame


@pytest.mark.parametrize("length", [0, 10, 15, FRAME_BYTES_MAX + 1, 0xFFFFFFFF])
def test_a_length_out_of_bounds_ends_the_connection(length: int) -> None:
    data = struct.pack(">I", length) + wire(PING)[4:]
    with pytest.raises(RemoteProtocolError):
        FrameDecoder().feed(data)
    with pytest.raises(RemoteProtocolError):  # the length alone is enough
        FrameDecoder().feed(data[:4])
    decoder = FrameDecoder()
    for byte in data[:3]:
        assert decoder.feed(bytes([byte])) == []
    with pytest.raises(RemoteProtocolError):
        decoder.feed(data[3:4])


def test_the_smallest_and_largest_lengths_pass() -> None:
    assert len(wire(Frame(1, 0, 1))) == 20
    largest = Frame(1, 0, 1, b"", bytes(FRAME_BYTES_MAX - 16))
    assert FrameDecoder().feed(wire(largest)) == [largest]
    with pytest.raises(LocalProtocolError):
        encode_frame(Frame(1, 0, 1, b"h", bytes(FRAME_BYTES_MAX - 16)))


def test_a_smaller_limit_is_kept() -> None:
    with pytest.raises(RemoteProtocolError):
        FrameDecoder(100).feed(wire(Frame(1, 0, 1, b"", bytes(90))))


def test_good_frames_before_a_fatal_one_are_delivered_first() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(wire(PING) + b"GET / HTTP/1.1\r\n\r\n") == [PING]
    assert decoder.failure is not None
    with pytest.raises(RemoteProtocolError):
        decoder.feed(b"")


def test_a_wrong_magic_skips_exactly_that_frame_and_the_third_is_fatal() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(wire(PING) + wrong_magic() + wire(OTHER)) == [PING, OTHER]
    assert decoder.wrong_magic_count == 1
    assert decoder.feed(wrong_magic(0) + wire(PING)) == [PING]
    with pytest.raises(RemoteProtocolError):
        decoder.feed(wrong_magic())


def test_a_skipped_frame_is_never_buffered() -> None:
    decoder = FrameDecoder()
    data = wrong_magic(1 << 20)
    tracemalloc.start()
    try:
        for start in range(0, len(data), 1 << 14):
            decoder.feed(data[start : start + (1 << 14)])
            assert len(decoder._partial) == 0
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert decoder.feed(wire(PING)) == [PING]


def test_a_checksum_mismatch_is_reported_and_the_third_is_fatal() -> None:
    decoder = FrameDecoder()
    bad = BadFrame(0x1001, 0, 6, "payload checksum mismatch")
    assert decoder.feed(broken_checksum(OTHER) + wire(PING)) == [bad, PING]
    assert decoder.feed(broken_checksum(OTHER)) == [bad]
    assert decoder.failure is None
    assert decoder.feed(broken_checksum(OTHER) + wire(PING)) == [bad]  # still answered
    assert decoder.failure is not None


def test_the_checksum_of_an_empty_payload_is_ignored() -> None:
    assert FrameDecoder().feed(broken_checksum(Frame(1, 0, 1, b"head"))) == [
        Frame(1, 0, 1, b"head")
    ]


def test_a_header_longer_than_the_frame_is_refused_before_any_allocation() -> None:
    """The original's server process went down on it."""
    data = bytearray(wire(OTHER))
    data[13:16] = b"\xff\xff\xff"
    decoder = FrameDecoder()
    events = decoder.feed(bytes(data) + wire(PING))
    assert events == [BadFrame(0x1001, 0, 6, "header longer than the frame"), PING]
    data[13:16] = (len(data) - 20 + 1).to_bytes(3, "big")  # longer by one byte
    assert isinstance(FrameDecoder().feed(bytes(data))[0], BadFrame)


def test_a_promised_length_takes_no_memory() -> None:
    head = struct.pack(">IBHBII", FRAME_BYTES_MAX, 23, 0x1001, 0, 1, 1 << 24)
    tracemalloc.start()
    try:
        decoders = [FrameDecoder() for _ in range(50)]
        for decoder in decoders:
            decoder.feed(head + b"little")
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_dribbled_bytes_take_no_more_memory_than_their_count() -> None:
    payload = bytes(200_000)
    data = wire(Frame(1, 0, 1, b"", payload))
    decoder = FrameDecoder()
    *pieces, last = [data[i : i + 1] for i in range(len(data))]
    tracemalloc.start()
    try:
        for piece in pieces:
            decoder.feed(piece)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(payload)
    finally:
        tracemalloc.stop()
    assert decoder.feed(last) == [Frame(1, 0, 1, b"", payload)]


def test_a_small_frame_does_not_pin_the_chunk_it_came_in() -> None:
    chunk = wire(PING) + wire(Frame(1, 0, 7, b"", bytes(1 << 16)))
    small, large = FrameDecoder().feed(chunk)
    assert isinstance(small, Frame)
    assert isinstance(large, Frame)
    assert isinstance(small.payload, memoryview)
    assert isinstance(large.payload, memoryview)
    assert len(small.payload.obj) < 100  # type: ignore[arg-type]  # the bytes that it is a view of
    assert large.payload.obj is chunk  # and the large one is not copied


def test_payload_pieces_pass_through_unchanged() -> None:
    pieces: list[Buffer] = [bytearray(b"one"), memoryview(b"two")]
    encoded = encode_frame(Frame(0x1001, 0, 1, b"h", pieces))
    assert encoded[1] is pieces[0]
    assert encoded[2] is pieces[1]
    assert len(encoded) == 4


def receive(decoder: FrameDecoder, data: bytes, chunk_bytes: int) -> list[Frame | BadFrame]:
    """As a client does: into the decoder's room where there is one."""
    events: list[Frame | BadFrame] = []
    at = 0
    while at < len(data):
        room = decoder.room()
        if room is None:
            events += decoder.feed(data[at : at + chunk_bytes])
            at += chunk_bytes
            continue
        taken = data[at : at + min(len(room), chunk_bytes)]
        room[: len(taken)] = taken
        events += decoder.fill(len(taken))
        at += len(taken)
    return events


@pytest.mark.parametrize("chunk_bytes", [100, 10_000, 1 << 20])
def test_large_frames_may_be_received_into_their_room(chunk_bytes: int) -> None:
    large = Frame(0x1002, 1, 7, b"head", bytes(range(256)) * 12_000)
    last = Frame(0x1002, 3, 7, b"head", bytes(range(256)) * 2_000)
    decoder = FrameDecoder()
    data = wire(large) + wire(PING) + wire(last) + wire(OTHER)
    assert receive(decoder, data, chunk_bytes) == [large, PING, last, OTHER]
    assert not decoder.inside_frame
    assert decoder.room() is None


def test_damage_in_a_room_is_found() -> None:
    data = broken_checksum(Frame(0x1002, 1, 7, b"head", bytes(1 << 20)))
    decoder = FrameDecoder()
    for _ in range(2):
        (bad,) = receive(decoder, data, 50_000)
        assert isinstance(bad, BadFrame)
    assert decoder.failure is None
    (bad,) = receive(decoder, data, 50_000)
    assert decoder.failure is not None, "the third one ends the connection"
