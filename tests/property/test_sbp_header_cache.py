"""A header read by the template of an earlier one says what it says when read the long way."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import RemoteProtocolError
from headrace.wire.sbp import flat, header_cache, messages
from headrace.wire.sbp.flat import Message, decode, encode
from headrace.wire.sbp.multipart import encode_replicated
from tests.property.test_sbp_codec import messages_of

NUMBERS: list[type[Message]] = [
    messages.AppendRequest,
    messages.AppendResponse,
    messages.FetchRequest,
    messages.FetchResponse,
    messages.ReportMetricsRequest,
    messages.TrimStreamsRequest,
]


def read_the_long_way(cls: type[Message], data: bytes) -> Message | type[RemoteProtocolError]:
    try:
        (root,) = flat._U32.unpack_from(data)
        found: Message = flat._Reader(data).table(cls, root)
    except RemoteProtocolError:
        return RemoteProtocolError
    return found


def read(cls: type[Message], data: bytes) -> Message | type[RemoteProtocolError]:
    try:
        return decode(cls, data)
    except RemoteProtocolError:
        return RemoteProtocolError


@pytest.fixture(autouse=True)
def _unlearned() -> None:
    for cls in NUMBERS:
        plan = flat._plan(cls)
        plan.templates.clear()
        plan.learned = 0


@pytest.mark.parametrize("cls", NUMBERS, ids=lambda cls: cls.__name__)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_changed_headers_mean_the_same_either_way(cls: type[Message], data: st.DataObject) -> None:
    """Also where a change hits what the template takes for fixed."""
    flat._plan(cls).learned = 0
    first = encode(data.draw(messages_of(cls)))
    read(cls, first)
    for _ in range(4):
        changed = bytearray(first)
        for _ in range(data.draw(st.integers(1, 3))):
            changed[data.draw(st.integers(0, len(first) - 1))] = data.draw(st.integers(0, 255))
        assert read(cls, bytes(changed)) == read_the_long_way(cls, bytes(changed))


def append(offset: int, **more: Any) -> bytes:
    range_ = messages.Range(stream_id=7, range_index=1, next_offset=offset)
    info = messages.AppendInfo(range=range_, batch_length=65536, **more)
    return encode(messages.AppendRequest(append_requests=(info,)))


def test_the_second_header_that_fits_is_read_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = append(1000), append(2000)
    decode(messages.AppendRequest, first)
    monkeypatch.delattr(flat._Reader, "table")
    found = decode(messages.AppendRequest, second)
    assert found.append_requests[0].range is not None
    assert found.append_requests[0].range.next_offset == 2000


def test_a_header_that_does_not_fit_replaces_the_last_of_its_length() -> None:
    one, other = append(1000, writer_epoch=3), append(1000, expected_offset=3)
    assert len(one) == len(other)
    for _ in range(3):
        assert decode(messages.AppendRequest, one).append_requests[0].writer_epoch == 3
        assert decode(messages.AppendRequest, other).append_requests[0].expected_offset == 3


def test_what_is_learned_from_peers_is_bounded() -> None:
    plan = flat._plan(messages.AppendRequest)
    one, other = append(1000, writer_epoch=3), append(1000, expected_offset=3)
    for _ in range(header_cache.LEARNED_MAX):
        decode(messages.AppendRequest, one)
        decode(messages.AppendRequest, other)
    assert plan.learned == header_cache.LEARNED_MAX
    for count in range(1, 2 * header_cache.TEMPLATES_MAX):
        plan.learned = 0
        infos = (messages.FetchInfo(stream_id=3),) * count
        decode(messages.FetchRequest, encode(messages.FetchRequest(fetch_requests=infos)))
    lengths = list(flat._plan(messages.FetchRequest).templates)
    assert 1 < len(lengths) <= header_cache.TEMPLATES_MAX
    assert max(lengths) <= header_cache.HEADER_BYTES_MAX
    assert all(a < b for a, b in pairwise(lengths))


def test_scalars_that_are_structure_too_teach_nothing() -> None:
    """A crafted header: a scalar of the table lies on the vtable that says where it lies."""
    scalar = header_cache.Scalar(4, "q", 8)
    table = header_cache.TableTrace(messages.FetchRequest, [scalar])
    with pytest.raises(ValueError):
        header_cache.HeaderTemplate(table, [(0, 4), (8, 12)], bytes(16))
    with pytest.raises(ValueError):
        header_cache.HeaderTemplate(
            header_cache.TableTrace(
                messages.FetchRequest, [scalar, header_cache.Scalar(6, "i", 4)]
            ),
            [(0, 4)],
            bytes(16),
        )


@given(message=messages_of(messages.AppendRequest))
@settings(max_examples=100, deadline=None)
def test_templates_give_what_encoding_gives(message: messages.AppendRequest) -> None:
    assert encode_replicated(message) in (None, encode(message))


@given(
    stream_id=st.integers(0, 1 << 62),
    range_index=st.integers(0, 1 << 30),
    committed=st.integers(1, 1 << 62),
    length=st.integers(1, 1 << 30),
)
def test_an_append_to_a_replica_has_a_template(
    stream_id: int, range_index: int, committed: int, length: int
) -> None:
    range_ = messages.Range(stream_id, range_index, next_offset=committed)
    info = messages.AppendInfo(range=range_, batch_length=length)
    message = messages.AppendRequest(append_requests=(info,))
    assert encode_replicated(message) == encode(message)
