"""Byte layout and bounds of the frames between brokers."""

import pytest

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.peer.frames import (
    FRAME_BYTES_MAX,
    HEAD_BYTES_MAX,
    PING,
    ROOM_BYTES_MAX,
    Frame,
    FrameDecoder,
    Kind,
    encode_frame,
)


def whole(kind: int, number: int = 0, head: bytes = b"", body: bytes = b"") -> bytes:
    return b"".join(encode_frame(kind, number, head, [body]))


def test_the_layout() -> None:
    assert whole(Kind.REQUEST, 0x0102, b"hd", b"body") == (
        bytes([19, 0, 0, 0, 4, 2, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]) + b"hdbody"
    )
    assert whole(Kind.PING) == PING == bytes([13, 0, 0, 0, 9, *bytes(12)])


def test_a_long_body_is_sent_as_it_is() -> None:
    body = bytearray(100_000)
    pieces = encode_frame(Kind.ANSWER, 7, b"head", [body, b"end"])
    assert pieces[1] is body
    assert len(pieces) == 3


@pytest.mark.parametrize(
    ("length", "kind", "head_length"),
    [
        (12, 4, 0),
        (FRAME_BYTES_MAX + 1, 4, 0),
        (0xFFFFFFFF, 4, 0),
        (13, 4, 1),
        (20, 4, 0xFFFFFFFF),
        (HEAD_BYTES_MAX + 100, 4, HEAD_BYTES_MAX + 1),
        (13, 0, 0),
        (13, 11, 0),
    ],
)
def test_lengths_and_kinds_are_checked_before_memory_is_taken(
    length: int, kind: int, head_length: int
) -> None:
    bad = (
        length.to_bytes(4, "little") + bytes([kind]) + bytes(8) + head_length.to_bytes(4, "little")
    )
    with pytest.raises(RemoteProtocolError):
        FrameDecoder().feed(bad)
    decoder = FrameDecoder()
    assert decoder.split(memoryview(bad), 10) is None
    assert [frame.kind for frame in decoder.feed(PING + bad)] == [Kind.PING], "good ones come first"
    assert decoder.failure is not None
    with pytest.raises(RemoteProtocolError):
        decoder.feed(PING)


def test_nothing_too_large_is_sent() -> None:
    with pytest.raises(LocalProtocolError):
        encode_frame(Kind.REQUEST, 1, b"", [bytes(100)], frame_bytes_max=112)
    with pytest.raises(LocalProtocolError):
        encode_frame(Kind.REQUEST, 1, bytes(HEAD_BYTES_MAX + 1))


def test_a_long_body_is_received_where_it_stays() -> None:
    body = bytes(range(256)) * 10_000
    data = whole(Kind.REQUEST, 9, b"head", body)
    decoder = FrameDecoder()
    assert decoder.feed(data[:10]) == []
    assert decoder.room() is None
    assert decoder.feed(data[10:50]) == []
    assert decoder.next_bytes == len(data)
    position = 50
    frames: list[Frame] = []
    while not frames:
        room = decoder.room()
        assert room is not None
        assert len(room) <= ROOM_BYTES_MAX
        room[:] = data[position : position + len(room)]
        position += len(room)
        frames = decoder.fill(len(room))
    assert frames == [Frame(Kind.REQUEST, 9, b"head", memoryview(body))]
    assert position == len(data)
    assert decoder.is_between_frames


def test_bytes_may_be_fed_into_a_body_that_has_room() -> None:
    body = bytes(100_000)
    data = whole(Kind.REQUEST, 9, b"head", body) + PING
    decoder = FrameDecoder()
    decoder.feed(data[:100])
    assert decoder.room() is not None
    assert decoder.feed(data[100:200]) == []
    assert [frame.kind for frame in decoder.feed(data[200:])] == [Kind.REQUEST, Kind.PING]


def test_split_takes_all_or_nothing() -> None:
    decoder = FrameDecoder()
    data = whole(Kind.REQUEST, 1, b"a", b"b") + PING
    assert decoder.split(memoryview(data[:-1]), 10) is None
    assert decoder.split(memoryview(data), 1) is None
    found = decoder.split(memoryview(data), 2)
    assert found is not None
    assert [frame.kind for frame in found] == [Kind.REQUEST, Kind.PING]
    decoder.feed(b"\x0d")
    assert decoder.split(memoryview(data), 10) is None, "it has begun with another one"
