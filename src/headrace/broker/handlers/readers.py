"""Whose offset on which partition a request means."""

from __future__ import annotations

from dataclasses import dataclass

import xxhash

from headrace.broker.catalogue.groups import Member
from headrace.broker.catalogue.resources import Topic
from headrace.broker.catalogue.state import group_of
from headrace.broker.core import Broker
from headrace.broker.partitions.offsets import Kind, Reader
from headrace.broker.sessions.sessions import Session
from headrace.wire.iggy.primitives import Consumer, ConsumerKind


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
