"""One function per opcode of the placement manager.

A request of many items gets one result per item, in request order; an item that fails costs the
others nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import (
    HeadraceError,
    InvalidArgumentError,
    NotFoundError,
    NotLeaderError,
    ShareFullError,
    TooLargeError,
    UnauthorizedError,
)
from headrace.net.sbp_server import Handler, Payload, Peer, Reply
from headrace.placement.description import describe
from headrace.placement.metadata.records import RangeRecord, StreamRecord
from headrace.placement.state import OWNED_PREFIXES
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import status_of
from headrace.wire.sbp.messages import OK
from headrace.wire.sbp.opcodes import Code

if TYPE_CHECKING:
    from headrace.placement.service import PlacementService

T = TypeVar("T")
U = TypeVar("U")

CONCURRENCY = 64  # items of one request in progress
RANGES_LISTED_MAX = 10_000  # in one answer to a peer that is no node of the cluster


async def _each(items: Sequence[T], work: Callable[[T], Awaitable[U]]) -> tuple[U, ...]:
    """Results in order; at most CONCURRENCY at a time."""
    if len(items) == 1:
        return (await work(items[0]),)
    room = asyncio.Semaphore(CONCURRENCY)

    async def bounded(item: T) -> U:
        async with room:
            return await work(item)

    results = await asyncio.gather(*map(bounded, items), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result  # after all have ended: leadership was lost, which is for the whole frame
    return tuple(result for result in results if not isinstance(result, BaseException))


def _item_status(error: HeadraceError) -> m.Status:
    """Of one item. A lost leadership is no item's: it goes up to stand for the whole frame."""
    if isinstance(error, NotLeaderError):
        raise error
    return status_of(error)


def _stream(record: StreamRecord) -> m.Stream:
    return m.Stream(
        stream_id=record.stream_id,
        replica_nums=record.replica_nums,
        retention_period_ms=record.retention_period_ms,
        name=record.name,
        durability=record.durability,
    )


def _check(service: PlacementService, peer: Peer, stream_id: int) -> None:
    """Tickets and anonymous peers reach only what they may; unknown streams stay unknown."""
    access = service.access
    if not access.is_node(peer) and not access.is_on_ticket(peer, stream_id):
        access.check_stream(peer, stream_id, owned=service.state.is_owned(stream_id))


async def heartbeat(
    service: PlacementService, request: m.HeartbeatRequest, _: Payload, peer: Peer
) -> Reply:
    """Taken by followers too, so that a new leader knows who lives."""
    status = OK
    try:
        if request.client_role == m.ClientRole.DATA_NODE and request.data_node is not None:
            if not service.access.is_node(peer):
                raise UnauthorizedError("a data node needs the node credential")
            await service.on_heartbeat(request, peer)
    except HeadraceError as error:
        status = status_of(error)
    return Reply(
        m.HeartbeatResponse(
            client_id=request.client_id,
            client_role=request.client_role,
            data_node=request.data_node,
            status=status,
            metadata_version=service.metadata_version,
        )
    )


async def allocate_id(
    service: PlacementService, request: m.IdAllocationRequest, _: Payload, peer: Peer
) -> Reply:
    node_id = await service.protect(service.changes.ledger.take_id(service.state.node_ids))
    return Reply(m.IdAllocationResponse(id=node_id, status=OK))


async def report_metrics(
    service: PlacementService, request: m.ReportMetricsRequest, _: Payload, peer: Peer
) -> Reply:
    """Taken by followers too."""
    node = request.data_node
    if node is None or not service.state.nodes.on_metrics(node.node_id, request):
        raise NotFoundError("unknown data node")
    return Reply(m.ReportMetricsResponse(data_node=node, status=OK))


async def create_streams(
    service: PlacementService, request: m.CreateStreamsRequest, _: Payload, peer: Peer
) -> Reply:
    async def create(wanted: m.Stream) -> m.CreateStreamResult:
        try:
            if wanted.name.startswith(OWNED_PREFIXES) and not service.access.is_node(peer):
                raise UnauthorizedError("the name belongs to the cluster", name=wanted.name)
            if not service.access.is_node(peer):
                _check_plain_streams(service, wanted.name)
            stream, range_ = await service.changes.create_stream(wanted)
        except HeadraceError as error:
            return m.CreateStreamResult(stream=wanted, status=_item_status(error))
        return m.CreateStreamResult(
            stream=_stream(stream), range=service.changes.wire(range_), status=OK
        )

    results = await service.protect(_each(request.streams, create))
    return Reply(m.CreateStreamsResponse(create_responses=results, status=OK))


def _check_plain_streams(service: PlacementService, name: str) -> None:
    """Room for one more of a peer without a credential, unless it is there already."""
    if name and service.state.stream_named(name) is not None:
        return
    limit = service.settings.plain_streams_max
    streams = service.state.streams()
    if sum(not stream.name.startswith(OWNED_PREFIXES) for stream in streams) >= limit:
        raise ShareFullError("too many plain streams; delete some first", limit=limit)


