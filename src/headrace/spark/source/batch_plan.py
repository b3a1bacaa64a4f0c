"""A micro-batch: the offsets where it begins and ends, and what its tasks read of them.

Spark's offset of the topics that are read, as its checkpoint holds it:

    {"v":1,"c":"<cluster uuid>","p":{"<topic uid>/<partition>":[generation, next]},
     "b":{"<topic uid>/<partition>": begin}}

`next` is the first offset not read yet. Uids are never used again and a purge starts a new
generation, so a deleted and recreated topic, a purged one or another cluster is told apart from the
one that was read before. `b` is there only for partitions whose part of the batch that ends here
does not begin where the batch before ended, because messages were lost or because a partition is
new and no longer holds its first ones; and for all partitions of a query's first batch, which
begins where nothing ended: Spark stores no initial offset, it asks for one again, also when it
repeats the batch after a crash. So the same two offsets always mean the same messages. Spark
compares offsets as text, so the same position always gives the same text: keys are sorted, and
nothing else is stored.

The ranges of tasks are half-open and never overlap; together they are exactly what the batch's two
offsets say. A loss is what a checkpoint counts on and the topics no longer have. With
`onDataLoss=fail` the first one ends the query with a typed error. With `skip` reading goes on where
there still is data; each loss is an event in the log, and the offset records it (`begins`). A
deleted topic is an error either way: there is nothing to go on with.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

from headrace.client.partition_reader import Key, PartitionState, SourceState, TopicState
from headrace.errors import CorruptionError, HeadraceError, RequestError, StorageError

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


OnDataLoss = Literal["fail", "skip"]
Kind = Literal[
    "trimmed", "truncated", "purged", "partition deleted", "topic recreated", "cluster replaced"
]


log = logging.getLogger(__name__)


class OtherTopicError(RequestError):
    """A checkpoint that belongs to another topic, or to another life of this one."""


class DataLossError(StorageError):
    """Messages that a checkpoint counts on are gone."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The event. `position` was to be read next; reading goes on at `resumed`, if anywhere."""

    kind: Kind
    what: str
    key: Key
    position: int
    resumed: int | None
    detail: str = ""

    def error(self) -> HeadraceError:
        remedy = "; start from a new checkpoint, or set onDataLoss=skip to go on with what is there"
        text = {
            "trimmed": f"data loss: retention removed {self.what} up to {self.resumed}, "
            f"but it was read only up to {self.position}",
            "truncated": f"data loss: {self.what} ends at {self.resumed}, "
            f"but the checkpoint has read up to {self.position}",
            "purged": f"{self.what} was purged since the checkpoint was written ({self.detail})",
            "partition deleted": f"{self.what} was deleted, "
            f"the checkpoint had read it up to {self.position}",
            "topic recreated": f"{self.what} was deleted and created again since the checkpoint "
            f"was written ({self.detail})",
            "cluster replaced": f"the checkpoint belongs to another cluster ({self.detail})",
        }[self.kind]
        if self.kind in ("trimmed", "truncated", "partition deleted"):
            return DataLossError(text + remedy)
        return OtherTopicError(text + remedy)

    def event(self) -> str:
        fields = [f"kind={self.kind!r}", f"what={self.what!r}", f"position={self.position}"]
        if self.resumed is not None:
            fields.append(f"resumed={self.resumed}")
        if self.detail:
            fields.append(f"detail={self.detail!r}")
        return "data loss skipped " + " ".join(fields)


def find_losses(offsets: Offsets, state: SourceState, *, by_name: bool) -> list[Loss]:
    """Everything that keeps reading from going on at `offsets`.

    `by_name`: the topics are named, so one whose uid is gone was created again under its name.
    With a pattern it was deleted, which is an error here and now.
    """
    if offsets.cluster != state.cluster:
        return replaced(offsets, state)
    now = {key: (topic, each) for key, topic, each in state.partitions()}
    losses: list[Loss] = []
    for key, (generation, at) in sorted(offsets.positions.items()):
        if key not in now:
            losses.append(missing(key, at, offsets, state, by_name=by_name))
        elif loss := _compare(key, *now[key], generation, at):
            losses.append(loss)
    return losses


def replaced(offsets: Offsets, state: SourceState) -> list[Loss]:
    """Of offsets of another cluster, where the same uids are other topics: all of it."""
    detail = f"{offsets.cluster!r} then, {state.cluster!r} now"
    return [
        Loss("cluster replaced", f"cluster {offsets.cluster}", key, at, None, detail)
        for key, (_, at) in sorted(offsets.positions.items())
    ] or [Loss("cluster replaced", f"cluster {offsets.cluster}", ("", 0), 0, None, detail)]


def missing(key: Key, at: int, offsets: Offsets, state: SourceState, *, by_name: bool) -> Loss:
    """Of a partition that is not there any more, alone or with its topic.

    OtherTopicError for a topic in whose place there is no other.
    """
    for topic in state.topics:
        if topic.uid == key[0]:
            return Loss("partition deleted", f"partition {key[1]} of {topic.name}", key, at, None)
    return _vanished(key, at, offsets, state, by_name=by_name)


