"""Frames between brokers survive the wire however it cuts them; no bytes raise anything but
RemoteProtocolError."""

from __future__ import annotations

import contextlib
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import RemoteProtocolError
from headrace.wire.peer.frames import Frame, FrameDecoder, Kind, encode_frame
from headrace.wire.peer.login import decode_hello

NUMBERS = st.integers(0, 2**64 - 1)
BODIES = st.one_of(st.binary(max_size=50), st.integers(0, 200_000).map(bytes))
FRAMES = st.builds(
    Frame,
    st.sampled_from([int(kind) for kind in Kind]),
    NUMBERS,
    st.binary(max_size=40),
    BODIES.map(memoryview),
)


@given(st.lists(FRAMES, max_size=5), st.lists(st.integers(0, 400_000), max_size=8), st.booleans())
def test_frames_arrive_as_they_were_sent(
    frames: list[Frame], cuts: list[int], with_room: bool
) -> None:
    data = b"".join(
        b"".join(encode_frame(each.kind, each.number, each.head, [each.body])) for each in frames
    )
    decoder = FrameDecoder()
    found: list[Frame] = []
    for low, high in pairwise(sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})):
        position = low
        while position < high:
            room = decoder.room() if with_room else None
            if room is None:
                found += decoder.feed(data[position:high])
                position = high
            else:
                count = min(len(room), high - position)
                room[:count] = data[position : position + count]
                found += decoder.fill(count)
                position += count
    assert found == frames
    assert decoder.is_between_frames
    whole = FrameDecoder().split(memoryview(data), len(frames))
    assert whole == frames


@given(st.binary(max_size=200), st.integers(1, 50))
def test_garbage_is_frames_or_one_error(data: bytes, piece: int) -> None:
    decoder = FrameDecoder()
    with contextlib.suppress(RemoteProtocolError):
        for at in range(0, len(data), piece):
            decoder.feed(data[at : at + piece])
            decoder.room()
    FrameDecoder().split(memoryview(data), 10)
    with contextlib.suppress(RemoteProtocolError):
        decode_hello(data)
