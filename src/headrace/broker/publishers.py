"""Publishers and the windows they closed: the state, and the decisions about it. Pure.

A publisher closes windows in order, each exactly once: CLOSE is a compare-and-set on its last
closed window. A window with messages passes two events. *Intent* says what will be published and
where each target partition ended; *done* says that all of it is there. Between them lies any crash,
after which the intent is carried out to its end: never back.

A run that opens a publisher fences every earlier run of it, for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from headrace.broker.errors import (
    PublisherFencedError,
    PublisherNotFoundError,
    TooManyPublishersError,
    WindowOrderError,
)
from headrace.broker.offsets import Place
from headrace.errors import FormatError, InvalidArgumentError, UnauthorizedError

VERSION = 1
NO_WINDOW = -1
NAME_CHARACTERS_MAX = 255
RUNS_REMEMBERED_MAX = 1000
ENDED_REMEMBERED_MAX = 1000


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A staged batch and the partition it is for."""

    staged: int
    """Its offset in the publisher's staging stream."""
    count: int
    place: Place


class Target(msgspec.Struct, frozen=True, array_like=True):
    place: Place
    next_offset: int
    """Where the partition ended before anything of the window was written to it."""


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive offsets that a window took in a partition."""

    place: Place
    first: int
    count: int


class Intent(msgspec.Struct, frozen=True, array_like=True):
    window: int
    digest: bytes
    manifest: tuple[Span, ...]
    targets: tuple[Target, ...]
    last: bool = False
    """The publisher ends with this window."""


class Closed(msgspec.Struct, frozen=True, array_like=True):
    window: int
    digest: bytes
    runs: tuple[Run, ...]


# --- events


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    uid: int
    name: str
    owner: int
    """The uid of the user who made it: a name is not another user's to take over."""
    run: str
    epoch: int


class StagingMade(msgspec.Struct, frozen=True, tag="staging"):
    uid: int
    stream_id: int


class Intended(msgspec.Struct, frozen=True, tag="intended"):
    uid: int
    intent: Intent


class Done(msgspec.Struct, frozen=True, tag="done"):
    uid: int
    closed: Closed
    last: bool = False


class Reclaimed(msgspec.Struct, frozen=True, tag="reclaimed"):
    stream_ids: tuple[int, ...]


Event: TypeAlias = Opened | StagingMade | Intended | Done | Reclaimed


class Publisher(msgspec.Struct):
    uid: int
    name: str
    owner: int
    run: str
    epoch: int
    superseded: list[str] = []
    """Earlier runs, oldest first."""
    stream_id: int = -1
    """The SBP stream of what is staged; -1 until something is."""
    last: int = NO_WINDOW
    floor: int = NO_WINDOW
    """Windows up to it were closed so long ago that they are not listed any more."""
    closed: list[Closed] = []
    intent: Intent | None = None
    ended: bool = False
    """It closed its last window; remembered for a while, for whoever did not hear the answer."""

    def check_open(self, epoch: int) -> None:
        self.check_epoch(epoch)
        if self.ended:
            raise PublisherFencedError("the publisher closed its last window", name=self.name)

    def check_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise PublisherFencedError(
                "another run of this publisher took over", name=self.name, epoch=epoch
            )

    def find(self, window: int) -> Closed | None:
        for closed in reversed(self.closed):
            if closed.window == window:
                return closed
        return None


