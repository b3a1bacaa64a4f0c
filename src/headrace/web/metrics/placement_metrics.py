"""What a placement manager tells: who leads, which nodes live, how replicated the log is.

Counting ranges looks at each of them, so it is done at most every few seconds, however often
somebody scrapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace.observability.exposition import Family, Number, bounded
from headrace.observability.metrics import family
from headrace.placement.service import PlacementService
from headrace.web.metrics.checks import Check

_KEPT_SECONDS = 5.0


class ObservedPlacement:
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
            self._kept = (now, list(families(service.statistics(), self._labels_max)))
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


def families(figures: dict[str, Any], labels_max: int) -> Iterator[Family]:
    yield _single("placement_leading", int(figures["leading"]))
    yield _single("placement_metadata_version", figures["metadata_version"])
    yield _single("placement_metadata_outdated", int(figures["metadata_outdated"]))
    yield _single("placement_managers", max(1, len(figures["managers"])))
    if not figures["leading"]:
        return  # what a follower knows of streams and ranges is nothing, or old
    nodes = [node for node in figures["nodes"] if node["condition"] != "replaced"]
    alive = sum(node["alive"] for node in nodes)
    states = family("placement_nodes")
    states.add(alive, state="alive")
    states.add(len(nodes) - alive, state="lost")
    yield states
    yield _by_node("placement_node_alive", labels_max, nodes, lambda node: int(node["alive"]))
    yield _by_node("placement_node_free_bytes", labels_max, nodes, _free_bytes)
    yield _single("placement_streams", figures["streams"])
    ranges = family("placement_ranges")
    for state in ("open", "sealed", "sealing"):
        ranges.add(figures[f"ranges_{state}"], state=state)
    yield ranges
    yield _single("placement_ranges_under_replicated", figures["ranges_short"])
    yield _single("placement_ranges_unavailable", figures["ranges_unavailable"])
    yield _single("placement_leases_held", figures["leases_held"])


def _free_bytes(node: dict[str, Any]) -> int:
    return int((node["metrics"] or {}).get("disk_free_space", 0))


def _by_node(
    name: str,
    limit: int,
    nodes: Iterable[dict[str, Any]],
    value: Callable[[dict[str, Any]], int],
) -> Family:
    made = family(name)
    for (node,), number in bounded((((str(n["node_id"]),), value(n)) for n in nodes), limit):
        made.add(number, node=node)
    return made


def _single(name: str, value: Number) -> Family:
    made = family(name)
    made.add(value)
    return made