async def delete_streams(
    service: PlacementService, request: m.DeleteStreamsRequest, _: Payload, peer: Peer
) -> Reply:
    async def delete(stream: m.Stream) -> m.DeleteStreamResult:
        try:
            if not service.access.is_node(peer) and not service.state.is_deleted(stream.stream_id):
                _check(service, peer, stream.stream_id)
            await service.changes.delete_stream(stream.stream_id)
        except HeadraceError as error:
            return m.DeleteStreamResult(deleted_stream=stream, status=_item_status(error))
        return m.DeleteStreamResult(deleted_stream=stream, status=OK)

    results = await service.protect(_each(request.streams, delete))
    return Reply(m.DeleteStreamsResponse(delete_responses=results, status=OK))


async def update_streams(
    service: PlacementService, request: m.UpdateStreamsRequest, _: Payload, peer: Peer
) -> Reply:
    async def update(stream: m.Stream) -> m.UpdateStreamResult:
        try:
            _check(service, peer, stream.stream_id)
            updated = await service.changes.update_stream(stream)
        except HeadraceError as error:
            return m.UpdateStreamResult(stream=stream, status=_item_status(error))
        return m.UpdateStreamResult(stream=_stream(updated), status=OK)

    results = await service.protect(_each(request.streams, update))
    return Reply(m.UpdateStreamsResponse(update_responses=results, status=OK))


async def describe_streams(
    service: PlacementService, request: m.DescribeStreamsRequest, _: Payload, peer: Peer
) -> Reply:
    def describe(stream_id: int) -> m.DescribeStreamResult:
        try:
            _check(service, peer, stream_id)
            return m.DescribeStreamResult(
                stream=_stream(service.state.stream(stream_id)), status=OK
            )
        except HeadraceError as error:
            return m.DescribeStreamResult(
                stream=m.Stream(stream_id=stream_id), status=_item_status(error)
            )

    results = tuple(describe(stream_id) for stream_id in request.stream_ids)
    return Reply(m.DescribeStreamsResponse(describe_responses=results, status=OK))


async def trim_streams(
    service: PlacementService, request: m.TrimStreamsRequest, _: Payload, peer: Peer
) -> Reply:
    async def trim(wanted: m.TrimmedStream) -> m.TrimStreamResult:
        try:
            _check(service, peer, wanted.stream_id)
            smallest = await service.changes.trim_stream(wanted.stream_id, wanted.trim_offset)
            stream = service.state.stream(wanted.stream_id)
        except HeadraceError as error:
            return m.TrimStreamResult(
                trimmed_stream=m.Stream(stream_id=wanted.stream_id), status=_item_status(error)
            )
        return m.TrimStreamResult(
            trimmed_stream=_stream(stream), range=service.changes.wire(smallest), status=OK
        )

    results = await service.protect(_each(request.trimmed_streams, trim))
    return Reply(m.TrimStreamsResponse(trim_responses=results, status=OK))


async def list_ranges(
    service: PlacementService, request: m.ListRangesRequest, _: Payload, peer: Peer
) -> Reply:
    room = RANGES_LISTED_MAX  # a short request may name one long stream thousands of times

    def select(criteria: m.RangeCriteria) -> m.ListRangesResult:
        nonlocal room
        try:
            records = _select(service, criteria, peer)
            room -= len(records)
            if room < 0 and not service.access.is_node(peer):
                raise TooLargeError("too many ranges for one answer", limit=RANGES_LISTED_MAX)
        except HeadraceError as error:
            return m.ListRangesResult(range_criteria=criteria, status=_item_status(error))
        viewer = criteria.data_node.node_id if criteria.data_node is not None else -1
        ranges = tuple(service.changes.wire(record, viewer=viewer) for record in records)
        return m.ListRangesResult(range_criteria=criteria, ranges=ranges, status=OK)

    results = tuple(select(criteria) for criteria in request.range_criteria)
    return Reply(m.ListRangesResponse(list_responses=results, status=OK))


def _select(
    service: PlacementService, criteria: m.RangeCriteria, peer: Peer
) -> Sequence[RangeRecord]:
    """By stream, by node, by both (intersection); by neither nothing."""
    node_id = criteria.data_node.node_id if criteria.data_node is not None else -1
    if criteria.stream_id >= 0:
        _check(service, peer, criteria.stream_id)
        records = service.state.ranges(criteria.stream_id)
        return [r for r in records if node_id < 0 or node_id in (*r.replicas, *r.joining)]
    if node_id < 0:
        return []
    if not service.access.is_node(peer):
        raise UnauthorizedError("ranges of a node are for nodes of the cluster")
    return service.state.ranges_of_node(node_id)


