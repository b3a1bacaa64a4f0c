"""The cluster in one answer: data nodes, held leases and, for people, how replicated the log is."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.placement.state import PlacementState
from headrace.wire.sbp import messages as m

_NOT_COUNTED = -1


def describe(
    state: PlacementState,
    now_ms: int,
    *,
    managers: Sequence[m.PlacementManagerNode] = (),
    count_ranges: bool,
) -> m.DescribeClusterResponse:
    short, unavailable = _count_short(state) if count_ranges else (_NOT_COUNTED, _NOT_COUNTED)
    streams = state.streams()
    counted = sum(len(state.ranges(s.stream_id)) for s in streams) if count_ranges else _NOT_COUNTED
    return m.DescribeClusterResponse(
        placement_managers=tuple(managers),
        nodes=tuple(_node(state, node_id, count_ranges) for node_id in sorted(state.nodes.records)),
        leases=_held(state, now_ms),
        streams=len(streams),
        ranges=counted,
        ranges_sealing=len(state.sealing()) if count_ranges else _NOT_COUNTED,
        ranges_short=short,
        ranges_unavailable=unavailable,
        status=m.OK,
    )


def _node(state: PlacementState, node_id: int, count_ranges: bool) -> m.NodeInfo:
    nodes = state.nodes
    metrics = nodes.metrics(node_id)
    return m.NodeInfo(
        data_node=m.DataNode(node_id=node_id, advertise_addr=nodes.address(node_id)),
        is_alive=nodes.is_alive(node_id),
        disk_free_bytes=-1 if metrics is None else metrics.disk_free_space,
        ranges=len(state.ranges_of_node(node_id)) if count_ranges else _NOT_COUNTED,
        open_ranges=state.open_ranges(node_id),
        is_draining=nodes.is_draining(node_id),
    )


def _held(state: PlacementState, now_ms: int) -> tuple[m.LeaseInfo, ...]:
    leases = state.leases
    return tuple(
        m.LeaseInfo(
            name=name,
            holder=record.holder,
            address=record.address,
            epoch=record.epoch,
            remaining_ms=leases.remaining_ms(name, now_ms),
        )
        for name, record in sorted(leases.records.items())
        if leases.held(name, now_ms)
    )


def _count_short(state: PlacementState) -> tuple[int, int]:
    """Ranges with fewer replicas on live nodes than wanted, and those with none."""
    alive = frozenset(state.nodes.alive())
    short = unavailable = 0
    for stream in state.streams():
        for record in state.ranges(stream.stream_id):
            if not record.open and record.end == record.start:
                continue  # nothing in it
            living = len(alive.intersection(record.replicas))
            short += living < stream.replica_nums
            unavailable += not living
    return short, unavailable
