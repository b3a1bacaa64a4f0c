"""An asynchronous Iggy client: dialect B2 with Headrace's extension commands, or dialect C.

One connection, one request at a time (callers queue), a deadline per call. It never reconnects by
itself: after UnavailableError or DeadlineError the connection is over and the outcome of the last
request is unknown; the owner decides whether to connect again and what to repeat.

With a `Conversation` it speaks dialect C: the next client of the same conversation may send the
last request `again`, and the server applies it once.

A refusal is an `IggyError` with the server's number that is also NotFoundError, AlreadyExistsError
and so on. Asking for something that does not exist gives None.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from headrace.client.refusals import refusal
from headrace.client.url import Identity
from headrace.errors import DeadlineError, RemoteProtocolError, UnavailableError
from headrace.net.credentials import PREFIX as GRANT
from headrace.net.credentials import grant_bytes, is_grant
from headrace.net.tls import ClientTls, secure
from headrace.runtime.interfaces import Buffer, Connection, Runtime
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.classic_frames import (
    RESPONSE_BYTES_MAX,
    ResponseDecoder,
    ResponseFrame,
    encode_request,
)
from headrace.wire.iggy.commands import Command, Encodable
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import IggyError, Status
from headrace.wire.iggy.messages import consumers, system, topics, users
from headrace.wire.iggy.messages.extensions import (
    CloseWindow,
    ListWindows,
    MoveShard,
    OpenPublisher,
    PresentGrant,
    PublisherOpened,
    PublishingFigures,
    PurgeTo,
    ReadTicket,
    ResetAfter,
    ServerHello,
    SetPublishers,
    ShardMap,
    ShardMoved,
    SpeakFor,
    Stage,
    StagedSpan,
    StageHead,
    Ticket,
    WindowClosed,
    WindowsListed,
)
from headrace.wire.iggy.messages.messages import (
    FlushUnsavedBuffer,
    Message,
    PolledMessages,
    PollMessages,
    SendMessages,
    encode_send,
)
from headrace.wire.iggy.messages.system import Empty
from headrace.wire.iggy.messages.topics import SERVER_DEFAULT, Compression
from headrace.wire.iggy.messages.users import Permissions, UserStatus
from headrace.wire.iggy.primitives import Consumer, Identifier, Partitioning, Strategy
from headrace.wire.iggy.vsr import frames as vsr
from headrace.wire.iggy.vsr.client import Conversation, VsrReplyDecoder

Q = TypeVar("Q", bound=Encodable)
R = TypeVar("R")

VERSION = "0.10.0"  # told at login: the crate version whose dialect we speak
_NAME, _VERSION_C = "headrace", "0.11.0"
TIMEOUT_SECONDS = 10.0

_NOTHING = Empty()
_BALANCED = Partitioning.balanced()
_ANYONE = Consumer.single()
_NEXT = Strategy.next()


class IggyClient:
    """Made by `connect`; `close` it, or use it in `async with`."""

    _conversation: Conversation | None = None

    def __init__(
        self,
        runtime: Runtime,
        connection: Connection,
        *,
        timeout: float = TIMEOUT_SECONDS,
        response_bytes_max: int = RESPONSE_BYTES_MAX,
        conversation: Conversation | None = None,
    ) -> None:
        self._runtime = runtime
        self._connection = connection
        self._timeout = timeout
        self._conversation = conversation
        self._decoder: ResponseDecoder | VsrReplyDecoder
        if conversation is None:
            self._decoder = ResponseDecoder(response_bytes_max=response_bytes_max)
        else:
            self._decoder = VsrReplyDecoder(response_bytes_max=response_bytes_max)
        self._turn = asyncio.Lock()
        self._over = False

    @classmethod
    async def connect(
        cls,
        runtime: Runtime,
        host: str,
        port: int,
        *,
        timeout: float = TIMEOUT_SECONDS,
        tls: ClientTls | None = None,
        conversation: Conversation | None = None,
        identity: Identity | None = None,
    ) -> Self:
        """Connect, and log in where an identity is given; a connection whose login fails is closed.

        Over TLS if `tls` is given: RemoteProtocolError when the server is not who it should.
        """
        connection = await runtime.transport.connect(host, port, timeout=timeout)
        if tls is not None:
            connection = await secure(connection, tls, host, timeout=timeout)
        client = cls(runtime, connection, timeout=timeout, conversation=conversation)
        if identity is not None:
            try:
                await client.log_in(identity)
            except BaseException:
                await client.close()
                raise
        return client

    @property
    def runtime(self) -> Runtime:
        return self._runtime

    @property
    def dialect(self) -> Dialect:
        return Dialect.B2 if self._conversation is None else Dialect.C

    @property
    def usable(self) -> bool:
        """False once the connection broke or was closed."""
        return not self._over

    async def close(self) -> None:
        self._over = True
        self._connection.close()
        await self._connection.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def call(self, command: Command[Q, R], request: Q, *, timeout: float | None = None) -> R:
        """Send any command of the table and decode its reply."""
        body = command.encode_request(request, self.dialect)
        if self._conversation is None:
            pieces = encode_request(command.code, body)
        else:
            pieces = self._conversation.encode(command.code, body)
        return await self._ask(command, pieces, timeout, request)

    async def again(
        self, command: Command[Q, R], *, timeout: float | None = None, request: Q | None = None
    ) -> R:
        """Send the conversation's last request that changes something, which was `command`'s. For
        the text of a refusal alone, `request` says what it was."""
        assert self._conversation is not None, "dialect B2 has no numbers"
        return await self._ask(command, self._conversation.again(), timeout, request)

    async def _ask(
        self,
        command: Command[Q, R],
        pieces: Sequence[Buffer],
        timeout: float | None,
        request: Q | None,
    ) -> R:
        limit = self._timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(limit), self._turn:
                frame = await self._exchange(pieces)
        except TimeoutError as error:
            raise DeadlineError(
                f"{self._connection.peer} did not answer {command.name} within {limit:g} s"
            ) from error
        if frame.status != Status.OK:
            raise refusal(frame.status, command.name, request)
        return command.decode_response(frame.payload, self.dialect)

    async def _exchange(self, pieces: Sequence[Buffer]) -> ResponseFrame:
        if self._over:
            raise UnavailableError("the connection is over", peer=self._connection.peer)
        try:
            self._connection.write(pieces)
            await self._connection.drain()
            return await self._receive()
        except BaseException:
            # Cancelled or late, its reply may still come: nobody could tell whose it is.
            self._over = True
            self._connection.abort()
            raise

    async def _receive(self) -> ResponseFrame:
        while True:
            data = await self._connection.receive()
            if not data:
                raise UnavailableError(f"{self._connection.peer} closed the connection")
            frames = self._decoder.feed(data)
            if len(frames) > 1 or (frames and self._decoder.buffered_bytes):
                raise RemoteProtocolError("reply to no request", peer=self._connection.peer)
            if frames:
                return frames[0]

    # --- system -----------------------------------------------------------------------------------

    async def ping(self) -> None:
        await self.call(c.PING, _NOTHING)

    async def get_stats(self) -> system.Stats:
        return await self.call(c.GET_STATS, _NOTHING)

    async def get_snapshot(
        self,
        types: Sequence[system.SnapshotType] = (system.SnapshotType.ALL,),
        *,
        compression: system.SnapshotCompression = system.SnapshotCompression.DEFLATED,
    ) -> bytes:
        request = system.GetSnapshot(compression, tuple(types))
        return (await self.call(c.GET_SNAPSHOT_FILE, request)).archive

    async def get_cluster_metadata(self) -> system.ClusterMetadata:
        return await self.call(c.GET_CLUSTER_METADATA, _NOTHING)

    async def get_me(self) -> system.ClientDetails:
        return await self.call(c.GET_ME, _NOTHING)

    async def get_client(self, client_id: int) -> system.ClientDetails | None:
        return await self.call(c.GET_CLIENT, system.GetClient(client_id))

    async def get_clients(self) -> tuple[system.ClientInfo, ...]:
        return (await self.call(c.GET_CLIENTS, _NOTHING)).clients

    # --- users and tokens -------------------------------------------------------------------------

    async def log_in(self, identity: Identity) -> int:
        """The user's id."""
        if identity.token:
            return await self.login_with_token(identity.token)
        return await self.login(identity.username, identity.password)

    async def login(self, username: str, password: str) -> int:
        """The user's id."""
        if self._conversation is not None:
            login = users.LoginRegister(vsr.VERSION, _NAME, _VERSION_C, username, password)
            return self._on_registered(await self.call(c.LOGIN_REGISTER, login))
        request = users.LoginUser(username, password, VERSION, _NAME)
        return (await self.call(c.LOGIN_USER, request)).user_id

    async def login_with_token(self, token: str) -> int:
        """The user's id.

        A token says nothing of our dialect, and a server that knows several would go by what the
        token's user spoke last. So it first sees a command of B2; it may well refuse that one.
        A grant is presented first, and then named.
        """
        if is_grant(token):
            await self.present_grant(grant_bytes(token))
            token = GRANT
        if self._conversation is not None:
            login = users.LoginRegisterWithToken(vsr.VERSION, _NAME, _VERSION_C, token)
            return self._on_registered(await self.call(c.LOGIN_REGISTER_WITH_TOKEN, login))
        with suppress(IggyError):
            await self.call(c.HELLO, _NOTHING)
        request = users.LoginWithPersonalAccessToken(token)
        return (await self.call(c.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, request)).user_id

    async def present_grant(self, grant: bytes) -> None:
        """The login that follows, with a token that is `net.grants.PREFIX`, is as its holder."""
        await self.call(c.PRESENT_GRANT, PresentGrant(grant=grant))

    async def speak_for(self, host: str, token: str) -> None:
        """The control plane's alone: whose login the next one is."""
        await self.call(c.SPEAK_FOR, SpeakFor(host=host, token=token))

    def _on_registered(self, registered: users.Registered) -> int:
        assert self._conversation is not None, "dialect C's login was answered"
        self._conversation.on_registered(registered.session)
        return registered.user_id

    async def logout(self) -> None:
        await self.call(c.LOGOUT_USER, _NOTHING)

    async def get_user(self, user: Identifier) -> users.UserDetails | None:
        return await self.call(c.GET_USER, users.GetUser(user))

    async def get_users(self) -> tuple[users.User, ...]:
        return (await self.call(c.GET_USERS, _NOTHING)).users

    async def create_user(
        self,
        username: str,
        password: str,
        *,
        status: UserStatus = UserStatus.ACTIVE,
        permissions: Permissions | None = None,
    ) -> users.UserDetails:
        request = users.CreateUser(username, password, status, permissions)
        return await self.call(c.CREATE_USER, request)

    async def delete_user(self, user: Identifier) -> None:
        await self.call(c.DELETE_USER, users.DeleteUser(user))

    async def update_user(
        self, user: Identifier, *, username: str | None = None, status: UserStatus | None = None
    ) -> None:
        await self.call(c.UPDATE_USER, users.UpdateUser(user, username, status))

    async def update_permissions(self, user: Identifier, permissions: Permissions | None) -> None:
        await self.call(c.UPDATE_PERMISSIONS, users.UpdatePermissions(user, permissions))

    async def change_password(self, user: Identifier, *, current: str, new: str) -> None:
        await self.call(c.CHANGE_PASSWORD, users.ChangePassword(user, current, new))

    async def get_tokens(self) -> tuple[users.PersonalAccessToken, ...]:
        return (await self.call(c.GET_PERSONAL_ACCESS_TOKENS, _NOTHING)).tokens

    async def create_token(self, name: str, *, expiry_us: int = 0) -> str:
        """The token itself, which the server shows only this once."""
        request = users.CreatePersonalAccessToken(name, expiry_us)
        return (await self.call(c.CREATE_PERSONAL_ACCESS_TOKEN, request)).token

    async def delete_token(self, name: str) -> None:
        request = users.DeletePersonalAccessToken(name)
        await self.call(c.DELETE_PERSONAL_ACCESS_TOKEN, request)

    # --- streams ----------------------------------------------------------------------------------

    async def get_stream(self, stream: Identifier) -> topics.StreamDetails | None:
        return await self.call(c.GET_STREAM, topics.GetStream(stream))

    async def get_streams(self) -> tuple[topics.Stream, ...]:
        return (await self.call(c.GET_STREAMS, _NOTHING)).streams

    async def create_stream(self, name: str) -> topics.StreamDetails:
        return await self.call(c.CREATE_STREAM, topics.CreateStream(name))

    async def delete_stream(self, stream: Identifier) -> None:
        await self.call(c.DELETE_STREAM, topics.DeleteStream(stream))

    async def update_stream(self, stream: Identifier, name: str) -> None:
        await self.call(c.UPDATE_STREAM, topics.UpdateStream(stream, name))

    async def purge_stream(self, stream: Identifier) -> None:
        await self.call(c.PURGE_STREAM, topics.PurgeStream(stream))

    # --- topics, partitions, segments -------------------------------------------------------------

    async def get_topic(self, stream: Identifier, topic: Identifier) -> topics.TopicDetails | None:
        return await self.call(c.GET_TOPIC, topics.GetTopic(stream, topic))

    async def get_topics(self, stream: Identifier) -> tuple[topics.Topic, ...]:
        return (await self.call(c.GET_TOPICS, topics.GetTopics(stream))).topics

    async def create_topic(
        self,
        stream: Identifier,
        name: str,
        *,
        partitions_count: int = 1,
        compression: Compression = Compression.NONE,
        message_expiry_us: int = SERVER_DEFAULT,
        max_size_bytes: int = SERVER_DEFAULT,
        replication_factor: int = 0,
    ) -> topics.TopicDetails:
        request = topics.CreateTopic(
            stream,
            partitions_count,
            compression,
            message_expiry_us,
            max_size_bytes,
            replication_factor,
            name,
        )
        return await self.call(c.CREATE_TOPIC, request)

    async def update_topic(
        self,
        stream: Identifier,
        topic: Identifier,
        name: str,
        *,
        compression: Compression = Compression.NONE,
        message_expiry_us: int = SERVER_DEFAULT,
        max_size_bytes: int = SERVER_DEFAULT,
        replication_factor: int = 0,
    ) -> None:
        request = topics.UpdateTopic(
            stream, topic, compression, message_expiry_us, max_size_bytes, replication_factor, name
        )
        await self.call(c.UPDATE_TOPIC, request)

    async def delete_topic(self, stream: Identifier, topic: Identifier) -> None:
        await self.call(c.DELETE_TOPIC, topics.DeleteTopic(stream, topic))

    async def purge_topic(self, stream: Identifier, topic: Identifier) -> None:
        await self.call(c.PURGE_TOPIC, topics.PurgeTopic(stream, topic))

    async def create_partitions(self, stream: Identifier, topic: Identifier, count: int) -> None:
        await self.call(c.CREATE_PARTITIONS, topics.CreatePartitions(stream, topic, count))

    async def delete_partitions(self, stream: Identifier, topic: Identifier, count: int) -> None:
        await self.call(c.DELETE_PARTITIONS, topics.DeletePartitions(stream, topic, count))

    async def delete_segments(
        self, stream: Identifier, topic: Identifier, *, partition: int, count: int
    ) -> None:
        request = topics.DeleteSegments(stream, topic, partition, count)
        await self.call(c.DELETE_SEGMENTS, request)

    # --- messages and offsets ---------------------------------------------------------------------

    async def send(
        self,
        stream: Identifier,
        topic: Identifier,
        messages: Iterable[Message],
        *,
        partitioning: Partitioning = _BALANCED,
        timeout: float | None = None,
    ) -> None:
        now_us = self._runtime.clock.now_us()
        await self.send_batch(
            encode_send(stream, topic, partitioning, messages, origin_timestamp_us=now_us),
            timeout=timeout,
        )

    async def send_batch(self, request: SendMessages, *, timeout: float | None = None) -> None:
        """Send messages that are already laid out (see `headrace.wire.iggy.columns`)."""
        await self.call(c.SEND_MESSAGES, request, timeout=timeout)

    async def poll(
        self,
        stream: Identifier,
        topic: Identifier,
        *,
        partition: int | None = None,
        consumer: Consumer = _ANYONE,
        strategy: Strategy = _NEXT,
        count: int = 100,
        auto_commit: bool = False,
        timeout: float | None = None,
    ) -> PolledMessages:
        request = PollMessages(consumer, stream, topic, partition, strategy, count, auto_commit)
        return await self.call(c.POLL_MESSAGES, request, timeout=timeout)

    async def first_offset(
        self, stream: Identifier, topic: Identifier, partition: int, strategy: Strategy
    ) -> int | None:
        """The offset of the message that a poll would begin with; None for no message."""
        polled = await self.poll(stream, topic, partition=partition, strategy=strategy, count=1)
        messages = polled.messages()
        return messages[0].offset if messages else None

    async def flush(
        self, stream: Identifier, topic: Identifier, *, partition: int, fsync: bool = True
    ) -> None:
        request = FlushUnsavedBuffer(stream, topic, partition, fsync)
        await self.call(c.FLUSH_UNSAVED_BUFFER, request)

    async def get_consumer_offset(
        self,
        consumer: Consumer,
        stream: Identifier,
        topic: Identifier,
        partition: int | None = None,
    ) -> consumers.ConsumerOffset | None:
        request = consumers.GetConsumerOffset(consumer, stream, topic, partition)
        return await self.call(c.GET_CONSUMER_OFFSET, request)

    async def store_consumer_offset(
        self,
        consumer: Consumer,
        stream: Identifier,
        topic: Identifier,
        *,
        offset: int,
        partition: int | None = None,
    ) -> None:
        request = consumers.StoreConsumerOffset(consumer, stream, topic, partition, offset)
        await self.call(c.STORE_CONSUMER_OFFSET, request)

    async def delete_consumer_offset(
        self,
        consumer: Consumer,
        stream: Identifier,
        topic: Identifier,
        partition: int | None = None,
    ) -> None:
        request = consumers.DeleteConsumerOffset(consumer, stream, topic, partition)
        await self.call(c.DELETE_CONSUMER_OFFSET, request)

    # --- consumer groups --------------------------------------------------------------------------

    async def get_group(
        self, stream: Identifier, topic: Identifier, group: Identifier
    ) -> consumers.GroupDetails | None:
        return await self.call(c.GET_CONSUMER_GROUP, consumers.GetGroup(stream, topic, group))

    async def get_groups(
        self, stream: Identifier, topic: Identifier
    ) -> tuple[consumers.Group, ...]:
        return (await self.call(c.GET_CONSUMER_GROUPS, consumers.GetGroups(stream, topic))).groups

    async def create_group(
        self, stream: Identifier, topic: Identifier, name: str
    ) -> consumers.GroupDetails:
        return await self.call(c.CREATE_CONSUMER_GROUP, consumers.CreateGroup(stream, topic, name))

    async def delete_group(self, stream: Identifier, topic: Identifier, group: Identifier) -> None:
        await self.call(c.DELETE_CONSUMER_GROUP, consumers.DeleteGroup(stream, topic, group))

    async def join_group(self, stream: Identifier, topic: Identifier, group: Identifier) -> None:
        await self.call(c.JOIN_CONSUMER_GROUP, consumers.JoinGroup(stream, topic, group))

    async def leave_group(self, stream: Identifier, topic: Identifier, group: Identifier) -> None:
        await self.call(c.LEAVE_CONSUMER_GROUP, consumers.LeaveGroup(stream, topic, group))

    # --- Headrace's extensions --------------------------------------------------------------------

    async def hello(self) -> ServerHello | None:
        """What the server offers; None for a plain Iggy server, which does not know the command."""
        try:
            return await self.call(c.HELLO, _NOTHING)
        except IggyError as error:
            if error.code == Status.INVALID_COMMAND:
                return None
            raise

    async def read_ticket(self, pairs: Iterable[tuple[Identifier, Identifier]]) -> Ticket:
        """A ticket to read these (stream, topic) pairs from the data nodes."""
        return await self.call(c.READ_TICKET, ReadTicket(topics=tuple(pairs)))

    async def get_publishing(self) -> PublishingFigures:
        return await self.call(c.GET_PUBLISHING, _NOTHING)

    async def get_shards(self) -> ShardMap:
        """Who leads which shard, where each worker is reached, and how the workers do."""
        return await self.call(c.GET_SHARDS, _NOTHING)

    async def move_shard(self, shard: int, worker: str) -> ShardMoved:
        """Give a shard to a worker, by its name or number; empty: balance decides again."""
        return await self.call(c.MOVE_SHARD, MoveShard(shard=shard, worker=worker))

    async def open_publisher(self, name: str, run: str, *, epoch: int = 0) -> PublisherOpened:
        """Become the one run of the publisher that may write; earlier runs are fenced, and so is
        this one if a run with a higher epoch came before it."""
        return await self.call(c.OPEN_PUBLISHER, OpenPublisher(name=name, run=run, epoch=epoch))

    async def stage(
        self, opened: PublisherOpened, window: int, messages: SendMessages
    ) -> StagedSpan:
        """Keep messages for a window; nobody sees them until it is closed."""
        head = StageHead(publisher=opened.publisher, epoch=opened.epoch, window=window)
        return (await self.call(c.STAGE, Stage(head, messages))).span

    async def close_window(
        self,
        opened: PublisherOpened,
        *,
        previous: int,
        window: int,
        manifest: Iterable[StagedSpan] = (),
        digest: bytes = b"",
        last: bool = False,
        rows: int = 0,
        index: bytes = b"",
    ) -> WindowClosed:
        """Publish what was staged and is named, in that order, exactly once."""
        return await self.call(
            c.CLOSE,
            CloseWindow(
                publisher=opened.publisher,
                epoch=opened.epoch,
                previous=previous,
                window=window,
                manifest=tuple(manifest),
                digest=digest,
                last=last,
                rows=rows,
                index=index,
            ),
        )

    async def list_windows(
        self,
        stream: Identifier,
        topic: Identifier,
        *,
        after: int = -1,
        wait_ms: int = 0,
        limit: int = 0,
    ) -> WindowsListed:
        """The closed windows of a topic; waits until all its publishers closed one after `after`,
        at most that long (and longer than calls usually may)."""
        request = ListWindows(stream=stream, topic=topic, after=after, wait_ms=wait_ms, limit=limit)
        timeout = self._timeout + wait_ms / 1000
        return await self.call(c.LIST_WINDOWS, request, timeout=timeout)

    async def set_publishers(
        self,
        stream: Identifier,
        topic: Identifier,
        publishers: Iterable[str],
        *,
        after: int = -1,
        epoch: int = 0,
    ) -> None:
        """From the window after `after` on these publish the topic, the n-th to its partition n;
        refused if anyone closed a later window. The same ones again: nothing changes."""
        request = SetPublishers(
            stream=stream, topic=topic, publishers=tuple(publishers), after=after, epoch=epoch
        )
        await self.call(c.SET_PUBLISHERS, request)

    async def reset_after(
        self, stream: Identifier, topic: Identifier, *, window: int, epoch: int
    ) -> None:
        """Void every later window; only runs from this epoch on publish them again."""
        request = ResetAfter(stream=stream, topic=topic, window=window, epoch=epoch)
        await self.call(c.RESET_AFTER, request)

    async def purge_to(self, stream: Identifier, topic: Identifier, *, window: int) -> None:
        """Forget windows up to this one, and their messages as whole segments allow."""
        await self.call(c.PURGE_TO, PurgeTo(stream=stream, topic=topic, window=window))
