"""SEND, POLL and FLUSH: the hot path.

Consumers send the same poll over and over but for its offset, so what its first bytes mean is kept
with the session (`KnownPoll`): which partition, for whom, and that the user may. It holds until
anything in the catalogue changes or the session's user does. Such a poll whose messages are in
memory is answered at once, without a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from headrace.broker.catalogue.groups import Member
from headrace.broker.catalogue.resources import Partition, Topic
from headrace.broker.catalogue.state import group_of, partition_of
from headrace.broker.core import Broker
from headrace.broker.errors import (
    InvalidMessagesCountError,
    NoPartitionsError,
    NotWindowTopicError,
    PartitionNotOwnedError,
)
from headrace.broker.partitions.offsets import Entry, Kind, Place, Reader
from headrace.broker.partitions.open_partitions import place_of
from headrace.broker.partitions.partition import PartitionLog, Slice
from headrace.broker.sessions.request_dedup import REQUEST, Request
from headrace.broker.sessions.sessions import KnownPoll, Session
from headrace.runtime.interfaces import Buffer
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
from headrace.wire.iggy.vsr.frames import Lent

_OFFSET = int(StrategyKind.OFFSET)
_NEXT = int(StrategyKind.NEXT)
_NOBODY = Consumer.single()  # what a poll says that names no consumer


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


async def poll_messages(
    broker: Broker, session: Session, request: m.PollMessages
) -> m.PolledMessages:
    if request.count == 0 and session.rules.polls_need_count:
        raise InvalidMessagesCountError(count=0)
    topic = broker.catalogue.topic(request.stream, request.topic)
    resolved = resolve(broker, session, topic, request.consumer, member=True)
    partition = _polled_partition(session, topic, resolved, request.partition)
    if partition is None:
        return m.PolledMessages(m.NOWHERE, 0, 0)
    log = broker.partitions.peek(topic, partition)
    if log is None:
        log = await broker.partitions.find(topic, partition)
    if log is None:
        return m.PolledMessages(partition.id, 0, 0)
    if session.spoken.undecided:
        nobody = request.consumer == _NOBODY
        if not broker.sessions.on_poll(session, nobody=nobody):
            return m.PolledMessages(partition.id, log.current_offset, 0)
    place = place_of(topic, partition)
    if resolved.member is None:
        _remember(broker, session, partition.id, log, place, resolved.reader)
    if request.auto_commit:
        found = await _read_and_commit(broker, log, request, place, resolved.reader)
    else:
        stored = broker.offsets.get(place, resolved.reader)
        found = await _read(broker, log, request.strategy, request.count, stored)
    broker.traffic.polled_messages += found.count
    broker.traffic.polled_bytes += found.bytes
    return polled(broker, session.dialect, log, partition.id, found)


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
) -> Slice:
    """One at a time per reader: a group's partition may have just moved to another member, which
    must go on behind what the one before it is being given."""
    async with broker.committing.hold((place, reader)):
        stored = broker.offsets.get(place, reader)
        found = await _read(broker, log, request.strategy, request.count, stored)
        if found.count:
            # Durable before the answer: what was handed out as consumed stays consumed.
            await broker.offset_writer.store([Entry(place, reader, found.last)])
        return found


async def _read(
    broker: Broker, log: PartitionLog, strategy: Strategy, count: int, stored: int | None
) -> Slice:
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
    return await log.read(offset, count, bytes_max=broker.settings.poll_bytes_max, from_us=from_us)


# -- a poll like the last one


def _remember(
    broker: Broker,
    session: Session,
    partition: int,
    log: PartitionLog,
    place: Place,
    reader: Reader,
) -> None:
    """The session's last poll was authorised and is answered from here."""
    if session.last_poll is not None and session.grant is None:  # a grant ends at its time
        dialect, front = session.last_poll
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
    broker: Broker, session: Session, payload: memoryview
) -> Sequence[Buffer] | None:
    """None: it is not that poll, or it needs more than memory; ask the long way."""
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
