"""Connections that move between the workers of a machine, with all that their clients could notice.

A plain TCP connection goes between two of its requests: the descriptor and the state of its session
to the other worker, which goes on with both. When that fails the connection stays. Either way the
client notices nothing. When nobody can know whether the other one took it, the connection ends.

What travels is the session as it is then. A client keeps its id, by which groups know their
members: the worker that gave out the id does not give it to anybody else meanwhile, and the
coordinator learns from the new worker where a member is. A worker takes nobody if it knows less of
the catalogue than the one before, so that a client reads what it wrote; and a login whose user was
removed, or has another password there, is over.
"""

from __future__ import annotations

import hashlib

import msgspec

from headrace.broker.core import Broker
from headrace.broker.sessions.request_dedup import RequestOutcome
from headrace.broker.sessions.sessions import Login, Session
from headrace.broker.shards import messages as m
from headrace.broker.shards.assignment import NOBODY
from headrace.broker.shards.forwarding import decode_grant, encode_grant
from headrace.broker.shards.moving import Trail
from headrace.broker.shards.worker import Worker
from headrace.errors import RemoteProtocolError, UnavailableError
from headrace.net.iggy_moving import Begun
from headrace.net.iggy_server import IggyServer
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Connection, MovableConnection, OnConnection
from headrace.wire.iggy.detection import SpokenDialect, SpokenState
from headrace.wire.iggy.messages.system import TransportKind

log = get_logger(__name__)


class LastSend(msgspec.Struct, frozen=True, array_like=True):
    """See `RequestOutcome`: a SEND that was applied."""

    fingerprint: bytes
    answer: bytes | None


class MemberPosition(msgspec.Struct, frozen=True, array_like=True):
    group_uid: int
    position: tuple[int, int | None]


class MovedSession(msgspec.Struct, frozen=True, array_like=True):
    """A session on its way. Times are ages in seconds: clocks of processes may differ."""

    client_id: int
    home: str
    """The worker that gave out the client id."""
    address: str
    transport: int
    opened: float
    seen: float
    user_uid: int | None
    password: bytes
    """A digest of what the user's password was stored as; empty of who has none."""
    login: str
    grant: bytes
    presented: bytes
    login_failures: int
    behalf: str
    spoken: SpokenState
    has_heads: bool
    client: bytes
    number: int
    last_request: int
    last_send: LastSend | None
    groups: list[MemberPosition]
    tried: float
    pause: float
    catalogue: int
    """The catalogue's events below this offset were known where the session comes from."""


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(MovedSession)


