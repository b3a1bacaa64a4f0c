"""The messages of a batch as the ranges of its tasks.

Ranges are half-open and never overlap; together they are exactly what the batch's two offsets say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from headrace.client.positions import Key, PartitionState, SourceState, TopicState
from headrace.spark.source.losses import Loss, OnDataLoss, decide, missing, replaced
from headrace.spark.source.offsets import Offsets

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
