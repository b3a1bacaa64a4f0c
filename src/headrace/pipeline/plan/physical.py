"""The physical plan: what runs where. It follows from the logical one and the identities that were
given out before, so a controller that replays its journal computes the same one again.

Which operators share a container:
  * a stream without a stated locality fuses its ends, as THREAD_LOCAL and CONTAINER_LOCAL do;
  * a NODE_LOCAL, RACK_LOCAL or remote stream splits them, and so do `isolate` and `instances` > 1;
  * a topic is read where its rows are needed: its operator has a copy in every such container;
  * what nothing splits lives in one container: one application is one container by default.
A *terminal* operator's result leaves the container: each is one streaming query, the unit of
checkpoint and recovery, and is named after it. The operators before it are fused into every query
that needs them and keep no checkpoint of their own.

A stream between containers is an *edge*: a topic that the controller makes (`edges.py`), with a
partition for each instance that publishes. Each row carries the hash of its partition key, and an
instance that reads takes those whose hash belongs to its keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from headrace.errors import InvalidArgumentError
from headrace.ids import OperatorId
from headrace.pipeline.plan.logical import PARTITION_KEY, READ_TOPIC, LogicalPlan, Operator, Stream
from headrace.wire.umbilical import attributes
from headrace.wire.umbilical.messages import OperatorType, Value


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


@dataclass(frozen=True, slots=True)
class Identities:
    """Ids that were given out: an operator and a container keep theirs for life."""

    operators: Mapping[str, int] = field(default_factory=dict)
    containers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Connection:
    """One input of a physical operator: where a port's rows come from."""

    stream: str
    port: str
    source: OperatorId
    source_port: str
    local: bool
    partition_keys: tuple[int, ...] = ()
    partition_mask: int | None = None  # None: everything


@dataclass(frozen=True, slots=True)
class PhysicalOperator:
    id: OperatorId
    logical: Operator
    type: OperatorType
    container: int
    query: str  # of a terminal operator; empty for one that is fused into others' queries
    inputs: tuple[Connection, ...]
    outputs: tuple[tuple[str, str, bool], ...]  # (port, stream, some sink is elsewhere)
    instance: int = 0


_Copies: TypeAlias = Mapping[str, list[tuple[OperatorId, int]]]  # name: (id, container) each


@dataclass(frozen=True)
class PhysicalPlan:
    logical: LogicalPlan
    operators: tuple[PhysicalOperator, ...]  # upstream first
    identities: Identities = Identities()

    @cached_property
    def containers(self) -> tuple[int, ...]:
        return tuple(sorted({operator.container for operator in self.operators}))

    @property
    def container_count(self) -> int:
        return len(self.containers)

    @cached_property
    def by_id(self) -> Mapping[OperatorId, PhysicalOperator]:
        return {operator.id: operator for operator in self.operators}

    @cached_property
    def downstream(self) -> Mapping[OperatorId, frozenset[OperatorId]]:
        result: dict[OperatorId, set[OperatorId]] = {o.id: set() for o in self.operators}
        for operator in self.operators:
            for connection in operator.inputs:
                result[connection.source].add(operator.id)
        return {id_: frozenset(below) for id_, below in result.items()}

    @cached_property
    def split_streams(self) -> frozenset[str]:
        """Names of those that some operator reads in another container."""
        return frozenset(
            one.stream for operator in self.operators for one in operator.inputs if not one.local
        )

    def partition_key(self, stream: str) -> tuple[str, ...] | None:
        """Columns by which the instances that read a stream share its rows: all of them if empty,
        None if nobody shares."""
        operators = {one.name: one for one in self.logical.operators}
        (declared,) = (one for one in self.logical.streams if one.name == stream)
        keys = {
            partition_key(operators[sink.operator])
            for sink in declared.sinks
            if _shares(operators[sink.operator])
        }
        if len(keys) > 1:
            raise InvalidArgumentError(
                f"operators share the rows of {stream} by different keys: give them the same "
                f"{PARTITION_KEY}, or read it through an operator of its own",
                keys=sorted(map(str, keys)),
            )
        return next(iter(keys), None)

    def in_container(self, index: int) -> tuple[PhysicalOperator, ...]:
        return tuple(operator for operator in self.operators if operator.container == index)

    def named(self, name: str) -> tuple[PhysicalOperator, ...]:
        return tuple(operator for operator in self.operators if operator.logical.name == name)

    def attribute(self, operator: PhysicalOperator, name: str) -> Value:
        """The operator's, else the operator scope's default."""
        return attributes.look_up(name, operator.logical.attributes, defaults=attributes.OPERATOR)


def make_physical_plan(plan: LogicalPlan, known: Identities | None = None) -> PhysicalPlan:
    plan.validate()
    layout = place(plan)
    identities, copies = _identify(plan, layout, known or Identities())
    logical = {operator.name: operator for operator in plan.operators}
    operators = tuple(
        _make_operator(plan, logical, copies, name, instance)
        for name in plan.topological
        for instance in range(len(copies[name]))
    )
    physical = PhysicalPlan(plan, operators, identities)
    for stream in physical.split_streams:
        physical.partition_key(stream)
    return physical


