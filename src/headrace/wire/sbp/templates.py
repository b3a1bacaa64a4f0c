"""The header of the answer that is sent most: one batch, stored.

Encoded once with values that occur nowhere else; the answer to an append is then a copy with three
or four numbers put in their places. A data node answers every append so, and generic encoding takes
several times as long (`benchmarks/hot_steps.py`).
"""

from __future__ import annotations

import struct

from headrace.wire.sbp.flat import encode
from headrace.wire.sbp.messages import OK, AppendResponse, AppendResult

_I64 = struct.Struct("<q")
_I32 = struct.Struct("<i")
_STREAM_ID, _BASE_OFFSET, _TIME = 0x0102030405060708, 0x1112131415161718, 0x2122232425262728
_INDEX = 0x31323334


class _Template:
    def __init__(self, request_index: int) -> None:
        result = AppendResult(_STREAM_ID, request_index, _BASE_OFFSET, _TIME, OK)
        self._bytes = encode(AppendResponse(append_responses=(result,), status=OK))
        self._stream_id, self._base_offset, self._time = (
            self._bytes.index(_I64.pack(each)) for each in (_STREAM_ID, _BASE_OFFSET, _TIME)
        )
        self._index = self._bytes.index(_I32.pack(request_index)) if request_index else -1

    def fill(self, result: AppendResult) -> bytes:
        out = bytearray(self._bytes)
        _I64.pack_into(out, self._stream_id, result.stream_id)
        _I64.pack_into(out, self._base_offset, result.base_offset)
        _I64.pack_into(out, self._time, result.stream_append_time_ms)
        if self._index >= 0:
            _I32.pack_into(out, self._index, result.request_index)
        return bytes(out)


_FIRST, _LATER = _Template(0), _Template(_INDEX)


def encode_stored(message: AppendResponse) -> bytes | None:
    """As `encode`, of an answer that says of one batch that it is stored; None for any other.

    A field that has its default is left out of a FlatBuffer, so that is another shape.
    """
    if len(message.append_responses) != 1 or message.throttle_time_ms or message.status is not OK:
        return None
    result = message.append_responses[0]
    usual = result.stream_id != -1 and result.base_offset and result.stream_append_time_ms
    if not usual or result.status is not OK:
        return None
    return (_LATER if result.request_index else _FIRST).fill(result)
