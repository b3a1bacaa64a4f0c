"""One APPEND: the request for it and what its answer says."""

from __future__ import annotations

from headrace.sbp_client.ranges import milliseconds, only, typed
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import AlreadyDurableError, error_of, is_success, raise_for_status

BATCH_BYTES_MAX = 12 << 20
"""Of an append: the batch must fit into one frame of a fetch's answer too, beside its header."""


def append_info(
    range_: m.Range,
    length: int,
    *,
    request_index: int = 0,
    writer_epoch: int = -1,
    expected_offset: int = -1,
) -> m.AppendInfo:
    return m.AppendInfo(
        range=m.Range(stream_id=range_.stream_id, range_index=range_.range_index),
        request_index=request_index,
        batch_length=length,
        writer_epoch=writer_epoch,
        expected_offset=expected_offset,
    )


def append_request(
    range_: m.Range, length: int, *, writer_epoch: int, expected_offset: int, timeout: float
) -> m.AppendRequest:
    info = append_info(range_, length, writer_epoch=writer_epoch, expected_offset=expected_offset)
    return m.AppendRequest(timeout_ms=milliseconds(timeout), append_requests=(info,))


def appended_offset(message: m.Message) -> int:
    """Base offset out of the answer to an APPEND of one batch."""
    response = typed(message, m.AppendResponse)
    raise_for_status(response.status)
    result = only(response.append_responses)
    return result_offset(result)


def result_offset(result: m.AppendResult) -> int:
    """Base offset of a stored batch. Stored before counts as stored: the answer to a repetition."""
    if is_success(result.status):
        return result.base_offset
    assert result.status is not None
    error = error_of(result.status, stream_id=result.stream_id)
    if isinstance(error, AlreadyDurableError):
        return result.base_offset
    raise error
