"""One function per opcode of a data node.

An item of a request that fails costs the others nothing: each gets a result of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.datanode import fetching
from headrace.datanode.appending import (
    Accepted,
    Batch,
    accept,
    accept_replica,
    split_payload,
)
from headrace.errors import (
    DeadlineError,
    HeadraceError,
    InvalidArgumentError,
    RangeNotFoundError,
    TooLargeError,
    UnavailableError,
)
from headrace.net.sbp_server import Handler, Payload, Peer, Reply
from headrace.storage.model import RangeKey
from headrace.storage.rangelog import RangeLog
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import AppendGapError, status_of
from headrace.wire.sbp.messages import OK
from headrace.wire.sbp.opcodes import Code

if TYPE_CHECKING:
    from headrace.datanode.service import DataNodeService


def wire_range(log: RangeLog) -> m.Range:
    return m.Range(
        stream_id=log.key.stream_id,
        range_index=log.key.range_index,
        start_offset=log.start_offset,
        end_offset=log.end_offset,
        next_offset=log.durable_offset if log.final else log.committed_offset,
        writer_epoch=log.writer_epoch,
    )


async def heartbeat(
    node: DataNodeService, request: m.HeartbeatRequest, _: Payload, peer: Peer
) -> Reply:
    return Reply(
        m.HeartbeatResponse(
            client_id=request.client_id,
            client_role=request.client_role,
            data_node=request.data_node,
            status=OK,
        )
    )


async def append(
    node: DataNodeService, request: m.AppendRequest, payload: Payload, peer: Peer
) -> Reply:
    clock = node.runtime.clock
    started = clock.monotonic()
    infos = request.append_requests
    replica = peer.role is m.ClientRole.DATA_NODE and node.access.is_node(peer)
    batches = split_payload(infos, payload, replica=replica)
    take = _take_replica if replica else _take
    # Nothing is awaited until every batch has its offset: arrival order is offset order.
    taken = [take(node, info, batch, peer) for info, batch in zip(infos, batches, strict=True)]
    counters = node.counters
    counters.appends_in_flight += len(taken)
    deadline = started + request.timeout_ms / 1000 if request.timeout_ms > 0 else None
    try:
        results = [
            await _append_result(node, info, accepted, deadline)
            for info, accepted in zip(infos, taken, strict=True)
        ]
    finally:
        counters.appends_in_flight -= len(taken)
    if node.state.closing and replica:
        # What failed has failed because we stop: the primary must not take it for our last word.
        raise UnavailableError("the data node closes")
    counters.appends += len(results)
    counters.append_seconds += (clock.monotonic() - started) * len(results)
    return Reply(m.AppendResponse(append_responses=tuple(results), status=OK))


def _take(
    node: DataNodeService, info: m.AppendInfo, batch: Batch | TooLargeError | None, peer: Peer
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
        producers = None if log.writer_epoch >= 0 else node.tables.open(log)
        led = node.leading.require(log) if log.ack_quorum > 1 else None
        return accept(log, batch, producers, led)
    except HeadraceError as error:
        return error


def _take_replica(
    node: DataNodeService, info: m.AppendInfo, batch: Batch | TooLargeError | None, peer: Peer
) -> Accepted | HeadraceError | None:
    """From the range's primary; without a batch only to tell what is committed."""
    try:
        if isinstance(batch, TooLargeError):
            raise batch
        if info.range is None:
            raise InvalidArgumentError("append without a range")
        log = node.state.find(RangeKey(info.range.stream_id, info.range.range_index))
        if log is None:
            node.contact.settle_soon(certainly=True)  # its SYNC_RANGES may be lost
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


async def _append_result(
    node: DataNodeService,
    info: m.AppendInfo,
    taken: Accepted | HeadraceError | None,
    deadline: float | None,
) -> m.AppendResult:
    stream_id = info.range.stream_id if info.range is not None else -1
    base_offset = -1 if taken is None or isinstance(taken, HeadraceError) else taken.base_offset
    if isinstance(taken, Accepted):
        error = await _outcome(node, taken, deadline)
    else:
        error = taken
    if error is None:
        return m.AppendResult(
            stream_id=stream_id,
            request_index=info.request_index,
            base_offset=base_offset,
            stream_append_time_ms=node.runtime.clock.now_ms(),
            status=OK,
        )
    node.on_append_failed(error)
    return m.AppendResult(
        stream_id=stream_id,
        request_index=info.request_index,
        base_offset=_next_of(error),
        status=status_of(error),
    )


