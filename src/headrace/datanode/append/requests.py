"""APPEND: from payload bytes to batches in range logs.

Everything up to the moment a batch has its offset happens without waiting, so the order of calls is
the order of offsets. A primary's own appends and those that it sends to its secondaries are the
same batches: here they get their offset, there they must fit to it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from headrace.datanode.append.producers import Producers
from headrace.datanode.replication.leader import LedRange
from headrace.datanode.state import NodeState
from headrace.errors import CorruptionError, InvalidArgumentError, SealedError, TooLargeError
from headrace.runtime.interfaces import Buffer
from headrace.sbp_client.channels import PieceReader, payload_bytes
from headrace.sbp_client.client import BATCH_BYTES_MAX
from headrace.storage.layout import RangeKey
from headrace.storage.range.log import RangeLog
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import AlreadyDurableError
from headrace.wire.sbp.records import (
    HEADER_BYTES,
    PRODUCER,
    BatchHeader,
    patch_base_offset,
    verify,
)


class Batch(msgspec.Struct, frozen=True):
    header: bytearray
    body: Sequence[Buffer]


class Accepted(msgspec.Struct, frozen=True):
    base_offset: int
    stored: Awaitable[None]
    """On this disk, or on as many as the range's ack quorum says; that may take for ever."""
    on_failed: Callable[[], None] | None = None


def split_payload(
    infos: Sequence[m.AppendInfo], payload: Sequence[Buffer], *, replica: bool = False
) -> list[Batch | TooLargeError | None]:
    """One batch per entry. InvalidArgumentError for the whole frame when the lengths do not fit.

    None where a primary sends nothing but its committed offset.
    """
    lengths = [info.batch_length for info in infos]
    bad = any(n < HEADER_BYTES and not (replica and n == 0) for n in lengths)
    if bad or sum(lengths) != payload_bytes(payload):
        raise InvalidArgumentError(
            "batch lengths do not add up to the payload", payload=payload_bytes(payload)
        )
    reader = PieceReader(payload)
    return [_take(reader, length) if length else None for length in lengths]


def _take(reader: PieceReader, length: int) -> Batch | TooLargeError:
    head = reader.take(HEADER_BYTES)
    body = reader.take(length - HEADER_BYTES)
    if length > BATCH_BYTES_MAX:
        return TooLargeError("record batch too large", bytes=length, limit=BATCH_BYTES_MAX)
    first = head[0]
    if len(head) == 1 and isinstance(first, bytearray):
        return Batch(first, body)  # in process: the header is handed over as it is
    return Batch(bytearray(b"".join(head)), body)


def accept(
    log: RangeLog,
    batch: Batch,
    producers: Producers | None,
    led: LedRange | None = None,
    *,
    wait_held: Callable[[RangeKey, int, int], Awaitable[None]] | None = None,
) -> Accepted:
    """Give the batch its offset and queue it; a batch stored before answers with its old offset.

    `producers` is the range's table, None for owned streams: their writer's offset is their
    sequence. `led` stands for the other replicas of a range that has some. `wait_held` waits for
    what an earlier range holds: in there is not on enough disks, as long as its seal is not healed.
    """
    header = verify(batch.header, batch.body)
    if producers is not None and header.attributes & PRODUCER:
        count = header.record_count
        stored = producers.find(header.producer_id, header.sequence, count, header.crc)
        if stored is not None:
            if stored < log.start_offset and wait_held is not None:
                return Accepted(stored, wait_held(log.key, stored, stored + count))
            if led is None or stored < log.start_offset:
                return Accepted(stored, _wait_stored(log, stored))
            return Accepted(stored, led.wait(stored + count))
    base_offset = log.next_offset
    patch_base_offset(batch.header, base_offset)
    if led is not None:
        done = led.append(batch.header, batch.body)
    else:
        done = log.append(batch.header, batch.body, verified=True)
    remembered = _remember(producers, header, base_offset)
    if led is not None:
        # It may be part of the stream even if this fails: where the range ends decides that, and
        # what the seal tells of its producers.
        return Accepted(base_offset, done)
    if remembered is None or producers is None:
        return Accepted(base_offset, done)
    return Accepted(base_offset, done, partial(producers.on_failed, *remembered))


def _remember(
    producers: Producers | None, header: BatchHeader, base_offset: int
) -> tuple[int, int, int] | None:
    if producers is None or not header.attributes & PRODUCER:
        return None
    remembered = (header.producer_id, header.sequence + header.record_count, base_offset)
    producers.on_stored(*remembered, header.record_count, header.crc)
    return remembered


async def _wait_stored(log: RangeLog, offset: int) -> None:
    """The batch at `offset` was accepted before; its repetition is answered when that one is."""
    if offset < log.start_offset:
        return  # in an earlier range: sealed, so stored
    await log.wait_for(offset)
    if log.committed_offset <= offset:
        raise SealedError("the range ended before the batch was durable", offset=offset)


def accept_replica(
    state: NodeState[RangeLog],
    log: RangeLog,
    batch: Batch,
    producers: Producers | None,
    *,
    committed: int,
) -> Accepted:
    """Take a batch that the range's primary has ordered. What it cannot be is an error that tells
    the primary where to go on; what is here already counts as stored if it is the same."""
    header = verify(batch.header, batch.body)
    base_offset = header.base_offset
    if state.check_replica(log, base_offset=base_offset):
        return Accepted(base_offset, _compare(log, header))
    done = log.append(batch.header, batch.body, verified=True)
    log.set_committed(committed)
    _remember(producers, header, base_offset)
    return Accepted(base_offset, done)


async def _compare(log: RangeLog, header: BatchHeader) -> None:
    stored = await log.crc_at(header.base_offset)
    if stored != header.crc:
        raise CorruptionError(
            "another batch is stored at this offset",
            **log.key._asdict(),
            offset=header.base_offset,
        )
    raise AlreadyDurableError(offset=header.base_offset)
