"""Decisions of a data node, without I/O: which range a request means and whether it may go on.

Offsets, ends and epochs live in the storage's range logs; here they are only looked at, through
`RangeView`. A range that was open when the node stopped uncleanly, or that it led together with
other replicas before any restart, is *interrupted*: it takes no appends until it is sealed. One
that lost its quorum is *stopped*, which means the same until the next restart.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

from headrace.errors import (
    FencedError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    RangeNotFoundError,
    SealedError,
    UnavailableError,
    UnexpectedOffsetError,
)
from headrace.storage.layout import RangeKey
from headrace.wire.sbp.errors import AppendGapError, AppendPendingError, NotPrimaryError
from headrace.wire.sbp.messages import Range


class RangeView(Protocol):
    """What a decision may know about a range; storage's RangeLog is one."""

    @property
    def key(self) -> RangeKey: ...

    @property
    def start_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def durable_offset(self) -> int: ...

    @property
    def committed_offset(self) -> int: ...

    @property
    def replicas(self) -> tuple[int, ...]:
        """Node ids, the primary first."""

    @property
    def ack_quorum(self) -> int: ...

    @property
    def final(self) -> bool:
        """Whether the end is the one that the placement manager decided."""

    @property
    def missing(self) -> tuple[int, int] | None:
        """Offsets still to be copied from other replicas."""

    @property
    def doubtful(self) -> int:
        """From here on a final range may not be read yet; -1: nowhere."""

    @property
    def end_offset(self) -> int: ...

    @property
    def writer_epoch(self) -> int: ...

    @property
    def sealed(self) -> bool: ...

    @property
    def failed(self) -> bool: ...


V = TypeVar("V", bound=RangeView)


class SyncAction(Enum):
    """What a range in SYNC_RANGES asks of this node."""

    CREATE = auto()
    RAISE_EPOCH = auto()
    FINISH = auto()  # the range ends at this offset: truncate, or copy what is missing
    SHORTEN = auto()  # what lies behind this offset was lost, and given up
    NOTHING = auto()