def _compare(
    key: Key, topic: TopicState, now: PartitionState, generation: int, at: int
) -> Loss | None:
    what = f"partition {key[1]} of {topic.name}"
    if generation != now.generation:
        detail = f"generation {generation} then, {now.generation} now"
        return Loss("purged", what, key, at, now.start, detail)
    if at > now.end:
        return Loss("truncated", what, key, at, now.end)
    if at < now.start:
        return Loss("trimmed", what, key, at, now.start)
    return None


def _vanished(key: Key, at: int, offsets: Offsets, state: SourceState, *, by_name: bool) -> Loss:
    read = {uid for uid, _ in offsets.positions}
    fresh = [topic for topic in state.topics if topic.uid not in read]
    if not by_name or not fresh:
        raise OtherTopicError(
            f"the topic with uid {key[0]}, which the checkpoint had read up to {at} in partition "
            f"{key[1]}, was deleted or is not named by the options any more; "
            "start from a new checkpoint"
        )
    names = ", ".join(topic.name for topic in fresh)
    detail = f"uid {key[0]} then, {', '.join(topic.uid for topic in fresh)} now"
    return Loss("topic recreated", f"topic {names}", key, at, None, detail)


def decide(losses: Iterable[Loss], on_data_loss: OnDataLoss) -> dict[Key, int]:
    """Raise, or say where reading goes on in partitions that still exist."""
    resumed = {}
    for loss in losses:
        if on_data_loss == "fail":
            raise loss.error()
        log.warning("%s", loss.event())
        if loss.resumed is not None:
            resumed[loss.key] = loss.resumed
    return resumed


def surviving(start: Offsets, losses: Iterable[Loss], state: SourceState) -> Offsets:
    """`start` without what does not exist any more."""
    gone = {loss.key for loss in losses if loss.resumed is None}
    if not gone:
        return start
    kept = {key: at for key, at in start.positions.items() if key not in gone}
    return Offsets(state.cluster, kept)


TASKS_PER_PARTITION_MAX = 1000


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Messages [start, end) of a partition."""

    topic: str
    key: Key
    generation: int
    start: int
    end: int
    cluster: str = field(kw_only=True)
    """Whose they are: a uid means nothing without it. "" for a plain Iggy server."""

    @property
    def partition(self) -> int:
        return self.key[1]


def plan(
    start: Offsets, end: Offsets, state: SourceState, on_loss: OnDataLoss, *, by_name: bool
) -> list[OffsetRange]:
    """What lies between two offsets.

    Much may have happened since the end was written: retention, a purge, a topic that was deleted,
    another cluster at this address. Then that is an error, or what is still there is read: the
    offset cannot be changed any more. Rows of another life of a topic are never this batch's; the
    next one begins with them.
    """
    if end.cluster != state.cluster:
        decide(replaced(end, state), on_loss)
        return []
    now = {key: (topic, each) for key, topic, each in state.partitions()}
    spans = []
    for key, (generation, finish) in sorted(end.positions.items()):
        begin = _begin(start, end, key)
        if begin >= finish:
            continue
        if key not in now:
            decide([missing(key, begin, end, state, by_name=by_name)], on_loss)
            continue
        topic, each = now[key]
        span = OffsetRange(topic.topic, key, generation, begin, finish, cluster=state.cluster)
        kept = _kept(span, topic, each, on_loss)
        if kept.start < kept.end:
            spans.append(kept)
    return spans


def _begin(start: Offsets, end: Offsets, key: Key) -> int:
    """A partition that appeared since `start` was written is read from its first offset."""
    if key in end.begins:
        return end.begins[key]
    if start.cluster != end.cluster or key not in start.positions:
        return 0
    return start.positions[key][1]


def _kept(
    span: OffsetRange, topic: TopicState, now: PartitionState, on_loss: OnDataLoss
) -> OffsetRange:
    what = f"partition {span.partition} of {topic.name}"
    if now.generation != span.generation:
        detail = f"generation {span.generation} then, {now.generation} now"
        decide([Loss("purged", what, span.key, span.start, now.start, detail)], on_loss)
        return replace(span, end=span.start)
    if span.start < now.start:
        decide([Loss("trimmed", what, span.key, span.start, now.start)], on_loss)
        span = replace(span, start=min(now.start, span.end))
    if span.end > now.end:
        decide([Loss("truncated", what, span.key, span.end, now.end)], on_loss)
        span = replace(span, end=max(now.end, span.start))
    return span


def after(spans: Iterable[OffsetRange], ends: Mapping[Key, int]) -> Iterator[OffsetRange]:
    """What of them lies behind these ends, partition by partition."""
    for span in spans:
        start = max(span.start, ends.get(span.key, 0))
        if start < span.end:
            yield replace(span, start=start)


def split(spans: list[OffsetRange], state: SourceState, bytes_max: int) -> Iterator[OffsetRange]:
    """Ranges of about `bytes_max` at most, by the mean message size of each partition."""
    now = {key: each for key, _, each in state.partitions()}
    for span in spans:
        each = now.get(span.key)
        held = each.end - each.start if each is not None else 0
        mean = each.bytes / held if each is not None and held else 0.0
        messages = span.end - span.start
        wanted = -(-int(messages * mean) // bytes_max)
        count = max(1, min(wanted, messages, TASKS_PER_PARTITION_MAX))
        cuts = [span.start + messages * i // count for i in range(count + 1)]
        for begin, end in pairwise(cuts):
            yield replace(span, start=begin, end=end)
