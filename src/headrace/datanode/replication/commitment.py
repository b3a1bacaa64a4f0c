"""Decisions of replication, without I/O: what is committed, and what goes to a replica next.

A primary leads an open range. Its `Commitment` knows how far each replica holds the range on disk;
per secondary a `ReplicaFeed` knows what was sent and what comes next. Batches go to a feed when
they are appended; a feed that falls behind gives them up and reads its range's log instead, so a
slow replica costs no memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.errors import HeadraceError
from headrace.runtime.interfaces import Buffer
from headrace.storage.layout import RangeKey
from headrace.wire.sbp.records import HEADER_BYTES, split

_MARKS_MAX = 256


@dataclass(slots=True)
class Commitment:
    """How far a range is on disk, here and there, and how far it is therefore committed."""

    quorum: int
    durable: int
    """On the primary's own disk: its copy always counts, because it answers the reads."""
    held: dict[int, int]
    """Secondary's node id -> on its disk, as far as it has said."""
    committed: int

    @classmethod
    def of(cls, *, start: int, quorum: int, secondaries: Iterable[int]) -> Commitment:
        return cls(quorum, start, dict.fromkeys(secondaries, start), start)

    def on_durable(self, offset: int) -> bool:
        """Whether more is committed now."""
        self.durable = max(self.durable, offset)
        return self._advance()

    def on_held(self, node_id: int, offset: int) -> bool:
        """Whether more is committed now. A replica may also have lost what it said it had: what
        was committed stays committed, what follows is counted anew."""
        self.held[node_id] = offset
        return self._advance()

    def _advance(self) -> bool:
        reached = self.durable
        if self.quorum > 1:
            others = sorted(self.held.values(), reverse=True)
            if len(others) < self.quorum - 1:
                return False
            reached = min(reached, others[self.quorum - 2])
        if reached <= self.committed:
            return False
        self.committed = reached
        return True

    def possible(self, *, without: int) -> bool:
        """Whether enough replicas are left when that many secondaries hold nothing new."""
        return 1 + len(self.held) - without >= self.quorum


@dataclass(slots=True)
class Lags:
    """How long ago the range had what a replica still lacks."""

    _marks: deque[tuple[float, int]] = field(default_factory=deque)
    """(time, durable then), oldest first."""

    def on_tick(self, now: float, durable: int, held_least: int) -> None:
        while self._marks and self._marks[0][1] <= held_least:
            self._marks.popleft()
        if not self._marks or (durable > self._marks[-1][1] and len(self._marks) < _MARKS_MAX):
            self._marks.append((now, durable))

    def of(self, held: int, now: float) -> float:
        """Seconds, rather too few than too many."""
        for time, durable in self._marks:
            if durable > held:
                return now - time
        return 0.0


class Outgoing(NamedTuple):
    """A batch on its way to a replica."""

    base: int
    end: int
    size: int
    pieces: Sequence[Buffer]


def outgoing_of(views: Iterable[memoryview]) -> list[Outgoing]:
    """The batches in what a log returned."""
    return [
        Outgoing(
            header.base_offset,
            header.next_offset,
            header.batch_bytes,
            (batch[:HEADER_BYTES], batch[HEADER_BYTES:]),
        )
        for view in views
        for header, batch in split(view)
    ]


@dataclass(slots=True, eq=False)
class ReplicaFeed:
    """One range on its way to one replica. Mutate only through the methods."""

    key: RangeKey
    node_id: int
    next_offset: int
    """The first offset not sent."""
    held: int
    """On the replica's disk, as far as it has said."""
    told: int = -1
    """The committed offset sent last; -1 when the replica may not know any."""
    session: int = 0
    """Rises with every rewind: refusals of what was sent before mean nothing any more."""
    sent_at: float = 0.0
    resume_at: float = 0.0
    refusals: int = 0
    """In a row; the pauses between attempts grow with them."""
    absent_since: float | None = None
    """The replica answers, but does not know the range (yet)."""
    over: HeadraceError | None = None
    """Why this replica takes no more of the range, ever."""
    queued_bytes: int = 0
    _queue: deque[Outgoing] = field(default_factory=deque)
    """A run of batches that ends where the range ends, or nothing."""
    _refill: deque[Outgoing] = field(default_factory=deque)
    """Read back from the log, from `next_offset` on; goes before the queue."""

    def push(self, batch: Outgoing, *, room: int) -> int:
        """Take the range's newest batch; returns by how much the bytes held here have changed.

        What does not fit is given up, with everything queued before it: it is in the log.
        """
        if batch.size <= room:
            self._queue.append(batch)
            self.queued_bytes += batch.size
            return batch.size
        return self._drop_queue()

    def _drop_queue(self) -> int:
        dropped = sum(batch.size for batch in self._queue)
        self._queue.clear()
        self.queued_bytes -= dropped
        return -dropped

    def refill(self, session: int, batches: Iterable[Outgoing]) -> int:
        """Take what was read back; returns the bytes held more. Nothing after a rewind."""
        if session != self.session or self._refill:
            return 0
        expected = self.next_offset
        added = 0
        for batch in batches:
            if batch.end <= expected or (self._queue and batch.base >= self._queue[0].base):
                continue
            self._refill.append(batch)
            added += batch.size
            expected = batch.end
        self.queued_bytes += added
        return added

    def ready(self) -> bool:
        """Whether `take` has something."""
        if self._refill:
            return True
        # Below the queue's first batch only the log knows what comes next.
        return bool(self._queue) and self._queue[0].base == self.next_offset

    def take(self, bytes_max: int) -> list[Outgoing]:
        """The next batches in order: at least one if any is ready, else up to `bytes_max`."""
        taken: list[Outgoing] = []
        size = 0
        while self.ready():
            source = self._refill or self._queue
            batch = source[0]
            if taken and size + batch.size > bytes_max:
                break
            source.popleft()
            self.queued_bytes -= batch.size
            taken.append(batch)
            size += batch.size
            self.next_offset = batch.end
        return taken

    def wants_log(self, *, log_next: int, log_durable: int) -> bool:
        """Whether what comes next has to be read from the log, and is there."""
        if self._refill or self.over is not None:
            return False
        until = self._queue[0].base if self._queue else log_next
        return self.next_offset < min(until, log_durable)

    def rewind(self, offset: int) -> int:
        """Send again from `offset`; returns by how much the bytes held here have changed."""
        self.session += 1
        self.next_offset = offset
        self.held = min(self.held, offset)
        dropped = sum(batch.size for batch in self._refill)
        self._refill.clear()
        self.queued_bytes -= dropped
        return -dropped

    def restart(self) -> int:
        """The connection is lost: what the replica did not confirm is sent again."""
        self.told = -1
        self.absent_since = None
        self.resume_at = 0.0
        return self.rewind(self.held)

    def end(self, error: HeadraceError) -> int:
        """The replica takes no more; returns by how much the bytes held here have changed."""
        self.over = error
        dropped = self.queued_bytes
        self._queue.clear()
        self._refill.clear()
        self.queued_bytes = 0
        return -dropped
