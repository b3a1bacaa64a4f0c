"""Topics that are published in windows alone: who publishes them, from which window on. Pure.

The publishers of such a topic change only at a window: one set holds up to it, the next one after
it. A publisher belongs to one such topic and writes one partition of it. A topic is *closed*
through a window when everyone who has a part in the windows up to it has closed them; from then on
nothing can appear there.

A reset voids windows: their messages stay where they are, and nobody is told of them any more. A
publisher whose last window is then before the one it was reset to goes on after the latter all the
same: readers may have been there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from headrace.errors import InvalidArgumentError
from headrace.wire.iggy.refusals import (
    NotWindowTopicError,
    PublisherFencedError,
    PublisherTakenError,
    WindowOrderError,
)

NO_WINDOW = -1
NAME_CHARACTERS_MAX = 255
PUBLISHERS_MAX = 1000
ERAS_MAX = 1000  # of which windows are still kept

Last: TypeAlias = Callable[[str], int]
"""The last window that a publisher of this name closed."""


class Era(msgspec.Struct, frozen=True, array_like=True):
    """Who publishes the windows after one, up to the next era's."""

    after: int
    names: tuple[str, ...]
    """The n-th writes partition n."""


class WindowTopic(msgspec.Struct):
    uid: int
    eras: list[Era]
    """Oldest first, at least one."""
    epoch: int = 0
    """Runs below it are refused."""
    purged: int = NO_WINDOW
    """Windows up to it are not kept any more."""
    final_window: int = msgspec.field(default=NO_WINDOW, name="settled")  # as snapshots have it
    """Up to here nobody publishes any more, whatever the publishers' last windows are: readers were
    told so before one of them was reset or went on after its end."""
    resets: int = 0
    reset_window: int = NO_WINDOW
    reset_epoch: int = 0

    def names(self) -> list[str]:
        """Everyone who has a part in windows that are kept, each once."""
        return list(dict.fromkeys(name for era in self.eras for name in era.names))

    def closed(self, last: Last) -> int:
        """Everyone has closed the windows up to it."""
        reached = max(self.eras[0].after, self.purged, self.final_window)
        for number, era in enumerate(self.eras):
            following = self.eras[number + 1 : number + 2]
            if following and following[0].after <= reached:
                continue  # over, even if one of its publishers ended before the others
            lowest = min((last(name) for name in era.names), default=era.after)
            if not following or lowest < following[0].after:
                return max(reached, lowest)
            reached = max(reached, following[0].after)
        return reached

    def partition_of(self, name: str, window: int) -> int:
        """Where the publisher writes in this window; WindowOrderError if it has no part in it."""
        era = self.eras[0]
        for each in self.eras:
            if each.after < window:
                era = each
        if window <= era.after or name not in era.names:
            raise WindowOrderError(
                "the publisher has no part in this window", name=name, window=window
            )
        return era.names.index(name)

    def newest_partition(self, name: str) -> int:
        for era in reversed(self.eras):
            if name in era.names:
                return era.names.index(name)
        return -1


# --- events


class PublishersSet(msgspec.Struct, frozen=True, tag="publishers"):
    topic: int
    after: int
    names: tuple[str, ...]
    epoch: int


class TopicReset(msgspec.Struct, frozen=True, tag="reset"):
    topic: int
    window: int
    epoch: int


class TopicPurged(msgspec.Struct, frozen=True, tag="purged"):
    topic: int
    window: int


class TopicForgotten(msgspec.Struct, frozen=True, tag="forgotten"):
    topic: int


Event: TypeAlias = PublishersSet | TopicReset | TopicPurged | TopicForgotten


