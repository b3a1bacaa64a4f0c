"""Spark's offsets of the topics that are read, and how much of what is new enters a micro-batch.

    {"v":1,"c":"<cluster uuid>","p":{"<topic uid>/<partition>":[generation, next]},
     "b":{"<topic uid>/<partition>": begin}}

`next` is the first offset not read yet. Uids are never used again and a purge starts a new
generation, so a deleted and recreated topic, a purged one or another cluster is told apart from the
one that was read before (`losses` says what is done about it). `b` is there only for partitions
whose part of the batch that ends here does not begin where the batch before ended, because messages
were lost or because a partition is new and no longer holds its first ones; and for all partitions
of a query's first batch, which begins where nothing ended: Spark stores no initial offset, it asks
for one again, also when it repeats the batch after a crash. So the same two offsets always mean the
same messages. Spark compares offsets as text, so the same position always gives the same text: keys
are sorted, and nothing else is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headrace.client.positions import AtTime, Key, PartitionState, SourceState, resolve_point
from headrace.errors import CorruptionError, InvalidArgumentError, OffsetOutOfRangeError
from headrace.spark.source.positions import AtOffsets, Position

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Offsets:
    """A position in every partition."""

    cluster: str
    positions: Mapping[Key, tuple[int, int]]  # (generation, next)
    begins: Mapping[Key, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "v": FORMAT_VERSION,
            "c": self.cluster,
            "p": _sorted({key: list(at) for key, at in self.positions.items()}),
        }
        if self.begins:
            value["b"] = _sorted(self.begins)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offsets:
        """CorruptionError unless it is exactly what `to_json` writes."""
        if value.get("v") != FORMAT_VERSION:
            raise CorruptionError(
                f"this checkpoint's offsets have format {value.get('v')!r}, "
                f"this version reads format {FORMAT_VERSION}"
            )
        try:
            positions = {
                _parse_key(key): (int(generation), int(next_offset))
                for key, (generation, next_offset) in value["p"].items()
            }
            begins = {_parse_key(key): int(begin) for key, begin in value.get("b", {}).items()}
            return cls(str(value["c"]), positions, begins)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise CorruptionError(f"offsets in the checkpoint are damaged: {value!r}") from error


def _sorted(values: Mapping[Key, Any]) -> dict[str, Any]:
    return dict(sorted((f"{uid}/{partition}", value) for (uid, partition), value in values.items()))


def _parse_key(text: str) -> Key:
    uid, slash, partition = text.rpartition("/")
    if not slash or not uid:
        raise ValueError(text)
    return uid, int(partition)


def resolve(
    state: SourceState,
    position: Position,
    *,
    rest: Literal["earliest", "latest"] = "earliest",
    times: Mapping[Key, int] | None = None,
    clamp: bool = False,
) -> Offsets:
    """Where a position stands in the topics as they are now.

    `rest` holds for partitions that explicit offsets leave out, `times` says where the messages
    of a time begin; a partition that has none is at its end. OffsetOutOfRangeError for offsets that
    are not there, unless they may be moved to the nearest that are (`clamp`).
    """
    explicit: Mapping[str, Mapping[int, int]] = {}
    if isinstance(position, AtOffsets):
        explicit = position.topics
        _check_named(state, explicit)
    elif not isinstance(position, AtTime):
        rest = position
    positions = {}
    for key, topic, each in state.partitions():
        named = explicit.get(topic.topic, {}).get(each.partition, rest)
        point = position if isinstance(position, AtTime) else named
        at = resolve_point(point, each.start, each.end, (times or {}).get(key))
        at = min(max(at, each.start), each.end) if clamp else at
        if not each.start <= at <= each.end:
            raise OffsetOutOfRangeError(
                f"partition {each.partition} of {topic.name} holds offsets "
                f"{each.start} to {each.end}, not {at}"
            )
        positions[key] = (each.generation, at)
    return Offsets(state.cluster, positions)


def _check_named(state: SourceState, explicit: Mapping[str, Mapping[int, int]]) -> None:
    topics = {topic.topic: topic for topic in state.topics}
    for name, offsets in explicit.items():
        if name not in topics:
            raise InvalidArgumentError(f"there is no topic {name} among those that are read")
        unknown = sorted(set(offsets) - {each.partition for each in topics[name].partitions})
        if unknown:
            raise InvalidArgumentError(f"topic {topics[name].name} has no partition {unknown}")


def admit(
    start: Offsets,
    state: SourceState,
    *,
    resumed: Mapping[Key, int] | None = None,
    messages_max: int | None = None,
    bytes_max: int | None = None,
) -> Offsets:
    """The end of the next micro-batch: at most the limits, shared by how far partitions lag.

    `resumed` says where reading goes on in partitions that lost messages. What is new since
    `start` is read from its first offset on. Bytes are estimated from the mean message size of the
    topics. At least one message is admitted when there is one, so a limit below a message's size
    slows a query down and never stops it. `start` itself comes back when there is nothing to do.
    """
    resumed = resumed or {}
    at = {key: _position(start, resumed, key, each) for key, _, each in state.partitions()}
    backlog = {key: max(0, each.end - at[key]) for key, _, each in state.partitions()}
    limit = sum(backlog.values())
    if messages_max is not None:
        limit = min(limit, messages_max)
    if bytes_max is not None:
        limit = min(limit, max(1, int(bytes_max / mean_bytes(state))))
    shares = _share(limit, backlog)
    positions: dict[Key, tuple[int, int]] = {}
    begins: dict[Key, int] = {}
    for key, _, each in state.partitions():
        known = key in start.positions or key in resumed
        if not known and not shares[key]:
            continue  # an empty partition that appeared is no reason to run a batch
        positions[key] = (each.generation, at[key] + shares[key])
        if key in resumed or (not known and at[key]):
            begins[key] = at[key]
    end = Offsets(state.cluster, positions, begins)
    unchanged = not begins and positions == start.positions and state.cluster == start.cluster
    return start if unchanged else end


def begun(first: Offsets, end: Offsets) -> Offsets:
    """`end` of a query's first batch, which itself says where that begins."""
    begins = {key: first.positions.get(key, (0, 0))[1] for key in end.positions}
    return replace(end, begins={**begins, **end.begins})


