"""Going on without what a control log lost, when its operator says so.

Offline: the caller leads nothing and serves nobody meanwhile. What is accepted is written into the
log itself (see `state_replay`), so that whoever opens it next knows without being told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.owned_stream import OwnedStream
from headrace.sbp_client.state_replay import LOST, SNAPSHOT_FORMAT, Examined, Span, examine
from headrace.wire.sbp.records import INDEXED, RECORDS_STATE, encode_header, encode_index, split

_ANY_VERSION = 1 << 31  # what the events say is not looked at


@dataclass(frozen=True, slots=True)
class Condition:
    """What a control log has lost, for a person to decide on."""

    name: str
    stream_id: int
    end: int
    examined: Examined
    times: dict[Span, tuple[int, int]]
    """Lost spans -> when the events before and after them were written, ms; 0 unknown."""


async def look_at(client: SbpClient, name: str, stream_id: int) -> Condition:
    """Read the whole log."""
    _, end = await client.bounds(stream_id)
    examined = await examine(client, stream_id, end, version_max=_ANY_VERSION)
    times = {
        span: (
            await _time_at(client, stream_id, span.start - 1, examined.start, end),
            await _time_at(client, stream_id, span.end, examined.start, end),
        )
        for span in examined.missing
    }
    return Condition(name, stream_id, end, examined, times)


async def _time_at(client: SbpClient, stream_id: int, offset: int, start: int, end: int) -> int:
    if not start <= offset < end:
        return 0
    fetched = await client.fetch(stream_id, offset, max_bytes=1, max_wait_ms=1000)
    return max((h.max_timestamp for piece in fetched.pieces for h, _ in split(piece)), default=0)


async def accept_losses(client: SbpClient, name: str, epoch: int, losses: Sequence[Span]) -> None:
    """From now on the log is replayed without these; durable on return."""
    made = await client.create_stream(name=name)
    stream = await OwnedStream.open(client, made.stream_id, epoch)
    try:
        record = msgspec.msgpack.encode((SNAPSHOT_FORMAT, LOST, losses))
        body = record + encode_index([0])
        header = encode_header(
            base_offset=stream.next_offset,
            body=[body],
            record_count=1,
            base_timestamp=client.runtime.clock.now_ms(),
            max_timestamp=client.runtime.clock.now_ms(),
            attributes=RECORDS_STATE | INDEXED,
        )
        await stream.append(header, [body])
    finally:
        await stream.close()
