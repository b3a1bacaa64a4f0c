"""Publishing windows: commands 9001 to 9003, and 9011."""

from __future__ import annotations

from headrace.broker.catalogue.permissions import may_somewhere
from headrace.broker.catalogue.principals import OUTSIDE_UID, SERVICE
from headrace.broker.catalogue.resources import ROOT_ID
from headrace.broker.core import Broker
from headrace.broker.handlers.messages import choose
from headrace.broker.partitions.offsets import Place
from headrace.broker.partitions.open_partitions import place_of
from headrace.broker.sessions.authorization import current_user, require_topic
from headrace.broker.sessions.sessions import Session
from headrace.broker.windows import publishers as p
from headrace.errors import InvalidArgumentError, UnauthorizedError
from headrace.wire.iggy.commands import Permission
from headrace.wire.iggy.messages import extensions as m
from headrace.wire.iggy.messages.system import Empty

PIPELINE_PREFIX = "pipeline/"
"""Of the publishers of edges between containers."""


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
        p.Span(s.staged, s.count, Place(s.topic_uid, s.partition, s.generation))
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
