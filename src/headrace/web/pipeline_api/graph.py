"""The graph of a pipeline, laid out in layers for the page to draw. Pure.

Layers by the longest path from a topic, so that every arrow goes right; in a layer nodes are put
near the middle of what feeds them (two sweeps of the barycentre rule), which is enough for graphs
that people write by hand. Positions are grid cells: the page decides how large a cell is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headrace.pipeline.controller.views import ApplicationView, WindowPoint
from headrace.web.diagnosis.stages import pressure, stages_of

SWEEPS = 2


class Node(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    operator: str
    label: str
    kind: str  # source, operator, sink
    layer: int
    row: float
    topic: str = ""  # that it reads or publishes to
    container: str = ""
    state: str = ""
    instances: int = 1
    rows_per_second: float = 0.0
    lag: int = 0
    busy: float = 0.0
    batch_ms: int = 0
    pressure: str = "low"
    failures: int = 0
    rows_late: int = 0
    rows_bad: int = 0
    state_rows: int = 0


class Link(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    target: str
    stream: str
    between_containers: bool
    topic: str = ""
    rows_per_second: float = 0.0


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    layers: int
    rows: float
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]


class Graphs(msgspec.Struct, frozen=True, kw_only=True):
    logical: Graph
    physical: Graph


def graphs(
    view: ApplicationView, history: Mapping[int, Sequence[WindowPoint]], now_ms: int
) -> Graphs:
    physical = _physical(view, history, now_ms)
    return Graphs(logical=_logical(view, physical), physical=physical)


def _physical(
    view: ApplicationView, history: Mapping[int, Sequence[WindowPoint]], now_ms: int
) -> Graph:
    stages = {one.id: one for one in stages_of(view, history, now_ms)}
    topics, declared = _topics(view), view.declared
    copies: dict[str, int] = {}
    for one in view.operators:
        copies[one.name] = copies.get(one.name, 0) + 1
    links = [
        Link(
            source=str(feed.source),
            target=str(one.id),
            stream=_stream(view, one.name, feed.port),
            between_containers=not feed.local,
            rows_per_second=one.rows_in_per_second,
        )
        for one in view.operators
        for feed in one.inputs
    ]
    places = layered([str(one.id) for one in view.operators], links)
    nodes = []
    for one in view.operators:
        stage, (layer, row) = stages[one.id], places[str(one.id)]
        name = one.name
        ports = declared.get(name, {}).get("ports", [])
        leaf = not any(link.source == str(one.id) for link in links)
        nodes.append(
            Node(
                id=str(one.id),
                operator=name,
                label=f"{name} {one.instance + 1}" if copies[name] > 1 else name,
                kind="source" if not one.inputs and ports else "sink" if leaf else "operator",
                layer=layer,
                row=row,
                topic=topics.get(name, ""),
                container=one.container,
                state=one.state,
                rows_per_second=one.rows_out_per_second or one.rows_in_per_second,
                lag=stage.trend.lag_rows,
                busy=round(stage.trend.busy, 3),
                batch_ms=stage.trend.batch_ms,
                pressure=pressure(stage.trend.busy),
                failures=one.failures,
                rows_late=one.rows_late,
                rows_bad=one.rows_bad,
                state_rows=int(one.metrics.get("state_rows", 0)),
            )
        )
    return _graph(nodes, links)


def _logical(view: ApplicationView, physical: Graph) -> Graph:
    """Instances of an operator are one node: rows are added up, of the rest the worst counts."""
    copies: dict[str, list[Node]] = {}
    for node in physical.nodes:
        copies.setdefault(node.operator, []).append(node)
    names = [name for name in view.declared if name in copies]
    names += [name for name in copies if name not in names]  # unifiers are in no logical plan
    operators = {node.id: node.operator for node in physical.nodes}
    joined: dict[tuple[str, str, str], Link] = {}
    for link in physical.links:
        key = (operators[link.source], operators[link.target], link.stream)
        before = joined.get(key)
        joined[key] = Link(
            source=key[0],
            target=key[1],
            stream=link.stream,
            between_containers=link.between_containers,
            rows_per_second=link.rows_per_second + (before.rows_per_second if before else 0.0),
        )
    places = layered(names, joined.values())
    nodes = [_merged(name, copies[name], places[name]) for name in names]
    return _graph(nodes, joined.values())


def _merged(name: str, copies: Sequence[Node], place: tuple[int, float]) -> Node:
    busiest = max(copies, key=lambda one: one.busy)
    states = {one.state for one in copies}
    return msgspec.structs.replace(
        busiest,
        id=name,
        label=name,
        layer=place[0],
        row=place[1],
        instances=len(copies),
        state=states.pop() if len(states) == 1 else "MIXED",
        container=copies[0].container if len(copies) == 1 else "",
        **{
            field: sum(getattr(one, field) for one in copies)
            for field in (
                "rows_per_second",
                "lag",
                "failures",
                "rows_late",
                "rows_bad",
                "state_rows",
            )
        },
    )


def _graph(nodes: Sequence[Node], links: Iterable[Link]) -> Graph:
    return Graph(
        layers=max((one.layer for one in nodes), default=-1) + 1,
        rows=max((one.row for one in nodes), default=-1.0) + 1,
        nodes=tuple(nodes),
        links=tuple(links),
    )


def layered(names: Sequence[str], links: Iterable[Link]) -> dict[str, tuple[int, float]]:
    """A layer and a row for every node."""
    above: dict[str, list[str]] = {name: [] for name in names}
    below: dict[str, list[str]] = {name: [] for name in names}
    for link in links:
        above[link.target].append(link.source)
        below[link.source].append(link.target)
    layers: dict[str, int] = {}

    def depth(name: str) -> int:
        if name not in layers:
            layers[name] = 0  # a loop, which plans do not have, would end here
            layers[name] = max((depth(one) + 1 for one in above[name]), default=0)
        return layers[name]

    for name in names:
        depth(name)
    ranks: list[list[str]] = [[] for _ in range(max(layers.values(), default=-1) + 1)]
    for name in names:
        ranks[layers[name]].append(name)
    for _ in range(SWEEPS):
        for rank in ranks:
            _order(rank, ranks, above)
        for rank in reversed(ranks):
            _order(rank, ranks, below)
    tallest = max(map(len, ranks), default=0)
    return {
        name: (layer, index + (tallest - len(rank)) / 2)
        for layer, rank in enumerate(ranks)
        for index, name in enumerate(rank)
    }


def _order(
    rank: list[str], ranks: Sequence[Sequence[str]], neighbours: Mapping[str, list[str]]
) -> None:
    at = {name: index for each in ranks for index, name in enumerate(each)}

    def middle(name: str) -> float:
        near = neighbours[name]
        return sum(at[one] for one in near) / len(near) if near else at[name]

    rank.sort(key=middle)


def _topics(view: ApplicationView) -> dict[str, str]:
    found = {}
    for name, one in view.declared.items():
        topic = one.get("attributes", {}).get("OUTPUT_TOPIC")
        if topic := topic or one.get("properties", {}).get("topic"):
            found[name] = str(topic)
    return found


def _stream(view: ApplicationView, operator: str, port: str) -> str:
    sink = f"{operator}.{port}"
    return next((one.name for one in view.streams if sink in one.sinks), "")
