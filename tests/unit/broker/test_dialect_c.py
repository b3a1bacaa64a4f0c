"""Dialect C through the dispatcher, frame by frame: sessions, numbers, repeated requests."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import pytest

from headrace.broker.partitions.partition import PartitionLog
from headrace.broker.sessions.request_dedup import (
    LOGGED_NUMBERS_MAX,
    LOGGED_SESSIONS_MAX,
    NUMBERS_MAX,
    Answers,
    Effect,
    Request,
    Requests,
    session_number,
)
from headrace.config.broker import BrokerSettings
from headrace.errors import UnavailableError
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.classic_frames import RequestFrame, encode_answer
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import Status, error_of
from headrace.wire.iggy.fields import Buffer
from headrace.wire.iggy.messages import consumers, system, topics, users
from headrace.wire.iggy.messages.consumers import StoreConsumerOffset
from headrace.wire.iggy.messages.messages import (
    Message,
    PolledMessages,
    PollMessages,
    SentMessages,
    encode_send,
)
from headrace.wire.iggy.messages.system import Empty
from headrace.wire.iggy.messages.topics import Compression, CreateTopic, UpdateTopic
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from headrace.wire.iggy.request_stream import RequestStream
from headrace.wire.iggy.user_headers import HeaderKind, UserHeader
from headrace.wire.iggy.vsr import frames as vsr
from headrace.wire.iggy.vsr.client import Conversation
from headrace.wire.sbp.messages import Durability
from tests.unit.broker.fake_cluster import FakeCluster
from tests.unit.broker.harness import QUICK, Harness, code_of, opened

Q = TypeVar("Q", bound=c.Encodable)
R = TypeVar("R")
ALICE, BOB = b"alice".ljust(16, b"."), b"bob".ljust(16, b".")
LOGIN = users.LoginRegister(vsr.VERSION, "sdk", "0.11.0", "iggy", "iggy")


@dataclass
class Peer:
    """A client of dialect C on one connection of a harness."""

    harness: Harness
    talk: Conversation = field(default_factory=lambda: Conversation(ALICE))

    def __post_init__(self) -> None:
        self.connection = self.harness.connect()
        self._requests = RequestStream()

    async def exchange(self, frame: Sequence[Buffer]) -> vsr.Reply:
        (event,) = self._requests.feed(b"".join(frame))
        assert isinstance(event, RequestFrame)
        status, pieces = await self.harness.dispatcher.on_request(
            self.connection.session, event.code, event.payload, event.head
        )
        return vsr.decode_reply(b"".join(encode_answer(event.head, status, pieces)))

    async def call(self, command: c.Command[Q, R], request: Q) -> R:
        frame = self.talk.encode(command.code, command.encode_request(request, Dialect.C))
        return _decoded(command, await self.exchange(frame))

    async def again(self, command: c.Command[Q, R]) -> R:
        return _decoded(command, await self.exchange(self.talk.again()))

    async def login(self) -> users.Registered:
        registered = await self.call(c.LOGIN_REGISTER, LOGIN)
        self.talk.on_registered(registered.session)
        return registered

    async def send(self, *payloads: bytes, first: int = 1) -> SentMessages:
        messages = [Message(p, id=n) for n, p in enumerate(payloads, first)]
        request = encode_send("s", "t", Partitioning.to_partition(0), messages)
        return await self.call(c.SEND_MESSAGES, request)

    async def poll(self) -> PolledMessages:
        request = PollMessages(Consumer.single(), "s", "t", 0, Strategy.offset(0), 1000)
        return await self.call(c.POLL_MESSAGES, request)

    async def payloads(self) -> list[bytes]:
        return [message.payload for message in (await self.poll()).messages()]


def _decoded(command: c.Command[Q, R], reply: vsr.Reply) -> R:
    if reply.status:
        raise error_of(reply.status, evicted=reply.evicted)
    return command.decode_response(reply.payload, Dialect.C)


async def logged_in(harness: Harness, client: bytes = ALICE) -> Peer:
    peer = Peer(harness, Conversation(client))
    await peer.login()
    return peer


async def topic_of(peer: Peer, partitions: int = 1) -> None:
    await peer.call(c.CREATE_STREAM, topics.CreateStream("s"))
    await peer.call(c.CREATE_TOPIC, topic("t", partitions))


def topic(name: str, partitions: int = 1, *options: UserHeader) -> CreateTopic:
    return CreateTopic("s", partitions, Compression.NONE, 0, 0, 0, name, options)


# --- sessions -------------------------------------------------------------------------------------


async def test_a_session_goes_with_client_and_user() -> None:
    async with opened() as harness:
        peer = Peer(harness)
        assert (await peer.call(c.PING, Empty())) == Empty()
        assert await code_of(peer.call(c.GET_STREAMS, Empty())) == Status.UNAUTHENTICATED
        refused = await peer.exchange(peer.talk.encode(202, [b"\x01s"]))
        assert refused.evicted == vsr.Eviction.NO_SESSION
        first = await peer.login()
        assert first.session > 0
        assert first.protocol_version == vsr.VERSION
        again = Peer(harness, peer.talk)
        assert (await again.login()).session == first.session
        assert (await logged_in(harness, BOB)).talk.session != first.session
        assert peer.connection.session.dialect is Dialect.C
        root = harness.broker.catalogue.users[0]
        assert first.session == session_number(b"s" * 32, ALICE, root.uid)
        assert first.session != session_number(b"s" * 32, ALICE, root.uid + 1)
        assert first.session != session_number(b"t" * 32, ALICE, root.uid)


async def test_logins_that_are_refused() -> None:
    async with opened() as harness:
        peer = Peer(harness)

        async def evicted(code: int, request: c.Encodable) -> vsr.Eviction | None:
            body = request.encode(Dialect.C)
            return (await peer.exchange(peer.talk.encode(code, [body]))).evicted

        wrong = users.LoginRegister(vsr.VERSION, "sdk", "1", "iggy", "wrong")
        assert await evicted(40, wrong) == vsr.Eviction.INVALID_CREDENTIALS
        old = users.LoginRegister(vsr.pack_version(0, 10, 9), "sdk", "1", "iggy", "iggy")
        assert await evicted(40, old) == vsr.Eviction.INCOMPATIBLE_PROTOCOL
        token = users.LoginRegisterWithToken(vsr.VERSION, "sdk", "1", "nonsense")
        assert await evicted(45, token) == vsr.Eviction.INVALID_TOKEN
        cut = await peer.exchange(peer.talk.encode(40, [b"\0\x2c\0\0\x03sdk"]))
        assert cut.evicted == vsr.Eviction.MALFORMED_LOGIN
        await peer.login()  # the connection is as good as before


async def test_tokens_log_in() -> None:
    async with opened() as harness:
        peer = await logged_in(harness)
        made = await peer.call(
            c.CREATE_PERSONAL_ACCESS_TOKEN, users.CreatePersonalAccessToken("laptop", 0)
        )
        other = Peer(harness, Conversation(BOB))
        login = users.LoginRegisterWithToken(vsr.VERSION, "sdk", "1", made.token)
        registered = await other.call(c.LOGIN_REGISTER_WITH_TOKEN, login)
        assert (registered.user_id, registered.session > 0) == (0, True)
        classic = harness.connect()
        assert await classic.login() == 0
        assert classic.session.dialect is Dialect.B2  # nobody else is taken for dialect C


async def test_a_session_that_is_not_the_connections_own() -> None:
    async with opened() as harness:
        peer, other = await logged_in(harness), await logged_in(harness, BOB)
        borrowed = Peer(harness, peer.talk)
        borrowed.connection = other.connection
        refused = await borrowed.exchange(borrowed.talk.encode(202, [b"\x01s"]))
        assert refused.evicted == vsr.Eviction.SESSION_TOO_LOW
        await peer.call(c.LOGOUT_USER, Empty())
        refused = await peer.exchange(peer.talk.encode(202, [b"\x01s"]))
        assert refused.evicted == vsr.Eviction.NO_SESSION
        await peer.login()
        await peer.call(c.CREATE_STREAM, topics.CreateStream("s"))


async def test_faults_in_a_header_are_answered() -> None:
    async with opened() as harness:
        peer = await logged_in(harness)
        frame = bytearray(b"".join(peer.talk.encode(202, [b"\x01s"])))
        for at in (0, 16, 32, 144):
            bad = bytearray(frame)
            bad[at] ^= 1
            assert (await peer.exchange([bad])).status == Status.INVALID_COMMAND
        assert (await peer.exchange([frame])).status == 0
        unknown = vsr.encode_request(vsr.Head(200, 5, peer.talk.session, ALICE), 0)
        assert (await peer.exchange(unknown)).status == Status.INVALID_COMMAND
        read = vsr.encode_request(vsr.Head(vsr.READ, 5, peer.talk.session, ALICE), 202, [b"\x01x"])
        assert (await peer.exchange(read)).status == Status.INVALID_COMMAND
        classic = await harness.root()
        for only_c in (13, 40, 45, 606):
            assert await classic.status(only_c, b"\1") == Status.INVALID_COMMAND


# --- numbers --------------------------------------------------------------------------------------


async def test_a_request_sent_again_is_applied_once() -> None:
    async with opened() as harness:
        peer = await logged_in(harness)
        made = await peer.call(c.CREATE_STREAM, topics.CreateStream("s"))
        again = Peer(harness, peer.talk)  # the connection was cut before the answer
        await again.login()
        assert await again.again(c.CREATE_STREAM) == made
        assert await code_of(again.call(c.CREATE_STREAM, topics.CreateStream("s"))) == 1012
        await again.call(c.CREATE_TOPIC, topic("t"))
        sent = await again.send(b"one", b"two")
        assert sent.placed[0].base_offset == 0
        third = Peer(harness, peer.talk)
        await third.login()
        assert await third.again(c.SEND_MESSAGES) == sent
        assert await third.again(c.SEND_MESSAGES) == sent
        assert await third.payloads() == [b"one", b"two"]
        assert (await third.send(b"three")).placed[0].base_offset == 2
        assert harness.broker.traffic.repeated_requests == 3


async def test_a_request_sent_again_while_the_first_is_under_way() -> None:
    async with opened() as harness:
        peer = await logged_in(harness)
        await topic_of(peer)
        other = Peer(harness, peer.talk)
        await other.login()
        first = asyncio.create_task(peer.send(b"one"))
        await asyncio.sleep(0)
        both = await asyncio.gather(first, other.again(c.SEND_MESSAGES))
        assert both[0] == both[1]
        assert await other.payloads() == [b"one"]


async def test_who_waits_for_a_request_is_answered_although_it_was_forgotten() -> None:
    """Applied again it would be in the log twice."""
    async with opened() as harness:
        peer = await logged_in(harness)
        await topic_of(peer)
        other = Peer(harness, peer.talk)
        session = (await other.login()).session
        first = asyncio.create_task(peer.send(b"one"))
        await asyncio.sleep(0)
        second = asyncio.create_task(other.again(c.SEND_MESSAGES))
        await asyncio.sleep(0)
        assert not first.done()
        harness.broker.answers.forget_session(session)
        assert await first == await second
        assert await other.payloads() == [b"one"]
        assert harness.broker.answers.held_bytes == 0


async def test_nothing_of_a_refused_send_is_kept_but_where_it_goes() -> None:
    """Its first number says how long that is, and may say anything."""
    async with opened() as harness:
        peer = await logged_in(harness)
        body = struct.pack("<I", 1 << 20) + bytes(2 << 20)
        refused = await peer.exchange(peer.talk.encode(101, [body]))
        assert refused.status == Status.INVALID_COMMAND
        last = peer.connection.session.last_send
        assert last is not None
        assert last.fingerprint == b""


async def test_a_batch_sent_again_under_another_session() -> None:
    """As producers of 0.9.0 do when their connection is cut."""
    async with opened() as harness:
        peer = await logged_in(harness)
        await topic_of(peer)
        sent = await peer.send(b"one", b"two")
        body = b"".join(peer.talk.again())[256:]

        async def send(other: Peer) -> SentMessages:
            reply = await other.exchange(other.talk.encode(101, [body]))
            return c.SEND_MESSAGES.decode_response(reply.payload, Dialect.C)

        other = await logged_in(harness, BOB)
        assert (await send(other)).placed[0].base_offset == 2  # that connection goes on: no repeat
        harness.disconnect(peer.connection)
        again = await logged_in(harness, b"c" * 16)
        assert await send(again) == sent
        assert (await send(again)).placed[0].base_offset == 4  # once: this one was answered
        assert len(await again.payloads()) == 6
        await again.send(b"three")
        await again.call(c.PING, Empty())  # so the answer had arrived
        late = b"".join(again.talk.again())[256:]
        harness.disconnect(again.connection)
        last = await logged_in(harness, b"d" * 16)
        reply = await last.exchange(last.talk.encode(101, [late]))
        assert c.SEND_MESSAGES.decode_response(reply.payload, Dialect.C).placed[0].base_offset == 7


async def test_what_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as harness:
        peer = await logged_in(harness)
        await topic_of(peer)
        append = PartitionLog.append

        async def failing(*_: object, **__: object) -> int:
            await asyncio.sleep(0)
            raise UnavailableError("not now")

        monkeypatch.setattr(PartitionLog, "append", failing)
        assert await code_of(peer.send(b"one")) == Status.TASK_TIMEOUT
        monkeypatch.setattr(PartitionLog, "append", append)
        assert (await peer.again(c.SEND_MESSAGES)).placed[0].base_offset == 0
        assert await peer.payloads() == [b"one"]
        # A refusal is none: what it was about may have changed.
        await peer.call(c.CREATE_STREAM, topics.CreateStream("x"))
        assert await code_of(peer.call(c.CREATE_STREAM, topics.CreateStream("x"))) == 1012
        classic = await harness.root()
        await classic.call(c.DELETE_STREAM, topics.DeleteStream("x"))
        await peer.again(c.CREATE_STREAM)


async def test_a_number_that_was_used_for_something_else() -> None:
    async with opened() as harness:
        peer = await logged_in(harness)
        await peer.call(c.CREATE_STREAM, topics.CreateStream("s"))
        confused = Peer(harness, Conversation(ALICE))  # counts from 1 again, and says so too late
        await confused.login()
        refused = await code_of(confused.call(c.CREATE_STREAM, topics.CreateStream("x")))
        assert refused == Status.REQUEST_ALREADY_APPLIED
        assert len(harness.broker.catalogue.streams) == 1


async def test_another_leader_knows_what_was_applied() -> None:
    cluster = FakeCluster()
    talk = Conversation(ALICE)
    async with opened(cluster) as harness:
        peer = await logged_in(harness)
        talk = peer.talk
        await topic_of(peer)
        sent = await peer.send(b"one", b"two")
        before = await peer.send(b"three")
    async with opened(cluster, epoch=2) as harness:
        peer = Peer(harness, talk)
        assert (await peer.login()).session == talk.session
        assert await peer.again(c.SEND_MESSAGES) == before
        assert sent.placed[0].base_offset == 0
        assert await peer.payloads() == [b"one", b"two", b"three"]
        await peer.call(c.PURGE_TOPIC, topics.PurgeTopic("s", "t"))
        await peer.send(b"new")
        purge = talk.encode(305, [topics.PurgeTopic("s", "t").encode(Dialect.C)])
        made = await peer.exchange(purge)
        assert made.status == 0
        classic = await harness.root()
        await classic.send(b"newer")
    async with opened(cluster, epoch=3) as harness:
        peer = Peer(harness, talk)
        await peer.login()
        assert (await peer.exchange(purge)).status == 0
        assert await peer.payloads() == [b"newer"]


@pytest.mark.parametrize("snapshot", [False, True])
async def test_answers_after_a_restart_show_what_was_made(snapshot: bool) -> None:
    cluster = FakeCluster()
    made: dict[int, object] = {}
    calls: list[tuple[c.AnyCommand, c.Encodable]] = [
        (c.CREATE_STREAM, topics.CreateStream("s")),
        (c.CREATE_TOPIC, topic("t", 3)),
        (c.CREATE_CONSUMER_GROUP, consumers.CreateGroup("s", "t", "g")),
        (c.CREATE_USER, users.CreateUser("alice", "secret")),
        (c.DELETE_PARTITIONS, topics.DeletePartitions("s", "t", 1)),
    ]
    frames = []
    async with opened(cluster) as harness:
        peer = await logged_in(harness)
        for command, request in calls:
            made[command.code] = await peer.call(command, request)
            frames.append(b"".join(peer.talk.again()))
        token = users.CreatePersonalAccessToken("laptop", 0)
        await peer.call(c.CREATE_PERSONAL_ACCESS_TOKEN, token)
        secret = b"".join(peer.talk.again())
        if snapshot:
            await harness.broker._log.write_snapshot()
    async with opened(cluster, epoch=2) as harness:
        again = Peer(harness, peer.talk)
        await again.login()
        for (command, _), frame in zip(calls, frames, strict=True):
            answer = _decoded(command, await again.exchange([frame]))
            if command in (c.CREATE_USER, c.DELETE_PARTITIONS):  # the others have changed since
                assert answer == made[command.code]
        shown = _decoded(c.CREATE_TOPIC, await again.exchange([frames[1]]))
        assert shown == await again.call(c.GET_TOPIC, topics.GetTopic("s", "t"))  # as it is now
        assert len(harness.broker.catalogue.topic("s", "t").partitions) == 2
        refused = await again.exchange([secret])
        assert refused.status == Status.REQUEST_ALREADY_APPLIED  # nobody keeps it


async def test_the_rest_of_a_large_request_that_was_half_stored() -> None:
    cluster = FakeCluster()
    settings = msgspec.structs.replace(QUICK, batch_bytes_max=64 * 1024)
    async with opened(cluster, settings=settings) as harness:
        peer = await logged_in(harness)
        await topic_of(peer)
        await peer.send(b"before")
        payloads = [bytes([n]) * 10_000 for n in range(20)]
        messages = [Message(p, id=n) for n, p in enumerate(payloads, 10)]
        request = encode_send("s", "t", Partitioning.to_partition(0), messages)
        frame = b"".join(peer.talk.encode(101, c.SEND_MESSAGES.encode_request(request, Dialect.C)))
        # As if the broker had died after the first of its batches.
        head = Request(peer.talk.session, vsr.decode_request(frame)[0].number)
        log = harness.broker.open_logs()[0]
        part = encode_send("s", "t", Partitioning.to_partition(0), messages[:6])
        await log.append(memoryview(bytearray(part.area)), part.starts, head)
    async with opened(cluster, epoch=2, settings=settings) as harness:
        again = Peer(harness, peer.talk)
        await again.login()
        reply = await again.exchange([frame])
        assert c.SEND_MESSAGES.decode_response(reply.payload, Dialect.C).placed[0].base_offset == 1
        assert await again.payloads() == [b"before", *payloads]


async def test_joining_again_means_the_new_connection() -> None:
    async with opened() as harness:
        peer = await logged_in(harness)
        await topic_of(peer, 2)
        await peer.call(c.CREATE_CONSUMER_GROUP, consumers.CreateGroup("s", "t", "g"))
        join = consumers.JoinGroup("s", "t", "g")
        await peer.call(c.JOIN_CONSUMER_GROUP, join)
        frame = peer.talk.again()
        harness.disconnect(peer.connection)
        again = Peer(harness, peer.talk)
        await again.login()
        assert (await again.exchange(frame)).status == 0
        assert len(harness.broker.membership.groups_of(again.connection.session.client_id)) == 1


# --- groups, options ------------------------------------------------------------------------------


async def test_members_ask_for_their_part() -> None:
    async with opened() as harness:
        first, second = await logged_in(harness), await logged_in(harness, BOB)
        await topic_of(first, 3)
        await first.call(c.CREATE_CONSUMER_GROUP, consumers.CreateGroup("s", "t", "g"))
        sync = consumers.SyncGroup("s", "t", "g")
        missing = Status.CONSUMER_GROUP_MEMBER_NOT_FOUND
        assert await code_of(first.call(c.SYNC_CONSUMER_GROUP, sync)) == missing
        for peer in (first, second):
            await peer.call(c.JOIN_CONSUMER_GROUP, consumers.JoinGroup("s", "t", "g"))
        one = await first.call(c.SYNC_CONSUMER_GROUP, sync)
        two = await second.call(c.SYNC_CONSUMER_GROUP, sync)
        assert (one.partitions, two.partitions) == ((0, 2), (1,))
        assert one.generation == two.generation > 1 << 32

        def poll(partition: int) -> PollMessages:
            return PollMessages(Consumer.group("g"), "s", "t", partition, Strategy.next(), 10)

        assert (await first.call(c.POLL_MESSAGES, poll(2))).count == 0
        refused = await code_of(first.call(c.POLL_MESSAGES, poll(1)))
        assert refused == Status.CONSUMER_GROUP_PARTITION_NOT_OWNED
        await second.call(c.LEAVE_CONSUMER_GROUP, consumers.LeaveGroup("s", "t", "g"))
        later = await first.call(c.SYNC_CONSUMER_GROUP, sync)
        assert (later.partitions, later.generation > one.generation) == ((0, 1, 2), True)


async def test_what_only_dialect_c_has_needs_rights_too() -> None:
    async with opened() as harness:
        peer = await logged_in(harness)
        await topic_of(peer)
        await peer.call(c.CREATE_CONSUMER_GROUP, consumers.CreateGroup("s", "t", "g"))
        await peer.call(c.CREATE_USER, users.CreateUser("ann", "secret"))
        ann = Peer(harness, Conversation(BOB))
        describe = system.DescribeOptions(system.OptionScope.TOPIC)
        assert await code_of(ann.call(c.DESCRIBE_OPTIONS, describe)) == Status.UNAUTHENTICATED
        login = users.LoginRegister(vsr.VERSION, "sdk", "1", "ann", "secret")
        ann.talk.on_registered((await ann.call(c.LOGIN_REGISTER, login)).session)
        assert (await ann.call(c.DESCRIBE_OPTIONS, describe)).options
        sync = consumers.SyncGroup("s", "t", "g")
        assert await code_of(ann.call(c.SYNC_CONSUMER_GROUP, sync)) == Status.UNAUTHORIZED


def text(key: str, value: str) -> UserHeader:
    return UserHeader.of(key, value)


def u64(key: str, value: int) -> UserHeader:
    return UserHeader(key.encode(), value.to_bytes(8, "little"), HeaderKind.UINT64)


async def test_options_of_topics_take_effect_and_are_shown() -> None:
    settings = msgspec.structs.replace(QUICK, durability="written")
    async with opened(settings=settings) as harness:
        peer = await logged_in(harness)
        await peer.call(c.CREATE_STREAM, topics.CreateStream("s", options=(text("k", "v"),)))
        given = (
            text("compression_algorithm", "gzip"),
            u64("message_expiry", 90_000_000),
            text("max_topic_size", "3000000000"),  # as text, as its maps have them
            text("durability", "persisted"),
            text("what.is.this", "nobody knows"),
        )
        made = (await peer.call(c.CREATE_TOPIC, topic("t", 1, *given))).topic
        assert made.compression is Compression.GZIP
        assert (made.message_expiry_us, made.max_size_bytes) == (90_000_000, 3_000_000_000)
        shown = {option.key.decode(): option.python_value() for option in made.options}
        assert shown == {
            "compression_algorithm": "gzip",
            "message_expiry": 90_000_000,
            "max_topic_size": 3_000_000_000,
            "durability": "persisted",
            "what.is.this": "nobody knows",
        }
        derived = {option.key.decode(): option.python_value() for option in made.derived}
        assert derived["segment_size"] == 1 << 30
        assert derived["consumer_offset_durability"] == "replicated"
        assert derived["preallocate_segments"] is False
        assert not derived.keys() & shown.keys()
        classic = await harness.root()
        seen = await classic.call(c.GET_TOPIC, topics.GetTopic("s", "t"))
        assert seen is not None
        assert (seen.topic.compression, seen.topic.message_expiry_us) == (2, 90_000_000)
        await peer.call(c.CREATE_TOPIC, topic("u", 1, text("durability", "replicated")))
        await peer.send(b"x")
        await classic.send(b"x", topic="u")
        levels = {
            uid: harness.cluster.named(f"p/{uid}/0/0").durability
            for uid in (topic_.uid for topic_ in harness.broker.catalogue.topics())
        }
        assert list(levels.values()) == [Durability.SYNCED, Durability.WRITTEN]
        named = await peer.call(c.GET_STREAM, topics.GetStream("s"))
        assert named is not None
        assert named.stream.options == (text("k", "v"),)


async def test_updates_change_what_they_name() -> None:
    async with opened() as harness:
        peer = await logged_in(harness)
        await topic_of(peer)

        async def update(*options: UserHeader) -> None:
            request = UpdateTopic("s", "t", Compression.NONE, 0, 0, 0, "t", options)
            await peer.call(c.UPDATE_TOPIC, request)

        await update(u64("message_expiry", 5), text("compression_algorithm", "gzip"))
        await update(text("mine", "x"))
        stored = harness.broker.catalogue.topic("s", "t")
        assert (stored.expiry, stored.compression) == (5, Compression.GZIP)
        for option, status in (
            (text("durability", "persisted"), Status.UNSUPPORTED_OPTION_KEY),
            (text("compression_algorithm", "zip"), Status.INVALID_OPTION_VALUE),
            (text("message_expiry", "soon"), Status.INVALID_OPTION_VALUE),
            (UserHeader.of("message_expiry", 5.0), Status.INVALID_OPTION_VALUE),
        ):
            assert await code_of(update(option)) == status
        many = tuple(text(f"key {n}", "v" * 200) for n in range(100))
        assert await code_of(update(*many)) == Status.OPTIONS_BLOCK_TOO_LARGE
        described = await peer.call(
            c.DESCRIBE_OPTIONS, system.DescribeOptions(system.OptionScope.TOPIC)
        )
        assert len(described.options) == 9
        nothing = system.DescribeOptions(system.OptionScope.USER)
        assert (await peer.call(c.DESCRIBE_OPTIONS, nothing)).options == ()
        made = await peer.call(
            c.CREATE_USER, users.CreateUser("alice", "secret", options=(text("shoe", "42"),))
        )
        assert made.user.options == (text("shoe", "42"),)
        change = users.UpdateUser("alice", "bob", options=(text("hat", "7"),))
        await peer.call(c.UPDATE_USER, change)
        found = await peer.call(c.GET_USER, users.GetUser("bob"))
        assert found is not None
        assert found.user.options == (text("shoe", "42"), text("hat", "7"))
        renamed = topics.UpdateStream("s", "s2", (text("a", "b"),))
        await peer.call(c.UPDATE_STREAM, renamed)
        assert (await peer.call(c.GET_STREAMS, Empty())).streams[0].options == (text("a", "b"),)


async def test_any_request_is_a_sign_of_life() -> None:
    async with opened() as harness:
        peer = await logged_in(harness)
        session = peer.connection.session
        session.seen = 0.0
        await peer.call(c.GET_STREAMS, Empty())
        assert session.seen > 0
        session.stale = True
        evicted = await peer.exchange(peer.talk.encode(201, []))
        assert evicted.evicted == vsr.Eviction.STALE_CLIENT


async def test_only_members_of_groups_go_stale() -> None:
    settings = msgspec.structs.replace(QUICK, heartbeat_interval_ms=20)
    async with opened(settings=settings) as harness:
        idle, member = await logged_in(harness), await logged_in(harness, BOB)
        await topic_of(idle)
        await idle.call(c.CREATE_CONSUMER_GROUP, consumers.CreateGroup("s", "t", "g"))
        await member.call(c.JOIN_CONSUMER_GROUP, consumers.JoinGroup("s", "t", "g"))
        for _ in range(1000):
            await asyncio.sleep(0.01)
            if member.connection.session.stale:
                break
        assert idle.connection.session.seen < member.connection.session.seen
        assert not idle.connection.session.stale  # though it was silent for longer
        evicted = await member.exchange(member.talk.encode(201, []))
        assert evicted.evicted == vsr.Eviction.STALE_CLIENT


async def test_offsets_are_stored_with_or_without_acknowledgement() -> None:
    async with opened() as harness:
        peer = await logged_in(harness)
        await topic_of(peer)
        await peer.send(b"a", b"b")
        for acknowledge in (True, False):
            request = StoreConsumerOffset(
                Consumer.single(), "s", "t", 0, int(acknowledge), acknowledge
            )
            await peer.call(c.STORE_CONSUMER_OFFSET, request)


# --- bounds ---------------------------------------------------------------------------------------


def test_answers_are_bounded() -> None:
    answers = Answers(sessions_max=3, bytes_max=1000)
    for session in range(1, 6):
        for number in range(1, NUMBERS_MAX + 10):
            answers.finish(answers.enter(session, number, b"f")[0], [b"x"])
    assert len(answers) == 3
    assert answers.find(5, 1) is None
    assert answers.find(5, NUMBERS_MAX) is not None
    assert answers.held_bytes == 3 * NUMBERS_MAX
    answers.finish(answers.enter(6, 1, b"f")[0], [b"x" * 990])
    assert (len(answers), answers.held_bytes) == (1, 990)
    answers.finish(answers.enter(6, 2, b"f")[0], [b"x" * 100_000])
    found = answers.find(6, 2)
    assert found is not None
    assert (found.done, found.answer) == (True, None)
    answers.forget_session(6)
    assert answers.held_bytes == 0


def test_requests_forgotten_before_they_were_done_are_not_counted_as_held() -> None:
    """Else whoever has more under way than is remembered fills the count for ever, and with it
    everybody else is forgotten at once."""
    answers = Answers(sessions_max=2, bytes_max=1000)
    under_way = [answers.enter(5, number, b"f")[0] for number in range(NUMBERS_MAX + 3)]
    for applying in under_way:
        answers.finish(applying, [b"x" * 10])
    assert answers.held_bytes == 10 * NUMBERS_MAX
    assert (under_way[0].done, under_way[0].answer) == (True, b"x" * 10)  # for those who wait
    late = answers.enter(6, 1, b"f")[0]
    answers.forget_session(6)
    answers.finish(late, [b"x" * 10])
    answers.forget_session(5)
    assert answers.held_bytes == 0


def test_logged_requests_are_bounded_and_come_back() -> None:
    requests = Requests()
    for session in range(LOGGED_SESSIONS_MAX + 5):
        for number in range(LOGGED_NUMBERS_MAX + 3):
            requests.note(Request(session, number), Effect("StreamCreated", number))
    assert requests.find(Request(4, LOGGED_NUMBERS_MAX)) is None
    assert requests.find(Request(5, 2)) is None
    assert requests.find(Request(5, 3)) == Effect("StreamCreated", 3)
    restored = Requests()
    restored.restore(requests.rows())
    assert list(restored.rows()) == list(requests.rows())


def test_settings_have_defaults() -> None:
    assert BrokerSettings().answers_sessions_max > 0


async def test_converted_batches_are_kept_up_to_a_bound() -> None:
    settings = msgspec.structs.replace(QUICK, poll_cache_bytes_max=100_000)
    async with opened(settings=settings) as harness:
        peer = await logged_in(harness)
        await topic_of(peer)
        payloads = [bytes([n]) * 1000 for n in range(200)]
        for start in range(0, 200, 20):
            await peer.send(*payloads[start : start + 20], first=start + 1)
        for _ in range(2):
            assert await peer.payloads() == payloads
            assert harness.broker.poll_caches.bytes <= 100_000
            assert harness.broker.poll_caches.replies.bytes > 0
        partial = PollMessages(Consumer.single(), "s", "t", 0, Strategy.offset(5), 30)
        found = (await peer.call(c.POLL_MESSAGES, partial)).messages()
        assert [message.offset for message in found] == list(range(5, 35))
        assert (await peer.call(c.POLL_MESSAGES, partial)).messages() == found
        classic = await harness.root()
        assert [m.payload for m in (await classic.poll(count=1000)).messages()] == payloads
