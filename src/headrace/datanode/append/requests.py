"""APPEND: from payload bytes to batches in range logs, and from stored batches to the answer.

Everything up to the moment a batch has its offset happens without waiting, so the order of calls is
the order of offsets. A primary's own appends and those that it sends to its secondaries are the
same batches: here they get their offset, there they must fit to it. The answer to a request is
known when all its batches are stored. No task is made for it: the reply is a future that the
batches' own futures lead to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from headrace.config.datanode import DataNodeSettings
from headrace.datanode.append.disk_share import PlainShare
from headrace.datanode.append.producers import EarlierRanges, Producers, ProducerTables
from headrace.datanode.control.node_files import MetadataSeen, Quarantine
from headrace.datanode.control.placement_contact import PlacementContact
from headrace.datanode.control.ranges import Ranges
from headrace.datanode.metrics import Counters
from headrace.datanode.replication.copying import Repairer
from headrace.datanode.replication.leader import LedRange, LedRanges
from headrace.datanode.state import NodeState
from headrace.errors import (
    CorruptionError,
    DeadlineError,
    HeadraceError,
    InvalidArgumentError,
    RangeNotFoundError,
    SealedError,
    TooLargeError,
    UnavailableError,
)
from headrace.net.sbp_routes import Access
from headrace.net.sbp_server import Payload, Peer, Reply
from headrace.observability import tracing
from headrace.runtime.interfaces import Buffer, Runtime
from headrace.sbp_client.channels import PieceReader
from headrace.sbp_client.client import BATCH_BYTES_MAX
from headrace.storage.layout import RangeKey
from headrace.storage.range.log import RangeLog
from headrace.storage.store import LogStore
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import AlreadyDurableError, AppendGapError, status_of
from headrace.wire.sbp.frames import payload_bytes
from headrace.wire.sbp.messages import OK
from headrace.wire.sbp.records import HEADER_BYTES, PRODUCER, BatchHeader, patch_base_offset, verify


class DataNode(Protocol):
    """The data node as its request handlers see it; `DataNodeService` is the one that there is."""

    runtime: Runtime
    settings: DataNodeSettings
    access: Access
    plain_share: PlainShare
    state: NodeState[RangeLog]
    quarantine: Quarantine
    metadata: MetadataSeen
    tables: ProducerTables
    counters: Counters
    contact: PlacementContact
    ranges: Ranges
    earlier: EarlierRanges
    leading: LedRanges
    repairer: Repairer

    @property
    def store(self) -> LogStore: ...

    def logs(self) -> list[RangeLog]:
        """The ranges that are served, without those in quarantine."""
        ...

    def reads_locally(self, machine: str) -> bool:
        """Whether a reader that runs there may be told where batches are, to read them itself."""
        ...

    def on_append_failed(self, error: HeadraceError) -> None:
        """Count the failure, and tell placement of a full disk."""
        ...


class SentBatch(msgspec.Struct, frozen=True):
    header: bytearray
    body: Sequence[Buffer]


class Accepted(msgspec.Struct, frozen=True):
    base_offset: int
    stored: Awaitable[None]
    """On this disk, or on as many as the range's ack quorum says; that may take for ever."""
    on_failed: Callable[[], None] | None = None


def split_payload(
    infos: Sequence[m.AppendInfo], payload: Sequence[Buffer], *, replica: bool = False
) -> list[SentBatch | TooLargeError | None]:
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


def _take(reader: PieceReader, length: int) -> SentBatch | TooLargeError:
    head = reader.take(HEADER_BYTES)
    body = reader.take(length - HEADER_BYTES)
    if length > BATCH_BYTES_MAX:
        return TooLargeError("record batch too large", bytes=length, limit=BATCH_BYTES_MAX)
    first = head[0]
    if len(head) == 1 and isinstance(first, bytearray):
        return SentBatch(first, body)  # in process: the header is handed over as it is
    return SentBatch(bytearray(b"".join(head)), body)


