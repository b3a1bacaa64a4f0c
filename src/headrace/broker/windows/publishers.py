"""Publishers and the windows they closed: the state, and the decisions about it. Pure.

A publisher closes windows in order, each exactly once: CLOSE is a compare-and-set on its last
closed window. A window with messages passes two events. *Intent* says what will be published and
where each target partition ended; *done* says that all of it is there. Between them lies any crash,
after which the intent is carried out to its end: never back.

A run that opens a publisher fences every earlier run of it, for good. Where somebody counts the
runs, a number decides instead of who comes last.

A publisher ends by its own word, with its last window. One that never closed a window and was not
heard of for a long time is forgotten: nothing depends on it. One that did is kept, because a
checkpoint may come back to it; only what it staged and never closed goes, and with it the run that
staged it.

What a publisher of a window topic (`window_topics.py`) closed is kept until it is purged; windows
in which it published nothing leave no trace but the last one. Of other publishers only the newest
windows are kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from headrace.broker.partitions.offsets import Place
from headrace.broker.windows import window_topics as w
from headrace.errors import FormatError, InvalidArgumentError, UnauthorizedError
from headrace.wire.iggy.refusals import (
    NotWindowTopicError,
    PublisherFencedError,
    PublisherNotFoundError,
    TooManyPublishersError,
    TooManyWindowsError,
    WindowOrderError,
)

VERSION = 1
NO_WINDOW = w.NO_WINDOW
NAME_CHARACTERS_MAX = w.NAME_CHARACTERS_MAX
RUNS_REMEMBERED_MAX = 1000
ENDED_REMEMBERED_MAX = 1000
INDEX_BYTES_MAX = 1024


class StagedBatch(msgspec.Struct, frozen=True, array_like=True):
    """A staged batch and the partition it is for."""

    staged: int
    """The batch's offset in the publisher's staging stream."""
    count: int
    place: Place


class Target(msgspec.Struct, frozen=True, array_like=True):
    place: Place
    next_offset: int
    """Where the partition ended before anything of the window was written to it."""


class OffsetRun(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive offsets that a window took in a partition."""

    place: Place
    first: int
    count: int
    bytes: int = 0


class Intent(msgspec.Struct, frozen=True, array_like=True):
    window: int
    digest: bytes
    manifest: tuple[StagedBatch, ...]
    targets: tuple[Target, ...]
    last: bool = False
    """The publisher ends with this window."""
    rows: int = 0
    """How many the messages hold, as the publisher counts them."""
    index: bytes = b""
    """What it tells readers about them; means nothing here."""


class Closed(msgspec.Struct, frozen=True, array_like=True):
    window: int
    digest: bytes
    runs: tuple[OffsetRun, ...]
    rows: int = 0
    index: bytes = b""


# --- events


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    uid: int
    name: str
    owner: int
    """The uid of the user who opened it: a name is not another user's to take over, unless it is a
    window topic's and the other may write to that topic."""
    run: str
    epoch: int
    at_ms: int = 0


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


class Expired(msgspec.Struct, frozen=True, tag="expired"):
    """Nothing was heard of it for too long."""

    uid: int


class Reclaimed(msgspec.Struct, frozen=True, tag="reclaimed"):
    stream_ids: tuple[int, ...]


Event: TypeAlias = Opened | StagingMade | Intended | Done | Expired | Reclaimed | w.Event


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
    """Whether the publisher closed its last window; remembered for a while, for whoever did not
    hear the answer."""
    opened_ms: int = 0
    """When its run came; 0 in the state of an earlier version."""

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
        at = bisect_left(self.closed, window, key=_window_of)
        found = self.closed[at : at + 1]
        return found[0] if found and found[0].window == window else None

    def after(self, window: int) -> list[Closed]:
        """The windows listed after this one."""
        return self.closed[bisect_right(self.closed, window, key=_window_of) :]

    def forget(self, window: int) -> None:
        """Do not list windows up to this one any more."""
        count = bisect_right(self.closed, window, key=_window_of)
        if count:
            self.floor = self.closed[count - 1].window
            del self.closed[:count]

    def void(self, window: int) -> None:
        """As if nothing had been closed after this one."""
        del self.closed[bisect_right(self.closed, window, key=_window_of) :]
        self.last = self.closed[-1].window if self.closed else min(self.last, self.floor)


def _window_of(closed: Closed) -> int:
    return closed.window


