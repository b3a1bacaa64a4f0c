"""What the tasks of a batch read, and what is done about messages that are gone.

The ranges of tasks are half-open and never overlap; together they are exactly what the batch's two
offsets say. A loss is what a checkpoint counts on and the topics no longer have. With
`onDataLoss=fail` the first one ends the query with a typed error. With `skip` reading goes on where
there still is data; each loss is an event in the log, and the offset records it (`begins`). A
deleted topic is an error either way: there is nothing to go on with.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

from headrace.client.positions import Key, PartitionState, SourceState, TopicState
from headrace.errors import CorruptionError, HeadraceError, RequestError, StorageError
from headrace.spark.source.offsets import Offsets

OnDataLoss = Literal["fail", "skip"]
Kind = Literal[
    "trimmed", "truncated", "purged", "partition deleted", "topic recreated", "cluster replaced"
]

_GAP = re.compile(
    r"messages lost: partition (?P<partition>\d+) of the topic with uid (?P<uid>\S+) "
    r"(?:is gone|was read up to (?P<position>\d+) and went on at (?P<resumed>\d+))"
)

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


def skipped(progress: Mapping[str, Any]) -> list[str]:
    """What a batch skipped, from the offsets in Spark's progress record."""
    found = []
    for source in progress.get("sources", []):
        start, end = (_offsets(source.get(name)) for name in ("startOffset", "endOffset"))
        # A batch without data ends where it starts, with the beginnings of the one before it.
        if start is not None and end is not None and start != end:
            found += _between(start, end)
    return found


def _offsets(value: Any) -> Offsets | None:
    """None for a batch that was the first, and for other sources."""
    try:
        return Offsets.from_json(json.loads(value) if isinstance(value, str) else value)
    except (CorruptionError, ValueError, AttributeError):
        return None


def read_gap(text: str) -> dict[str, Any] | None:
    """What a text of `skipped` says, as numbers; None for any other text."""
    found = _GAP.match(text)
    if found is None:
        return None
    told = {name: value for name, value in found.groupdict().items() if value is not None}
    gap: dict[str, Any] = {"topic_uid": told.pop("uid")}
    gap |= {name: int(value) for name, value in told.items()}
    if "position" in gap:
        gap["lost"] = max(0, gap["resumed"] - gap["position"])
    return gap


def _between(start: Offsets, end: Offsets) -> list[str]:
    found = []
    for (uid, partition), at in sorted(end.begins.items()):
        generation, _ = end.positions[uid, partition]
        before = start.positions.get((uid, partition), (generation, at))
        if before != (generation, at):
            position = before[1]
            found.append(
                f"messages lost: partition {partition} of the topic with uid {uid} "
                f"was read up to {position} and went on at {at}"
            )
    for uid, partition in sorted(set(start.positions) - set(end.positions)):
        found.append(f"messages lost: partition {partition} of the topic with uid {uid} is gone")
    return found


TASKS_PER_PARTITION_MAX = 1000


@dataclass(frozen=True, slots=True)
class Span:
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
) -> list[Span]:
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
        span = Span(topic.topic, key, generation, begin, finish, cluster=state.cluster)
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


def _kept(span: Span, topic: TopicState, now: PartitionState, on_loss: OnDataLoss) -> Span:
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


def after(spans: Iterable[Span], ends: Mapping[Key, int]) -> Iterator[Span]:
    """What of them lies behind these ends, partition by partition."""
    for span in spans:
        start = max(span.start, ends.get(span.key, 0))
        if start < span.end:
            yield replace(span, start=start)


def split(spans: list[Span], state: SourceState, bytes_max: int) -> Iterator[Span]:
    """Spans of about `bytes_max` at most, by the mean message size of each partition."""
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