@dataclass(slots=True)
class NodeState(Generic[V]):
    node_id: int = -1
    interrupted: set[RangeKey] = field(default_factory=set)
    stopped: set[RangeKey] = field(default_factory=set)
    trimmed: dict[int, int] = field(default_factory=dict)
    """Stream -> offset below which nothing is served, also where a replica is not there yet."""
    closing: bool = False
    given_up: Callable[[int, int], bool] = lambda stream_id, range_index: False
    """Whether this node had that range of the stream, or a later one, and gave it up."""
    _streams: dict[int, list[V]] = field(default_factory=dict)  # by range index

    def on_range(self, view: V) -> None:
        ranges = self._streams.setdefault(view.key.stream_id, [])
        if all(known.key != view.key for known in ranges):
            insort(ranges, view, key=lambda known: known.key)

    def on_sealed(self, key: RangeKey) -> None:
        self.interrupted.discard(key)
        self.stopped.discard(key)

    def on_removed(self, key: RangeKey) -> None:
        ranges = [view for view in self._streams.get(key.stream_id, ()) if view.key != key]
        if ranges:
            self._streams[key.stream_id] = ranges
        else:
            self._streams.pop(key.stream_id, None)
            self.trimmed.pop(key.stream_id, None)
        self.on_sealed(key)

    def on_deleted(self, stream_id: int) -> None:
        for view in self._streams.pop(stream_id, ()):
            self.on_sealed(view.key)
        self.trimmed.pop(stream_id, None)

    def on_trimmed(self, stream_id: int, offset: int) -> None:
        if stream_id in self._streams:
            self.trimmed[stream_id] = max(offset, self.trimmed.get(stream_id, 0))

    # Questions

    def streams(self) -> list[int]:
        return list(self._streams)

    def ranges(self, stream_id: int) -> list[V]:
        return list(self._streams.get(stream_id, ()))

    def all_ranges(self) -> list[V]:
        return [view for ranges in self._streams.values() for view in ranges]

    def range(self, key: RangeKey) -> V:
        view = self.find(key)
        if view is None:
            raise RangeNotFoundError(stream_id=key.stream_id, range_index=key.range_index)
        return view

    def find(self, key: RangeKey) -> V | None:
        for view in self._streams.get(key.stream_id, ()):
            if view.key == key:
                return view
        return None

    def is_owned(self, stream_id: int) -> bool:
        """Whether only writers with an epoch, and readers with a credential, may touch it."""
        return any(view.writer_epoch >= 0 for view in self._streams.get(stream_id, ()))

    def takes_more(self, view: V) -> bool:
        """Whether it takes appends, of clients or of its primary."""
        return not (
            view.sealed or view.failed or view.key in self.interrupted or view.key in self.stopped
        )

    def leads(self, view: V) -> bool:
        """Whether everything ever committed in the range is known here: this node orders it, or
        its own disk alone decides. Others know only what they were told."""
        if view.ack_quorum == 1:
            return True
        return view.replicas[:1] == (self.node_id,) and self.takes_more(view)

    def follows(self, view: V) -> bool:
        """Whether the range is ordered by another node."""
        return view.ack_quorum > 1 and view.replicas[:1] != (self.node_id,)

    def check_describe(self, view: V) -> None:
        """A primary is believed where its range ends. One that restarted, or stopped, does not know
        what was acknowledged, and must not be taken for one that does."""
        if not (view.final or self.leads(view) or self.follows(view)):
            raise NotPrimaryError("leads the range no more", **view.key._asdict())

    def writable(self, stream_id: int, range_index: int) -> V:
        """The range an append means; index -1 is the newest one."""
        ranges = self._streams.get(stream_id)
        if not ranges:
            raise RangeNotFoundError(stream_id=stream_id, range_index=range_index)
        newest = ranges[-1]
        if range_index == -1 or range_index == newest.key.range_index:
            return newest
        if range_index < newest.key.range_index:
            raise SealedError(
                stream_id=stream_id, range_index=range_index, newest=newest.key.range_index
            )
        raise RangeNotFoundError(stream_id=stream_id, range_index=range_index)

    def check_append(self, view: V, *, writer_epoch: int, expected_offset: int) -> None:
        """Epoch first: a fenced writer must learn that it is over, whatever the range's state."""
        if writer_epoch < view.writer_epoch:
            raise FencedError(
                "append under a lower writer epoch", found=writer_epoch, current=view.writer_epoch
            )
        if writer_epoch > view.writer_epoch:
            # Only SYNC raises an epoch: the placement manager must know of every owner.
            raise RangeNotFoundError(
                "range not opened under this epoch", found=writer_epoch, current=view.writer_epoch
            )
        closed = self.interrupted or self.stopped  # nearly always empty, and this is every append
        if view.sealed or view.failed or (closed and not self.takes_more(view)):
            raise SealedError(**view.key._asdict())
        if view.ack_quorum > 1 and self.follows(view):
            raise NotPrimaryError("another node orders this range", **view.key._asdict())
        owned = view.writer_epoch >= 0
        if expected_offset != view.next_offset and (owned or expected_offset >= 0):
            raise UnexpectedOffsetError(expected=view.next_offset, found=expected_offset)

    def check_replica(self, view: V, *, base_offset: int) -> bool:
        """Whether this node holds a batch of its primary already: it is to be compared then.

        False when it is the next one. Otherwise the refusal tells the primary where to go on.
        """
        if not self.follows(view):
            raise InvalidArgumentError("this node orders the range itself", **view.key._asdict())
        if not self.takes_more(view):
            raise SealedError(**view.key._asdict())
        if base_offset < view.durable_offset:
            return True
        if base_offset < view.next_offset:
            raise AppendPendingError(offset=base_offset, next=view.next_offset)
        if base_offset > view.next_offset:
            raise AppendGapError(offset=base_offset, next=view.next_offset)
        return False

    def check_seal(self, view: V, writer_epoch: int) -> None:
        if writer_epoch < view.writer_epoch:
            raise FencedError(
                "seal under a lower writer epoch", found=writer_epoch, current=view.writer_epoch
            )

    def containing(self, stream_id: int, offset: int) -> V:
        """The range to read `offset` from: it holds it, or is where it will be written."""
        if self.closing:
            raise UnavailableError("the data node closes")
        ranges = self._streams.get(stream_id)
        if not ranges:
            raise RangeNotFoundError(stream_id=stream_id)
        if offset < self.trimmed.get(stream_id, 0):
            raise OffsetOutOfRangeError(stream_id=stream_id, offset=offset)
        newest = ranges[-1]
        if offset >= newest.start_offset and not newest.sealed:
            return newest  # the tail: nearly all reads
        kept = [v for v in ranges if not (v.final and v.end_offset <= v.start_offset)]
        below = [view for view in kept if view.start_offset <= offset]
        if not below:
            if ranges[0].key.range_index > 0:
                # What is below may be trimmed, or on other nodes: the placement manager knows.
                raise RangeNotFoundError(stream_id=stream_id, offset=offset)
            raise OffsetOutOfRangeError(stream_id=stream_id, offset=offset)
        view = below[-1]
        if view.sealed and offset >= view.end_offset:
            if not view.final:
                raise NotPrimaryError("where the range ends is not known here", offset=offset)
            if len(below) < len(kept):
                raise RangeNotFoundError(  # between two of ours: another node's
                    stream_id=stream_id, offset=offset
                )
            raise OffsetOutOfRangeError(
                "beyond a sealed end", stream_id=stream_id, offset=offset, end=view.end_offset
            )
        return view

    def sync(self, view: V | None, wanted: Range) -> SyncAction:
        """Higher knowledge wins: sealed beats open, a higher epoch beats a lower one.

        SealedError when an open range is wanted and ours takes no more appends.
        """
        members = [n.data_node.node_id for n in wanted.replica_nodes if n.data_node is not None]
        if self.node_id not in members:
            raise RangeNotFoundError(
                "this node is not a replica of the range", node_id=self.node_id
            )
        if view is None:
            if wanted.end_offset < 0:
                self._check_open(wanted)
            return SyncAction.CREATE
        if wanted.writer_epoch < view.writer_epoch:
            raise FencedError(found=wanted.writer_epoch, current=view.writer_epoch)
        if wanted.end_offset >= 0:
            if view.final and wanted.lost_until >= 0 and wanted.end_offset < view.end_offset:
                return SyncAction.SHORTEN
            if view.final and view.end_offset != wanted.end_offset:
                raise InvalidArgumentError(  # believing it would lose records, or invent some
                    "a final end never changes", found=wanted.end_offset, known=view.end_offset
                )
            news = not view.final or _is_less_doubtful(wanted, view)
            return SyncAction.FINISH if news else SyncAction.NOTHING
        if not self.takes_more(view):
            raise SealedError("the range takes no more appends", **view.key._asdict())
        return (
            SyncAction.RAISE_EPOCH
            if wanted.writer_epoch > view.writer_epoch
            else SyncAction.NOTHING
        )

    def _check_open(self, wanted: Range) -> None:
        """What opens a range may have been sent long ago: one that has a successor is sealed, and
        one that was here before is not opened again. Copies of sealed ranges may come back."""
        ranges = self._streams.get(wanted.stream_id, ())
        succeeded = any(view.key.range_index > wanted.range_index for view in ranges)
        named = {"stream_id": wanted.stream_id, "range_index": wanted.range_index}
        if succeeded or self.given_up(wanted.stream_id, wanted.range_index):
            raise SealedError("the range is a thing of the past here", **named)
        if wanted.start_offset > 0 and wanted.writer_epoch < 0 and not wanted.producers_whole:
            # It would store again what its producers have stored before it.
            raise RangeNotFoundError("not opened without its producers", **named)

    def awaits_word(self) -> bool:
        """Whether some range waits for what only the placement manager can tell."""
        return bool(self.interrupted or self.stopped) or any(
            view.sealed and (not view.final or view.missing is not None)
            for ranges in self._streams.values()
            for view in ranges
        )