class MovingSessions:
    """Gives sessions to other workers, and takes theirs. The `mover` of the broker's server."""

    def __init__(self, broker: Broker, worker: Worker) -> None:
        self._broker = broker
        self._worker = worker
        self._monotonic = broker.runtime.clock.monotonic
        self.given = 0
        self.taken = 0
        broker.sessions.is_member = lambda client_id: bool(broker.membership.groups_of(client_id))

    # -- away from here

    def is_due(self, session: Session) -> bool:
        trail = session.trail
        return trail is not None and trail.destination(self._monotonic()) != NOBODY

    async def move(
        self, session: Session, connection: Connection, unfinished: bytes, *, has_heads: bool
    ) -> Connection | None:
        trail, now = session.trail, self._monotonic()
        assert trail is not None, "it was due"
        to = trail.destination(now)
        trail.on_try(now)
        catalogue = self._worker.known_offset
        if not isinstance(connection, MovableConnection):
            session.trail = None  # TLS: it never moves
            return connection
        if catalogue < 0 or session.stale or session.keeps_login:
            return connection
        head = _encode(self._state(session, trail, has_heads, catalogue))
        try:
            kept = await self._worker.peers.links.move(to, connection, head, unfinished)
        except UnavailableError as error:
            log.info("connection not moved", client=session.client_id, reason=str(error))
            return connection
        if kept is None:
            self.given += 1
            self._broker.sessions.give_away(session)
            log.info("connection moved", client=session.client_id, to=to)
        return kept

    def _state(
        self, session: Session, trail: Trail, has_heads: bool, catalogue: int
    ) -> MovedSession:
        now, last_send, client_id = self._monotonic(), session.last_send, session.client_id
        membership = self._broker.membership
        return MovedSession(
            client_id=client_id,
            home=session.home or self._worker.peers.me,
            address=session.address,
            transport=int(session.transport),
            opened=now - session.opened,
            seen=now - session.seen,
            user_uid=session.user_uid,
            password=self._password(session.user_uid),
            login=session.login.value,
            grant=encode_grant(session.grant),
            presented=encode_grant(session.presented),
            login_failures=session.login_failures,
            behalf=session.behalf,
            spoken=session.spoken.state(),
            has_heads=has_heads,
            client=session.client,
            number=session.number,
            last_request=session.last_request,
            last_send=None
            if last_send is None or not last_send.done or last_send.failed
            else LastSend(last_send.fingerprint, last_send.answer),
            groups=[
                MemberPosition(uid, membership.member(uid, client_id).position())
                for uid in membership.groups_of(client_id)
            ],
            tried=now - trail.tried,
            pause=trail.pause,
            catalogue=catalogue,
        )

    def _password(self, user_uid: int | None) -> bytes:
        user = None if user_uid is None else self._broker.catalogue.user_by_uid(user_uid)
        if user is None or not user.active:
            return b""
        return hashlib.blake2b(user.password_hash.encode(), digest_size=16).digest()

    # -- to here

    def on_move(self, server: IggyServer[Session], peer: str, head: bytes) -> OnConnection:
        """What serves a connection that comes with this head. UnavailableError: it stays there."""
        try:
            state = _decoder.decode(head)
        except msgspec.MsgspecError as error:
            raise RemoteProtocolError("no session came with a connection", peer=peer) from error
        if server.is_full or not self._worker.ready.is_set():
            raise UnavailableError("connections are not taken here")
        if self._worker.known_offset < state.catalogue:
            raise UnavailableError("the catalogue is not known as far")
        joined = self._broker.membership.groups_of(state.client_id)
        if any(each.group_uid not in joined for each in state.groups):
            raise UnavailableError("its groups are not known here")
        if self._broker.sessions.get(state.client_id) is not None:
            raise UnavailableError("another client has its id")

        async def serve(connection: Connection) -> None:
            opened: list[Session] = []

            def open_session(_: Connection) -> Session:
                opened.append(self._take(state))
                return opened[0]

            await server.serve(connection, Begun(open_session, state.has_heads))
            if not opened:  # no room after all
                self._broker.on_client_gone(state.client_id)

        return serve

    def _take(self, state: MovedSession) -> Session:
        broker, now = self._broker, self._monotonic()
        session = Session(
            client_id=state.client_id,
            address=state.address,
            spoken=SpokenDialect.of(state.spoken),
            user_uid=state.user_uid,
            grant=decode_grant(state.grant),
            presented=decode_grant(state.presented),
            login=Login(state.login),
            transport=TransportKind(state.transport),
            opened=now - state.opened,
            seen=now - state.seen,
            client=state.client,
            number=state.number,
            last_request=state.last_request,
            login_failures=state.login_failures,
            behalf=state.behalf,
            home="" if state.home == self._worker.peers.me else state.home,
            trail=Trail(now - state.tried, state.pause),
        )
        if state.last_send is not None:
            session.last_send = RequestOutcome(
                state.last_send.fingerprint, state.last_send.answer, done=True
            )
        broker.sessions.take(session)
        joined = broker.membership.groups_of(state.client_id)
        for each in state.groups:
            if each.group_uid in joined:
                broker.membership.member(each.group_uid, state.client_id).resume(each.position)
        self._worker.tell_moved(session)
        if self._password(state.user_uid) != state.password:
            broker.logout(session)  # meanwhile it was removed, or its password changed
        self.taken += 1
        return session

    def on_closed(self, session: Session) -> None:
        """Its id may be given out again, by who did so before."""
        if session.home:
            self._worker.peers.links.notify(session.home, m.encode(m.Ended(session.client_id)))
