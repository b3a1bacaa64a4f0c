"""From a frame to its answer: decode, authenticate, authorise, handle, encode."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import xxhash

from headrace.broker.core import Broker
from headrace.broker.errors import (
    FeatureUnavailableError,
    InvalidSessionError,
    RequestAppliedError,
    StaleSessionError,
)
from headrace.broker.handlers import consumers, extensions, messages, system, topics, users, windows
from headrace.broker.handlers.views import repeat_answer
from headrace.broker.poll.caches import PollCaches
from headrace.broker.sessions import audit
from headrace.broker.sessions.authorization import authorize
from headrace.broker.sessions.dialect_rules import status_of
from headrace.broker.sessions.request_dedup import REQUEST, Applying, Request
from headrace.broker.sessions.sessions import Session
from headrace.broker.traces import TRACED, traced
from headrace.errors import (
    HeadraceError,
    InvalidArgumentError,
    UnauthenticatedError,
    UnauthorizedError,
)
from headrace.observability import tracing
from headrace.observability.logging import REQUEST_ID, get_logger
from headrace.runtime.interfaces import Buffer
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.detection import TELLING, candidates, hint
from headrace.wire.iggy.dialects import CLASSIC, Dialect
from headrace.wire.iggy.errors import DecodeError, Status
from headrace.wire.iggy.messages.messages import (
    POLL_TAIL_BYTES,
    PollMessages,
    SendMessages,
    decode_send,
)
from headrace.wire.iggy.vsr.batch import identity_of_send
from headrace.wire.iggy.vsr.frames import READ, REGISTER, Head

log = get_logger(__name__)

_POLL_BYTES_KEPT_MAX = 1024
_NOTHING: Sequence[Buffer] = ()
_OK = int(Status.OK)
_LOGINS = (c.PRESENT_GRANT.code, c.SPEAK_FOR.code)
_SEND = c.SEND_MESSAGES.code

# Done again they change nothing, or mean the connection they come over.
_REPEATABLE = frozenset(
    row.code for row in (c.LOGOUT_USER, c.JOIN_CONSUMER_GROUP, c.LEAVE_CONSUMER_GROUP)
)

Handler: TypeAlias = Callable[[Broker, Session, Any], Awaitable[Any]]
Routes: TypeAlias = Mapping[int, tuple[c.AnyCommand, Handler]]

HANDLERS: dict[c.AnyCommand, Handler] = {
    c.PING: system.ping,
    c.GET_STATS: system.get_stats,
    c.GET_SNAPSHOT_FILE: system.get_snapshot_file,
    c.GET_CLUSTER_METADATA: system.get_cluster_metadata,
    c.DESCRIBE_OPTIONS: system.describe_options,
    c.GET_ME: system.get_me,
    c.GET_CLIENT: system.get_client,
    c.GET_CLIENTS: system.get_clients,
    c.GET_USER: users.get_user,
    c.GET_USERS: users.get_users,
    c.CREATE_USER: users.create_user,
    c.DELETE_USER: users.delete_user,
    c.UPDATE_USER: users.update_user,
    c.UPDATE_PERMISSIONS: users.update_permissions,
    c.CHANGE_PASSWORD: users.change_password,
    c.LOGIN_USER: users.login_user,
    c.LOGOUT_USER: users.logout_user,
    c.LOGIN_REGISTER: users.login_register,
    c.GET_PERSONAL_ACCESS_TOKENS: users.get_tokens,
    c.CREATE_PERSONAL_ACCESS_TOKEN: users.create_token,
    c.DELETE_PERSONAL_ACCESS_TOKEN: users.delete_token,
    c.LOGIN_WITH_PERSONAL_ACCESS_TOKEN: users.login_with_token,
    c.LOGIN_REGISTER_WITH_TOKEN: users.login_register_with_token,
    c.POLL_MESSAGES: messages.poll_messages,
    c.SEND_MESSAGES: messages.send_messages,
    c.FLUSH_UNSAVED_BUFFER: messages.flush,
    c.GET_CONSUMER_OFFSET: consumers.get_offset,
    c.STORE_CONSUMER_OFFSET: consumers.store_offset,
    c.DELETE_CONSUMER_OFFSET: consumers.delete_offset,
    c.GET_STREAM: topics.get_stream,
    c.GET_STREAMS: topics.get_streams,
    c.CREATE_STREAM: topics.create_stream,
    c.DELETE_STREAM: topics.delete_stream,
    c.UPDATE_STREAM: topics.update_stream,
    c.PURGE_STREAM: topics.purge_stream,
    c.GET_TOPIC: topics.get_topic,
    c.GET_TOPICS: topics.get_topics,
    c.CREATE_TOPIC: topics.create_topic,
    c.DELETE_TOPIC: topics.delete_topic,
    c.UPDATE_TOPIC: topics.update_topic,
    c.PURGE_TOPIC: topics.purge_topic,
    c.CREATE_PARTITIONS: topics.create_partitions,
    c.DELETE_PARTITIONS: topics.delete_partitions,
    c.DELETE_SEGMENTS: topics.delete_segments,
    c.GET_CONSUMER_GROUP: consumers.get_group,
    c.GET_CONSUMER_GROUPS: consumers.get_groups,
    c.CREATE_CONSUMER_GROUP: consumers.create_group,
    c.DELETE_CONSUMER_GROUP: consumers.delete_group,
    c.JOIN_CONSUMER_GROUP: consumers.join_group,
    c.LEAVE_CONSUMER_GROUP: consumers.leave_group,
    c.SYNC_CONSUMER_GROUP: consumers.sync_group,
    c.HELLO: extensions.hello,
    c.OPEN_PUBLISHER: windows.open_publisher,
    c.STAGE: windows.stage,
    c.CLOSE: windows.close_window,
    c.LIST_WINDOWS: windows.list_windows,
    c.SET_PUBLISHERS: windows.set_publishers,
    c.RESET_AFTER: windows.reset_after,
    c.PURGE_TO: windows.purge_to,
    c.READ_TICKET: extensions.read_ticket,
    c.GET_PUBLISHING: windows.get_publishing,
    c.PRESENT_GRANT: users.present_grant,
    c.SPEAK_FOR: users.speak_for,
}


def build_routes(handlers: Mapping[c.AnyCommand, Handler]) -> Routes:
    """Table and handlers meet here, once, and must match."""
    codes = {command.code for command in handlers}
    if codes != c.SERVED.keys():
        raise RuntimeError(f"routes out of step: {sorted(codes ^ c.SERVED.keys())}")
    return {command.code: (command, handler) for command, handler in handlers.items()}


class Lease(Protocol):
    """The part of `Leadership` this needs."""

    def check(self) -> None:
        """NotLeaderError unless it is held."""

    @property
    def holds(self) -> bool: ...

    async def regain(self) -> None:
        """Wait for it if it may come back; NotLeaderError if not."""


class Dispatcher:
    def __init__(self, broker: Broker, lease: Lease) -> None:
        self._broker = broker
        self._lease = lease
        self._routes = build_routes(HANDLERS)
        self._traffic = broker.traffic
        self._monotonic = broker.runtime.clock.monotonic

    @property
    def poll_caches(self) -> PollCaches:
        return self._broker.poll_caches

    def answer_at_once(
        self, session: Session, code: int, payload: memoryview
    ) -> Sequence[Buffer] | None:
        """The answer when nothing has to be waited for; None: see `on_request`."""
        if code != c.POLL_MESSAGES.code or session.known_poll is None or session.stale:
            return None
        if tracing.active:
            return None  # the long way has the spans
        try:
            self._lease.check()
            pieces = messages.answer_at_once(self._broker, session, payload)
        except HeadraceError:
            return None  # asked the long way it says why
        if pieces is not None:
            self._traffic.on_poll_at_once(session.spoken.dialect, len(payload), pieces)
        return pieces

    async def on_request(
        self, session: Session, code: int, payload: memoryview, head: Head | None = None
    ) -> tuple[int, Sequence[Buffer]]:
        session.last_request += 1
        REQUEST_ID.set((session.client_id, session.last_request))
        status, pieces, size = _OK, _NOTHING, len(payload)
        started = self._monotonic()
        try:
            if head is None or not self._is_numbered(session, code, head, started):
                pieces = await self._answer(session, code, payload)
            elif code != _SEND or tracing.active:
                pieces = await self._answer_once(session, code, payload, head)
            else:
                pieces = await self._send_once(session, payload, head)
        except HeadraceError as error:
            log.debug("request refused", client=session.client_id, code=code, reason=str(error))
            status = status_of(error, session.rules)
        except Exception:
            log.exception("request failed", client=session.client_id, code=code)
            status = Status.ERROR
        seconds = self._monotonic() - started
        self._traffic.on_answer(code, session.spoken.dialect, seconds, size, pieces, status)
        return status, pieces

    async def _answer(self, session: Session, code: int, payload: memoryview) -> Sequence[Buffer]:
        if not self._lease.holds:
            await self._lease.regain()
        if session.stale:
            raise StaleSessionError(client=session.client_id)
        route = self._routes.get(code)
        if route is None or self._is_off(code):
            raise self._unknown(code)
        command, handler = route
        if command.only_c and session.spoken.dialect is not Dialect.C:
            raise InvalidArgumentError("unknown command", code=code)
        request = self._decode(session, command, payload)
        if code not in audit.AUDITED:
            return await self._handle(session, command, handler, request)
        entry = audit.Entry(self._broker, session, command, request)
        try:
            answer = await self._handle(session, command, handler, request)
        except HeadraceError as error:
            entry.refused(status_of(error, session.rules))
            raise
        entry.done()
        return answer

    async def _handle(
        self, session: Session, command: c.AnyCommand, handler: Handler, request: object
    ) -> Sequence[Buffer]:
        if command.authenticated and not self._may(session, command, request):
            return ()
        if tracing.active and command.code in TRACED:
            response = await traced(handler, self._broker, session, command, request)
        else:
            response = await handler(self._broker, session, request)
        if not self._lease.holds:  # it ran out meanwhile, and with it what we know
            await self._lease.regain()
        if response is None:
            return ()
        return command.encode_response(response, session.spoken.dialect)

    def _may(self, session: Session, command: c.AnyCommand, request: object) -> bool:
        """False: answer as if what was asked for did not exist."""
        try:
            authorize(self._broker, session, command, request)
        except UnauthorizedError:
            if command.optional and session.rules.hides_forbidden:
                return False
            raise
        return True

    # -- dialect C: sessions and numbers

    def _is_numbered(self, session: Session, code: int, head: Head, now: float) -> bool:
        """Whether the request has a number that counts; refuses what its header forbids."""
        if session.spoken.dialect is not Dialect.C:
            session.spoken.on_framing()
        session.seen = now  # any request is a sign of life
        session.last_send = None
        if head.fault:
            raise DecodeError(Status.INVALID_COMMAND, head.fault)
        if head.operation == REGISTER:
            session.client = head.client
            return False
        if head.operation == READ:
            return False
        if session.user_uid is None or not session.number:
            raise UnauthenticatedError("log in first")
        if head.session != session.number or head.client != session.client:
            raise InvalidSessionError(session=head.session, expected=session.number)
        return code not in _REPEATABLE

    async def _answer_once(
        self, session: Session, code: int, payload: memoryview, head: Head
    ) -> Sequence[Buffer]:
        """Apply the request, unless it is one that was applied before: see `request_dedup.py`."""
        answers, number = self._broker.answers, session.number
        fingerprint = _fingerprint(code, payload, head)
        applying, new = answers.enter(number, head.number, fingerprint)
        while not new:
            if applying.fingerprint != fingerprint:
                raise RequestAppliedError("another request had this number", number=head.number)
            if not applying.done:
                await applying.wait()
            if not applying.failed:  # even if it is known no more
                return self._repeated(applying)
            applying, new = answers.enter(number, head.number, fingerprint)
        request = Request(number, head.number)
        token = REQUEST.set(request)
        try:
            pieces = None
            if code == _SEND:
                session.last_send = applying
                left = answers.take_left(session.user_uid, fingerprint)
                if left is not None:
                    pieces = await self._answer_of_before(left)
            elif self._broker.catalogue.requests.find(request) is not None:
                pieces = await self._answer_anew(session, code, request)
            if pieces is None:
                pieces = await self._answer(session, code, payload)
        except BaseException:
            answers.fail(*request, applying)
            raise
        finally:
            REQUEST.reset(token)
        answers.finish(applying, pieces)
        return pieces

    async def _send_once(
        self, session: Session, payload: memoryview, head: Head
    ) -> Sequence[Buffer]:
        """As `_answer_once`, of a SEND, and `_answer` in one: what producers send is nearly always
        this, and each coroutine and context variable on its way is noticed."""
        answers, numbered = self._broker.answers, Request(session.number, head.number)
        fingerprint = identity_of_send(payload)
        applying = answers.begin(*numbered, fingerprint)
        if applying is None:
            return await self._answer_once(session, _SEND, payload, head)
        session.last_send = applying
        try:
            pieces = None
            left = answers.take_left(session.user_uid, fingerprint)
            if left is not None:
                pieces = await self._answer_of_before(left)
            if pieces is None:
                if not self._lease.holds:
                    await self._lease.regain()
                if session.stale:
                    raise StaleSessionError(client=session.client_id)
                request = decode_send(payload, Dialect.C, head.room)
                authorize(self._broker, session, c.SEND_MESSAGES, request)
                pieces = [await messages.send_numbered(self._broker, request, numbered, head.lent)]
                if not self._lease.holds:
                    await self._lease.regain()
        except BaseException:
            answers.fail(*numbered, applying)
            raise
        answers.finish(applying, pieces)
        return pieces

    def _repeated(self, before: Applying) -> Sequence[Buffer]:
        self._traffic.repeated_requests += 1
        if before.answer is None:
            raise RequestAppliedError("its answer was too long to keep")
        return [before.answer] if before.answer else []

    async def _answer_of_before(self, before: Applying) -> Sequence[Buffer] | None:
        """What the same SEND was answered over a connection of the user's that ended with it."""
        if not before.done:
            await before.wait()
        return None if before.failed else self._repeated(before)

    async def _answer_anew(self, session: Session, code: int, request: Request) -> Sequence[Buffer]:
        """To a change that is part of the catalogue already."""
        effect = self._broker.catalogue.requests.find(request)
        assert effect is not None, "asked before"
        self._traffic.repeated_requests += 1
        if not self._lease.holds:
            await self._lease.regain()
        response = await repeat_answer(self._broker, effect)
        return self._routes[code][0].encode_response(response, session.dialect)

    # -- decoding, which is where a session's dialect shows

    def _decode(self, session: Session, command: c.AnyCommand, payload: memoryview) -> object:
        if command is c.SEND_MESSAGES:
            return self._decode_send(session, payload)
        if command is not c.POLL_MESSAGES:
            self._listen(session, command.code, payload)
            return command.decode_request(payload, session.spoken.dialect)
        if len(payload) > _POLL_BYTES_KEPT_MAX:
            session.last_poll = session.known_poll = None
            self._listen(session, command.code, payload)
            return command.decode_request(payload, session.spoken.dialect)
        front = payload[:-POLL_TAIL_BYTES].tobytes()
        if session.last_poll != (session.spoken.dialect, front):
            self._listen(session, command.code, payload)
            session.last_poll = (session.spoken.dialect, front)
            session.known_poll = None
        return PollMessages.decode(payload, session.spoken.dialect)

    def _decode_send(self, session: Session, payload: memoryview) -> SendMessages:
        """Decoding finds out how long the messages' headers are anyway, so the shape is asked for
        only when that, or anything else, is not as expected."""
        dialect = session.spoken.dialect
        if dialect is Dialect.C:
            return decode_send(payload, dialect)
        try:
            request = SendMessages.decode(payload, dialect)
        except DecodeError:
            if not self._renumbers(session, payload):
                raise
        else:
            as_expected = request.header_bytes == dialect.header_bytes
            if as_expected or not self._renumbers(session, payload):
                return request
        return SendMessages.decode(payload, session.spoken.dialect)

    def _renumbers(self, session: Session, payload: memoryview) -> bool:
        """Learn from the shape of a SEND; whether its ids now count from another number."""
        before = session.spoken.dialect.id_base
        self._listen(session, c.SEND_MESSAGES.code, payload)
        return session.spoken.dialect.id_base != before

    def _listen(self, session: Session, code: int, payload: Buffer) -> None:
        if session.spoken.dialect is Dialect.C:
            return  # told by its framing
        if code in TELLING:
            shown = candidates(code, payload)
            if shown is not CLASSIC:
                self._broker.sessions.on_shape(session, shown)
        elif (usual := hint(code)) is not CLASSIC:
            self._broker.sessions.on_hint(session, usual)

    def _is_off(self, code: int) -> bool:
        """Logins of our own are served also where the rest of our commands is not."""
        own = code >= c.HELLO.code and code not in _LOGINS
        return own and not self._broker.settings.extensions

    def _unknown(self, code: int) -> HeadraceError:
        if code in c.TABLE and self._broker.settings.extensions:
            return FeatureUnavailableError(code=code)
        return InvalidArgumentError("unknown command", code=code)


def _fingerprint(code: int, payload: memoryview, head: Head) -> bytes:
    """What tells a request that is sent again from another one under its number.

    A SEND has its target and the checksum of its batch, which covers the ids of its messages.
    """
    if code == _SEND:
        return identity_of_send(payload)
    return bytes((head.operation,)) + xxhash.xxh3_64_digest(payload)
