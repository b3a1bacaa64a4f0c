"""Publishing windows (commands 9001 to 9003, and 9011), and topics that are published in windows
(commands 9004 to 9007).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from heapq import merge
from itertools import groupby
from operator import itemgetter

from headrace.broker.catalogue.resources import OUTSIDE_UID, ROOT_ID, UNASSIGNED, Topic
from headrace.broker.core import Broker
from headrace.broker.handlers.messages import choose
from headrace.broker.partitions.offsets import Place
from headrace.broker.partitions.open_partitions import place_of
from headrace.broker.sessions.authorization import (
    SERVICE,
    current_user,
    may_somewhere,
    require_topic,
)
from headrace.broker.sessions.sessions import Session
from headrace.broker.windows import publishers as p
from headrace.broker.windows.window_topics import Event, WindowTopic
from headrace.errors import InvalidArgumentError, UnauthorizedError
from headrace.wire.iggy.commands import Permission
from headrace.wire.iggy.messages import extensions as m
from headrace.wire.iggy.messages.system import Empty
from headrace.wire.iggy.refusals import NotWindowTopicError, PartitionNotFoundError


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
    """Wait until every publisher closed a window after the one asked for."""
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


def _extent(run: p.OffsetRun) -> tuple[int, int, int]:
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
    for partition in topic.partitions:
        if partition.stream_id == UNASSIGNED:
            continue
        log = await broker.open_partition(topic, partition)
        if not log.committed:
            continue
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
        if offset is not None:
            await broker.trim(topic, partition, offset)


def _runs(broker: Broker, topic: Topic) -> list[p.OffsetRun]:
    if topic.uid not in broker.publishing.state.topics:
        return []
    members = broker.publishing.state.members(topic.uid)
    return [run for member in members for closed in member.closed for run in closed.runs]


PIPELINE_PREFIX = "pipeline/"
"""How the names of publishers begin that belong to edges between containers."""


async def open_publisher(
    broker: Broker, session: Session, request: m.OpenPublisher
) -> m.PublisherOpened:
    owner = current_user(broker, session).uid
    if request.epoch < 0:
        raise InvalidArgumentError("epochs count from 1", epoch=request.epoch)
    _check_may_open(broker, session, request.name)
    opened = await broker.publishing.open(
        request.name, request.run, owner, request.epoch, heir_of=_bequeathed(broker, owner)
    )
    return m.PublisherOpened(publisher=opened.uid, epoch=opened.epoch, last_window=opened.last)


async def stage(broker: Broker, session: Session, request: m.Stage) -> m.Staged:
    messages = request.messages
    topic = broker.catalogue.topic(messages.stream, messages.topic)
    partition = choose(broker, topic, messages.partitioning)
    _check_owner(broker, session, request.head.publisher)
    span = await broker.publishing.stage(
        request.head.publisher,
        epoch=request.head.epoch,
        window=request.head.window,
        place=place_of(topic, partition),
        area=messages.area,
        starts=messages.starts,
    )
    return m.Staged(span=m.StagedSpan(span.staged, span.count, *span.place))


async def close_window(broker: Broker, session: Session, request: m.CloseWindow) -> m.WindowClosed:
    _check_owner(broker, session, request.publisher)
    name = broker.publishing.state.get(request.publisher).name
    _check_topic(broker, session, name)
    if session.grant is not None and not session.grant.may_close:
        raise UnauthorizedError("a task stages rows, its driver publishes them", name=name)
    if len(request.index) > p.INDEX_BYTES_MAX:
        raise InvalidArgumentError("an index is too long", limit=p.INDEX_BYTES_MAX)
    manifest = [
        p.StagedBatch(s.staged, s.count, Place(s.topic_uid, s.partition, s.generation))
        for s in request.manifest
    ]
    for topic_uid in {span.place.topic_uid for span in manifest}:
        require_topic(broker, session, Permission.SEND, topic_uid)
    closed, already = await broker.publishing.close_window(
        request.publisher,
        epoch=request.epoch,
        previous=request.previous,
        window=request.window,
        manifest=manifest,
        digest=request.digest,
        last=request.last,
        rows=request.rows,
        index=request.index,
    )
    return m.WindowClosed(
        window=closed.window,
        last_window=broker.publishing.state.get(request.publisher).last,
        already=already,
        runs=tuple(m.PublishedRun(*run.place, run.first, run.count) for run in closed.runs),
    )


async def get_publishing(broker: Broker, session: Session, request: Empty) -> m.PublishingFigures:
    return m.PublishingFigures(
        publishers_max=broker.settings.publishers_max,
        staged_ms_max=broker.settings.staged_ms_max,
        **broker.publishing.statistics(),
    )


def _check_owner(broker: Broker, session: Session, publisher: int) -> None:
    """Numbers are easily guessed; what is behind them belongs to who opened it."""
    uid, state = current_user(broker, session).uid, broker.publishing.state
    state.check_owner(publisher, {uid, *_bequeathed(broker, uid)})
    if session.grant is not None and not session.grant.may_publish(state.get(publisher).name):
        raise UnauthorizedError("the publisher is another's", publisher=publisher)


def _bequeathed(broker: Broker, uid: int) -> tuple[int, ...]:
    """Whose publishers a container goes on with: before containers had grants of their own, they
    published as root."""
    if uid < OUTSIDE_UID:
        return ()
    root = broker.catalogue.find_user(ROOT_ID)
    return (SERVICE.uid, *(() if root is None else (root.uid,)))


def _check_may_open(broker: Broker, session: Session, name: str) -> None:
    """A publisher is for who may write: to the topic that its name says, else to any. Which topics
    it is for in the end, STAGE and CLOSE ask again."""
    user = current_user(broker, session)
    _check_topic(broker, session, name)
    if session.grant is not None:
        if not session.grant.may_publish(name):
            raise UnauthorizedError("the grant is for other publishers", name=name)
        return
    of_pipeline = name.startswith(PIPELINE_PREFIX) and user is not SERVICE
    if of_pipeline and broker.publishing.state.topics.of(name) is None:
        raise UnauthorizedError("names of this kind are for pipelines", name=name)
    if not may_somewhere(user.permissions, Permission.SEND):
        raise UnauthorizedError(user=user.name, action=Permission.SEND.value)
    stream, slash, topic = name.partition("/")
    found = broker.catalogue.find_topic(stream, topic) if slash else None
    if found is not None:
        require_topic(broker, session, Permission.SEND, found.uid)


def _check_topic(broker: Broker, session: Session, name: str) -> None:
    """Who publishes a window topic holds up its readers, even with windows that are empty."""
    topic = broker.publishing.state.topics.of(name)
    if topic is not None:
        require_topic(broker, session, Permission.SEND, topic.uid)
