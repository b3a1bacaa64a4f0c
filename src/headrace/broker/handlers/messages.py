"""SEND, POLL and FLUSH: the hot path.

Consumers send the same poll over and over but for its offset, so what its first bytes mean is kept
with the session (`KnownPoll`): which partition, for whom, and that the user may. It holds until
anything in the catalogue changes or the session's user does. Such a poll whose messages are in
memory is answered at once, without a task.

A poll that finds nothing is held until there is something, for a while (`poll/held_polls.py`). Then
it is asked anew, as if it had just come: its user, topic or part of a group may be others by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import xxhash

from headrace.broker.catalogue.groups import Member
from headrace.broker.catalogue.resources import Partition, Topic
from headrace.broker.catalogue.state import group_of, partition_of
from headrace.broker.core import Broker
from headrace.broker.partitions.offsets import Kind, Place, Reader, StoredOffset
from headrace.broker.partitions.open_partitions import place_of
from headrace.broker.partitions.partition import PartitionLog, Slice
from headrace.broker.poll.held_polls import Watch
from headrace.broker.sessions.authorization import authorize
from headrace.broker.sessions.request_dedup import REQUEST, Request
from headrace.broker.sessions.sessions import KnownPoll, Session
from headrace.runtime.interfaces import Buffer
from headrace.wire.iggy.commands import POLL_MESSAGES
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.messages import messages as m
from headrace.wire.iggy.primitives import (
    Consumer,
    ConsumerKind,
    Partitioning,
    PartitioningKind,
    Strategy,
    StrategyKind,
)
from headrace.wire.iggy.refusals import (
    InvalidMessagesCountError,
    NoPartitionsError,
    NotWindowTopicError,
    PartitionNotOwnedError,
    StaleSessionError,
)
from headrace.wire.iggy.vsr.frames import Lent

_OFFSET = int(StrategyKind.OFFSET)
_NEXT = int(StrategyKind.NEXT)
_NOBODY = Consumer.single()  # what a poll says that names no consumer
_VISITS_MAX = 64  # of partitions, for one poll of a member that names none


# -- SEND


async def send_messages(
    broker: Broker, session: Session, request: m.SendMessages
) -> m.SentMessages | None:
    if session.spoken.dialect is Dialect.C:
        answer = await send_numbered(broker, request, REQUEST.get())
        return m.SentMessages.decode(answer, session.dialect)
    topic, partition = _destination(broker, request)
    log = broker.partitions.peek(topic, partition)
    if log is None:
        log = await broker.partitions.get(topic, partition)
    await log.append(request.area, request.starts)
    broker.traffic.sent_messages += request.count
    broker.traffic.sent_bytes += len(request.area)
    return None


async def send_numbered(
    broker: Broker, request: m.SendMessages, numbered: Request | None, lent: Lent | None = None
) -> bytes:
    """A SEND of dialect C, whose answer says where the messages are. The memory it came in may be
    kept if it is given."""
    topic, partition = _destination(broker, request)
    log = broker.partitions.peek(topic, partition)
    if log is None:
        log = await broker.partitions.get(topic, partition)
    first = await log.append(request.area, request.starts, numbered, framed=request.framed)
    broker.traffic.sent_messages += request.count
    broker.traffic.sent_bytes += len(request.area)
    replies = broker.poll_caches.replies
    replies.on_sent(len(request.area))
    if request.frames is not None:
        replies.keep(log.serial, partition.id, request.area, request.frames, lent)
    stream = broker.catalogue.stream_by_uid(topic.stream_uid)
    stream_id = 0 if stream is None else stream.id  # deleted meanwhile
    return m.encode_sent(stream_id, topic.id, partition.id, first)


def _destination(broker: Broker, request: m.SendMessages) -> tuple[Topic, Partition]:
    topic = broker.catalogue.topic(request.stream, request.topic)
    if topic.uid in broker.publishing.state.topics.by_uid:
        raise NotWindowTopicError("its publishers alone write to it", topic=topic.name)
    return topic, choose(broker, topic, request.partitioning)


def choose(broker: Broker, topic: Topic, partitioning: Partitioning) -> Partition:
    """A whole batch goes to one partition."""
    count = len(topic.partitions)
    if count == 0:
        raise NoPartitionsError(topic=topic.name)
    if partitioning.kind is PartitioningKind.PARTITION:
        return partition_of(topic, partitioning.partition)
    if partitioning.kind is PartitioningKind.KEY:
        return topic.partitions[xxhash.xxh32_intdigest(partitioning.key) % count]
    turn = broker.rotation.get(topic.uid, 0)
    broker.rotation[topic.uid] = turn + 1
    return topic.partitions[turn % count]


# -- POLL


@dataclass(slots=True)
class _Looked:
    """What a poll would be answered with now, and what it may wait for if that is nothing."""

    answer: m.PolledMessages
    watches: list[Watch] = field(default_factory=list)
    may_wait: bool = True


async def poll_messages(
    broker: Broker, session: Session, request: m.PollMessages
) -> m.PolledMessages:
    if request.count == 0 and session.rules.polls_need_count:
        raise InvalidMessagesCountError(count=0)
    looked = await _look(broker, session, request)
    may_wait = looked.may_wait and request.count and broker.held_polls.holds
    if looked.answer.count or not may_wait or session.is_pressed:
        return looked.answer
    return await _hold(broker, session, request, looked)


async def _hold(
    broker: Broker, session: Session, request: m.PollMessages, looked: _Looked
) -> m.PolledMessages:
    """Nothing is locked meanwhile, and nothing that was looked up before counts after."""
    monotonic = broker.runtime.clock.monotonic
    held = broker.held_polls.begin()
    session.held_polls.add(held)
    try:
        while not looked.answer.count:
            if not _is_there(broker, looked.watches):
                began = monotonic()
                await held.wait(looked.watches)
                session.held_seconds += monotonic() - began
            if held.is_over:
                break
            if session.stale:
                raise StaleSessionError(client=session.client_id)
            authorize(broker, session, POLL_MESSAGES, request)
            looked = await _look(broker, session, request)
    finally:
        session.held_polls.discard(held)
        held.drop()
    return looked.answer


def _is_there(broker: Broker, watches: Iterable[Watch]) -> bool:
    """Whether something came while others of the places were looked at."""
    return any(broker.partitions.committed(place) > offset for place, offset in watches)


async def _look(broker: Broker, session: Session, request: m.PollMessages) -> _Looked:
    """Of a member that names no partition, look at each that it has: it waits only if all of them
    are empty, or the full ones would wait for the empty ones."""
    looked = await _look_at_one(broker, session, request)
    if request.partition is not None or request.consumer.kind is ConsumerKind.CONSUMER:
        return looked
    watches = {watch.place: watch for watch in looked.watches}
    for _ in range(_VISITS_MAX - 1):
        if looked.answer.count or not looked.may_wait:
            break
        looked = await _look_at_one(broker, session, request)
        seen = len(watches)
        for watch in looked.watches:
            watches.setdefault(watch.place, watch)
        if len(watches) == seen:
            break  # all of them were looked at
    looked.watches = list(watches.values())
    return looked


async def _look_at_one(broker: Broker, session: Session, request: m.PollMessages) -> _Looked:
    asked = session.last_poll  # another request of the session may come while this one waits
    topic = broker.catalogue.topic(request.stream, request.topic)
    resolved = resolve(broker, session, topic, request.consumer, member=True)
    partition = _polled_partition(session, topic, resolved, request.partition)
    watches = []
    if resolved.member is not None:
        watches.append(Watch(resolved.reader.consumer, 0))  # other partitions may become its own
    if partition is None:
        return _Looked(m.PolledMessages(m.NOWHERE, 0, 0), watches)
    place = place_of(topic, partition)
    log = broker.partitions.peek(topic, partition)
    if log is None:
        log = await broker.partitions.find(topic, partition)
    if log is None:
        watches.append(Watch(place, 0))
        return _Looked(m.PolledMessages(partition.id, 0, 0), watches)
    if session.spoken.undecided:
        nobody = request.consumer == _NOBODY
        if not broker.sessions.on_poll(session, nobody=nobody):
            nothing = m.PolledMessages(partition.id, log.current_offset, 0)
            return _Looked(nothing, may_wait=False)  # its SDK shows what it is by asking again
    if resolved.member is None:
        _remember(broker, session, asked, partition.id, log, place, resolved.reader)
    committed = log.committed
    if request.auto_commit:
        found, offset = await _read_and_commit(broker, log, request, place, resolved.reader)
    else:
        stored = broker.offsets.get(place, resolved.reader)
        found, offset = await _read(broker, log, request.strategy, request.count, stored)
    broker.traffic.polled_messages += found.count
    broker.traffic.polled_bytes += found.bytes
    # What is there already was not what was asked for: only something new can be.
    watches.append(Watch(place, max(offset, committed)))
    return _Looked(polled(broker, session.dialect, log, partition.id, found), watches)


def polled(
    broker: Broker, dialect: Dialect, log: PartitionLog, partition: int, found: Slice
) -> m.PolledMessages:
    """The reply, with what its dialect needs beside the stored messages."""
    if dialect is Dialect.C:
        batches = broker.poll_caches.replies.batches(log.serial, partition, found)
        return m.PolledMessages(partition, log.current_offset, found.count, (), batches)
    slices = _with_checksums(broker, log, found)
    return m.PolledMessages(partition, log.current_offset, found.count, slices)


def _with_checksums(broker: Broker, log: PartitionLog, found: Slice) -> Sequence[Buffer]:
    return broker.poll_caches.replies.summed(log.serial, found) if found.unsummed else found.pieces


def _polled_partition(
    session: Session, topic: Topic, resolved: Resolved, partition: int | None
) -> Partition | None:
    """None: a member that has nothing to read there."""
    member = resolved.member
    if member is None:
        return partition_of(topic, partition or 0)
    if partition is None:
        partition = member.next_partition()
        if partition is None:
            return None
    elif (
        partition_of(topic, partition).id not in member.partitions
        and not session.rules.members_poll_any
    ):
        if session.rules.refuses_unowned:
            raise PartitionNotOwnedError(partition=partition)
        return None
    return partition_of(topic, partition)


async def _read_and_commit(
    broker: Broker, log: PartitionLog, request: m.PollMessages, place: Place, reader: Reader
) -> tuple[Slice, int]:
    """One at a time per reader: a group's partition may have just moved to another member, which
    must go on behind what the one before it is being given."""
    async with broker.committing.hold((place, reader)):
        stored = broker.offsets.get(place, reader)
        found, offset = await _read(broker, log, request.strategy, request.count, stored)
        if found.count:
            # Durable before the answer: what was handed out as consumed stays consumed.
            await broker.offset_logs.store([StoredOffset(place, reader, found.last)])
        return found, offset


async def _read(
    broker: Broker, log: PartitionLog, strategy: Strategy, count: int, stored: int | None
) -> tuple[Slice, int]:
    """The messages, and the offset they were looked for from."""
    offset, from_us = strategy.value, 0
    match strategy.kind:
        case StrategyKind.FIRST:
            offset = log.start_offset
        case StrategyKind.LAST:
            offset = max(log.committed - count, log.start_offset)
        case StrategyKind.NEXT:
            offset = log.start_offset if stored is None else stored + 1
        case StrategyKind.TIMESTAMP:
            from_us = strategy.value
            offset = await log.offset_at(from_us)
        case StrategyKind.OFFSET:
            pass
    bytes_max = broker.settings.poll_bytes_max
    return await log.read(offset, count, bytes_max=bytes_max, from_us=from_us), offset


# -- a poll like the last one


def _remember(
    broker: Broker,
    session: Session,
    asked: tuple[Dialect, bytes] | None,
    partition: int,
    log: PartitionLog,
    place: Place,
    reader: Reader,
) -> None:
    """The poll that was `asked` is authorised and answered from here."""
    if asked is not None and session.grant is None:  # a grant ends at its time
        dialect, front = asked
        session.known_poll = KnownPoll(
            front,
            dialect,
            session.user_uid,
            broker.catalogue.version,
            partition,
            log,
            place,
            reader,
        )


def answer_at_once(
    broker: Broker, session: Session, payload: memoryview, *, may_wait: bool = False
) -> Sequence[Buffer] | Watch | None:
    """The reply, or what there is to wait for where the reply may. None: it is not that poll, or it
    needs more than memory; ask the long way."""
    known = session.known_poll
    front = len(payload) - m.POLL_TAIL_BYTES
    if (
        known is None
        or front <= 0
        or known.front != payload[:front].tobytes()
        or known.catalogue_version != broker.catalogue.version
        or known.user_uid != session.user_uid
        or known.dialect is not session.spoken.dialect
        or known.log.failed
    ):
        return None
    kind, value, count, auto_commit = m.POLL_TAIL.unpack_from(payload, front)
    if auto_commit or not count:
        return None
    log = known.log
    if kind == _NEXT:
        stored = broker.offsets.get(known.place, known.reader)
        value = log.start_offset if stored is None else stored + 1
    elif kind != _OFFSET:
        return None
    found = log.read_kept(value, count, bytes_max=broker.settings.poll_bytes_max)
    if found is None:
        return None
    if not found.count and may_wait:
        return Watch(known.place, max(value, log.committed))
    broker.traffic.polled_messages += found.count
    broker.traffic.polled_bytes += found.bytes
    if known.dialect is Dialect.C:
        return [
            m.POLL_HEAD.pack(known.partition, log.current_offset, found.count),
            *broker.poll_caches.replies.batches(log.serial, known.partition, found),
        ]
    slices = _with_checksums(broker, log, found)
    return m.encode_poll_response(
        known.partition, log.current_offset, found.count, slices, known.dialect
    )


# -- who polls


@dataclass(frozen=True, slots=True)
class Resolved:
    reader: Reader
    member: Member | None = None
    """Set for a consumer group: the caller's place in it."""


def consumer_key(consumer: Consumer) -> int:
    """A name counts as the hash of its bytes, so name and hash are the same consumer."""
    if isinstance(consumer.id, int):
        return consumer.id
    return xxhash.xxh32_intdigest(consumer.id.encode())


def resolve(
    broker: Broker, session: Session, topic: Topic, consumer: Consumer, *, member: bool
) -> Resolved:
    """`member` asks for membership: MemberNotFoundError when the caller has none."""
    if consumer.kind is ConsumerKind.CONSUMER:
        return Resolved(Reader(Kind.CONSUMER, consumer_key(consumer)))
    group = group_of(topic, consumer.id)
    reader = Reader(Kind.GROUP, group.uid)
    if not member:
        return Resolved(reader)
    return Resolved(reader, broker.membership.member(group.uid, session.client_id))


# -- FLUSH


async def flush(broker: Broker, session: Session, request: m.FlushUnsavedBuffer) -> None:
    topic = broker.catalogue.topic(request.stream, request.topic)
    log = await broker.partitions.find(topic, partition_of(topic, request.partition))
    if log is not None:
        await log.flush()
        if request.fsync:
            await log.sync()