def _next_of(error: HeadraceError) -> int:
    """Where a replica that misses something goes on."""
    found = error.data.get("next") if isinstance(error, AppendGapError) else -1
    return found if isinstance(found, int) else -1


async def _outcome(
    node: DataNodeService, taken: Accepted, deadline: float | None
) -> HeadraceError | None:
    """None when the batch is stored."""
    timer = None
    if deadline is not None and taken.replicated is not None:
        left = max(deadline - node.runtime.clock.monotonic(), 0)
        timer = asyncio.get_running_loop().call_later(left, _expire, taken.replicated)
    try:
        await taken.stored
    except DeadlineError as error:
        return error  # it may be stored yet
    except HeadraceError as error:
        if taken.on_failed is not None:
            taken.on_failed()
        return error
    finally:
        if timer is not None:
            timer.cancel()
    return None


def _expire(stored: asyncio.Future[None]) -> None:
    if not stored.done():
        stored.set_exception(
            DeadlineError("timeout: not on enough replicas in time; it may be yet")
        )


async def fetch(
    node: DataNodeService, request: m.FetchRequest, _: Payload, peer: Peer
) -> Reply | AsyncIterator[Reply]:
    settings = node.settings
    if len(request.fetch_requests) > settings.fetch_streams_max:
        raise TooLargeError("too many streams in one fetch", limit=settings.fetch_streams_max)
    wants = [
        fetching.Want(info, node.state, position=position, bytes_max=settings.fetch_bytes_max)
        for position, info in enumerate(request.fetch_requests)
    ]
    for want in wants:
        stream_id = want.info.stream_id
        try:
            node.access.check_stream(peer, stream_id, owned=node.state.is_owned(stream_id))
        except HeadraceError as error:
            want.error = error
    max_wait = min(max(request.max_wait_ms, 0), settings.fetch_wait_ms_max) / 1000
    if peer.reply_gate is None or not peer.reply_gate.is_full:
        ready = fetching.answer_at_once(
            wants,
            min_bytes=request.min_bytes,
            waits=max_wait > 0,
            frame_bytes=settings.fetch_frame_bytes,
            counters=node.counters,
        )
        if ready is not None:
            return ready
    if len(wants) == 1:
        ready = await fetching.answer_alone(
            wants[0],
            min_bytes=request.min_bytes,
            waits=max_wait > 0,
            frame_bytes=settings.fetch_frame_bytes,
            gate=peer.reply_gate,
            counters=node.counters,
            clock=node.runtime.clock,
        )
        if ready is not None:
            return ready
    poll = fetching.Poll(
        wants,
        min_bytes=request.min_bytes,
        max_wait=max_wait,
        clock=node.runtime.clock,
        counters=node.counters,
        frame_bytes=settings.fetch_frame_bytes,
        gate=peer.reply_gate,
        on_damage=node.repairer.on_damage,
    )
    return poll.replies()


async def seal_ranges(
    node: DataNodeService, request: m.SealRangesRequest, _: Payload, peer: Peer
) -> Reply:
    async def seal(wanted: m.RangeId) -> m.SealRangesResult:
        key = RangeKey(wanted.stream_id, wanted.range_index)
        try:
            log = await node.ranges.seal(key, wanted.writer_epoch)
        except HeadraceError as error:
            named = m.Range(stream_id=key.stream_id, range_index=key.range_index)
            return m.SealRangesResult(range=named, status=status_of(error))
        if log.writer_epoch >= 0:
            return m.SealRangesResult(range=wire_range(log), status=OK)
        producers, whole = await node.tables.sealed(log)
        range_ = replace(wire_range(log), producers_whole=whole)
        return m.SealRangesResult(range=range_, status=OK, producers=producers)

    results = await asyncio.gather(*map(seal, request.ranges))
    return Reply(m.SealRangesResponse(seal_responses=tuple(results), status=OK))


