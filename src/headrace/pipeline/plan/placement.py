"""Which operators share a container; the rules stand in `physical.py`. Pure, and the same for the
same plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import InvalidArgumentError
from headrace.pipeline.plan.logical import READ_TOPIC, LogicalPlan, Operator, Stream


@dataclass(frozen=True, slots=True)
class Layout:
    """Containers are numbered from 0 in the order in which the plan needs them."""

    homes: Mapping[str, tuple[int, ...]]  # operator: the container of each copy
    shared: frozenset[str]  # topics, which have a copy wherever they are read

    def first(self, plan: LogicalPlan, home: int) -> str:
        """What a container is known by while operators beside it come and go."""
        inside = [name for name in plan.topological if home in self.homes[name]]
        name = next((one for one in inside if one not in self.shared), inside[0])
        return f"{name}.{self.homes[name].index(home)}"


def place(plan: LogicalPlan) -> Layout:
    logical = {operator.name: operator for operator in plan.operators}
    shared = frozenset(
        one.name
        for one in plan.operators
        if one.function == READ_TOPIC and not one.isolate and one.instances == 1
    )
    ties = [
        (stream, sink.operator)
        for stream in plan.streams
        for sink in stream.sinks
        if not _follows(stream, logical[sink.operator], shared)
    ]
    tied = {name for stream, sink in ties for name in (stream.source.operator, sink)}
    # A topic that only follows its readers takes no part in the placement.
    free = {one.source.operator for one in plan.streams if one.source.operator in shared} - tied
    placed = [name for name in plan.topological if name not in free]
    groups = _fused_groups(placed, logical, ties)
    homes = _place(placed, logical, groups, ties)
    copies = {
        name: tuple(range(homes[name], homes[name] + logical[name].instances)) for name in placed
    }
    for name in shared:
        readers = {
            copies[sink.operator][0]
            for stream in plan.streams
            if stream.source.operator == name
            for sink in stream.sinks
            if _follows(stream, logical[sink.operator], shared)
        }
        first = copies.get(name, ())
        copies[name] = (*first, *sorted(readers.difference(first)))
    return Layout(copies, shared)


def _follows(stream: Stream, sink: Operator, shared: frozenset[str]) -> bool:
    """Whether the stream's source is read in the sink's own container, wherever that is."""
    return stream.source.operator in shared and stream.fused and sink.instances == 1


def _fused_groups(
    names: list[str], logical: Mapping[str, Operator], ties: list[tuple[Stream, str]]
) -> dict[str, int]:
    """Operator name to the number of its group; fused streams join groups."""
    order = [name for name in logical if name in names]
    group = {name: index for index, name in enumerate(order)}
    solitary = {name for name in names if logical[name].isolate or logical[name].instances > 1}
    for stream, sink in ties:
        ends = {stream.source.operator, sink}
        if stream.fused and not ends & solitary:
            keep, lose = sorted(group[name] for name in (stream.source.operator, sink))
            group = {name: keep if one == lose else one for name, one in group.items()}
    for stream, sink in ties:
        if not stream.fused and group[stream.source.operator] == group[sink]:
            raise InvalidArgumentError(
                "a split stream joins operators that other streams fuse", stream=stream.name
            )
    return group


def _place(
    names: list[str],
    logical: Mapping[str, Operator],
    groups: Mapping[str, int],
    ties: list[tuple[Stream, str]],
) -> dict[str, int]:
    """Groups to containers: each into the first one that no split stream keeps it out of."""
    apart: dict[int, set[int]] = {group: set() for group in groups.values()}
    for stream, sink in ties:
        ends = groups[stream.source.operator], groups[sink]
        if ends[0] != ends[1] and not stream.fused:
            apart[ends[0]].add(ends[1])
            apart[ends[1]].add(ends[0])
    alone = {groups[name] for name in names if logical[name].isolate or logical[name].instances > 1}
    containers: list[set[int]] = []
    home: dict[int, int] = {}
    for name in names:
        group = groups[name]
        if group in home:
            continue
        fits = (
            index
            for index, members in enumerate(containers)
            if group not in alone and not members & (alone | apart[group])
        )
        index = next(fits, len(containers))
        if index == len(containers):
            containers.extend(set() for _ in range(logical[name].instances))
        home[group] = index
        for copy in range(logical[name].instances):
            containers[index + copy].add(group)
    return {name: home[group] for name, group in groups.items()}
