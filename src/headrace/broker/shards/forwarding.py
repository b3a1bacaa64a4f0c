"""Requests that another worker must answer, passed on as they came.

What changes the catalogue, groups or publishers is the coordinator's. What is about one partition
is its leader's. Everything else this worker answers from its own copy of the catalogue. Where a
request leaves open which partition it means (a balanced SEND, a member's POLL), it is chosen here,
by who knows the connection, and told with the request.

A worker that does not lead what it was asked for does nothing and says so; the request then goes to
who leads it, as soon as that is known. Whoever asked waits for that, at most `leader_wait_ms`. When
a link breaks before the answer, a request that may be done twice (a read, or one whose number its
leader knows) is passed on again; of any other the client is told that nobody knows its outcome.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import xxhash

from headrace.broker.catalogue.resources import Partition, Topic
from headrace.broker.catalogue.state import group_of, partition_of
from headrace.broker.core import Broker
from headrace.broker.handlers.messages import choose
from headrace.broker.sessions.sessions import Login, Session
from headrace.broker.shards import messages as p
from headrace.broker.shards.assignment import NOBODY
from headrace.broker.shards.led import LeadsShards
from headrace.broker.shards.peers import Peers
from headrace.errors import (
    HeadraceError,
    NotLeaderError,
    OutcomeUnknownError,
    RequestError,
    UnavailableError,
)
from headrace.net.credentials import Grant, Scope
from headrace.runtime.interfaces import Buffer
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.detection import SpokenDialect
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.messages.messages import PollMessages, SendMessages, SendTarget
from headrace.wire.iggy.messages.system import TransportKind
from headrace.wire.iggy.primitives import ConsumerKind, Partitioning, PartitioningKind
from headrace.wire.iggy.refusals import GroupNotFoundError, MemberNotFoundError

_WAIT_SECONDS = 0.05
_ANSWER_SECONDS = 600.0
"""A worker that lives may take as long as it takes, as for clients of its own: one that is dead is
known by its link."""
_SESSIONS_MAX = 8192

COORDINATED = frozenset(
    row.code
    for row in (
        c.GET_STATS,
        c.GET_CLIENT,
        c.GET_CLIENTS,
        c.CREATE_USER,
        c.DELETE_USER,
        c.UPDATE_USER,
        c.UPDATE_PERMISSIONS,
        c.CHANGE_PASSWORD,
        c.CREATE_PERSONAL_ACCESS_TOKEN,
        c.DELETE_PERSONAL_ACCESS_TOKEN,
        c.CREATE_STREAM,
        c.DELETE_STREAM,
        c.UPDATE_STREAM,
        c.PURGE_STREAM,
        c.CREATE_TOPIC,
        c.DELETE_TOPIC,
        c.UPDATE_TOPIC,
        c.PURGE_TOPIC,
        c.CREATE_PARTITIONS,
        c.DELETE_PARTITIONS,
        c.DELETE_SEGMENTS,  # what an unfinished window needs is known there alone
        c.CREATE_CONSUMER_GROUP,
        c.DELETE_CONSUMER_GROUP,
        c.JOIN_CONSUMER_GROUP,
        c.LEAVE_CONSUMER_GROUP,
        c.OPEN_PUBLISHER,
        c.STAGE,
        c.CLOSE,
        c.LIST_WINDOWS,
        c.SET_PUBLISHERS,
        c.RESET_AFTER,
        c.PURGE_TO,
        c.READ_TICKET,
        c.GET_PUBLISHING,
        c.GET_SHARDS,
        c.MOVE_SHARD,
    )
)
OF_PARTITIONS = frozenset(
    row.code
    for row in (
        c.SEND_MESSAGES,
        c.POLL_MESSAGES,
        c.FLUSH_UNSAVED_BUFFER,
        c.GET_CONSUMER_OFFSET,
        c.STORE_CONSUMER_OFFSET,
        c.DELETE_CONSUMER_OFFSET,
    )
)
_READS = frozenset(
    row.code
    for row in (
        c.GET_STATS,
        c.GET_CLIENT,
        c.GET_CLIENTS,
        c.GET_CONSUMER_OFFSET,
        c.FLUSH_UNSAVED_BUFFER,
        c.LIST_WINDOWS,
        c.READ_TICKET,
        c.GET_PUBLISHING,
    )
)


class ForwardedError(HeadraceError):
    """Another worker refused the request, with a status for the client."""

    def __init__(self, status: int) -> None:
        super().__init__("another worker refused it", status=status)
        self.status = status


class LeaseOverError(NotLeaderError):
    """The lease ran out after the request was carried out, or begun."""


class Patience:
    """The time that a request may wait for somebody to lead what it is about."""

    def __init__(self, peers: Peers, monotonic: Callable[[], float], seconds: float) -> None:
        self._peers = peers
        self._monotonic = monotonic
        self._deadline = monotonic() + seconds

    async def wait(self) -> None:
        """Until something else is known, or for a moment; NotLeaderError when the time is up."""
        if self._monotonic() > self._deadline:
            raise NotLeaderError("nobody leads what was asked for")
        await self._peers.wait_changed(_WAIT_SECONDS)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request is answered: `worker` is NOBODY while nobody leads, and `here` means us."""

    here: bool
    worker: str = NOBODY
    partition: int = -1
    shard: int = -1


_HERE = Route(True)