class WindowTopics:
    """By the topic's uid. What publishers closed is theirs (`publishers.py`)."""

    def __init__(self) -> None:
        self.by_uid: dict[int, WindowTopic] = {}
        """To be changed by this class alone."""
        self._of: dict[str, WindowTopic] = {}

    def __contains__(self, uid: int) -> bool:
        return uid in self.by_uid

    def __iter__(self) -> Iterator[WindowTopic]:
        return iter(self.by_uid.values())

    def __len__(self) -> int:
        return len(self.by_uid)

    def get(self, uid: int) -> WindowTopic:
        topic = self.by_uid.get(uid)
        if topic is None:
            raise NotWindowTopicError("the topic is not published in windows", topic=uid)
        return topic

    def of(self, name: str) -> WindowTopic | None:
        """The topic that a publisher belongs to."""
        return self._of.get(name)

    # -- deciding

    def set_publishers(
        self, uid: int, *, after: int, names: Sequence[str], epoch: int, last: Last
    ) -> PublishersSet | None:
        """None: they are it already."""
        names = tuple(names)
        self._check_names(uid, names)
        if after < NO_WINDOW or epoch < 0:
            raise InvalidArgumentError("not a window or an epoch", after=after, epoch=epoch)
        known = self.by_uid.get(uid)
        newest = known.eras[-1] if known is not None else None
        if known is not None and newest is not None:
            if newest.names == names and epoch <= known.epoch:
                return None
            if newest.names == names:
                after = newest.after
            elif after < newest.after:
                raise WindowOrderError(
                    "they change at a later window already", after=after, newest=newest.after
                )
            if len(known.eras) >= ERAS_MAX and after > newest.after:
                raise InvalidArgumentError("too many changes of publishers", limit=ERAS_MAX)
        if newest is None or newest.names != names:
            self._check_none_past(after, {*names, *(newest.names if newest else ())}, last)
        return PublishersSet(uid, after, names, epoch)

    def _check_names(self, uid: int, names: tuple[str, ...]) -> None:
        if not 1 <= len(names) <= PUBLISHERS_MAX or len(set(names)) < len(names):
            raise InvalidArgumentError(
                f"a topic has 1 to {PUBLISHERS_MAX} publishers, each named once"
            )
        for name in names:
            if not 1 <= len(name) <= NAME_CHARACTERS_MAX:
                raise InvalidArgumentError("a publisher's name has 1 to 255 characters")
            other = self._of.get(name)
            if other is not None and other.uid != uid:
                raise PublisherTakenError("it publishes another topic", name=name)

    def _check_none_past(self, after: int, names: set[str], last: Last) -> None:
        for name in sorted(names):
            if last(name) > after:
                raise WindowOrderError(
                    "a later window is closed", name=name, after=after, last=last(name)
                )

    def reset(self, uid: int, *, window: int, epoch: int, highest_epoch: int) -> TopicReset | None:
        """None: that reset was done. `highest_epoch` is the highest of its publishers' runs."""
        topic = self.get(uid)
        if (topic.reset_window, topic.reset_epoch) == (window, epoch) and topic.resets:
            return None
        if epoch <= max(topic.reset_epoch, highest_epoch) or epoch < topic.epoch:
            raise PublisherFencedError(
                "a run of this epoch, or a later one, is publishing", topic=uid, epoch=epoch
            )
        if window < max(NO_WINDOW, topic.purged):
            raise WindowOrderError("it is not kept any more", window=window, purged=topic.purged)
        return TopicReset(uid, window, epoch)

    def purge(self, uid: int, window: int, closed: int) -> TopicPurged | None:
        """None: that was done. `closed` is how far everyone has closed it."""
        if window <= self.get(uid).purged:
            return None
        if window > closed:
            raise WindowOrderError("not everyone has closed it", window=window, closed=closed)
        return TopicPurged(uid, window)

    # -- changing: each returns who has no part in any window any more

    def on_set(self, event: PublishersSet) -> list[str]:
        topic = self.by_uid.get(event.topic)
        era = Era(event.after, event.names)
        if topic is None:
            self.add(WindowTopic(event.topic, [era], event.epoch))
            return []
        before = topic.names()
        topic.epoch = max(topic.epoch, event.epoch)
        if topic.eras[-1].after == event.after:
            topic.eras.pop()
        topic.eras.append(era)
        return self._index(before)

    def on_reset(self, event: TopicReset, closed: int) -> list[str]:
        """`closed`: how far everyone had closed it before."""
        topic = self.by_uid[event.topic]
        before = topic.names()
        topic.epoch = topic.reset_epoch = event.epoch
        topic.reset_window = event.window
        topic.final_window = min(event.window, closed)
        topic.resets += 1
        while len(topic.eras) > 1 and topic.eras[-1].after > event.window:
            topic.eras.pop()
        return self._index(before)

    def on_purged(self, event: TopicPurged) -> list[str]:
        topic = self.by_uid[event.topic]
        before = topic.names()
        topic.purged = event.window
        while len(topic.eras) > 1 and topic.eras[1].after <= event.window:
            topic.eras.pop(0)
        return self._index(before)

    def on_forgotten(self, event: TopicForgotten) -> list[str]:
        topic = self.by_uid.pop(event.topic, None)
        return [] if topic is None else self._index(topic.names())

    def add(self, topic: WindowTopic) -> None:
        self.by_uid[topic.uid] = topic
        self._index()

    def _index(self, before: Sequence[str] = ()) -> list[str]:
        self._of = {name: topic for topic in self.by_uid.values() for name in topic.names()}
        return [name for name in before if name not in self._of]