def partition_keys(instances: int) -> tuple[int, list[tuple[int, ...]]]:
    """The mask and each instance's keys: ceil(log2 n) bits, keys dealt round.

    A row with hash h belongs to the instance for which `(h & mask)` is among its keys.
    """
    mask = (1 << (instances - 1).bit_length()) - 1
    return mask, [tuple(range(first, mask + 1, instances)) for first in range(instances)]


def _identify(
    plan: LogicalPlan, layout: Layout, known: Identities
) -> tuple[Identities, dict[str, list[tuple[OperatorId, int]]]]:
    """Numbers for containers and operators: the known ones stay, others get the next."""
    containers = dict(known.containers)
    indices: dict[int, int] = {}
    for home in sorted({home for homes in layout.homes.values() for home in homes}):
        key = layout.first(plan, home)
        containers.setdefault(key, 1 + max(containers.values(), default=-1))
        indices[home] = containers[key]
    operators = dict(known.operators)
    copies: dict[str, list[tuple[OperatorId, int]]] = {}
    for name in plan.topological:
        copies[name] = []
        for instance, home in enumerate(layout.homes[name]):
            key = f"{name}@{indices[home]}" if name in layout.shared else f"{name}.{instance}"
            operators.setdefault(key, 1 + max(operators.values(), default=0))
            copies[name].append((OperatorId(operators[key]), indices[home]))
    return Identities(operators, containers), copies


def _make_operator(
    plan: LogicalPlan,
    logical: Mapping[str, Operator],
    copies: _Copies,
    name: str,
    instance: int,
) -> PhysicalOperator:
    operator = logical[name]
    id_, container = copies[name][instance]
    inputs = tuple(_connections(plan, logical, copies, name, instance))
    outputs = tuple(_outputs(plan, logical, copies, name, id_))
    if not inputs:
        kind = OperatorType.INPUT
    else:
        kind = OperatorType.OIO if all(one.local for one in inputs) else OperatorType.GENERIC
    stated = any(one.terminal for one in plan.operators)  # else: whatever nobody reads
    terminal = operator.terminal or any(elsewhere for *_, elsewhere in outputs)
    terminal = terminal or not (stated or outputs)
    query = f"{name}.{instance}" if operator.instances > 1 else name
    return PhysicalOperator(
        id=id_,
        logical=operator,
        type=kind,
        container=container,
        query=query if terminal else "",
        inputs=inputs,
        outputs=outputs,
        instance=instance,
    )


def _shares(operator: Operator) -> bool:
    """Whether instances share its rows, now or after they were changed."""
    stateless = operator.isolate and operator.attributes.get("STATELESS") is True
    return operator.instances > 1 or stateless


def partition_key(operator: Operator) -> tuple[str, ...]:
    text = operator.attributes.get(PARTITION_KEY)
    return tuple(part.strip() for part in text.split(",")) if isinstance(text, str) else ()


def _publishers(
    stream: Stream, logical: Mapping[str, Operator], copies: _Copies
) -> tuple[OperatorId, ...]:
    """All instances; of a topic's copies the first alone, for each has all its rows."""
    some = copies[stream.source.operator]
    return tuple(id_ for id_, _ in some[: logical[stream.source.operator].instances])


def _is_remote(stream: Stream, sink: str, copies: _Copies) -> bool:
    homes = {home for _, home in copies[stream.source.operator]}
    return len(copies[sink]) > 1 or any(home not in homes for _, home in copies[sink])


def _connections(
    plan: LogicalPlan,
    logical: Mapping[str, Operator],
    copies: _Copies,
    name: str,
    instance: int,
) -> Iterable[Connection]:
    instances = logical[name].instances
    mask, keys = partition_keys(instances)
    container = copies[name][instance][1]
    for stream in plan.streams:
        for sink in stream.sinks:
            if sink.operator != name:
                continue
            if not _is_remote(stream, name, copies):
                here = [id_ for id_, home in copies[stream.source.operator] if home == container]
                yield Connection(stream.name, sink.port, here[0], stream.source.port, local=True)
                continue
            # Several publishers of one port are read as one source: the default unifier.
            for source in _publishers(stream, logical, copies):
                yield Connection(
                    stream=stream.name,
                    port=sink.port,
                    source=source,
                    source_port=stream.source.port,
                    local=False,
                    partition_keys=keys[instance] if instances > 1 else (),
                    partition_mask=mask if instances > 1 else None,
                )


def _outputs(
    plan: LogicalPlan,
    logical: Mapping[str, Operator],
    copies: _Copies,
    name: str,
    id_: OperatorId,
) -> Iterable[tuple[str, str, bool]]:
    for stream in plan.streams:
        if stream.source.operator == name:
            remote = any(_is_remote(stream, sink.operator, copies) for sink in stream.sinks)
            published = remote and id_ in _publishers(stream, logical, copies)
            yield stream.source.port, stream.name, published
