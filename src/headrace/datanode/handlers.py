"""One function per opcode of a data node.

An item of a request that fails costs the others nothing: each gets a result of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.datanode import fetch as fetching
from headrace.datanode.append.requests import DataNode, append
from headrace.errors import HeadraceError, TooLargeError
from headrace.net.sbp_server import Handler, Payload, Peer, Reply
from headrace.observability import tracing
from headrace.storage.layout import RangeKey
from headrace.storage.range.log import RangeLog
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import status_of
from headrace.wire.sbp.messages import OK
from headrace.wire.sbp.opcodes import Code


def wire_range(log: RangeLog) -> m.Range:
    return m.Range(
        stream_id=log.key.stream_id,
        range_index=log.key.range_index,
        start_offset=log.start_offset,
        end_offset=log.end_offset,
        next_offset=log.durable_offset if log.final else log.committed_offset,
        writer_epoch=log.writer_epoch,
    )


async def heartbeat(node: DataNode, request: m.HeartbeatRequest, _: Payload, peer: Peer) -> Reply:
    return Reply(
        m.HeartbeatResponse(
            client_id=request.client_id,
            client_role=request.client_role,
            data_node=request.data_node,
            status=OK,
        )
    )


async def fetch(
    node: DataNode, request: m.FetchRequest, _: Payload, peer: Peer
) -> Reply | AsyncIterator[Reply]:
    if not tracing.active:
        return await _fetch(node, request, peer)
    infos = request.fetch_requests
    span = tracing.begin(
        "headrace.node.fetch",
        kind=tracing.Kind.SERVER,
        stream_id=[info.stream_id for info in infos],
        offset=[info.fetch_offset for info in infos],
        peer=peer.client_id,
    )
    try:
        return await _fetch(node, request, peer)
    finally:
        span.end()


async def _fetch(
    node: DataNode, request: m.FetchRequest, peer: Peer
) -> Reply | AsyncIterator[Reply]:
    settings = node.settings
    if len(request.fetch_requests) > settings.fetch_streams_max:
        raise TooLargeError("too many streams in one fetch", limit=settings.fetch_streams_max)
    replica = peer.role is m.ClientRole.DATA_NODE and node.access.is_node(peer)
    wants = [
        fetching.StreamFetch(
            info,
            node.state,
            position=position,
            bytes_max=settings.fetch_bytes_max,
            replica=replica,
        )
        for position, info in enumerate(request.fetch_requests)
    ]
    for want in wants:
        stream_id = want.info.stream_id
        try:
            node.access.check_stream(peer, stream_id, owned=node.state.is_owned(stream_id))
        except HeadraceError as error:
            want.error = error
    if len(wants) == 1 and node.reads_locally(wants[0].info.machine):
        located = await fetching.answer_located(
            wants[0], counters=node.counters, clock=node.runtime.clock
        )
        if located is not None:
            return located
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
    poll = fetching.LongPoll(
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
    node: DataNode, request: m.SealRangesRequest, _: Payload, peer: Peer
) -> Reply:
    node.metadata.check(request.metadata_version)

    async def seal(wanted: m.RangeId) -> m.SealRangesResult:
        key = RangeKey(wanted.stream_id, wanted.range_index)
        try:
            log = await node.ranges.seal(key, wanted.writer_epoch)
        except HeadraceError as error:
            named = m.Range(stream_id=key.stream_id, range_index=key.range_index)
            return m.SealRangesResult(range=named, status=status_of(error))
        range_ = replace(wire_range(log), acknowledged_offset=node.ranges.acknowledged(key))
        if log.writer_epoch >= 0:
            return m.SealRangesResult(range=range_, status=OK)
        producers, whole = await node.tables.sealed(log)
        range_ = replace(range_, producers_whole=whole)
        return m.SealRangesResult(range=range_, status=OK, producers=producers)

    results = await asyncio.gather(*map(seal, request.ranges))
    return Reply(m.SealRangesResponse(seal_responses=tuple(results), status=OK))


async def sync_ranges(
    node: DataNode, request: m.SyncRangesRequest, _: Payload, peer: Peer
) -> Reply:
    node.metadata.check(request.metadata_version)

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
    node: DataNode, request: m.DescribeRangesRequest, _: Payload, peer: Peer
) -> Reply:
    async def describe(wanted: m.RangeId) -> m.DescribeRangeResult:
        try:
            owned = node.state.is_owned(wanted.stream_id)
            node.access.check_stream(peer, wanted.stream_id, owned=owned)
            log = node.state.range(RangeKey(wanted.stream_id, wanted.range_index))
            node.state.check_describe(log)
            if request.sync and not node.access.is_on_ticket(peer, wanted.stream_id):
                await node.ranges.flush(log)  # a ticket reads, and makes nobody work
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
    node: DataNode, request: m.DeleteStreamsRequest, _: Payload, peer: Peer
) -> Reply:
    node.metadata.check(request.metadata_version)

    async def delete(stream: m.Stream) -> m.DeleteStreamResult:
        status = await _status(node.ranges.delete_stream(stream.stream_id))
        return m.DeleteStreamResult(deleted_stream=stream, status=status)

    results = await asyncio.gather(*map(delete, request.streams))
    return Reply(m.DeleteStreamsResponse(delete_responses=tuple(results), status=OK))


async def trim_streams(
    node: DataNode, request: m.TrimStreamsRequest, _: Payload, peer: Peer
) -> Reply:
    node.metadata.check(request.metadata_version)

    async def trim(wanted: m.TrimmedStream) -> m.TrimStreamResult:
        status = await _status(node.ranges.trim_stream(wanted.stream_id, wanted.trim_offset))
        return m.TrimStreamResult(
            trimmed_stream=m.Stream(stream_id=wanted.stream_id), status=status
        )

    results = await asyncio.gather(*map(trim, request.trimmed_streams))
    return Reply(m.TrimStreamsResponse(trim_responses=tuple(results), status=OK))


async def list_ranges(
    node: DataNode, request: m.ListRangesRequest, _: Payload, peer: Peer
) -> Reply:
    """What lies here, whether or not the placement manager knows of it."""

    def select(criteria: m.RangeCriteria) -> m.ListRangesResult:
        held = [node.store.range(key) for key in sorted(node.quarantine)]
        if not criteria.quarantined:
            held = sorted((*held, *node.logs()), key=lambda log: log.key)
        ranges = tuple(
            _held_range(log) for log in held if criteria.stream_id in (-1, log.key.stream_id)
        )
        return m.ListRangesResult(range_criteria=criteria, ranges=ranges, status=OK)

    results = tuple(select(criteria) for criteria in request.range_criteria)
    return Reply(m.ListRangesResponse(list_responses=results, status=OK))


def _held_range(log: RangeLog) -> m.Range:
    """With its replicas; the end only where it is final, the next offset as far as the disk has."""
    return replace(
        wire_range(log),
        end_offset=log.end_offset if log.final else -1,
        next_offset=log.durable_offset,
        ack_quorum=log.ack_quorum,
        replica_nodes=tuple(
            m.ReplicaNode(data_node=m.DataNode(node_id=n), is_primary=position == 0)
            for position, n in enumerate(log.replicas)
        ),
    )


async def _status(work: Awaitable[None]) -> m.Status:
    try:
        await work
    except HeadraceError as error:
        return status_of(error)
    return OK


def handlers(node: DataNode) -> dict[int, Handler]:
    functions: dict[int, Callable[..., Any]] = {
        Code.HEARTBEAT: heartbeat,
        Code.APPEND: append,
        Code.FETCH: fetch,
        Code.LIST_RANGES: list_ranges,
        Code.SEAL_RANGES: seal_ranges,
        Code.SYNC_RANGES: sync_ranges,
        Code.DESCRIBE_RANGES: describe_ranges,
        Code.DELETE_STREAMS: delete_streams,
        Code.TRIM_STREAMS: trim_streams,
    }
    return {code: partial(function, node) for code, function in functions.items()}
