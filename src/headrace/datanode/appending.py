"""APPEND: from payload bytes to batches in range logs.

Everything up to the moment a batch has its offset happens without waiting, so the order of calls is
the order of offsets.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from headrace.client.channels import PieceReader, payload_bytes
from headrace.client.sbp import BATCH_BYTES_MAX
from headrace.datanode.producers import Producers
from headrace.errors import InvalidArgumentError, SealedError, TooLargeError
from headrace.runtime.interfaces import Buffer
from headrace.storage.rangelog import RangeLog
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.records import HEADER_BYTES, PRODUCER, patch_base_offset, verify


@dataclass(frozen=True, slots=True)
class Batch:
    header: bytearray
    body: Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class Accepted:
    base_offset: int
    durable: Awaitable[None]
    on_failed: Callable[[], None] | None = None


def split_payload(
    infos: Sequence[m.AppendInfo], payload: Sequence[Buffer]
) -> list[Batch | TooLargeError]:
    """One batch per entry. InvalidArgumentError for the whole frame when the lengths do not fit."""
    lengths = [info.batch_length for info in infos]
    if any(length < HEADER_BYTES for length in lengths) or sum(lengths) != payload_bytes(payload):
        raise InvalidArgumentError(
            "batch lengths do not add up to the payload", payload=payload_bytes(payload)
        )
    reader = PieceReader(payload)
    return [_take(reader, length) for length in lengths]


def _take(reader: PieceReader, length: int) -> Batch | TooLargeError:
    head = reader.take(HEADER_BYTES)
    body = reader.take(length - HEADER_BYTES)
    if length > BATCH_BYTES_MAX:
        return TooLargeError("record batch too large", bytes=length, limit=BATCH_BYTES_MAX)
    first = head[0]
    if len(head) == 1 and isinstance(first, bytearray):
        return Batch(first, body)  # in process: the header is handed over as it is
    return Batch(bytearray(b"".join(head)), body)


def accept(log: RangeLog, batch: Batch, producers: Producers | None) -> Accepted:
    """Give the batch its offset and queue it; a batch stored before answers with its old offset.

    `producers` is the stream's table, None for owned streams: their writer's offset is their
    sequence.
    """
    header = verify(batch.header, batch.body)
    if producers is None or not header.attributes & PRODUCER:
        base_offset = log.next_offset
        patch_base_offset(batch.header, base_offset)
        return Accepted(base_offset, log.append(batch.header, batch.body, verified=True))
    stored = producers.find(header.producer_id, header.sequence, header.record_count)
    if stored is not None:
        return Accepted(stored, _wait_durable(log, stored))
    base_offset = log.next_offset
    patch_base_offset(batch.header, base_offset)
    durable = log.append(batch.header, batch.body, verified=True)
    remembered = (header.producer_id, header.sequence + header.record_count, base_offset)
    producers.on_stored(*remembered)
    return Accepted(base_offset, durable, partial(producers.on_failed, *remembered))


async def _wait_durable(log: RangeLog, offset: int) -> None:
    """The batch at `offset` was accepted before; its repetition is answered when it is durable."""
    if offset < log.start_offset:
        return  # in an earlier range: sealed, so durable
    await log.wait_for(offset)
    if log.durable_offset <= offset:
        raise SealedError("the range ended before the batch was durable", offset=offset)
