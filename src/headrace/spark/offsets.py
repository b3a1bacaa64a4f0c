"""Spark's offsets of a topic, and how much of what is new enters one micro-batch.

    {"v":1,"c":"<cluster uuid>","p":{"<topic uid>/<partition>":[generation, next]}}

`next` is the first offset not read yet. Uids are never used again and a purge starts a new
generation, so a deleted and recreated topic, a purged one or another cluster is told apart from the
one that was read before: an error, not a silent mix-up. Spark compares offsets as text, so the same
position always gives the same text: keys are sorted, and nothing else is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import (
    CorruptionError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    RequestError,
    StorageError,
)
from headrace.spark.options import Position

FORMAT_VERSION = 1


class OtherTopicError(RequestError):
    """A checkpoint that belongs to another topic, or to another life of this one."""


class DataLossError(StorageError):
    """Messages that a checkpoint counts on are gone."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What the broker says about a partition now: offsets [start, end) can be read."""

    partition: int
    generation: int
    start: int
    end: int
    bytes: int = 0  # of the messages it holds, for limits by size


@dataclass(frozen=True, slots=True)
class TopicState:
    cluster: str
    uid: int
    stream: str
    topic: str
    partitions: tuple[PartitionState, ...]

    @property
    def name(self) -> str:
        return f"{self.stream}/{self.topic}"


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """A position in every partition of a topic."""

    cluster: str
    uid: int
    positions: Mapping[int, tuple[int, int]]  # partition: (generation, next)

    def to_json(self) -> dict[str, Any]:
        keys = {f"{self.uid}/{partition}": list(at) for partition, at in self.positions.items()}
        return {"v": FORMAT_VERSION, "c": self.cluster, "p": dict(sorted(keys.items()))}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TopicOffsets:
        """CorruptionError unless it is exactly what `to_json` writes."""
        if value.get("v") != FORMAT_VERSION:
            raise CorruptionError(
                f"this checkpoint's offsets have format {value.get('v')!r}, "
                f"this version reads format {FORMAT_VERSION}"
            )
        try:
            parsed = {}
            for key, (generation, next_offset) in value["p"].items():
                uid, partition = key.split("/")
                parsed[int(uid), int(partition)] = (int(generation), int(next_offset))
            uids = {uid for uid, _ in parsed}
            (uid,) = uids or {-1}
            positions = {partition: at for (_, partition), at in parsed.items()}
            return cls(cluster=str(value["c"]), uid=uid, positions=positions)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise CorruptionError(f"offsets in the checkpoint are damaged: {value!r}") from error


def resolve(
    state: TopicState, position: Position, *, rest: Literal["earliest", "latest"] = "earliest"
) -> TopicOffsets:
    """Where `earliest`, `latest` or explicit offsets stand in the topic as it is now.

    `rest` holds for partitions that explicit offsets leave out.
    """
    explicit: Mapping[int, int] = {}
    if position == "earliest" or position == "latest":
        rest = position
    else:
        explicit = position
    unknown = sorted(set(explicit) - {each.partition for each in state.partitions})
    if unknown:
        raise InvalidArgumentError(f"topic {state.name} has no partition {unknown}")
    positions = {}
    for each in state.partitions:
        at = explicit.get(each.partition, each.start if rest == "earliest" else each.end)
        if not each.start <= at <= each.end:
            raise OffsetOutOfRangeError(
                f"partition {each.partition} of {state.name} holds offsets "
                f"{each.start} to {each.end}, not {at}"
            )
        positions[each.partition] = (each.generation, at)
    return TopicOffsets(state.cluster, state.uid, positions)


def check(offsets: TopicOffsets, state: TopicState) -> None:
    """Raise unless `offsets` is a position in this very topic from which everything can be read."""
    if offsets.cluster != state.cluster:
        raise OtherTopicError(
            f"the checkpoint belongs to cluster {offsets.cluster!r}, but {state.name} is served by "
            f"{state.cluster!r} now; use the old server or start from a new checkpoint"
        )
    if offsets.positions and offsets.uid != state.uid:
        raise OtherTopicError(
            f"topic {state.name} was deleted and created again since the checkpoint was written "
            f"(uid {offsets.uid} then, {state.uid} now); start from a new checkpoint"
        )
    now = {each.partition: each for each in state.partitions}
    for partition, (generation, at) in sorted(offsets.positions.items()):
        what = f"partition {partition} of {state.name}"
        current = now.get(partition)
        if current is None:
            raise DataLossError(f"{what} was deleted, the checkpoint had read it up to {at}")
        if generation != current.generation:
            raise OtherTopicError(
                f"{what} was purged since the checkpoint was written (generation {generation} "
                f"then, {current.generation} now); start from a new checkpoint"
            )
        if at > current.end:
            raise DataLossError(
                f"data loss: {what} ends at {current.end}, but the checkpoint has read up to {at}"
            )
        if at < current.start:
            raise DataLossError(
                f"data loss: retention removed {what} up to {current.start}, "
                f"but it was read only up to {at}"
            )


def admit(
    start: TopicOffsets,
    state: TopicState,
    *,
    messages_max: int | None = None,
    bytes_max: int | None = None,
) -> TopicOffsets:
    """The end of the next micro-batch: at most the limits, shared by how far partitions lag.

    Bytes are estimated from the mean message size of the topic. At least one message is admitted
    when there is one, so a limit below a message's size slows a query down and never stops it.
    """
    backlog = {each.partition: each.end - _position_in(start, each)[1] for each in state.partitions}
    limit = sum(backlog.values())
    if messages_max is not None:
        limit = min(limit, messages_max)
    if bytes_max is not None:
        limit = min(limit, max(1, int(bytes_max / _mean_bytes(state))))
    shares = _share(limit, backlog)
    positions = {}
    for each in state.partitions:
        generation, at = _position_in(start, each)
        positions[each.partition] = (generation, at + shares[each.partition])
    return TopicOffsets(state.cluster, state.uid, positions)


def _position_in(offsets: TopicOffsets, partition: PartitionState) -> tuple[int, int]:
    """A partition created after the query began is read from its start."""
    return offsets.positions.get(partition.partition, (partition.generation, partition.start))


def _mean_bytes(state: TopicState) -> float:
    messages = sum(each.end - each.start for each in state.partitions)
    total = sum(each.bytes for each in state.partitions)
    return max(1.0, total / messages) if messages else 1.0


def _share(limit: int, backlog: Mapping[int, int]) -> dict[int, int]:
    """Divide `limit` in proportion to `backlog`; what rounding leaves goes to the largest rests."""
    total = sum(backlog.values())
    if limit >= total:
        return dict(backlog)
    shares = {key: limit * size // total for key, size in backlog.items()}
    rests = sorted(backlog, key=lambda key: (-(limit * backlog[key] % total), key))
    for key in rests[: limit - sum(shares.values())]:
        shares[key] += 1
    return shares
