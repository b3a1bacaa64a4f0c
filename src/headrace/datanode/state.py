"""Decisions of a data node, without I/O: which range a request means and whether it may go on.

Offsets, ends and epochs live in the storage's range logs; here they are only looked at, through
`RangeView`. A range that was open when the node stopped uncleanly is *interrupted*: it serves
reads and takes no appends until it is sealed.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

from headrace.errors import (
    FencedError,
    OffsetOutOfRangeError,
    RangeNotFoundError,
    SealedError,
    UnavailableError,
    UnexpectedOffsetError,
)
from headrace.storage.model import RangeKey
from headrace.wire.sbp.errors import UnsupportedError
from headrace.wire.sbp.messages import Range


class RangeView(Protocol):
    """What a decision may know about a range; storage's RangeLog is one."""

    key: RangeKey
    start_offset: int
    next_offset: int
    durable_offset: int

    @property
    def end_offset(self) -> int: ...

    @property
    def writer_epoch(self) -> int: ...

    @property
    def sealed(self) -> bool: ...

    @property
    def failed(self) -> bool: ...


V = TypeVar("V", bound=RangeView)


class Sync(Enum):
    """What a range in SYNC_RANGES asks of this node."""

    CREATE = auto()
    RAISE_EPOCH = auto()
    SEAL = auto()
    NOTHING = auto()


@dataclass(slots=True)
class NodeState(Generic[V]):
    interrupted: set[RangeKey] = field(default_factory=set)
    closing: bool = False
    _streams: dict[int, list[V]] = field(default_factory=dict)  # by range index

    def on_range(self, view: V) -> None:
        ranges = self._streams.setdefault(view.key.stream_id, [])
        if all(known.key != view.key for known in ranges):
            insort(ranges, view, key=lambda known: known.key)

    def on_sealed(self, key: RangeKey) -> None:
        self.interrupted.discard(key)

    def on_deleted(self, stream_id: int) -> None:
        self._streams.pop(stream_id, None)
        self.interrupted = {key for key in self.interrupted if key.stream_id != stream_id}

    # Questions

    def streams(self) -> list[int]:
        return list(self._streams)

    def ranges(self, stream_id: int) -> list[V]:
        return list(self._streams.get(stream_id, ()))

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
        if view.sealed or view.failed or view.key in self.interrupted:
            raise SealedError(**view.key._asdict())
        owned = view.writer_epoch >= 0
        if expected_offset != view.next_offset and (owned or expected_offset >= 0):
            raise UnexpectedOffsetError(expected=view.next_offset, found=expected_offset)

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
        kept = [v for v in ranges if not (v.sealed and v.end_offset <= v.start_offset)]
        below = [view for view in kept if view.start_offset <= offset]
        if not below:
            raise OffsetOutOfRangeError(stream_id=stream_id, offset=offset)
        view = below[-1]
        if view.sealed and offset >= view.end_offset:
            if len(below) < len(kept):
                raise RangeNotFoundError(  # between two of ours: another node's
                    stream_id=stream_id, offset=offset
                )
            raise OffsetOutOfRangeError(
                "beyond a sealed end", stream_id=stream_id, offset=offset, end=view.end_offset
            )
        return view

    def sync(self, view: V | None, wanted: Range, *, node_id: int) -> Sync:
        """Higher knowledge wins: sealed beats open, a higher epoch beats a lower one.

        SealedError when an open range is wanted and ours takes no more appends.
        """
        members = [n.data_node.node_id for n in wanted.replica_nodes if n.data_node is not None]
        if node_id not in members:
            raise RangeNotFoundError("this node is not a replica of the range", node_id=node_id)
        if view is None:
            if wanted.end_offset > wanted.start_offset:
                raise UnsupportedError("copying a sealed range from other replicas")
            return Sync.CREATE
        if wanted.writer_epoch < view.writer_epoch:
            raise FencedError(found=wanted.writer_epoch, current=view.writer_epoch)
        if wanted.end_offset >= 0:
            return Sync.NOTHING if view.sealed else Sync.SEAL
        if view.sealed or view.failed or view.key in self.interrupted:
            raise SealedError("the range takes no more appends", **view.key._asdict())
        return Sync.RAISE_EPOCH if wanted.writer_epoch > view.writer_epoch else Sync.NOTHING


@dataclass(frozen=True, slots=True)
class Differences:
    """What to do so that this node holds what the placement manager lists for it."""

    delete: tuple[int, ...]  # stream ids
    trim: tuple[tuple[RangeKey, int], ...]  # to this offset
    retire: tuple[RangeKey, ...]  # ranges that are gone while their stream lives
    sync: tuple[Range, ...]


def reconcile(local: Iterable[RangeView], listed: Iterable[Range]) -> Differences:
    """`local` as it was before the list was asked for: what came later is not missing from it."""
    known = {RangeKey(r.stream_id, r.range_index): r for r in listed}
    live_streams = {key.stream_id for key in known}
    views = {view.key: view for view in local}
    return Differences(
        delete=tuple(sorted({key.stream_id for key in views} - live_streams)),
        trim=tuple(
            (key, known[key].start_offset)
            for key, view in views.items()
            if key in known and known[key].start_offset > view.start_offset
        ),
        retire=tuple(key for key in views if key not in known and key.stream_id in live_streams),
        sync=tuple(
            range_
            for key, range_ in known.items()
            if key not in views or (range_.end_offset >= 0 and not views[key].sealed)
        ),
    )