class Publishers:
    def __init__(
        self,
        *,
        publishers_max: int,
        windows_kept: int,
        topic_windows_max: int = 50_000,
        owned_max: int = 1_000,
    ) -> None:
        """`owned_max`: of one user, those of window topics not counted."""
        self._publishers_max = publishers_max
        self._owned_max = owned_max
        self._windows_kept = windows_kept
        self._topic_windows_max = topic_windows_max
        self.topics = w.WindowTopics()
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

    def knows(self, uid: int) -> bool:
        return uid in self._by_uid

    def named(self, name: str) -> Publisher | None:
        return self._by_name.get(name)

    def last(self, name: str) -> int:
        """The last window closed under this name."""
        publisher = self._by_name.get(name)
        return NO_WINDOW if publisher is None else publisher.last

    def members(self, topic_uid: int) -> list[Publisher]:
        """The topic's publishers that were ever opened."""
        named = (self._by_name.get(name) for name in self.topics.get(topic_uid).names())
        return [publisher for publisher in named if publisher is not None]

    def closed(self, topic_uid: int) -> int:
        """Everyone closed the topic's windows up to it; the last ones there are, if all ended."""
        topic = self.topics.get(topic_uid)
        members = [self._by_name.get(name) for name in topic.names()]
        if all(member is not None and member.ended for member in members):
            return max(member.last for member in members if member is not None)
        return topic.closed(self.last)

    def __iter__(self) -> Iterator[Publisher]:
        return iter(self._by_uid.values())

    @property
    def open_count(self) -> int:
        """How many publishers did not end; `publishers_max` bounds this number."""
        return len(self._by_uid) - len(self._ended)

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

    def check_owner(self, uid: int, users: Container[int]) -> None:
        """Check that the publisher belongs to one of these users. One of a window topic belongs to
        whoever may write to the topic, which the caller has asked."""
        publisher = self.get(uid)
        if publisher.owner not in users and self.topics.of(publisher.name) is None:
            raise UnauthorizedError("the publisher belongs to another user", publisher=uid)

    def open(
        self,
        name: str,
        run: str,
        owner: int,
        epoch: int = 0,
        *,
        heir_of: Container[int] = (),
        now_ms: int = 0,
    ) -> Opened | None:
        """None: it is that run's already. A run that was superseded stays so.

        A run with an epoch of its own is refused when one with a higher epoch was there. What
        belongs to one of `heir_of` is `owner`'s from now on; as to window topics see `check_owner`.
        """
        if not 1 <= len(name) <= NAME_CHARACTERS_MAX or not 1 <= len(run) <= NAME_CHARACTERS_MAX:
            raise InvalidArgumentError("a publisher needs a name and a run of 1 to 255 characters")
        known = self._by_name.get(name)
        topic = self.topics.of(name)
        least = 1 if topic is None else max(1, topic.epoch)
        if epoch and epoch < least:
            raise PublisherFencedError("later runs publish this topic", name=name, epoch=epoch)
        if known is None:
            if self.open_count >= self._publishers_max:
                raise TooManyPublishersError(limit=self._publishers_max)
            if topic is None and self._owned(owner) >= self._owned_max:
                raise TooManyPublishersError("of one user", limit=self._owned_max)
            uid, first = self._next_uid, epoch or least
            return Opened(uid=uid, name=name, owner=owner, run=run, epoch=first, at_ms=now_ms)
        if topic is None and known.owner != owner and known.owner not in heir_of:
            raise UnauthorizedError("the publisher belongs to another user", name=name)
        if known.run == run and epoch in (0, known.epoch) and known.epoch >= least:
            return None
        if run in known.superseded or (epoch and not _follows(known, epoch)):
            raise PublisherFencedError("a later run of this publisher took over", name=name)
        following = epoch or max(known.epoch + 1, least)
        return Opened(uid=known.uid, name=name, owner=owner, run=run, epoch=following, at_ms=now_ms)

    def may_expire(self, publisher: Publisher) -> bool:
        """Whether it is one that can be forgotten, or its run: those of window topics come and go
        with the topic, and an unfinished window is finished first."""
        return (
            not publisher.ended
            and publisher.intent is None
            and self.topics.of(publisher.name) is None
        )

    def expire(self, uid: int, epoch: int, last: int) -> Expired | None:
        """None when it was heard of after all."""
        known = self._by_uid.get(uid)
        if known is None or (known.epoch, known.last) != (epoch, last):
            return None
        return Expired(uid) if self.may_expire(known) else None

    def _owned(self, owner: int) -> int:
        return sum(
            publisher.owner == owner and not publisher.ended and self.topics.of(name) is None
            for name, publisher in self._by_name.items()
        )

    def check_place(self, publisher: Publisher, window: int, place: Place) -> None:
        """A window topic is published by its publishers, each to its partition; they publish
        nothing else."""
        topic = self.topics.of(publisher.name)
        if topic is None:
            if place.topic_uid in self.topics:
                raise NotWindowTopicError("it has other publishers", topic=place.topic_uid)
            return
        partition = topic.partition_of(publisher.name, window)
        if place[:2] != (topic.uid, partition):
            raise NotWindowTopicError(
                "the publisher writes one partition of one topic", name=publisher.name,
                topic=topic.uid, partition=partition,
            )  # fmt: skip

    def check_close(
        self,
        publisher: Publisher,
        *,
        epoch: int,
        previous: int,
        window: int,
        places: Sequence[Place],
    ) -> bool:
        """Whether there is something to do: False when the window was closed before.

        The first close wins, whatever the second one would publish: a batch that Spark runs again
        after a crash may have other rows. `places` is where messages are to go.
        """
        publisher.check_epoch(epoch)
        if window < 0:
            raise InvalidArgumentError("windows count from 0", window=window)
        if window == publisher.last:
            return False
        if window < publisher.last:
            known = window <= publisher.floor or publisher.find(window) is not None
            if known or not places:
                return False
            raise WindowOrderError("a later window is closed", window=window, last=publisher.last)
        if previous != publisher.last:
            raise WindowOrderError(
                "the window before is not the last one closed", previous=previous,
                last=publisher.last,
            )  # fmt: skip
        self._check_new(publisher, window, places)
        return True

    def _check_new(self, publisher: Publisher, window: int, places: Sequence[Place]) -> None:
        for place in places:
            self.check_place(publisher, window, place)
        topic = self.topics.of(publisher.name)
        if topic is not None:
            topic.partition_of(publisher.name, window)
            if window <= topic.final_window:
                raise WindowOrderError(
                    "readers have passed this window",
                    window=window,
                    final_window=topic.final_window,
                )
            idle = publisher.closed[-1:] and not publisher.closed[-1].runs
            if places and len(publisher.closed) - bool(idle) >= self._topic_windows_max:
                raise TooManyWindowsError(name=publisher.name, limit=self._topic_windows_max)

    def reset(self, topic_uid: int, window: int, epoch: int) -> w.TopicReset | None:
        """None: that one was done."""
        members = self.members(topic_uid)
        highest = max((member.epoch for member in members), default=0)
        event = self.topics.reset(topic_uid, window=window, epoch=epoch, highest_epoch=highest)
        for member in members:
            if event is not None and window < member.floor:
                raise WindowOrderError(
                    "too long ago", name=member.name, window=window, floor=member.floor
                )
        return event

    # -- changing

    def apply(self, version: int, kind: str, body: object) -> None:
        event = decode(version, kind, body)
        match event:
            case Opened():
                self._opened(event)
            case StagingMade() | Intended() | Done():
                self._went_on(event)
            case Expired():
                self._expired(event)
            case Reclaimed():
                self.doomed.difference_update(event.stream_ids)
            case w.PublishersSet():
                if event.topic in self.topics:
                    # Where all had ended, more is closed than each of them closed by itself.
                    topic = self.topics.get(event.topic)
                    topic.final_window = max(topic.final_window, self.closed(event.topic))
                self._dismiss(self.topics.on_set(event))
                for member in self.members(event.topic):
                    self._ended.pop(member.uid, None)
                    if member.epoch < event.epoch:
                        _fence(member, event.epoch)
            case w.TopicReset():
                self._reset(event)
            case w.TopicPurged():
                for member in self.members(event.topic):
                    member.forget(event.window)
                self._dismiss(self.topics.on_purged(event))
            case w.TopicForgotten():
                self._dismiss(self.topics.on_forgotten(event))

    def _went_on(self, event: StagingMade | Intended | Done) -> None:
        publisher = self._by_uid.get(event.uid)
        if publisher is None:  # dismissed while it was under way: there is no topic for it
            if isinstance(event, StagingMade):
                self.doomed.add(event.stream_id)
        elif isinstance(event, StagingMade):
            if publisher.ended and self.topics.of(publisher.name) is None:
                self.doomed.add(event.stream_id)  # it ended while somebody still staged
            else:
                publisher.stream_id = event.stream_id
        elif isinstance(event, Intended):
            publisher.intent = event.intent
        else:
            self._done(publisher, event.closed)
            if event.last:
                self._end(publisher)

    def _opened(self, event: Opened) -> None:
        known = self._by_uid.get(event.uid)
        if known is None:
            made = Publisher(event.uid, event.name, event.owner, event.run, event.epoch)
            made.opened_ms = event.at_ms
            self._add(made)
            return
        topic = self.topics.of(known.name)
        if topic is not None and known.ended:  # such a one may go on after its end
            topic.final_window = self.closed(topic.uid)
            known.ended = False
        _supersede(known)
        known.run, known.epoch, known.owner = event.run, event.epoch, event.owner
        known.opened_ms = event.at_ms

    def _expired(self, event: Expired) -> None:
        publisher = self._by_uid.get(event.uid)
        if publisher is None:
            return
        if publisher.last == NO_WINDOW:
            self._dismiss([publisher.name])
            return
        _fence(publisher, publisher.epoch + 1)
        if publisher.stream_id >= 0:
            self.doomed.add(publisher.stream_id)
        publisher.stream_id = -1

    def _add(self, publisher: Publisher) -> None:
        self._by_uid[publisher.uid] = publisher
        self._by_name[publisher.name] = publisher
        self._next_uid = max(self._next_uid, publisher.uid + 1)
        if publisher.ended and self.topics.of(publisher.name) is None:
            self._ended[publisher.uid] = None

    def _reset(self, event: w.TopicReset) -> None:
        closed = self.closed(event.topic)
        for member in self.members(event.topic):
            _fence(member, event.epoch)
            member.ended = False
            member.void(event.window)
        self._dismiss(self.topics.on_reset(event, closed))

    def _dismiss(self, names: Iterable[str]) -> None:
        """Forget publishers that publish no window topic any more, as if they had never been."""
        for name in names:
            publisher = self._by_name.pop(name, None)
            if publisher is not None:
                publisher.ended, publisher.intent = True, None  # for who still looks at it
                del self._by_uid[publisher.uid]
                self._ended.pop(publisher.uid, None)
                if publisher.stream_id >= 0:
                    self.doomed.add(publisher.stream_id)

    def _done(self, publisher: Publisher, closed: Closed) -> None:
        publisher.intent = None
        publisher.last = closed.window
        kept = publisher.closed
        if self.topics.of(publisher.name) is not None:
            if kept and not kept[-1].runs:
                kept.pop()
            kept.append(closed)
            return
        kept.append(closed)
        for old in publisher.closed[: -self._windows_kept]:
            publisher.floor = old.window
        del publisher.closed[: -self._windows_kept]

    def _end(self, publisher: Publisher) -> None:
        publisher.ended = True
        if self.topics.of(publisher.name) is not None:
            return  # its windows are still to be read
        if publisher.stream_id >= 0:
            self.doomed.add(publisher.stream_id)
        publisher.stream_id = -1
        publisher.floor = publisher.last
        publisher.closed.clear()
        self._ended[publisher.uid] = None
        while len(self._ended) > ENDED_REMEMBERED_MAX:
            oldest = self._by_uid.pop(next(iter(self._ended)))
            del self._by_name[oldest.name], self._ended[oldest.uid]

    # -- snapshots: a head, then a chunk per window topic, then one per publisher

    def snapshot(self) -> tuple[int, Iterator[bytes]]:
        return VERSION, self._chunks()

    def _chunks(self) -> Iterator[bytes]:
        yield msgspec.msgpack.encode(_Head(sorted(self.doomed), self._next_uid, len(self.topics)))
        for topic in self.topics:
            yield msgspec.msgpack.encode(topic)
        ended = [self._by_uid[uid] for uid in self._ended]
        for publisher in [*(p for p in self._by_uid.values() if p.uid not in self._ended), *ended]:
            yield msgspec.msgpack.encode(publisher)

    def restore(self, version: int, chunks: Iterable[bytes]) -> None:
        if version != VERSION:
            raise FormatError("publishers snapshot of a newer version", version=version)
        remaining = iter(chunks)
        head = msgspec.msgpack.decode(next(remaining), type=_Head)
        self.doomed |= set(head.doomed)
        for _ in range(head.topics):
            self.topics.add(msgspec.msgpack.decode(next(remaining), type=w.WindowTopic))
        for chunk in remaining:
            self._add(msgspec.msgpack.decode(chunk, type=Publisher))
        self._next_uid = max(self._next_uid, head.next_uid)


class _Head(msgspec.Struct, frozen=True, array_like=True):
    doomed: list[int]
    next_uid: int
    topics: int = 0


def _supersede(publisher: Publisher) -> None:
    if publisher.run:
        publisher.superseded.append(publisher.run)
        del publisher.superseded[:-RUNS_REMEMBERED_MAX]


def _fence(publisher: Publisher, epoch: int) -> None:
    """End the publisher's run: the next one has this epoch, whoever that will be."""
    _supersede(publisher)
    publisher.run, publisher.epoch = "", epoch


def _follows(known: Publisher, epoch: int) -> bool:
    """Whether a run of this epoch may take over; nobody's own yet: after a reset."""
    return epoch > known.epoch or (epoch == known.epoch and not known.run)


def encode(event: Event) -> tuple[str, object]:
    body = msgspec.to_builtins(event, builtin_types=(bytes,))
    return str(body.pop("type")), body


def decode(version: int, kind: str, body: object) -> Event:
    if version != VERSION or not isinstance(body, dict):
        raise FormatError("publishers event of a newer version", version=version, kind=kind)
    event: Event = msgspec.convert({"type": kind, **body}, Event)
    return event