@dataclass(frozen=True, slots=True)
class Differences:
    """What to do so that this node holds what the placement manager lists for it."""

    trim: tuple[tuple[RangeKey, int], ...]  # to this offset
    retire: tuple[RangeKey, ...]  # ranges that are gone, or are other nodes' now
    sync: tuple[Range, ...]


def _tells_more(listed: Range, view: RangeView) -> bool:
    """Of a range that ends."""
    shortened = listed.lost_until >= 0 and listed.end_offset < view.end_offset
    return not view.final or shortened or _is_less_doubtful(listed, view)


def _is_less_doubtful(told: Range, view: RangeView) -> bool:
    known = view.doubtful
    return known >= 0 and not 0 <= told.doubtful_offset <= known


def reconcile(local: Iterable[RangeView], listed: Iterable[Range]) -> Differences:
    """`local` as it was before the list was asked for: what came later is not missing from it."""
    known = {RangeKey(r.stream_id, r.range_index): r for r in listed}
    views = {view.key: view for view in local}
    return Differences(
        trim=tuple(
            (key, known[key].start_offset)
            for key, view in views.items()
            if key in known and known[key].start_offset > view.start_offset
        ),
        retire=tuple(key for key in views if key not in known),
        sync=tuple(
            range_
            for key, range_ in known.items()
            if key not in views or (range_.end_offset >= 0 and _tells_more(range_, views[key]))
        ),
    )
