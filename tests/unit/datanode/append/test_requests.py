from __future__ import annotations

import pytest

from headrace.datanode.append.requests import SentBatch, split_payload
from headrace.errors import InvalidArgumentError, TooLargeError
from headrace.runtime.interfaces import Buffer
from headrace.sbp_client.client import BATCH_BYTES_MAX
from headrace.wire.sbp.messages import AppendInfo, Range
from tests.log_cluster import batch


def infos(*lengths: int) -> list[AppendInfo]:
    return [AppendInfo(range=Range(stream_id=1), batch_length=length) for length in lengths]


def joined(found: SentBatch | TooLargeError | None) -> bytes:
    assert isinstance(found, SentBatch)
    assert isinstance(found.header, bytearray)
    return bytes(found.header) + b"".join(found.body)


@pytest.mark.parametrize("cut_at", [1, 54, 55, 56, 57, 58, 59, 60, 100, 114])
def test_pieces_may_be_cut_anywhere(cut_at: int) -> None:
    one = b"".join(batch(b"one"))
    two = b"".join(batch(b"two!"))
    whole = one + two
    pieces: list[Buffer] = [whole[:cut_at], memoryview(whole)[cut_at:]]
    found = split_payload(infos(len(one), len(two)), pieces)
    assert [joined(each) for each in found] == [one, two]


def test_in_process_headers_are_handed_over_uncopied() -> None:
    pieces = batch(b"body")
    (found,) = split_payload(infos(59), pieces)
    assert isinstance(found, SentBatch)
    assert found.header is pieces[0]
    assert list(found.body) == [pieces[1]]


@pytest.mark.parametrize("lengths", [(58,), (60,), (54, 5), (59, 0), (0, 59), (-1, 60), ()])
def test_lengths_must_add_up(lengths: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError):
        split_payload(infos(*lengths), batch(b"body"))


def test_a_batch_too_large_to_be_read_back_is_refused_alone() -> None:
    large = b"x" * BATCH_BYTES_MAX
    small = batch(b"s")
    found = split_payload(infos(55 + len(large), 56), [*batch(large), *small])
    assert isinstance(found[0], TooLargeError)
    assert isinstance(found[1], SentBatch)


def test_only_a_primary_may_send_nothing_but_what_is_committed() -> None:
    pieces = batch(b"body")
    with pytest.raises(InvalidArgumentError):
        split_payload(infos(59, 0), pieces)
    found = split_payload(infos(59, 0), pieces, replica=True)
    assert isinstance(found[0], SentBatch)
    assert found[1] is None
    with pytest.raises(InvalidArgumentError):
        split_payload(infos(54, 5), pieces, replica=True)