class Publishers:
    def __init__(self, *, publishers_max: int, windows_kept: int) -> None:
        self._publishers_max = publishers_max
        self._windows_kept = windows_kept
        self._by_uid: dict[int, Publisher] = {}
        self._by_name: dict[str, Publisher] = {}
        self._next_uid = 1
        self._ended: dict[int, None] = {}  # by uid, oldest first
        self.doomed: set[int] = set()
        """Staging streams nobody needs any more, not yet deleted."""

    # -- looking things up

    def get(self, uid: int) -> Publisher:
        publisher = self._by_uid.get(uid)
        if publisher is None:
            raise PublisherNotFoundError(publisher=uid)
        return publisher

    def named(self, name: str) -> Publisher | None:
        return self._by_name.get(name)

    def pending(self) -> list[Publisher]:
        return [publisher for publisher in self._by_uid.values() if publisher.intent is not None]

    def barrier(self, place: Place) -> int | None:
        """The lowest offset of the partition that an unfinished window may have to be looked up
        from: nothing above it may be forgotten."""
        return min(
            (
                target.next_offset
                for publisher in self.pending()
                for target in (publisher.intent.targets if publisher.intent else ())
                if target.place == place
            ),
            default=None,
        )

    # -- deciding

    def check_owner(self, uid: int, user: int) -> None:
        if self.get(uid).owner != user:
            raise UnauthorizedError("the publisher belongs to another user", publisher=uid)

    def open(self, name: str, run: str, owner: int) -> Opened | None:
        """None: it is that run's already. A run that was superseded stays so."""
        if not 1 <= len(name) <= NAME_CHARACTERS_MAX or not 1 <= len(run) <= NAME_CHARACTERS_MAX:
            raise InvalidArgumentError("a publisher needs a name and a run of 1 to 255 characters")
        known = self._by_name.get(name)
        if known is None:
            if len(self._by_uid) - len(self._ended) >= self._publishers_max:
                raise TooManyPublishersError(limit=self._publishers_max)
            return Opened(uid=self._next_uid, name=name, owner=owner, run=run, epoch=1)
        if known.owner != owner:
            raise UnauthorizedError("the publisher belongs to another user", name=name)
        if known.run == run:
            return None
        if run in known.superseded:
            raise PublisherFencedError("a later run of this publisher took over", name=name)
        return Opened(uid=known.uid, name=name, owner=owner, run=run, epoch=known.epoch + 1)

    def check_close(
        self, publisher: Publisher, *, epoch: int, previous: int, window: int, empty: bool
    ) -> bool:
        """Whether there is something to do: False when the window was closed before.

        The first close wins, whatever the second one would publish: a batch that Spark runs again
        after a crash may have other rows.
        """
        publisher.check_epoch(epoch)
        if window < 0:
            raise InvalidArgumentError("windows count from 0", window=window)
        if window == publisher.last:
            return False
        if window < publisher.last:
            if empty or window <= publisher.floor or publisher.find(window) is not None:
                return False
            raise WindowOrderError("a later window is closed", window=window, last=publisher.last)
        if previous != publisher.last:
            raise WindowOrderError(
                "the window before is not the last one closed", previous=previous,
                last=publisher.last,
            )  # fmt: skip
        return True

    # -- changing

    def apply(self, version: int, kind: str, body: object) -> None:
        event = decode(version, kind, body)
        match event:
            case Opened():
                self._opened(event)
            case StagingMade():
                self._by_uid[event.uid].stream_id = event.stream_id
            case Intended():
                self._by_uid[event.uid].intent = event.intent
            case Done():
                self._done(self._by_uid[event.uid], event.closed)
                if event.last:
                    self._end(self._by_uid[event.uid])
            case Reclaimed():
                self.doomed.difference_update(event.stream_ids)

    def _opened(self, event: Opened) -> None:
        known = self._by_uid.get(event.uid)
        if known is None:
            self._add(Publisher(event.uid, event.name, event.owner, event.run, event.epoch))
            return
        known.superseded.append(known.run)
        del known.superseded[:-RUNS_REMEMBERED_MAX]
        known.run, known.epoch = event.run, event.epoch

    def _add(self, publisher: Publisher) -> None:
        self._by_uid[publisher.uid] = publisher
        self._by_name[publisher.name] = publisher
        self._next_uid = max(self._next_uid, publisher.uid + 1)
        if publisher.ended:
            self._ended[publisher.uid] = None

    def _done(self, publisher: Publisher, closed: Closed) -> None:
        publisher.intent = None
        publisher.last = closed.window
        publisher.closed.append(closed)
        for old in publisher.closed[: -self._windows_kept]:
            publisher.floor = old.window
        del publisher.closed[: -self._windows_kept]

    def _end(self, publisher: Publisher) -> None:
        if publisher.stream_id >= 0:
            self.doomed.add(publisher.stream_id)
        publisher.ended, publisher.stream_id = True, -1
        publisher.floor = publisher.last
        publisher.closed.clear()
        self._ended[publisher.uid] = None
        while len(self._ended) > ENDED_REMEMBERED_MAX:
            oldest = self._by_uid.pop(next(iter(self._ended)))
            del self._by_name[oldest.name], self._ended[oldest.uid]

    # -- snapshots: what is to be deleted, the counter, then a chunk per publisher

    def snapshot(self) -> tuple[int, Iterator[bytes]]:
        return VERSION, self._chunks()

    def _chunks(self) -> Iterator[bytes]:
        yield msgspec.msgpack.encode((sorted(self.doomed), self._next_uid))
        ended = [self._by_uid[uid] for uid in self._ended]
        for publisher in [*(p for p in self._by_uid.values() if not p.ended), *ended]:
            yield msgspec.msgpack.encode(publisher)

    def restore(self, version: int, chunks: Iterable[bytes]) -> None:
        if version != VERSION:
            raise FormatError("publishers snapshot of a newer version", version=version)
        remaining = iter(chunks)
        doomed, next_uid = msgspec.msgpack.decode(next(remaining), type=tuple[set[int], int])
        self.doomed |= doomed
        for chunk in remaining:
            self._add(msgspec.msgpack.decode(chunk, type=Publisher))
        self._next_uid = max(self._next_uid, next_uid)


def encode(event: Event) -> tuple[str, object]:
    body = msgspec.to_builtins(event, builtin_types=(bytes,))
    return str(body.pop("type")), body


def decode(version: int, kind: str, body: object) -> Event:
    if version != VERSION or not isinstance(body, dict):
        raise FormatError("publishers event of a newer version", version=version, kind=kind)
    event: Event = msgspec.convert({"type": kind, **body}, Event)
    return event