async def seal_ranges(
    service: PlacementService, request: m.SealRangesRequest, _: Payload, peer: Peer
) -> Reply:
    async def seal(wanted: m.RangeId) -> m.SealRangesResult:
        try:
            _check(service, peer, wanted.stream_id)
            if wanted.writer_epoch >= 0 and not service.access.is_node(peer):
                raise UnauthorizedError("epochs are for nodes of the cluster")
            if wanted.accept_loss >= 0:
                if not service.access.is_node(peer):
                    raise UnauthorizedError("losses are accepted by who runs the cluster")
                range_ = await service.changes.accept_loss(
                    wanted.stream_id, wanted.range_index, wanted.accept_loss
                )
                return m.SealRangesResult(range=range_, status=OK)
            range_ = await service.changes.seal(
                wanted.stream_id, wanted.range_index, wanted.writer_epoch
            )
        except HeadraceError as error:
            named = m.Range(stream_id=wanted.stream_id, range_index=wanted.range_index)
            return m.SealRangesResult(range=named, status=_item_status(error))
        return m.SealRangesResult(range=range_, status=OK)

    results = await service.protect(_each(request.ranges, seal))
    return Reply(m.SealRangesResponse(seal_responses=results, status=OK))


async def describe_ranges(
    service: PlacementService, request: m.DescribeRangesRequest, _: Payload, peer: Peer
) -> Reply:
    """As far as it is known here; data nodes know next offsets and segments."""

    def describe(wanted: m.RangeId) -> m.DescribeRangeResult:
        try:
            _check(service, peer, wanted.stream_id)
            record = service.state.range(wanted.stream_id, wanted.range_index)
        except HeadraceError as error:
            return m.DescribeRangeResult(stream_id=wanted.stream_id, status=_item_status(error))
        return m.DescribeRangeResult(
            stream_id=wanted.stream_id, range=service.changes.wire(record), status=OK
        )

    results = tuple(describe(wanted) for wanted in request.ranges)
    return Reply(m.DescribeRangesResponse(describe_responses=results, status=OK))


async def lease(
    service: PlacementService, request: m.LeaseRequest, _: Payload, peer: Peer
) -> Reply:
    try:
        action = m.LeaseAction(request.action)
    except ValueError:
        raise InvalidArgumentError("unknown lease action", action=request.action) from None
    return Reply(await service.protect(service.lease(action, request)))


async def describe_cluster(
    service: PlacementService, request: m.DescribeClusterRequest, _: Payload, peer: Peer
) -> Reply:
    now_ms = int(service.runtime.clock.monotonic() * 1000)
    return Reply(
        describe(
            service.state,
            now_ms,
            managers=service.managers(),
            with_ranges=request.count_ranges,
            metadata_seen=service.metadata_seen,
        )
    )


async def adopt(
    service: PlacementService, request: m.AdoptRequest, _: Payload, peer: Peer
) -> Reply:
    return Reply(await service.protect(service.adopt(request)))


FOR_FOLLOWERS = frozenset({Code.HEARTBEAT, Code.REPORT_METRICS})
ON_OUTDATED_METADATA = frozenset({Code.DESCRIBE_CLUSTER, Code.ADOPT})
"""What a leader serves although it decides nothing: that it does not, and how to end that."""


def _leader_only(
    function: Callable[..., Awaitable[Reply]], *, outdated: bool
) -> Callable[..., Awaitable[Reply]]:
    @wraps(function)
    async def serve(
        service: PlacementService, request: m.Message, payload: Payload, peer: Peer
    ) -> Reply:
        try:
            (service.check_elected if outdated else service.check_leading)()
            return await function(service, request, payload, peer)
        except NotLeaderError:
            raise service.not_leader() from None

    return serve


def handlers(service: PlacementService) -> dict[int, Handler]:
    functions: dict[int, Callable[..., Any]] = {
        Code.HEARTBEAT: heartbeat,
        Code.ALLOCATE_ID: allocate_id,
        Code.LIST_RANGES: list_ranges,
        Code.SEAL_RANGES: seal_ranges,
        Code.DESCRIBE_RANGES: describe_ranges,
        Code.CREATE_STREAMS: create_streams,
        Code.DELETE_STREAMS: delete_streams,
        Code.UPDATE_STREAMS: update_streams,
        Code.DESCRIBE_STREAMS: describe_streams,
        Code.TRIM_STREAMS: trim_streams,
        Code.REPORT_METRICS: report_metrics,
        Code.LEASE: lease,
        Code.DESCRIBE_CLUSTER: describe_cluster,
        Code.ADOPT: adopt,
    }
    return {
        code: partial(
            function
            if code in FOR_FOLLOWERS
            else _leader_only(function, outdated=code in ON_OUTDATED_METADATA),
            service,
        )
        for code, function in functions.items()
    }
