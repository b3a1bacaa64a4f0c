"""The cluster in one answer: data nodes, held leases and, for people, how replicated the log is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from headrace.placement.healing import wanted_copies, whole_copies
from headrace.placement.metadata.records import RangeRecord
from headrace.placement.state import PlacementState
from headrace.wire.sbp import messages as m

_NOT_COUNTED = -1
_TORN_MAX = 100


def describe(
    state: PlacementState,
    now_ms: int,
    *,
    managers: Sequence[m.PlacementManagerNode] = (),
    with_ranges: bool,
    metadata_seen: int = -1,
) -> m.DescribeClusterResponse:
    torn: list[RangeRecord] = []
    counts = count_ranges(state, torn) if with_ranges else {}
    return m.DescribeClusterResponse(
        placement_managers=tuple(managers),
        nodes=tuple(_node(state, node_id, with_ranges) for node_id in sorted(state.nodes.records)),
        leases=_held(state, now_ms),
        streams=len(state.streams()),
        ranges=(counts["ranges_open"] + counts["ranges_sealed"] if with_ranges else _NOT_COUNTED),
        ranges_sealing=counts.get("ranges_sealing", _NOT_COUNTED),
        ranges_short=counts.get("ranges_short", _NOT_COUNTED),
        ranges_unavailable=counts.get("ranges_unavailable", _NOT_COUNTED),
        status=m.OK,
        metadata_version=state.version,
        metadata_seen=metadata_seen,
        ranges_torn=tuple(_torn(state, record) for record in torn[:_TORN_MAX]),
    )


def _torn(state: PlacementState, record: RangeRecord) -> m.Range:
    """With those of its nodes that are away and may have what is missing."""
    away = [n for n in record.replicas if not state.nodes.is_alive(n)]
    return m.Range(
        stream_id=record.stream_id,
        range_index=record.range_index,
        start_offset=record.start,
        end_offset=record.content_end,
        held_offset=state.held_end(record),
        replica_nodes=tuple(m.ReplicaNode(data_node=m.DataNode(node_id=n)) for n in away),
    )


def _node(state: PlacementState, node_id: int, with_ranges: bool) -> m.NodeInfo:
    nodes = state.nodes
    metrics = nodes.metrics(node_id)
    return m.NodeInfo(
        data_node=m.DataNode(node_id=node_id, advertise_addr=nodes.address(node_id)),
        is_alive=nodes.is_alive(node_id),
        disk_free_bytes=-1 if metrics is None else metrics.disk_free_space,
        ranges=len(state.ranges_of_node(node_id)) if with_ranges else _NOT_COUNTED,
        open_ranges=state.open_ranges(node_id),
        is_draining=nodes.is_draining(node_id),
        host=nodes.host(node_id),
        host_id=nodes.records[node_id].host_id,
        ranges_quarantined=-1 if metrics is None else metrics.range_quarantined_cnt,
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


def count_ranges(state: PlacementState, torn: list[RangeRecord] | None = None) -> dict[str, int]:
    """Short: with fewer whole replicas on live nodes than were asked for; unavailable: with none.

    Looks at every range. `torn` gets those whose end is on no living node.
    """
    counts = dict.fromkeys(("open", "sealed", "short", "unavailable"), 0)
    streams = state.streams()
    for stream in streams:
        for record in state.ranges(stream.stream_id):
            counts["open" if record.open else "sealed"] += 1
            if record.open or record.content_end > record.start:  # there is something to hold
                whole = whole_copies(state, record)
                counts["short"] += whole < wanted_copies(state, record)
                counts["unavailable"] += not whole
                if torn is not None and not whole and state.held_end(record) >= 0:
                    torn.append(record)
    return {
        "streams": len(streams),
        "ranges_sealing": len(state.sealing()),
        **{f"ranges_{name}": count for name, count in counts.items()},
    }


def metrics_of(report: m.ReportMetricsRequest | None) -> dict[str, int] | None:
    """What a node last said of itself; None while it has not."""
    if report is None:
        return None
    return {f.name: getattr(report, f.name) for f in fields(report) if f.name != "data_node"}
