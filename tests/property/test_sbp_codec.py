"""SBP codecs: round trips, chunking, and garbage that is parsed or refused, never anything else."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.errors import RemoteProtocolError
from headrace.wire.sbp import frames, messages
from headrace.wire.sbp.flat import FlatField, Kind, Message, decode, encode
from headrace.wire.sbp.frames import BadFrame, Frame, FrameDecoder, encode_frame

MESSAGES: list[type[Message]] = sorted(
    (
        cls
        for cls in vars(messages).values()
        if isinstance(cls, type) and issubclass(cls, Message) and cls is not Message
    ),
    key=lambda cls: cls.__name__,
)

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_SCALARS: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.BOOL: st.booleans(),
    Kind.I8: st.integers(-(1 << 7), (1 << 7) - 1),
    Kind.I16: st.integers(-(1 << 15), (1 << 15) - 1),
    Kind.I32: st.integers(-(1 << 31), (1 << 31) - 1),
    Kind.I64: st.integers(-(1 << 63), (1 << 63) - 1),
    Kind.STRING: _TEXT,
    Kind.OCTETS: st.binary(max_size=20),
    Kind.I64_VECTOR: st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=4).map(tuple),
}


def values_of(spec: FlatField) -> st.SearchStrategy[Any]:
    if spec.table is None:
        # Defaults are a case of their own: they are left out of the bytes.
        return _SCALARS[spec.kind] | st.just(spec.default) if spec.default else _SCALARS[spec.kind]
    if spec.kind is Kind.TABLE:
        return st.none() | messages_of(spec.table)
    return st.lists(messages_of(spec.table), max_size=3).map(tuple)


def messages_of(cls: type[Message]) -> st.SearchStrategy[Message]:
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # every message is a dataclass
    return st.builds(cls, **{f.name: values_of(f.metadata["flat"]) for f in fields})


any_message = st.sampled_from(MESSAGES).flatmap(messages_of)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_every_message_comes_back(cls: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages_of(cls))
    assert decode(cls, encode(message)) == message
    assert decode(cls, memoryview(b"xx" + encode(message))[2:]) == message


@given(cls=st.sampled_from(MESSAGES), garbage=st.binary(max_size=200))
@settings(max_examples=400, deadline=None)
@example(cls=messages.AppendRequest, garbage=b"")
@example(cls=messages.AppendRequest, garbage=bytes(4))
@example(cls=messages.AppendRequest, garbage=b"\xff" * 64)
def test_garbage_headers_are_parsed_or_refused(cls: type[Message], garbage: bytes) -> None:
    try:
        message = decode(cls, garbage)
    except RemoteProtocolError:
        return
    assert isinstance(message, cls)


@given(message=any_message, data=st.data())
@settings(max_examples=400, deadline=None)
def test_mutated_headers_are_parsed_or_refused(message: Message, data: st.DataObject) -> None:
    buffer = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        buffer[data.draw(st.integers(0, len(buffer) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(buffer)))
    for candidate in (bytes(buffer), bytes(buffer[:cut])):
        try:
            decoded = decode(type(message), candidate)
        except RemoteProtocolError:
            continue
        # What was parsed is a value like any other: it can be sent on.
        assert decode(type(message), encode(decoded)) == decoded


any_frame = st.builds(
    Frame,
    opcode=st.integers(0, 0xFFFF),
    flags=st.integers(0, 255),
    stream_id=st.integers(0, (1 << 32) - 1),
    header=st.binary(max_size=40),
    payload=st.binary(max_size=200),
    header_format=st.integers(0, 255),
)


def feed_all(data: bytes, cuts: list[int]) -> tuple[list[object], str]:
    """Events of `data` cut at the given positions, and how the decoder ended."""
    decoder = FrameDecoder(4096)
    events: list[object] = []
    edges = [0, *sorted(cuts), len(data)]
    for start, end in pairwise(edges):
        try:
            events += decoder.feed(data[start:end])
        except RemoteProtocolError as error:
            return events, str(error)
    return events, str(decoder.failure) if decoder.failure else ""


@given(sent=st.lists(any_frame, max_size=6), data=st.data())
@settings(max_examples=200, deadline=None)
def test_frames_come_back_whatever_the_chunks(sent: list[Frame], data: st.DataObject) -> None:
    wire = b"".join(b"".join(encode_frame(frame)) for frame in sent)
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=8))
    events, failure = feed_all(wire, cuts)
    assert not failure
    assert events == sent
    assert feed_all(wire, list(range(len(wire)))) == (sent, "")


@given(sent=st.lists(any_frame, min_size=1, max_size=6), data=st.data())
@settings(max_examples=300, deadline=None)
def test_mutated_frames_give_the_same_events_whole_and_in_bytes(
    sent: list[Frame], data: st.DataObject
) -> None:
    wire = bytearray(b"".join(b"".join(encode_frame(frame)) for frame in sent))
    for _ in range(data.draw(st.integers(1, 6))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    whole = feed_all(bytes(wire), [])
    assert whole == feed_all(bytes(wire), list(range(len(wire))))
    assert all(isinstance(event, Frame | BadFrame) for event in whole[0])


@given(garbage=st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_garbage_bytes_never_cost_more_than_their_length(garbage: bytes) -> None:
    decoder = FrameDecoder()
    try:
        decoder.feed(garbage)
    except RemoteProtocolError:
        assert not decoder.inside_frame
        return
    assert len(decoder._partial) <= len(garbage)


@given(pieces=st.lists(st.binary(max_size=50), max_size=5))
@settings(deadline=None)
def test_payload_in_pieces_is_the_payload(pieces: list[bytes]) -> None:
    wire = b"".join(encode_frame(Frame(1, 0, 1, b"h", pieces)))
    assert wire == b"".join(encode_frame(Frame(1, 0, 1, b"h", b"".join(pieces))))
    (frame,) = FrameDecoder().feed(wire)
    assert isinstance(frame, Frame)
    assert frame.payload == b"".join(pieces)
    assert frame.flags & frames.RESPONSE == 0
