"""Spark's offsets of an edge between queries, and how many windows enter a micro-batch. Pure.

    {"v":1,"c":"<cluster uuid>","w":{"<topic uid>": window}}

An offset is the last window that was read; the next batch reads whole windows after it, of every
publisher, and ends at a window that all of them have closed. The same two offsets always mean the
same rows, unless the windows were voided and published again.

Windows that hold no rows cost no batch: an end is only worth it when there is something to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import msgspec

from headrace.errors import CorruptionError, OffsetOutOfRangeError
from headrace.ids import WindowId
from headrace.spark.source.batch_plan import OffsetRange, OtherTopicError
from headrace.wire.iggy.messages.extensions import ListedWindow, WindowsListed, WindowSpan
from headrace.wire.umbilical.windows import NO_WINDOW, WindowGrid

FORMAT_VERSION = 1
INDEX_BYTES_MAX = 1024  # what the broker keeps of one


@dataclass(frozen=True, slots=True)
class EdgeOffset:
    cluster: str
    uid: str
    window: int

    def to_json(self) -> dict[str, Any]:
        return {"v": FORMAT_VERSION, "c": self.cluster, "w": {self.uid: self.window}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EdgeOffset:
        """CorruptionError unless it is exactly what `to_json` writes."""
        try:
            ((uid, window),) = value["w"].items()
            if value["v"] == FORMAT_VERSION and isinstance(window, int):
                return cls(str(value["c"]), str(uid), window)
        except (KeyError, ValueError, TypeError, AttributeError):
            pass
        raise CorruptionError(f"the checkpoint's offset is not one of an edge: {value!r}")

    def check(self, listed: WindowsListed) -> None:
        """Whether the topic is the one that was read before, and still holds what comes next."""
        self.check_topic(listed.cluster, str(listed.uid))
        if self.window < listed.purged:
            raise OffsetOutOfRangeError(
                f"windows up to {listed.purged:x} are purged, the checkpoint is at {self.window:x}"
            )

    def check_topic(self, cluster: str, uid: str) -> None:
        if (self.cluster, self.uid) != (cluster, uid):
            raise OtherTopicError(
                f"the checkpoint is of topic {self.uid} in cluster {self.cluster}; "
                f"this is topic {uid} in cluster {cluster}. Its windows are not those that were "
                "read before: connect to the cluster of the checkpoint, or remove the pipeline "
                "(headrace pipeline remove) and start it anew"
            )


@dataclass(frozen=True, slots=True)
class ApplicationWindows:
    """Batches end where an application window does, of so many streaming windows."""

    grid: WindowGrid
    count: int

    def boundary(self, window: int) -> int:
        return self.grid.boundary(WindowId(window), self.count)

    def last_boundary(self, window: int) -> int:
        return self.grid.last_boundary(WindowId(window), self.count)


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Of one batch; None is no limit. One application window is always admitted."""

    windows_max: int | None = None
    rows_max: int | None = None
    bytes_max: int | None = None


NO_LIMITS = EdgeLimits()


@dataclass(frozen=True, slots=True)
class Admitted:
    end: int
    """The window that the batch may end at."""
    rows: bool
    """Whether there is anything to read before it."""


def admit(
    start: int,
    edges: Sequence[WindowsListed],
    limits: EdgeLimits = NO_LIMITS,
    application: ApplicationWindows | None = None,
) -> Admitted:
    """How far a batch goes that reads all these edges after `start`.

    Every one of them has closed the end. It ends with the last window that has rows, so that for a
    higher start or later lists the end is never lower: the sources of one query, which Spark asks
    one after the other, get ends of which the first is the lowest.
    """
    bound = min(listed.complete for listed in edges)
    if application is not None:
        bound = application.last_boundary(bound)
    if bound <= start:
        return Admitted(start, rows=False)
    found = sorted(
        (
            (window.window if application is None else application.boundary(window.window), window)
            for listed in edges
            for publisher in listed.publishers
            for window in publisher.windows
            if start < window.window <= bound
        ),
        key=lambda each: each[0],
    )
    if not found:
        return Admitted(bound, rows=False)
    end = windows = rows = size = 0
    for boundary, group in groupby(found, key=lambda each: each[0]):
        members = [window for _, window in group]
        windows += len({window.window for window in members})
        rows += sum(window.rows for window in members)
        size += sum(span.bytes for window in members for span in window.spans)
        if boundary != found[0][0] and _exceeds(limits, windows, rows, size):
            break
        end = boundary
    return Admitted(end, rows=True)


