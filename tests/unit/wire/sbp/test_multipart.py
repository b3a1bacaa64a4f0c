"""Answers over several frames come back as they were, whatever the sizes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.sbp import multipart
from headrace.wire.sbp.connection import Assembler
from headrace.wire.sbp.flat import Buffer, decode, encode
from headrace.wire.sbp.frames import Frame, encode_frame, payload_bytes
from headrace.wire.sbp.messages import (
    OK,
    AppendResponse,
    AppendResult,
    DataNode,
    FetchResponse,
    FetchResult,
    ListRangesResponse,
    ListRangesResult,
    Message,
    Range,
    RangeCriteria,
    ReplicaNode,
    Status,
)
from headrace.wire.sbp.multipart import encode_answer


def sent_and_received(message: Message, payload: list[Buffer]) -> tuple[Message, bytes, int]:
    assembler = Assembler()
    count = 0
    for header, pieces in encode_answer(message, payload):
        encode_frame(Frame(1, 1, 1, header, pieces))  # it fits a frame
        assembler.add(decode(type(message), header), [b"".join(pieces)] if pieces else [])
        count += 1
    merged, collected = assembler.finish()
    return merged, b"".join(collected), count


@given(st.lists(st.lists(st.integers(0, 30), max_size=4), max_size=5))
@settings(deadline=None)
def test_fetch_answers_of_any_shape(shape: list[list[int]]) -> None:
    """Each inner list holds the piece sizes of one result; frames hold 16 bytes here."""
    payload: list[Buffer] = []
    results = []
    for index, sizes in enumerate(shape):
        pieces = [bytes([65 + index]) * size for size in sizes]
        payload += pieces
        results.append(FetchResult(1, index, sum(sizes)))
    message = FetchResponse(3, tuple(results))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multipart, "PAYLOAD_BYTES", 16)
        patch.setattr(multipart, "_PIECE_BYTES_MAX", 20)
        merged, data, count = sent_and_received(message, payload)
        for header, carried in encode_answer(message, payload):
            part = decode(FetchResponse, header)
            assert sum(r.batch_length for r in part.fetch_responses) == payload_bytes(carried)
            assert payload_bytes(carried) <= 16 or len(carried) == 1
    assert merged == message
    assert data == b"".join(payload)
    if payload_bytes(payload) <= 16:
        assert count == 1


def test_pieces_are_cut_only_when_no_frame_holds_them() -> None:
    pieces: list[Buffer] = [bytes(3 << 20), bytes(3 << 20), bytes(20 << 20)]
    message = FetchResponse(0, (FetchResult(1, 0, 26 << 20),))
    frames = [list(p) for _, p in encode_answer(message, pieces)]
    assert [payload_bytes(frame) >> 20 for frame in frames] == [3, 3, 14, 6]


def test_a_single_frame_comes_back_untouched() -> None:
    message = FetchResponse(0, (FetchResult(1, 0, 4),))
    payload = [memoryview(b"data")]
    assembler = Assembler()
    assembler.add(message, payload)
    merged, collected = assembler.finish()
    assert merged is message
    assert collected is payload


def test_an_error_is_final_for_its_request_index() -> None:
    assembler = Assembler()
    assembler.add(FetchResponse(0, (FetchResult(1, 0, 2), FetchResult(1, 1, 1))), [b"abc"])
    assembler.add(FetchResponse(0, (FetchResult(1, 0, 0, Status(2503, "bad")),)), [])
    merged, collected = assembler.finish()
    assert merged == FetchResponse(
        0, (FetchResult(1, 0, 2, Status(2503, "bad")), FetchResult(1, 1, 1))
    )
    assert b"".join(collected) == b"abc"
    late = Assembler()
    late.add(FetchResponse(0, (FetchResult(1, 0, 0, Status(2503, "bad")),)), [])
    late.add(FetchResponse(0, (FetchResult(1, 0, 1),)), [b"x"])
    with pytest.raises(RemoteProtocolError):
        late.finish()


def test_lengths_must_add_up_on_both_sides() -> None:
    for length in (3, 5, -4):
        assembler = Assembler()
        assembler.add(FetchResponse(0, (FetchResult(1, 0, length),)), [b"four"])
        with pytest.raises(RemoteProtocolError):
            assembler.finish()
    big: list[Buffer] = [bytes(5 << 20)]
    for length in ((5 << 20) - 1, (5 << 20) + 1):
        with pytest.raises(LocalProtocolError):
            list(encode_answer(FetchResponse(0, (FetchResult(1, 0, length),)), big))


def many_ranges(count: int) -> tuple[Range, ...]:
    nodes = (ReplicaNode(DataNode(1, "data-node-1.example:10911"), True),)
    return tuple(Range(1, i, 2 * i, 2 * i + 2, 2 * i + 2, nodes) for i in range(count))


def test_long_range_lists_take_several_frames() -> None:
    criteria = RangeCriteria(stream_id=1)
    results = (
        ListRangesResult(criteria, many_ranges(20_000)),
        ListRangesResult(RangeCriteria(stream_id=2), (), Status(1404, "no stream")),
    )
    message = ListRangesResponse(0, results)
    assert len(encode(message)) > 2 << 20
    merged, _, count = sent_and_received(message, [])
    assert merged == message
    assert count >= 3
    assert all(len(header) <= 1 << 20 for header, _ in encode_answer(message, []))


def test_a_criterion_asked_twice_is_answered_twice_after_an_error() -> None:
    criteria = RangeCriteria(stream_id=2)
    refused = ListRangesResult(criteria, (), Status(1404, "no stream"))
    found = ListRangesResult(criteria, many_ranges(1))
    assembler = Assembler()
    assembler.add(ListRangesResponse(0, (refused,)), [])
    assembler.add(ListRangesResponse(0, (found,)), [])
    assert assembler.finish()[0] == ListRangesResponse(0, (refused, found))


def test_results_are_concatenated_and_the_bad_status_wins() -> None:
    assembler = Assembler()
    assembler.add(AppendResponse(5, (AppendResult(1, 1, 7),)), [])
    assembler.add(AppendResponse(9, (AppendResult(1, 0, 8),), Status(1429, "slow down")), [])
    merged, _ = assembler.finish()
    assert merged == AppendResponse(
        9, (AppendResult(1, 1, 7), AppendResult(1, 0, 8)), Status(1429, "slow down")
    )


def test_an_answer_without_end_is_given_up() -> None:
    assembler = Assembler(bytes_max=100)
    for _ in range(10):
        assembler.add(FetchResponse(), [b"0123456789"])
    with pytest.raises(RemoteProtocolError, match="too large"):
        assembler.add(FetchResponse(), [b"0"])
    with pytest.raises(RemoteProtocolError):
        Assembler().finish()


@pytest.mark.parametrize("index", [0, 1, 77])
@pytest.mark.parametrize("offset", [0, 1, 2**62])
@pytest.mark.parametrize("stream_id", [-1, 0, 5])
@pytest.mark.parametrize("time_ms", [0, 1_794_753_076_000])
@pytest.mark.parametrize("pause", [0, 3])
def test_the_answer_to_a_stored_batch_is_what_it_always_was(
    index: int, offset: int, stream_id: int, time_ms: int, pause: int
) -> None:
    result = AppendResult(stream_id, index, offset, time_ms, OK)
    message = AppendResponse(pause, (result,), OK)
    ((header, payload),) = encode_answer(message, ())
    assert header == encode(message)
    assert not payload


def test_a_refused_append_is_not_told_as_stored() -> None:
    refused = Status(code=1489, message="fenced")
    message = AppendResponse(append_responses=(AppendResult(5, 0, 9, 7, refused),), status=OK)
    ((header, _),) = encode_answer(message, ())
    assert decode(AppendResponse, header) == message