def _position(
    start: Offsets, resumed: Mapping[Key, int], key: Key, partition: PartitionState
) -> int:
    if key in resumed:
        return resumed[key]
    return start.positions.get(key, (partition.generation, partition.start))[1]


def limited(state: SourceState, last: SourceState) -> SourceState:
    """The topics as they are now, without what came after `last`."""
    ends = {key: each for key, _, each in last.partitions()}
    topics = []
    for topic in state.topics:
        kept = []
        for each in topic.partitions:
            bound = ends.get((topic.uid, each.partition))
            if bound is not None:
                same = bound.generation == each.generation
                end = max(min(each.end, bound.end), each.start) if same else each.start
                kept.append(replace(each, end=end))
        topics.append(replace(topic, partitions=tuple(kept)))
    known = {topic.uid for topic in last.topics}
    return replace(state, topics=tuple(topic for topic in topics if topic.uid in known))


def ended(state: SourceState, end: Offsets) -> SourceState:
    """The topics as they are now, without what comes after `end`."""
    return replace(
        state,
        topics=tuple(
            replace(
                topic,
                partitions=tuple(
                    replace(each, end=end.positions[topic.uid, each.partition][1])
                    for each in topic.partitions
                ),
            )
            for topic in state.topics
        ),
    )


def mean_bytes(state: SourceState) -> float:
    """Of a message, over everything that is kept; 1 when nothing is known."""
    messages = sum(each.end - each.start for _, _, each in state.partitions())
    total = sum(each.bytes for _, _, each in state.partitions())
    return max(1.0, total / messages) if messages else 1.0


def _share(limit: int, backlog: Mapping[Key, int]) -> dict[Key, int]:
    """Divide `limit` in proportion to `backlog`; what rounding leaves goes to the largest rests."""
    total = sum(backlog.values())
    if limit >= total:
        return dict(backlog)
    shares = {key: limit * size // total for key, size in backlog.items()}
    rests = sorted(backlog, key=lambda key: (-(limit * backlog[key] % total), key))
    for key in rests[: limit - sum(shares.values())]:
        shares[key] += 1
    return shares