async def sync_ranges(
    node: DataNodeService, request: m.SyncRangesRequest, _: Payload, peer: Peer
) -> Reply:
    async def sync(wanted: m.StreamRanges) -> m.SyncRangesResult:
        try:
            logs = [
                await node.ranges.sync(
                    range_, durability=wanted.durability, reserved=wanted.reserved
                )
                for range_ in wanted.ranges
            ]
        except HeadraceError as error:
            return m.SyncRangesResult(
                stream_id=wanted.stream_id, ranges=wanted.ranges, status=status_of(error)
            )
        return m.SyncRangesResult(
            stream_id=wanted.stream_id, ranges=tuple(map(wire_range, logs)), status=OK
        )

    results = await asyncio.gather(*map(sync, request.stream_ranges))
    return Reply(m.SyncRangesResponse(sync_responses=tuple(results), status=OK))


async def describe_ranges(
    node: DataNodeService, request: m.DescribeRangesRequest, _: Payload, peer: Peer
) -> Reply:
    async def describe(wanted: m.RangeId) -> m.DescribeRangeResult:
        try:
            owned = node.state.is_owned(wanted.stream_id)
            node.access.check_stream(peer, wanted.stream_id, owned=owned)
            log = node.state.range(RangeKey(wanted.stream_id, wanted.range_index))
            node.state.check_describe(log)
            if request.sync:
                await node.ranges.flush(log)
        except HeadraceError as error:
            return m.DescribeRangeResult(stream_id=wanted.stream_id, status=status_of(error))
        segments = tuple(
            m.SegmentInfo(
                base=segment.base,
                end=segment.end,
                bytes=segment.bytes,
                max_timestamp=segment.max_timestamp,
            )
            for segment in log.segments()
        )
        return m.DescribeRangeResult(
            stream_id=wanted.stream_id, range=wire_range(log), status=OK, segments=segments
        )

    results = await asyncio.gather(*map(describe, request.ranges))
    return Reply(m.DescribeRangesResponse(describe_responses=tuple(results), status=OK))


async def delete_streams(
    node: DataNodeService, request: m.DeleteStreamsRequest, _: Payload, peer: Peer
) -> Reply:
    async def delete(stream: m.Stream) -> m.DeleteStreamResult:
        status = await _status(node.ranges.delete_stream(stream.stream_id))
        return m.DeleteStreamResult(deleted_stream=stream, status=status)

    results = await asyncio.gather(*map(delete, request.streams))
    return Reply(m.DeleteStreamsResponse(delete_responses=tuple(results), status=OK))


async def trim_streams(
    node: DataNodeService, request: m.TrimStreamsRequest, _: Payload, peer: Peer
) -> Reply:
    async def trim(wanted: m.TrimmedStream) -> m.TrimStreamResult:
        status = await _status(node.ranges.trim_stream(wanted.stream_id, wanted.trim_offset))
        return m.TrimStreamResult(
            trimmed_stream=m.Stream(stream_id=wanted.stream_id), status=status
        )

    results = await asyncio.gather(*map(trim, request.trimmed_streams))
    return Reply(m.TrimStreamsResponse(trim_responses=tuple(results), status=OK))


async def _status(work: Awaitable[None]) -> m.Status:
    try:
        await work
    except HeadraceError as error:
        return status_of(error)
    return OK


def handlers(node: DataNodeService) -> dict[int, Handler]:
    functions: dict[int, Callable[..., Any]] = {
        Code.HEARTBEAT: heartbeat,
        Code.APPEND: append,
        Code.FETCH: fetch,
        Code.SEAL_RANGES: seal_ranges,
        Code.SYNC_RANGES: sync_ranges,
        Code.DESCRIBE_RANGES: describe_ranges,
        Code.DELETE_STREAMS: delete_streams,
        Code.TRIM_STREAMS: trim_streams,
    }
    return {code: partial(function, node) for code, function in functions.items()}
