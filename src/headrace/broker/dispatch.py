"""From a frame to its answer: decode, authenticate, authorise, handle, encode."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import xxhash

from headrace.broker.core import Broker
from headrace.broker.handlers import consumers, messages, shards, system, topics, users, windows
from headrace.broker.handlers.views import repeat_answer
from headrace.broker.poll.caches import PollCaches
from headrace.broker.poll.held_polls import HeldPoll, Watch
from headrace.broker.sessions import audit
from headrace.broker.sessions.authorization import authorize
from headrace.broker.sessions.request_dedup import REQUEST, Request, RequestOutcome
from headrace.broker.sessions.sessions import Session
from headrace.broker.shards.forwarding import (
    ForwardedError,
    Forwarding,
    LeaseOverError,
    Patience,
    Route,
    with_partition,
)
from headrace.broker.shards.messages import Answer, Forward, NotLeading
from headrace.broker.traces import TRACED, traced
from headrace.errors import (
    HeadraceError,
    InvalidArgumentError,
    NotLeaderError,
    UnauthenticatedError,
    UnauthorizedError,
)
from headrace.observability import tracing
from headrace.observability.logging import REQUEST_ID, get_logger
from headrace.runtime.interfaces import Buffer
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.detection import DIALECT_SPECIFIC, candidates, hint
from headrace.wire.iggy.dialects import CLASSIC, Dialect
from headrace.wire.iggy.errors import DecodeError, Status
from headrace.wire.iggy.messages.messages import (
    POLL_TAIL_BYTES,
    PolledMessages,
    PollMessages,
    SendMessages,
    decode_send,
    read_send_target,
)
from headrace.wire.iggy.primitives import Consumer
from headrace.wire.iggy.refusals import (
    ConsumerNotResolvedError,
    FeatureUnavailableError,
    InvalidSessionError,
    MemberNotFoundError,
    PartitionNotOwnedError,
    RequestAppliedError,
    StaleSessionError,
    status_of,
)
from headrace.wire.iggy.vsr.batch import identity_of_send
from headrace.wire.iggy.vsr.frames import READ, REGISTER, Head

log = get_logger(__name__)

_POLL_BYTES_KEPT_MAX = 1024
_NOTHING: Sequence[Buffer] = ()
_OK = int(Status.OK)
_LOGINS = (c.PRESENT_GRANT.code, c.SPEAK_FOR.code)
_SEND = c.SEND_MESSAGES.code
_WRITES = frozenset((_SEND, c.STAGE.code, c.CLOSE.code))

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
    c.HELLO: system.hello,
    c.OPEN_PUBLISHER: windows.open_publisher,
    c.STAGE: windows.stage,
    c.CLOSE: windows.close_window,
    c.LIST_WINDOWS: windows.list_windows,
    c.SET_PUBLISHERS: windows.set_publishers,
    c.RESET_AFTER: windows.reset_after,
    c.PURGE_TO: windows.purge_to,
    c.READ_TICKET: system.read_ticket,
    c.GET_PUBLISHING: windows.get_publishing,
    c.GET_SHARDS: shards.get_shards,
    c.MOVE_SHARD: shards.move_shard,
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
    def __init__(self, broker: Broker, lease: Lease, forwarding: Forwarding | None = None) -> None:
        """`forwarding` is there where other workers lead what this one does not."""
        self._broker = broker
        self._lease = lease
        self._forwarding = forwarding
        self._routes = build_routes(HANDLERS)
        self._traffic = broker.traffic
        self._monotonic = broker.runtime.clock.monotonic
        self._writing = 0

    @property
    def poll_caches(self) -> PollCaches:
        return self._broker.poll_caches

    def answer_at_once(
        self, session: Session, code: int, payload: memoryview
    ) -> Sequence[Buffer] | HeldPoll | None:
        """The answer when no task has to be woken for it; None: see `on_request`."""
        if code != c.POLL_MESSAGES.code or session.known_poll is None:
            return None
        if tracing.active:
            return None  # the long way has the spans
        polls = self._broker.held_polls
        answer = self._ask_known(session, payload, may_wait=polls.holds)
        if not isinstance(answer, Watch):
            return answer
        poll = polls.begin()
        kept = memoryview(payload.tobytes())
        poll.ask = partial(self._ask_again, session, kept)
        poll.watch((answer,))
        return poll

    def answer_from_memory(
        self, session: Session, code: int, payload: memoryview
    ) -> Sequence[Buffer] | None:
        """The answer to a poll like the last one, if messages for it are in memory."""
        if code != c.POLL_MESSAGES.code or session.known_poll is None or tracing.active:
            return None
        answer = self._ask_known(session, payload, may_wait=self._broker.held_polls.holds)
        return None if isinstance(answer, Watch) else answer

    def _ask_known(
        self, session: Session, payload: memoryview, *, may_wait: bool
    ) -> Sequence[Buffer] | Watch | None:
        if session.stale:
            return None
        try:
            self._lease.check()
            answer = messages.answer_at_once(self._broker, session, payload, may_wait=may_wait)
        except HeadraceError:
            return None  # asked the long way it says why
        if answer is not None and not isinstance(answer, Watch):
            self._traffic.on_poll_at_once(session.spoken.dialect, len(payload), answer)
            if session.trail is not None:
                session.trail.on_here()
        return answer

    def _ask_again(self, session: Session, payload: memoryview) -> Sequence[Buffer] | None:
        answer = self._ask_known(session, payload, may_wait=False)
        assert not isinstance(answer, Watch), "it has waited"
        return answer

    def on_behind(self, session: Session) -> None:
        """Another request of the session waits, or the session ends."""
        session.is_pressed = True
        for poll in tuple(session.held_polls):
            poll.finish()

    def is_writing(self) -> bool:
        """Whether messages are on their way to disk, and somebody waits for them."""
        return self._writing > 0

    async def on_request(
        self, session: Session, code: int, payload: memoryview, head: Head | None = None
    ) -> tuple[int, Sequence[Buffer]]:
        session.last_request += 1
        REQUEST_ID.set((session.client_id, session.last_request))
        status, pieces, size = _OK, _NOTHING, len(payload)
        started = self._monotonic()
        writes = code in _WRITES
        self._writing += writes
        try:
            if head is None or not self._is_numbered(session, code, head, started):
                pieces = await self._answer(session, code, payload)
            elif code != _SEND or tracing.active:
                fingerprint = _fingerprint(code, payload)
                pieces = await self._answer_once(session, code, payload, head.number, fingerprint)
            else:
                pieces = await self._send_once(session, payload, head)
        except ForwardedError as error:
            status = error.status
        except HeadraceError as error:
            log.debug("request refused", client=session.client_id, code=code, reason=str(error))
            status = status_of(error, session.dialect)
        except Exception:
            log.exception("request failed", client=session.client_id, code=code)
            status = Status.ERROR
        finally:
            self._writing -= writes
        seconds = self._monotonic() - started
        session.is_pressed = False
        if session.held_seconds:
            seconds = max(0.0, seconds - session.held_seconds)
            session.held_seconds = 0.0
        self._traffic.on_answer(code, session.spoken.dialect, seconds, size, pieces, status)
        return status, pieces

    async def on_forwarded(
        self, session: Session, passed: Forward, payload: memoryview
    ) -> tuple[Answer | NotLeading, Sequence[Buffer]]:
        """Answer a request that another worker passed on; NotLeading when nothing was done."""
        code = passed.code
        try:
            self._lease.check()
            if not self._broker.is_live:
                raise NotLeaderError("the catalogue is not known yet")
            if passed.number < 0:
                return Answer(), await self._answer(session, code, payload, passed)
            fingerprint = _fingerprint(code, payload)
            return Answer(), await self._answer_once(
                session, code, payload, passed.number, fingerprint, passed
            )
        except LeaseOverError as error:
            # It was carried out: whoever passed it on must not send it to the next leader.
            return Answer(int(status_of(error, session.dialect))), ()
        except NotLeaderError:
            return NotLeading(), ()
        except HeadraceError as error:
            return Answer(int(status_of(error, session.dialect))), ()
        except Exception:
            log.exception("forwarded request failed", client=session.client_id, code=code)
            return Answer(int(Status.ERROR)), ()

    async def _answer(
        self, session: Session, code: int, payload: memoryview, passed: Forward | None = None
    ) -> Sequence[Buffer]:
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
        if self._forwarding is None:
            return await self._execute(session, command, handler, request)
        if passed is not None:
            return await self._answer_passed(session, route, request, passed, self._forwarding)
        return await self._answer_somewhere(session, route, payload, request, self._forwarding)

    async def _answer_passed(
        self,
        session: Session,
        route: tuple[c.AnyCommand, Handler],
        request: Any,
        passed: Forward,
        forwarding: Forwarding,
    ) -> Sequence[Buffer]:
        """Here or nowhere: NotLeaderError when nothing was done."""
        chosen = getattr(request, "partition", passed.partition) is None and passed.partition >= 0
        request = with_partition(request, passed.partition)
        target = forwarding.route(session, passed.code, request, passed.number)
        if not target.here:
            raise NotLeaderError("another worker leads it")
        try:
            return await self._execute(session, *route, with_partition(request, target.partition))
        except (ConsumerNotResolvedError, MemberNotFoundError, PartitionNotOwnedError):
            if not chosen:
                raise
            # Of two workers one knows of a change of members that the other does not know yet.
            raise NotLeaderError("the members are known differently here") from None

    async def _answer_somewhere(
        self,
        session: Session,
        route: tuple[c.AnyCommand, Handler],
        payload: memoryview,
        request: Any,
        forwarding: Forwarding,
    ) -> Sequence[Buffer]:
        """Where it is led; a shard may move at any moment, so whoever did nothing is left."""
        command = route[0]
        numbered = REQUEST.get()
        number = -1 if numbered is None else numbered.number
        patience: Patience | None = None
        while True:
            target = forwarding.route(session, command.code, request, number)
            if target.here:
                try:
                    return await self._execute(
                        session, *route, with_partition(request, target.partition)
                    )
                except LeaseOverError:
                    raise
                except NotLeaderError:
                    pieces = None
            else:
                pieces = await self._pass_on(session, command, payload, request, target, number)
            if pieces is not None:
                return pieces
            patience = patience or forwarding.patience()
            await patience.wait()

    async def _pass_on(
        self,
        session: Session,
        command: c.AnyCommand,
        payload: memoryview,
        request: Any,
        target: Route,
        number: int,
    ) -> Sequence[Buffer] | None:
        assert self._forwarding is not None
        if isinstance(request, PollMessages) and session.spoken.undecided:
            nobody = request.consumer == Consumer.single()
            if not self._broker.sessions.on_poll(session, nobody=nobody):
                empty = PolledMessages(max(0, target.partition), 0, 0)
                return command.encode_response(empty, session.spoken.dialect)
        if command is not c.CHANGE_PASSWORD:
            return await self._forwarding.forward(
                session, command.code, payload, target, number, request
            )
        session.keeps_login = True  # it is this worker that ends the user's logins here
        try:
            return await self._forwarding.forward(
                session, command.code, payload, target, number, request
            )
        finally:
            session.keeps_login = False

    async def _execute(
        self, session: Session, command: c.AnyCommand, handler: Handler, request: object
    ) -> Sequence[Buffer]:
        if command.code not in audit.AUDITED:
            return await self._handle(session, command, handler, request)
        entry = audit.AuditEntry(self._broker, session, command, request)
        try:
            answer = await self._handle(session, command, handler, request)
        except HeadraceError as error:
            entry.refused(status_of(error, session.dialect))
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
        if not self._lease.holds:
            await self._regain_after()
        if response is None:
            return ()
        return command.encode_response(response, session.spoken.dialect)

    async def _regain_after(self) -> None:
        """The lease ran out while a request was carried out, and with it what we know."""
        try:
            await self._lease.regain()
        except NotLeaderError as error:
            raise LeaseOverError("another broker may lead by now") from error

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
        self,
        session: Session,
        code: int,
        payload: memoryview,
        request_number: int,
        fingerprint: bytes,
        passed: Forward | None = None,
    ) -> Sequence[Buffer]:
        """Apply the request, unless it is one that was applied before: see `request_dedup.py`."""
        answers, number = self._broker.answers, session.number
        applying, new = answers.enter(number, request_number, fingerprint)
        while not new:
            if applying.fingerprint != fingerprint:
                raise RequestAppliedError("another request had this number", number=request_number)
            if not applying.done:
                await applying.wait()
            if not applying.failed:  # even if it is known no more
                return self._repeated(applying)
            applying, new = answers.enter(number, request_number, fingerprint)
        request = Request(number, request_number)
        token = REQUEST.set(request)
        try:
            pieces = None
            if code == _SEND:
                session.last_send = applying
                if passed is None:
                    pieces = await self._answer_left(session, fingerprint)
            elif self._broker.catalogue.requests.find(request) is not None:
                pieces = await self._answer_anew(session, code, request)
            if pieces is None:
                pieces = await self._answer(session, code, payload, passed)
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
            return await self._answer_once(session, _SEND, payload, head.number, fingerprint)
        session.last_send = applying
        try:
            pieces = None
            if answers.has_left or (self._forwarding is not None and not session.has_sent):
                pieces = await self._answer_left(session, fingerprint)
            if pieces is None:
                if not self._lease.holds:
                    await self._lease.regain()
                if session.stale:
                    raise StaleSessionError(client=session.client_id)
                if self._forwarding is None:
                    pieces = await self._send_here(session, payload, head, numbered, -1)
                else:
                    pieces = await self._send_somewhere(session, payload, head, numbered)
        except BaseException:
            answers.fail(*numbered, applying)
            raise
        answers.finish(applying, pieces)
        return pieces

    async def _send_here(
        self, session: Session, payload: memoryview, head: Head, numbered: Request, partition: int
    ) -> Sequence[Buffer]:
        request = with_partition(decode_send(payload, Dialect.C, head.room), partition)
        authorize(self._broker, session, c.SEND_MESSAGES, request)
        answer = await messages.send_numbered(self._broker, request, numbered, head.lent)
        if not self._lease.holds:
            await self._regain_after()
        return [answer]

    async def _send_somewhere(
        self, session: Session, payload: memoryview, head: Head, numbered: Request
    ) -> Sequence[Buffer]:
        assert self._forwarding is not None
        target = read_send_target(payload, Dialect.C)
        route = self._forwarding.route(session, _SEND, target, head.number)
        pieces = None
        try:
            if route.here:
                return await self._send_here(session, payload, head, numbered, route.partition)
            pieces = await self._forwarding.forward(session, _SEND, payload, route, head.number)
        except LeaseOverError:
            raise
        except NotLeaderError:
            pass
        if pieces is not None:
            return pieces
        token = REQUEST.set(numbered)
        try:
            return await self._answer(session, _SEND, payload)
        finally:
            REQUEST.reset(token)

    def _repeated(self, before: RequestOutcome) -> Sequence[Buffer]:
        self._traffic.repeated_requests += 1
        if before.answer is None:
            raise RequestAppliedError("its answer was too long to keep")
        return [before.answer] if before.answer else []

    async def _answer_left(self, session: Session, fingerprint: bytes) -> Sequence[Buffer] | None:
        """Its client may have been connected to another worker: those are asked about the first
        SEND of a connection."""
        is_first, session.has_sent = not session.has_sent, True
        left = self._broker.answers.take_left(session.user_uid, fingerprint)
        if left is not None:
            return await self._answer_of_before(left)
        if not is_first or self._forwarding is None or session.user_uid is None:
            return None
        answer = await self._broker.workers.take_left(session.user_uid, fingerprint)
        if answer is None:
            return None
        self._traffic.repeated_requests += 1
        return [answer] if answer else []

    async def _answer_of_before(self, before: RequestOutcome) -> Sequence[Buffer] | None:
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
        if code in DIALECT_SPECIFIC:
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


def _fingerprint(code: int, payload: memoryview) -> bytes:
    """What tells a request that is sent again from another one under its number, whether it came
    from its client or from another worker.

    A SEND has its target and the checksum of its batch, which covers the ids of its messages.
    """
    if code == _SEND:
        return identity_of_send(payload)
    return code.to_bytes(4, "little", signed=True) + xxhash.xxh3_64_digest(payload)