def accept(
    log: RangeLog,
    batch: SentBatch,
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
    batch: SentBatch,
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


def append(
    node: DataNode, request: m.AppendRequest, payload: Payload, peer: Peer
) -> asyncio.Future[Reply]:
    infos = request.append_requests
    replica = peer.role is m.ClientRole.DATA_NODE and node.access.is_node(peer)
    batches = split_payload(infos, payload, replica=replica)
    take = _take_replica if replica else _take_batch
    # Nothing is awaited until every batch has its offset: arrival order is offset order.
    taken = [take(node, info, batch, peer) for info, batch in zip(infos, batches, strict=True)]
    reply = _AppendCall(node, request, taken, replica=replica).reply
    if tracing.active:
        span = tracing.begin_aside(
            "headrace.node.replicate" if replica else "headrace.node.append",
            kind=tracing.Kind.SERVER,
            stream_id=[info.range.stream_id for info in infos if info.range is not None],
            offset=[info.expected_offset for info in infos],
            peer=peer.client_id,
        )
        reply.add_done_callback(lambda _: span.end())
    return reply


def _take_batch(
    node: DataNode, info: m.AppendInfo, batch: SentBatch | TooLargeError | None, peer: Peer
) -> Accepted | HeadraceError:
    try:
        if isinstance(batch, TooLargeError):
            raise batch
        if info.range is None or batch is None:
            raise InvalidArgumentError("append without a range")
        stream_id = info.range.stream_id
        log = node.state.writable(stream_id, info.range.range_index)
        node.access.check_stream(peer, stream_id, owned=log.writer_epoch >= 0)
        node.state.check_append(
            log, writer_epoch=info.writer_epoch, expected_offset=info.expected_offset
        )
        if not node.access.is_node(peer):
            node.plain_share.take(info.batch_length)
        producers = None if log.writer_epoch >= 0 else node.tables.open(log)
        led = node.leading.require(log) if log.ack_quorum > 1 else None
        return accept(log, batch, producers, led, wait_held=node.earlier.wait_held)
    except HeadraceError as error:
        return error


def _take_replica(
    node: DataNode, info: m.AppendInfo, batch: SentBatch | TooLargeError | None, peer: Peer
) -> Accepted | HeadraceError | None:
    """From the range's primary; without a batch only to tell what is committed."""
    try:
        if isinstance(batch, TooLargeError):
            raise batch
        if info.range is None:
            raise InvalidArgumentError("append without a range")
        log = node.state.find(RangeKey(info.range.stream_id, info.range.range_index))
        if log is None:
            node.contact.reconcile_soon(certainly=True)  # its SYNC_RANGES may be lost
            raise RangeNotFoundError(stream_id=info.range.stream_id)
        committed = info.range.next_offset
        if batch is None:
            node.state.check_replica(log, base_offset=log.next_offset)
            log.set_committed(committed)
            return None
        plain = log.writer_epoch < 0 and not log.sealed
        producers = node.tables.open(log) if plain else None
        return accept_replica(node.state, log, batch, producers, committed=committed)
    except HeadraceError as error:
        return error


class _AppendCall:
    """Collects the results of one request."""

    __slots__ = (
        "_infos", "_missing", "_node", "_replica", "_results", "_started", "_timer", "reply",
    )  # fmt: skip

    def __init__(
        self,
        node: DataNode,
        request: m.AppendRequest,
        taken: list[Accepted | HeadraceError | None] | list[Accepted | HeadraceError],
        *,
        replica: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._node = node
        self._infos = request.append_requests
        self._replica = replica
        self._started = node.runtime.clock.monotonic()
        self._results: list[m.AppendResult | None] = [None] * len(taken)
        self._missing = len(taken)
        self._timer: asyncio.TimerHandle | None = None
        self.reply: asyncio.Future[Reply] = loop.create_future()
        node.counters.appends_in_flight += len(taken)
        for index, each in enumerate(taken):
            if isinstance(each, Accepted):
                stored = asyncio.ensure_future(each.stored)  # a future stays what it is
                stored.add_done_callback(partial(self._on_stored, index, each))
            else:
                self._set(index, self._result(index, each, base_offset=-1))
        if not self._missing:
            self._finish()
        elif request.timeout_ms > 0:
            self._timer = loop.call_later(request.timeout_ms / 1000, self._on_timeout)

    def _on_stored(self, index: int, accepted: Accepted, stored: asyncio.Future[None]) -> None:
        error = UnavailableError("cut off") if stored.cancelled() else stored.exception()
        if error is not None and accepted.on_failed is not None:
            accepted.on_failed()
        if self._results[index] is not None:
            return  # too late
        if error is not None and not isinstance(error, HeadraceError):
            self._give_up(error)
            return
        self._set(index, self._result(index, error, base_offset=accepted.base_offset))
        if not self._missing:
            self._finish()

    def _on_timeout(self) -> None:
        for index, result in enumerate(self._results):
            if result is None:
                error = DeadlineError("timeout: not stored in time; it may be yet")
                self._set(index, self._result(index, error, base_offset=-1))
        self._finish()

    def _set(self, index: int, result: m.AppendResult) -> None:
        self._results[index] = result
        self._missing -= 1

    def _result(
        self, index: int, error: HeadraceError | None, *, base_offset: int
    ) -> m.AppendResult:
        info = self._infos[index]
        stream_id = info.range.stream_id if info.range is not None else -1
        if error is None:
            now_ms = self._node.runtime.clock.now_ms()
            return m.AppendResult(stream_id, info.request_index, base_offset, now_ms, OK)
        self._node.on_append_failed(error)
        return m.AppendResult(
            stream_id=stream_id,
            request_index=info.request_index,
            base_offset=_next_of(error),
            status=status_of(error),
        )

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        node, count = self._node, len(self._results)
        node.counters.appends_in_flight -= count
        if self.reply.done():
            return  # whoever asked is gone
        if node.state.closing and self._replica:
            # What failed has failed because we stop: not our last word to the primary.
            self.reply.set_exception(UnavailableError("the data node closes"))
            return
        node.counters.appends += count
        seconds = node.runtime.clock.monotonic() - self._started
        node.counters.append_times.observe_many(seconds, count)
        results = tuple([result for result in self._results if result is not None])
        self.reply.set_result(Reply(m.AppendResponse(append_responses=results, status=OK)))

    def _give_up(self, error: BaseException) -> None:
        """A defect of ours: the request fails as a whole, and loudly."""
        self._node.counters.appends_in_flight -= len(self._results)
        if self._timer is not None:
            self._timer.cancel()
        self._results = [m.AppendResult()] * len(self._results)
        if not self.reply.done():
            self.reply.set_exception(error)


def _next_of(error: HeadraceError) -> int:
    """Where a replica that misses something goes on."""
    found = error.data.get("next") if isinstance(error, AppendGapError) else -1
    return found if isinstance(found, int) else -1
