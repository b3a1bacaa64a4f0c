"""One function per opcode of the placement manager.

A request of many items gets one result per item, in request order; an item that fails costs the
others nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Protocol, TypeVar

from headrace.config.placement import PlacementSettings
from headrace.errors import (
    HeadraceError,
    InvalidArgumentError,
    NotFoundError,
    NotLeaderError,
    ShareFullError,
    TooLargeError,
    UnauthorizedError,
)
from headrace.net.sbp_routes import Access
from headrace.net.sbp_server import Handler, Payload, Peer, Reply
from headrace.placement.changes import Changes
from headrace.placement.description import describe
from headrace.placement.lease_requests import LeaseRequests
from headrace.placement.metadata.records import RangeRecord, StreamRecord
from headrace.placement.state import OWNED_PREFIXES, PlacementState
from headrace.runtime.interfaces import Runtime
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import status_of
from headrace.wire.sbp.messages import OK
from headrace.wire.sbp.opcodes import Code

T = TypeVar("T")
U = TypeVar("U")

CONCURRENCY = 64  # items of one request in progress
RANGES_LISTED_MAX = 10_000  # in one answer to a peer that is no node of the cluster


class PlacementManager(Protocol):
    """The placement manager as its handlers see it; `PlacementService` is the one that there is."""

    runtime: Runtime
    settings: PlacementSettings
    access: Access
    state: PlacementState
    changes: Changes
    leases: LeaseRequests
    metadata_seen: int

    @property
    def metadata_version(self) -> int: ...

    def managers(self) -> Sequence[m.PlacementManagerNode]: ...

    def check_elected(self) -> None: ...

    def check_leading(self) -> None: ...

    def not_leader(self) -> NotLeaderError: ...

    async def protect(self, work: Coroutine[Any, Any, T]) -> T:
        """Let a change run to its end even when the request that asked for it is cancelled."""
        ...

    async def on_heartbeat(self, request: m.HeartbeatRequest, peer: Peer) -> None: ...

    async def adopt(self, request: m.AdoptRequest) -> m.AdoptResponse: ...


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


def _check(manager: PlacementManager, peer: Peer, stream_id: int) -> None:
    """Tickets and anonymous peers reach only what they may; unknown streams stay unknown."""
    access = manager.access
    if not access.is_node(peer) and not access.is_on_ticket(peer, stream_id):
        access.check_stream(peer, stream_id, owned=manager.state.is_owned(stream_id))


async def heartbeat(
    manager: PlacementManager, request: m.HeartbeatRequest, _: Payload, peer: Peer
) -> Reply:
    """Taken by followers too, so that a new leader knows who lives."""
    status = OK
    try:
        if request.client_role == m.ClientRole.DATA_NODE and request.data_node is not None:
            if not manager.access.is_node(peer):
                raise UnauthorizedError("a data node needs the node credential")
            await manager.on_heartbeat(request, peer)
    except HeadraceError as error:
        status = status_of(error)
    return Reply(
        m.HeartbeatResponse(
            client_id=request.client_id,
            client_role=request.client_role,
            data_node=request.data_node,
            status=status,
            metadata_version=manager.metadata_version,
        )
    )


async def allocate_id(
    manager: PlacementManager, request: m.IdAllocationRequest, _: Payload, peer: Peer
) -> Reply:
    node_id = await manager.protect(manager.changes.term.take_id(manager.state.node_ids))
    return Reply(m.IdAllocationResponse(id=node_id, status=OK))


async def report_metrics(
    manager: PlacementManager, request: m.ReportMetricsRequest, _: Payload, peer: Peer
) -> Reply:
    """Taken by followers too."""
    node = request.data_node
    if node is None or not manager.state.nodes.on_metrics(node.node_id, request):
        raise NotFoundError("unknown data node")
    return Reply(m.ReportMetricsResponse(data_node=node, status=OK))


async def create_streams(
    manager: PlacementManager, request: m.CreateStreamsRequest, _: Payload, peer: Peer
) -> Reply:
    async def create(wanted: m.Stream) -> m.CreateStreamResult:
        try:
            if wanted.name.startswith(OWNED_PREFIXES) and not manager.access.is_node(peer):
                raise UnauthorizedError("the name belongs to the cluster", name=wanted.name)
            if not manager.access.is_node(peer):
                _check_plain_streams(manager, wanted.name)
                wanted = replace(wanted, preferred_node=-1)  # who leads what is for the cluster
            stream, range_ = await manager.changes.create_stream(wanted)
        except HeadraceError as error:
            return m.CreateStreamResult(stream=wanted, status=_item_status(error))
        return m.CreateStreamResult(
            stream=_stream(stream), range=manager.changes.wire(range_), status=OK
        )

    results = await manager.protect(_each(request.streams, create))
    return Reply(m.CreateStreamsResponse(create_responses=results, status=OK))


def _check_plain_streams(manager: PlacementManager, name: str) -> None:
    """Room for one more of a peer without a credential, unless it is there already."""
    if name and manager.state.stream_named(name) is not None:
        return
    limit = manager.settings.plain_streams_max
    streams = manager.state.streams()
    if sum(not stream.name.startswith(OWNED_PREFIXES) for stream in streams) >= limit:
        raise ShareFullError("too many plain streams; delete some first", limit=limit)


async def delete_streams(
    manager: PlacementManager, request: m.DeleteStreamsRequest, _: Payload, peer: Peer
) -> Reply:
    async def delete(stream: m.Stream) -> m.DeleteStreamResult:
        try:
            if not manager.access.is_node(peer) and not manager.state.is_deleted(stream.stream_id):
                _check(manager, peer, stream.stream_id)
            await manager.changes.delete_stream(stream.stream_id)
        except HeadraceError as error:
            return m.DeleteStreamResult(deleted_stream=stream, status=_item_status(error))
        return m.DeleteStreamResult(deleted_stream=stream, status=OK)

    results = await manager.protect(_each(request.streams, delete))
    return Reply(m.DeleteStreamsResponse(delete_responses=results, status=OK))


async def update_streams(
    manager: PlacementManager, request: m.UpdateStreamsRequest, _: Payload, peer: Peer
) -> Reply:
    async def update(stream: m.Stream) -> m.UpdateStreamResult:
        try:
            _check(manager, peer, stream.stream_id)
            updated = await manager.changes.update_stream(stream)
        except HeadraceError as error:
            return m.UpdateStreamResult(stream=stream, status=_item_status(error))
        return m.UpdateStreamResult(stream=_stream(updated), status=OK)

    results = await manager.protect(_each(request.streams, update))
    return Reply(m.UpdateStreamsResponse(update_responses=results, status=OK))


async def describe_streams(
    manager: PlacementManager, request: m.DescribeStreamsRequest, _: Payload, peer: Peer
) -> Reply:
    def describe(stream_id: int) -> m.DescribeStreamResult:
        try:
            _check(manager, peer, stream_id)
            return m.DescribeStreamResult(
                stream=_stream(manager.state.stream(stream_id)), status=OK
            )
        except HeadraceError as error:
            return m.DescribeStreamResult(
                stream=m.Stream(stream_id=stream_id), status=_item_status(error)
            )

    results = tuple(describe(stream_id) for stream_id in request.stream_ids)
    return Reply(m.DescribeStreamsResponse(describe_responses=results, status=OK))


async def trim_streams(
    manager: PlacementManager, request: m.TrimStreamsRequest, _: Payload, peer: Peer
) -> Reply:
    async def trim(wanted: m.TrimmedStream) -> m.TrimStreamResult:
        try:
            _check(manager, peer, wanted.stream_id)
            smallest = await manager.changes.trim_stream(wanted.stream_id, wanted.trim_offset)
            stream = manager.state.stream(wanted.stream_id)
        except HeadraceError as error:
            return m.TrimStreamResult(
                trimmed_stream=m.Stream(stream_id=wanted.stream_id), status=_item_status(error)
            )
        return m.TrimStreamResult(
            trimmed_stream=_stream(stream), range=manager.changes.wire(smallest), status=OK
        )

    results = await manager.protect(_each(request.trimmed_streams, trim))
    return Reply(m.TrimStreamsResponse(trim_responses=results, status=OK))


async def list_ranges(
    manager: PlacementManager, request: m.ListRangesRequest, _: Payload, peer: Peer
) -> Reply:
    room = RANGES_LISTED_MAX  # a short request may name one long stream thousands of times

    def select(criteria: m.RangeCriteria) -> m.ListRangesResult:
        nonlocal room
        try:
            records = _select(manager, criteria, peer)
            room -= len(records)
            if room < 0 and not manager.access.is_node(peer):
                raise TooLargeError("too many ranges for one answer", limit=RANGES_LISTED_MAX)
        except HeadraceError as error:
            return m.ListRangesResult(range_criteria=criteria, status=_item_status(error))
        viewer = criteria.data_node.node_id if criteria.data_node is not None else -1
        ranges = tuple(manager.changes.wire(record, viewer=viewer) for record in records)
        return m.ListRangesResult(range_criteria=criteria, ranges=ranges, status=OK)

    results = tuple(select(criteria) for criteria in request.range_criteria)
    return Reply(m.ListRangesResponse(list_responses=results, status=OK))


def _select(
    manager: PlacementManager, criteria: m.RangeCriteria, peer: Peer
) -> Sequence[RangeRecord]:
    """By stream, by node, by both (intersection); by neither nothing."""
    node_id = criteria.data_node.node_id if criteria.data_node is not None else -1
    if criteria.stream_id >= 0:
        _check(manager, peer, criteria.stream_id)
        records = manager.state.ranges(criteria.stream_id)
        return [r for r in records if node_id < 0 or node_id in (*r.replicas, *r.joining)]
    if node_id < 0:
        return []
    if not manager.access.is_node(peer):
        raise UnauthorizedError("ranges of a node are for nodes of the cluster")
    return manager.state.ranges_of_node(node_id)


async def seal_ranges(
    manager: PlacementManager, request: m.SealRangesRequest, _: Payload, peer: Peer
) -> Reply:
    async def seal(wanted: m.RangeId) -> m.SealRangesResult:
        try:
            _check(manager, peer, wanted.stream_id)
            if wanted.writer_epoch >= 0 and not manager.access.is_node(peer):
                raise UnauthorizedError("epochs are for nodes of the cluster")
            if wanted.accept_loss >= 0:
                if not manager.access.is_node(peer):
                    raise UnauthorizedError("losses are accepted by who runs the cluster")
                range_ = await manager.changes.accept_loss(
                    wanted.stream_id, wanted.range_index, wanted.accept_loss
                )
                return m.SealRangesResult(range=range_, status=OK)
            range_ = await manager.changes.seal(
                wanted.stream_id,
                wanted.range_index,
                wanted.writer_epoch,
                preferred=wanted.preferred_node if manager.access.is_node(peer) else -1,
            )
        except HeadraceError as error:
            named = m.Range(stream_id=wanted.stream_id, range_index=wanted.range_index)
            return m.SealRangesResult(range=named, status=_item_status(error))
        return m.SealRangesResult(range=range_, status=OK)

    results = await manager.protect(_each(request.ranges, seal))
    return Reply(m.SealRangesResponse(seal_responses=results, status=OK))


async def describe_ranges(
    manager: PlacementManager, request: m.DescribeRangesRequest, _: Payload, peer: Peer
) -> Reply:
    """As far as it is known here; data nodes know next offsets and segments."""

    def describe(wanted: m.RangeId) -> m.DescribeRangeResult:
        try:
            _check(manager, peer, wanted.stream_id)
            record = manager.state.range(wanted.stream_id, wanted.range_index)
        except HeadraceError as error:
            return m.DescribeRangeResult(stream_id=wanted.stream_id, status=_item_status(error))
        return m.DescribeRangeResult(
            stream_id=wanted.stream_id, range=manager.changes.wire(record), status=OK
        )

    results = tuple(describe(wanted) for wanted in request.ranges)
    return Reply(m.DescribeRangesResponse(describe_responses=results, status=OK))


async def lease(
    manager: PlacementManager, request: m.LeaseRequest, _: Payload, peer: Peer
) -> Reply:
    try:
        action = m.LeaseAction(request.action)
    except ValueError:
        raise InvalidArgumentError("unknown lease action", action=request.action) from None
    leases = manager.leases
    match action:
        case m.LeaseAction.LIST:  # changes nothing, and may wait: not to be protected
            return Reply(await leases.list(request))
        case m.LeaseAction.CHANGE_MANY:
            work = leases.change_many(request)
        case m.LeaseAction.RELEASE_HOLDER:
            work = leases.release_holder(request)
        case _:
            work = leases.change(action, request)
    return Reply(await manager.protect(work))


async def describe_cluster(
    manager: PlacementManager, request: m.DescribeClusterRequest, _: Payload, peer: Peer
) -> Reply:
    now_ms = int(manager.runtime.clock.monotonic() * 1000)
    return Reply(
        describe(
            manager.state,
            now_ms,
            managers=manager.managers(),
            with_ranges=request.count_ranges,
            metadata_seen=manager.metadata_seen,
        )
    )


async def adopt(
    manager: PlacementManager, request: m.AdoptRequest, _: Payload, peer: Peer
) -> Reply:
    return Reply(await manager.protect(manager.adopt(request)))


FOR_FOLLOWERS = frozenset({Code.HEARTBEAT, Code.REPORT_METRICS})
ON_OUTDATED_METADATA = frozenset({Code.DESCRIBE_CLUSTER, Code.ADOPT})
"""What a leader serves although it decides nothing: that it does not, and how to end that."""


def _leader_only(
    function: Callable[..., Awaitable[Reply]], *, outdated: bool
) -> Callable[..., Awaitable[Reply]]:
    @wraps(function)
    async def serve(
        manager: PlacementManager, request: m.Message, payload: Payload, peer: Peer
    ) -> Reply:
        try:
            (manager.check_elected if outdated else manager.check_leading)()
            return await function(manager, request, payload, peer)
        except NotLeaderError:
            raise manager.not_leader() from None

    return serve


def handlers(manager: PlacementManager) -> dict[int, Handler]:
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
            manager,
        )
        for code, function in functions.items()
    }
