"""Topics that are published in windows: commands 9004 to 9007."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from heapq import merge
from itertools import groupby
from operator import itemgetter

from headrace.broker.catalogue.resources import Topic
from headrace.broker.core import Broker
from headrace.broker.errors import NotWindowTopicError, PartitionNotFoundError
from headrace.broker.partitions.offsets import Place
from headrace.broker.partitions.open_partitions import place_of
from headrace.broker.sessions.sessions import Session
from headrace.broker.windows import publishers as p
from headrace.broker.windows.window_topics import Event, WindowTopic
from headrace.wire.iggy.messages import extensions as m


async def list_windows(broker: Broker, session: Session, request: m.ListWindows) -> m.WindowsListed:
    topic = broker.catalogue.topic(request.stream, request.topic)
    await _wait_closed(broker, topic, request)
    state = broker.publishing.state
    windowed = state.topics.get(topic.uid)
    closed = state.closed(topic.uid)
    limit = min(request.limit or 1 << 62, broker.settings.windows_listed_max)
    complete, listed = _list(broker, windowed, request.after, closed, limit)
    return m.WindowsListed(
        cluster=broker.cluster_uuid,
        uid=topic.uid,
        closed=closed,
        complete=complete,
        purged=windowed.purged,
        resets=windowed.resets,
        publishers=tuple(
            m.ListedPublisher(
                name=name,
                partition=windowed.newest_partition(name),
                last_window=state.last(name),
                ended=_ended(state.named(name)),
                windows=tuple(listed.get(name, ())),
            )
            for name in windowed.names()
        ),
    )


async def _wait_closed(broker: Broker, topic: Topic, request: m.ListWindows) -> None:
    """Until every publisher closed a window after the one asked for."""
    state, clock = broker.publishing.state, broker.runtime.clock
    seconds = min(request.wait_ms, broker.settings.windows_wait_ms_max) / 1000
    deadline = clock.monotonic() + seconds
    try:
        async with asyncio.timeout(seconds):
            while clock.monotonic() < deadline and state.closed(topic.uid) <= request.after:
                await broker.publishing.wait_changed()
    except TimeoutError:
        return


def _ended(publisher: p.Publisher | None) -> bool:
    return publisher is not None and publisher.ended


def _list(
    broker: Broker, topic: WindowTopic, after: int, closed: int, limit: int
) -> tuple[int, dict[str, list[m.ListedWindow]]]:
    """Whole windows, oldest first, until there are enough; and up to where that is all."""
    members = broker.publishing.state.members(topic.uid)
    found = merge(*(_closed(member, after, closed) for member in members), key=itemgetter(0))
    listed: dict[str, list[m.ListedWindow]] = {}
    complete, count = after, 0
    for window, entries in groupby(found, key=itemgetter(0)):
        if count >= limit:
            return complete, listed
        for _, name, each in entries:
            spans = tuple(
                m.WindowSpan(run.place.partition, run.place.generation, *_extent(run))
                for run in each.runs
                if run.place.topic_uid == topic.uid
            )
            listed.setdefault(name, []).append(m.ListedWindow(window, each.rows, spans, each.index))
            count += 1
        complete = window
    return max(closed, after), listed


def _closed(member: p.Publisher, after: int, closed: int) -> Iterator[tuple[int, str, p.Closed]]:
    """One by one: of a long list only the beginning is wanted."""
    for each in member.after(after):
        if each.window > closed:
            return
        if each.runs:
            yield each.window, member.name, each


def _extent(run: p.Run) -> tuple[int, int, int]:
    return run.first, run.count, run.bytes


async def set_publishers(broker: Broker, session: Session, request: m.SetPublishers) -> None:
    topic = broker.catalogue.topic(request.stream, request.topic)
    state = broker.publishing.state
    if topic.uid not in state.topics:
        await _check_empty(broker, topic)

    def decision() -> Event | None:
        if len(request.publishers) > len(topic.partitions):
            raise PartitionNotFoundError(
                "each publisher needs a partition", publishers=len(request.publishers)
            )
        return state.topics.set_publishers(
            topic.uid,
            after=request.after,
            names=request.publishers,
            epoch=request.epoch,
            last=state.last,
        )

    await broker.publishing.decide({*request.publishers, *_names(broker, topic)}, decision)


def _names(broker: Broker, topic: Topic) -> list[str]:
    topics = broker.publishing.state.topics
    return topics.get(topic.uid).names() if topic.uid in topics else []


async def _check_empty(broker: Broker, topic: Topic) -> None:
    """What is in a topic before its publishers are set is somebody's own, and would be purged."""
    logs = await broker.partitions.find_all((topic, each) for each in topic.partitions)
    if any(log is not None and log.committed for log in logs):
        raise NotWindowTopicError("the topic holds messages already", topic=topic.name)


async def reset_after(broker: Broker, session: Session, request: m.ResetAfter) -> None:
    topic = broker.catalogue.topic(request.stream, request.topic)
    state = broker.publishing.state
    await broker.publishing.decide(
        state.topics.get(topic.uid).names(),
        lambda: state.reset(topic.uid, request.window, request.epoch),
    )


async def purge_to(broker: Broker, session: Session, request: m.PurgeTo) -> None:
    """The windows go at once; their messages when whole segments of them are free."""
    topic = broker.catalogue.topic(request.stream, request.topic)
    state = broker.publishing.state
    ends: dict[Place, int] = {}

    def decision() -> Event | None:
        for run in _runs(broker, topic):
            ends[run.place] = max(ends.get(run.place, 0), run.first + run.count)
        return state.topics.purge(topic.uid, request.window, state.closed(topic.uid))

    await broker.publishing.decide(state.topics.get(topic.uid).names(), decision)
    firsts: dict[Place, int] = {}
    for run in _runs(broker, topic):
        firsts[run.place] = min(firsts.get(run.place, run.first), run.first)
    for partition in topic.partitions:
        place = place_of(topic, partition)
        offset = firsts.get(place, ends.get(place))
        log = await broker.partitions.find(topic, partition)
        if log is not None and offset is not None:
            await broker.trim(place, log, offset)


def _runs(broker: Broker, topic: Topic) -> list[p.Run]:
    if topic.uid not in broker.publishing.state.topics:
        return []
    members = broker.publishing.state.members(topic.uid)
    return [run for member in members for closed in member.closed for run in closed.runs]
