"""What data nodes and placement managers tell Prometheus.

A data node tells of appends and fetches, its disk, its ranges and how far replicas are; a placement
manager of who leads, which nodes live and how replicated the log is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from headrace.datanode.metrics import Load
from headrace.datanode.service import DataNodeService
from headrace.errors import HeadraceError
from headrace.observability.exposition import Family, Number, bounded, family, single
from headrace.observability.metrics import Histogram
from headrace.placement.service import PlacementService
from headrace.web.metrics.process import Check

_DISK_SECONDS = 5.0
_KEPT_SECONDS = 5.0

_STORAGE = {
    "written_bytes": "node_written_bytes_total",
    "groups": "node_commit_groups_total",
    "file_writes": "node_file_writes_total",
    "queued_bytes": "node_queued_bytes",
    "open_files": "node_open_files",
    "tail_cache_bytes": "node_tail_cache_bytes",
    "tail_cache_hits": "node_tail_cache_hits_total",
    "tail_cache_misses": "node_tail_cache_misses_total",
    "journal_groups": "node_journal_groups_total",
    "journal_bytes": "node_journal_bytes_total",
    "ranges_failed": "node_ranges_failed",
    "ranges_incomplete": "node_ranges_incomplete",
    "corrupt_spans": "node_corrupt_spans",
}


class ObservedNode:
    role = "data-node"

    def __init__(self, service: Callable[[], DataNodeService | None]) -> None:
        self._service = service
        self._disk: tuple[float, Check] | None = None

    async def families(self) -> Iterable[Family]:
        service = self._service()
        if service is None or not service.serving:
            return []
        return list(node_families(service, await service.load()))

    async def checks(self) -> list[Check]:
        service = self._service()
        if service is None or not service.serving:
            return [Check("started", False, "recovers its log, or stops")]
        return [_placement(service), await self._check_disk(service), _ranges(service)]

    async def _check_disk(self, service: DataNodeService) -> Check:
        """A write and two syncs: not for everybody who asks."""
        now = service.runtime.clock.monotonic()
        if self._disk is None or now - self._disk[0] >= _DISK_SECONDS:
            self._disk = (now, await _disk(service))
        return self._disk[1]


def _placement(service: DataNodeService) -> Check:
    if service.node_id < 0:
        return Check("registered", False, "no placement manager has given it an id")
    touch = service.contact.in_touch
    return Check("registered", touch, "" if touch else "no placement manager answers heartbeats")


async def _disk(service: DataNodeService) -> Check:
    try:
        await service.probe_disk()
    except HeadraceError as error:
        return Check("disk", False, f"cannot be written: {error}")
    load = await service.load()
    least = service.store.settings.min_free_bytes
    if load.free_bytes < least:
        return Check("disk", False, f"{load.free_bytes} bytes free, {least} are kept for control")
    return Check("disk", True, f"{load.free_bytes} bytes free")


def _ranges(service: DataNodeService) -> Check:
    failed = service.store.statistics()["ranges_failed"]
    return Check("ranges", not failed, f"{failed} ranges cannot be written" if failed else "")


def node_families(service: DataNodeService, load: Load) -> Iterator[Family]:
    # A scrape may look at every range; what the node reports each half second may not.
    counters, storage, io = load.counters, service.store.statistics(), load.io
    leading, server = service.leading.statistics(), service.server_statistics()
    singles: dict[str, Number | Histogram] = {
        "node_id": service.node_id,
        "node_in_touch": int(service.contact.in_touch),
        "node_ranges_quarantined": len(service.quarantine),
        "node_metadata_version": service.metadata.newest,
        "node_appends_total": counters.appends,
        "node_append_failures_total": counters.appends_failed,
        "node_appends_in_flight": counters.appends_in_flight,
        "node_append_duration_seconds": counters.append_times,
        "node_fetches_total": counters.fetches,
        "node_fetches_located_total": counters.fetches_located,
        "node_fetch_failures_total": counters.fetches_failed,
        "node_fetch_duration_seconds": counters.fetch_times,
        "node_fetched_bytes_total": counters.bytes_out,
        "node_io_tasks_total": io.tasks,
        "node_io_tasks_in_flight": io.in_flight,
        "node_io_tasks_pending": io.pending,
        "node_io_task_seconds": io.average_seconds(load.now),
        "node_disk_free_bytes": load.free_bytes,
        "node_disk_total_bytes": load.total_bytes,
        "node_repaired_spans_total": service.repairer.repaired_spans,
        "node_copied_bytes_total": service.copier.copied_bytes,
        "node_ranges_led": leading["ranges_led"],
        "node_replicas_unreachable": leading["replica_nodes_unreachable"],
        "node_replica_queued_bytes": leading["replica_queued_bytes"],
        "node_replication_lag_records": service.leading.lag_records(),
        "node_ranges_behind": service.leading.missing_replicas(),
        "node_connections": server.get("connections", 0),
        "node_requests_total": server.get("requests", 0),
        "node_answers_throttled_total": server.get("answers_throttled", 0),
        **{name: storage[key] for key, name in _STORAGE.items()},
    }
    yield from (single(name, value) for name, value in singles.items())
    ranges = family("node_ranges")
    ranges.add(load.active_ranges, state="open")
    ranges.add(storage["ranges"] - load.active_ranges, state="sealed")
    ranges.add(storage["ranges_unreadable"], state="unreadable")
    yield ranges


class ObservedPlacement:
    """Counting ranges looks at each of them, so it is done at most every few seconds, however often
    somebody scrapes."""

    role = "placement-manager"

    def __init__(
        self,
        service: Callable[[], PlacementService | None],
        monotonic: Callable[[], float],
        *,
        labels_max: int,
    ) -> None:
        self._service = service
        self._monotonic = monotonic
        self._labels_max = labels_max
        self._kept: tuple[float, list[Family]] | None = None

    async def families(self) -> Iterable[Family]:
        service, now = self._service(), self._monotonic()
        if service is None:
            return []
        if self._kept is None or now - self._kept[0] >= _KEPT_SECONDS:
            figures = msgspec.convert(service.statistics(), PlacementFigures)
            self._kept = (now, list(placement_families(figures, self._labels_max)))
        return self._kept[1]

    async def checks(self) -> list[Check]:
        service = self._service()
        if service is None:
            return [Check("started", False, "still starting")]
        if service.leading:
            return [Check("leader", True, "leads")]
        leader = next((one.advertise_addr for one in service.managers() if one.is_leader), "")
        known = f"follows {leader}"
        return [Check("leader", bool(leader), known if leader else "nobody leads yet")]


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a data node last said of itself."""

    disk_free_space: int = 0


class NodeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A data node as a placement manager knows it."""

    node_id: int
    alive: bool
    condition: str
    metrics: NodeReport | None

    @property
    def free_bytes(self) -> int:
        return 0 if self.metrics is None else self.metrics.disk_free_space


class PlacementFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What `PlacementService.statistics` tells, as far as metrics are made of it."""

    leading: bool
    metadata_version: int
    metadata_outdated: bool
    managers: list[dict[str, Any]]
    nodes: list[NodeFigures]
    streams: int
    ranges_open: int
    ranges_sealed: int
    ranges_sealing: int
    ranges_short: int
    ranges_unavailable: int
    leases_held: int


def placement_families(figures: PlacementFigures, labels_max: int) -> Iterator[Family]:
    yield single("placement_leading", int(figures.leading))
    yield single("placement_metadata_version", figures.metadata_version)
    yield single("placement_metadata_outdated", int(figures.metadata_outdated))
    yield single("placement_managers", max(1, len(figures.managers)))
    if not figures.leading:
        return  # what a follower knows of streams and ranges is nothing, or old
    nodes = [node for node in figures.nodes if node.condition != "replaced"]
    alive = sum(node.alive for node in nodes)
    states = family("placement_nodes")
    states.add(alive, state="alive")
    states.add(len(nodes) - alive, state="lost")
    yield states
    yield _by_node("placement_node_alive", labels_max, nodes, lambda node: int(node.alive))
    yield _by_node("placement_node_free_bytes", labels_max, nodes, lambda node: node.free_bytes)
    yield single("placement_streams", figures.streams)
    ranges = family("placement_ranges")
    ranges.add(figures.ranges_open, state="open")
    ranges.add(figures.ranges_sealed, state="sealed")
    ranges.add(figures.ranges_sealing, state="sealing")
    yield ranges
    yield single("placement_ranges_under_replicated", figures.ranges_short)
    yield single("placement_ranges_unavailable", figures.ranges_unavailable)
    yield single("placement_leases_held", figures.leases_held)


def _by_node(
    name: str, limit: int, nodes: Iterable[NodeFigures], value: Callable[[NodeFigures], int]
) -> Family:
    made = family(name)
    for (node,), number in bounded((((str(one.node_id),), value(one)) for one in nodes), limit):
        made.add(number, node=node)
    return made