def _exceeds(limits: EdgeLimits, windows: int, rows: int, size: int) -> bool:
    return any(
        most is not None and value > most
        for value, most in (
            (windows, limits.windows_max),
            (rows, limits.rows_max),
            (size, limits.bytes_max),
        )
    )


@dataclass(frozen=True, slots=True)
class Share:
    """The rows that one of several instances reads: those whose hash, masked, is a key."""

    mask: int
    keys: tuple[int, ...]


def encode_index(mask: int, labels: Iterable[tuple[int, int]]) -> bytes:
    """Which share the messages of a window belong to, in their order: label and count.

    Nothing, when there are no shares or it would become too long: then readers look for themselves.
    """
    runs: list[int] = []
    for label, group in groupby(labels, key=lambda each: each[0]):
        runs += (label, sum(count for _, count in group))
    encoded = msgspec.msgpack.encode([mask, *runs]) if mask and runs else b""
    return encoded if len(encoded) <= INDEX_BYTES_MAX else b""


def _wanted(window: ListedWindow, share: Share | None) -> Iterator[WindowSpan]:
    """The messages that may hold rows of a share, as far as the window's index tells."""
    runs = [] if share is None else _decode_index(window, share.mask)
    if share is None or not runs:
        yield from window.spans
        return
    for span in window.spans:
        at, end = span.first, span.first + span.count
        while at < end:
            label, count = runs[0]
            taken = min(end - at, count)
            if label in share.keys:
                size = span.bytes * taken // span.count
                yield WindowSpan(span.partition, span.generation, at, taken, size)
            at += taken
            runs[:1] = [(label, count - taken)] if taken < count else []


def _decode_index(window: ListedWindow, mask: int) -> list[tuple[int, int]]:
    """Labels and counts; nothing, unless it is made for this mask and tells of every message."""
    if not window.index:
        return []
    found, *flat = msgspec.msgpack.decode(window.index, type=list[int])
    runs = list(zip(flat[::2], flat[1::2], strict=True))
    whole = sum(count for _, count in runs) == sum(span.count for span in window.spans)
    return runs if found == mask and whole else []


def spans_between(
    listed: Iterable[WindowsListed],
    topic: str,
    *,
    start: int,
    end: int,
    skip_until: int = NO_WINDOW,
    share: Share | None = None,
) -> list[OffsetRange]:
    """Where the rows of windows (start, end] are; runs that touch are one.

    Rows up to `skip_until` are left out, for who would rather lose than repeat them, and where the
    publisher kept shares apart, those of others.
    """
    first = max(start, skip_until)
    runs = sorted(
        (
            page.cluster,
            str(page.uid),
            span.partition,
            span.generation,
            span.first,
            span.first + span.count,
        )
        for page in listed
        for publisher in page.publishers
        for window in publisher.windows
        if first < window.window <= end
        for span in _wanted(window, share)
    )
    spans: list[OffsetRange] = []
    for cluster, uid, partition, generation, begin, finish in runs:
        last = spans[-1] if spans else None
        if last is not None and (last.key, last.generation, last.end) == (
            (uid, partition),
            generation,
            begin,
        ):
            spans[-1] = replace(last, end=finish)
        else:
            spans.append(
                OffsetRange(topic, (uid, partition), generation, begin, finish, cluster=cluster)
            )
    return spans


def ended(listed: WindowsListed) -> bool:
    """Whether nobody publishes any more."""
    return all(publisher.ended for publisher in listed.publishers)