class Forwarding:
    def __init__(self, broker: Broker, peers: Peers, shards: LeadsShards) -> None:
        self._broker = broker
        self._peers = peers
        self._shards = shards
        self._monotonic = broker.runtime.clock.monotonic

    @property
    def passed_on(self) -> int:
        return self._broker.traffic.requests_passed_on

    # -- where to

    def route(self, session: Session, code: int, request: Any, number: int = -1) -> Route:
        """Of requests that are wrong in themselves: here, where it is said what is wrong."""
        if session.user_uid is None:
            return _HERE
        if code in COORDINATED:
            return self._to_coordinator()
        if code not in OF_PARTITIONS:
            return _HERE
        try:
            partition = self._partition(session, request, number)
        except RequestError:
            return _HERE
        if partition is None:
            return _HERE
        route = self._to_leader(partition.id, partition.shard)
        if session.trail is not None:
            session.trail.on_request(route.worker)
        return route

    def _to_leader(self, partition: int, shard: int) -> Route:
        if self._shards.leads(shard):
            return Route(True, partition=partition)
        leader = self._peers.leader_of(shard)
        # What was told may be older than the loss of a shard.
        worker = NOBODY if leader == self._peers.me else leader
        return Route(False, worker, partition, shard)

    def _to_coordinator(self) -> Route:
        return _HERE if self._peers.coordinates else Route(False, self._peers.coordinator)

    def _partition(self, session: Session, request: Any, number: int) -> Partition | None:
        topic = self._broker.catalogue.topic(request.stream, request.topic)
        if isinstance(request, SendMessages | SendTarget):
            return self._destination(session, topic, request.partitioning, number)
        wanted: int | None = request.partition
        consumer = getattr(request, "consumer", None)
        if wanted is None and consumer is not None and consumer.kind is not ConsumerKind.CONSUMER:
            try:
                group = group_of(topic, consumer.id)
                member = self._broker.membership.member(group.uid, session.client_id)
            except (GroupNotFoundError, MemberNotFoundError):
                return None
            polls = isinstance(request, PollMessages)
            wanted = member.next_partition() if polls else member.current_partition()
            if wanted is None:
                return None
        return partition_of(topic, wanted or 0)

    def _destination(
        self, session: Session, topic: Topic, partitioning: Partitioning, number: int
    ) -> Partition:
        if number >= 0 and partitioning.kind is PartitioningKind.BALANCED and topic.partitions:
            # Sent again, through whichever worker, it must meet what the partition holds of it.
            drawn = xxhash.xxh32_intdigest(f"{session.number}/{number}".encode())
            return topic.partitions[drawn % len(topic.partitions)]
        return choose(self._broker, topic, partitioning)

    # -- passing on

    def patience(self) -> Patience:
        seconds = self._broker.settings.leader_wait_ms / 1000
        return Patience(self._peers, self._monotonic, seconds)

    async def forward(
        self,
        session: Session,
        code: int,
        payload: memoryview,
        route: Route,
        number: int,
        request: Any = None,
    ) -> Sequence[Buffer] | None:
        """The reply of who leads; None when nothing was done, or may be done once more."""
        if route.worker == NOBODY:
            return None
        message = p.Forward(state_of(session), code, route.partition, number)
        try:
            answer, body = await self._peers.exchange(
                route.worker, message, (payload,), seconds=_ANSWER_SECONDS
            )
        except UnavailableError:
            return None  # nothing was asked
        except OutcomeUnknownError:
            if number >= 0 or _is_read(code, request):
                return None
            raise
        if not isinstance(answer, p.Answer):
            return None
        self._broker.traffic.requests_passed_on += 1
        if answer.status:
            raise ForwardedError(answer.status)
        return (body,)


def _is_read(code: int, request: Any) -> bool:
    """Whether nothing is changed by the request, however often it is answered."""
    if isinstance(request, PollMessages):
        return not request.auto_commit
    return code in _READS


def with_partition(request: Any, partition: int) -> Any:
    """The request, about that partition."""
    if partition < 0:
        return request
    if isinstance(request, SendMessages):
        return replace(request, partitioning=Partitioning.to_partition(partition))
    return replace(request, partition=partition)


# -- the session of a request that was passed on


def encode_grant(grant: Grant | None) -> bytes:
    return b"" if grant is None else msgspec.msgpack.encode(grant.scopes)


def decode_grant(data: bytes) -> Grant | None:
    return Grant(msgspec.msgpack.decode(data, type=tuple[Scope, ...])) if data else None


def state_of(session: Session) -> p.SessionState:
    return p.SessionState(
        client_id=session.client_id,
        address=session.address,
        dialect=session.spoken.dialect.value,
        user_uid=session.user_uid,
        login=session.login.value,
        transport=int(session.transport),
        number=session.number,
        client=session.client,
        grant=encode_grant(session.grant),
        behalf=session.behalf,
    )


class ForwardedSessions:
    """What clients of other workers are like, so that their next request finds what was learnt."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[p.SessionState, Session] = OrderedDict()

    def get(self, state: p.SessionState, now: float) -> Session:
        session = self._sessions.get(state)
        if session is None:
            session = self._sessions[state] = _session(state, now)
            if len(self._sessions) > _SESSIONS_MAX:
                self._sessions.popitem(last=False)
        else:
            self._sessions.move_to_end(state)
        return session


def _session(state: p.SessionState, now: float) -> Session:
    spoken = SpokenDialect(Dialect(state.dialect))
    spoken.on_dialect(Dialect(state.dialect))
    return Session(
        client_id=state.client_id,
        address=state.address,
        spoken=spoken,
        user_uid=state.user_uid,
        grant=decode_grant(state.grant),
        login=Login(state.login),
        transport=TransportKind(state.transport),
        opened=now,
        seen=now,
        client=state.client,
        number=state.number,
        behalf=state.behalf,
    )
