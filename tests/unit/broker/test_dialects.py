"""One broker, three dialects: what each means, and how a session's is found."""

from __future__ import annotations

import struct

import pytest

from headrace.config.broker import BrokerSettings
from headrace.net.credentials import service_token
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import Status
from headrace.wire.iggy.messages import consumers, system, topics, users
from headrace.wire.iggy.messages.messages import (
    Message,
    PolledMessages,
    PollMessages,
    decode_messages,
    encode_send,
)
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from headrace.wire.iggy.user_headers import UserHeader, encode_headers, key_header
from tests.unit.broker.harness import Client, Harness, code_of, opened

A, B1, B2 = Dialect.A, Dialect.B1, Dialect.B2
ALL = [A, B1, B2]
VERSIONS = {A: "0.7.0", B1: "0.8.2", B2: "0.10.0"}
NOTHING = system.Empty()


async def speaking(harness: Harness, dialect: Dialect) -> Client:
    """Logged in as root, with the version of an SDK of that dialect, after its first PING."""
    client = harness.connect()
    assert await client.status(1, b"") == 0
    payload = users.LoginUser("iggy", "iggy", VERSIONS[dialect]).encode()
    assert await client.status(38, payload) == 0
    assert client.session.dialect is dialect
    return client


async def reply(client: Client, code: int, payload: bytes = b"") -> bytes:
    """The bytes of an answer, in whatever dialect it came."""
    status, pieces = await client.dispatcher.on_request(
        client.session, code, memoryview(bytearray(payload))
    )
    assert status == 0, status
    return b"".join(pieces)


# --- ids ------------------------------------------------------------------------------------------


async def test_ids_count_from_one_in_a_and_from_zero_elsewhere() -> None:
    async with opened() as harness:
        clients = {dialect: await speaking(harness, dialect) for dialect in ALL}
        await clients[B2].stream("s")
        await clients[B2].topic("s", "t", partitions=2)
        await clients[B2].call(c.CREATE_CONSUMER_GROUP, consumers.CreateGroup("s", "t", "g"))
        for dialect, client in clients.items():
            base = 1 if dialect is A else 0
            number = struct.pack("<BBI", 1, 4, base)
            for code, payload in ((200, number), (300, number * 2), (600, number * 3)):
                assert (await reply(client, code, payload))[:4] == struct.pack("<I", base)
            (user,) = struct.unpack_from("<I", await reply(client, 31, number))
            assert user == base
            body = await reply(client, 300, number * 2)
            assert struct.unpack_from("<I", body, len(body) - 40) == (base + 1,)  # partition
        assert await clients[A].status(200, struct.pack("<BBI", 1, 4, 0)) == 6


async def test_a_lets_clients_choose_ids() -> None:
    async with opened() as harness:
        a, b = await speaking(harness, A), await speaking(harness, B2)

        async def stream(name: str, wanted: int | None) -> int:
            request = topics.CreateStream(name, stream_id=wanted)
            return (await a.call(c.CREATE_STREAM, request)).stream.id

        async def topic(name: str, wanted: int | None) -> int:
            request = topics.CreateTopic(
                "seven", 1, topics.Compression.NONE, 0, 0, 1, name, topic_id=wanted
            )
            return (await a.call(c.CREATE_TOPIC, request)).topic.id

        async def group(name: str, wanted: int | None) -> int:
            request = consumers.CreateGroup("seven", "nine", name, group_id=wanted)
            return (await a.call(c.CREATE_CONSUMER_GROUP, request)).group.id

        assert await stream("seven", 6) == 6
        assert await topic("nine", 8) == 8
        assert await group("five", 4) == 4
        # On the wire these are 7, 9 and 5; the other dialects see 6, 8 and 4.
        found = await a.call(c.GET_STREAM, topics.GetStream(6))
        assert found is not None
        assert (await reply(a, 200, struct.pack("<BBI", 1, 4, 7)))[:4] == b"\x07\0\0\0"
        assert (await b.call(c.GET_TOPIC, topics.GetTopic(6, 8))) is not None
        assert (await b.call(c.GET_CONSUMER_GROUP, consumers.GetGroup(6, 8, 4))) is not None
        assert await code_of(stream("other", 6)) == 1011
        assert await code_of(topic("other", 8)) == 2012
        assert await code_of(group("other", 4)) == 5001
        assert await code_of(stream("seven", 6)) == 1012
        assert [await stream("x", None), await stream("y", None)] == [0, 1]
        assert [await topic("x", None), await group("x", None)] == [0, 0]


async def test_the_highest_id_a_client_may_choose() -> None:
    async with opened() as harness:
        a = await speaking(harness, A)
        await reply(a, 202, b"\xff\xff\xff\xff\x01s")
        assert (await reply(a, 201))[:4] == b"\xff\xff\xff\xff"


# --- refusals -------------------------------------------------------------------------------------

MISSING = 77


@pytest.mark.parametrize(
    ("dialect", "by_id", "by_name"),
    [(A, (1009, 2010, 5000), (1010, 2011, 5003)), (B1, (1009, 2010, 5000), (1009, 2010, 5000)),
     (B2, (1009, 2010, 5000), (1009, 2010, 5000))],
)  # fmt: skip
async def test_what_is_missing(
    dialect: Dialect, by_id: tuple[int, int, int], by_name: tuple[int, int, int]
) -> None:
    async with opened() as harness:
        client = await speaking(harness, dialect)
        await client.stream()
        await client.topic()
        for reference, expected in ((MISSING, by_id), ("gone", by_name)):
            stream, topic, group = expected
            assert await code_of(client.send(b"x", stream=reference)) == stream
            assert await code_of(client.poll(stream=reference)) == stream
            assert await code_of(client.send(b"x", topic=reference)) == topic
            purge = client.call(c.PURGE_TOPIC, topics.PurgeTopic("s", reference))
            assert await code_of(purge) == topic
            join = client.call(c.JOIN_CONSUMER_GROUP, consumers.JoinGroup("s", "t", reference))
            assert await code_of(join) == group


async def test_lists_of_a_missing_parent() -> None:
    async with opened() as harness:
        for dialect in ALL:
            client = await speaking(harness, dialect)
            listed = client.call(c.GET_TOPICS, topics.GetTopics("gone"))
            grouped = client.call(c.GET_CONSUMER_GROUPS, consumers.GetGroups(5, "t"))
            codes = (await code_of(listed), await code_of(grouped))
            assert codes == ((1010, 1009) if dialect is A else (0, 0))


async def test_polling_nothing() -> None:
    async with opened() as harness:
        for dialect in ALL:
            client = await speaking(harness, dialect)
            if dialect is A:
                await client.stream()
                await client.topic()
                await client.send(b"x")
                assert await code_of(client.poll(count=0)) == 4009
                continue
            for strategy in (Strategy.first(), Strategy.last(), Strategy.next()):
                found = await client.poll(strategy, count=0)
                assert (found.count, found.current_offset, found.messages()) == (0, 0, [])


async def test_deleting_more_partitions_than_there_are() -> None:
    async with opened() as harness:
        for dialect in ALL:
            client = await speaking(harness, dialect)
            name = f"stream-{dialect.value}"
            await client.stream(name)
            await client.topic(name, partitions=3)
            delete = client.call(c.DELETE_PARTITIONS, topics.DeletePartitions(name, "t", 4))
            assert await code_of(delete) == (0 if dialect is A else 2019)
            found = await client.call(c.GET_TOPIC, topics.GetTopic(name, "t"))
            assert found is not None
            assert found.topic.partitions_count == len(found.partitions)
            assert len(found.partitions) == (0 if dialect is A else 3)
            if dialect is A:
                delete = client.call(c.DELETE_PARTITIONS, topics.DeletePartitions(name, "t", 1))
                assert await code_of(delete) == 0
                create = topics.CreatePartitions(name, "t", 2)
                await client.call(c.CREATE_PARTITIONS, create)
                await client.send(b"x", stream=name, to=Partitioning.to_partition(1))


async def test_an_offset_without_an_owner() -> None:
    async with opened() as harness:
        for dialect in ALL:
            client = await speaking(harness, dialect)
            if dialect is A:
                await client.stream()
                await client.topic()
                await client.send(b"x")
            store = consumers.StoreConsumerOffset(Consumer.group("gone"), "s", "t", None, 0)
            expected = Status.CONSUMER_OFFSET_NOT_FOUND if dialect is A else 3022
            assert await code_of(client.call(c.STORE_CONSUMER_OFFSET, store)) == expected


async def test_what_a_user_may_not_see() -> None:
    async with opened() as harness:
        root = await speaking(harness, B2)
        await root.stream()
        await root.topic()
        await root.call(c.CREATE_CONSUMER_GROUP, consumers.CreateGroup("s", "t", "g"))
        await root.call(c.CREATE_USER, users.CreateUser("nobody", "secret"))
        for dialect in ALL:
            client = harness.connect()
            login = users.LoginUser("nobody", "secret", VERSIONS[dialect])
            assert await client.status(38, login.encode()) == 0
            expected = 41 if dialect is B2 else 0
            consumer = Consumer.single()
            for call in (
                client.call(c.GET_STREAM, topics.GetStream("s")),
                client.call(c.GET_TOPIC, topics.GetTopic("s", "t")),
                client.call(c.GET_CONSUMER_GROUP, consumers.GetGroup("s", "t", "g")),
                client.call(c.GET_USER, users.GetUser("iggy")),
                client.call(c.GET_CLIENT, system.GetClient(root.session.client_id)),
                client.call(c.GET_CONSUMER_OFFSET, consumers.GetConsumerOffset(consumer, "s", "t")),
            ):
                assert await code_of(call) == expected
            # What changes or lists things is refused in every dialect, and oneself is visible.
            assert await code_of(client.stream("mine")) == 41
            assert await code_of(client.call(c.GET_STREAMS, NOTHING)) == 41
            assert await client.call(c.GET_USER, users.GetUser("nobody")) is not None


# --- groups ---------------------------------------------------------------------------------------


async def test_a_member_polls_anothers_partition_only_in_a() -> None:
    async with opened() as harness:
        clients = {dialect: await speaking(harness, dialect) for dialect in ALL}
        await clients[A].stream()
        await clients[A].topic(partitions=3)
        await clients[A].call(c.CREATE_CONSUMER_GROUP, consumers.CreateGroup("s", "t", "g"))
        for client in clients.values():
            await client.call(c.JOIN_CONSUMER_GROUP, consumers.JoinGroup("s", "t", "g"))
        for partition in range(3):
            await clients[B2].send(b"%d" % partition, to=Partitioning.to_partition(partition))
        group = Consumer.group("g")
        # Round robin in the order they joined: A has partition 0, B1 1, B2 2.
        for own, (dialect, client) in enumerate(clients.items()):
            for partition in range(3):
                found = await client.poll(Strategy.first(), partition=partition, consumer=group)
                served = partition == own or dialect is A
                assert [m.payload for m in found.messages()] == [b"%d" % partition] * served
            mine = await client.poll(Strategy.first(), partition=None, consumer=group)
            assert (mine.partition, mine.count) == (own, 1)


async def test_a_member_without_a_partition_gets_zeros() -> None:
    async with opened() as harness:
        for dialect in ALL:
            first, second = await speaking(harness, dialect), await speaking(harness, dialect)
            name = f"stream-{dialect.value}"
            await first.stream(name)
            await first.topic(name)
            await first.call(c.CREATE_CONSUMER_GROUP, consumers.CreateGroup(name, "t", "g"))
            for client in (first, second):
                await client.call(c.JOIN_CONSUMER_GROUP, consumers.JoinGroup(name, "t", "g"))
            poll = c.POLL_MESSAGES.request(
                Consumer.group("g"), name, "t", None, Strategy.next(), 10, False
            )
            assert await reply(second, 100, poll.encode(dialect)) == bytes(16)


# --- messages -------------------------------------------------------------------------------------

HEADERS = encode_headers([UserHeader.of("a", 1), UserHeader.of("b", "two")]) + key_header(b"key")


@pytest.mark.parametrize("sender", ALL)
async def test_a_message_reads_the_same_in_every_dialect(sender: Dialect) -> None:
    async with opened() as harness:
        clients = {dialect: await speaking(harness, dialect) for dialect in ALL}
        await clients[B2].stream()
        await clients[B2].topic()
        sent = [
            Message(b"payload %d" % n, HEADERS * (n % 2), id=n, origin_timestamp_us=n * 3)
            for n in range(40)
        ]
        request = encode_send("s", "t", Partitioning.to_partition(0), sent)
        await clients[sender].call(c.SEND_MESSAGES, request)
        seen = {}
        for dialect, client in clients.items():
            found = (await client.poll(Strategy.first())).messages()
            assert [(m.payload, m.headers) for m in found] == [(m.payload, m.headers) for m in sent]
            assert [m.origin_timestamp_us for m in found] == [m.origin_timestamp_us for m in sent]
            assert [m.offset for m in found] == list(range(40))
            assert [m.id for m in found][1:] == list(range(1, 40))
            assert found[0].id != 0
            seen[dialect] = found
        assert seen[A] == seen[B1] == seen[B2]


async def test_headers_that_are_none_do_not_stop_older_readers() -> None:
    async with opened() as harness:
        clients = {dialect: await speaking(harness, dialect) for dialect in ALL}
        await clients[B2].stream()
        await clients[B2].topic()
        sent = [Message(b"before"), Message(b"odd", b"\xff" * 7), Message(b"after", HEADERS)]
        request = encode_send("s", "t", Partitioning.to_partition(0), sent)
        await clients[B2].call(c.SEND_MESSAGES, request)
        for dialect in (A, B1):
            poll = c.POLL_MESSAGES.request(
                Consumer.single(), "s", "t", 0, Strategy.first(), 10, False
            )
            body = await reply(clients[dialect], 100, poll.encode(dialect))
            assert body.count(b"before") == body.count(b"after") == 1
            assert b"odd" + b"\xff" * 7 in body


async def test_keys_go_where_b_puts_them() -> None:
    async with opened() as harness:
        a, b = await speaking(harness, A), await speaking(harness, B2)
        await a.stream()
        await a.topic(partitions=5)
        for n in range(20):
            key = Partitioning.by_key(b"key-%d" % n)
            await a.send(b"%d" % n, to=key)
            await b.send(b"%d" % n, to=key)
        for partition in range(5):
            found = [m.payload for m in (await a.poll(partition=partition)).messages()]
            assert found[::2] == found[1::2]


# --- how a session's dialect is found -------------------------------------------------------------


async def test_the_version_decides_the_login_reply() -> None:
    async with opened() as harness:
        for dialect in ALL:
            client = harness.connect()
            login = users.LoginUser("iggy", "iggy", VERSIONS[dialect]).encode()
            body = await reply(client, 38, login)
            assert body[:4] == struct.pack("<I", dialect.id_base)
            assert (len(body) > 4) == (dialect is A)


async def test_a_failed_login_decides_nothing() -> None:
    async with opened() as harness:
        client = harness.connect()
        assert await client.status(38, users.LoginUser("iggy", "no", "0.7.0").encode()) == 42
        assert client.session.dialect is B2


async def test_versions_we_do_not_know_are_silent() -> None:
    async with opened() as harness:
        for version in ("", "0.11.0", "1.2", "node", "0"):
            client = harness.connect(B1)
            await reply(client, 38, users.LoginUser("iggy", "iggy", version).encode())
            assert client.session.dialect is B1


@pytest.mark.parametrize("dialect", ALL)
async def test_shapes_decide_for_silent_clients(dialect: Dialect) -> None:
    async with opened() as harness:
        client = await harness.root()
        create = topics.CreateStream("s").encode(dialect)
        body = await reply(client, 202, create)
        assert body[:4] == struct.pack("<I", dialect.id_base)
        compression = topics.Compression.NONE
        topic = topics.CreateTopic("s", 1, compression, 0, 0, 1, "t").encode(dialect)
        await reply(client, 302, topic)
        sent = encode_send("s", "t", Partitioning.to_partition(0), [Message(b"x", HEADERS)])
        await reply(client, 101, sent.encode(dialect))
        assert client.session.dialect is dialect
        poll = c.POLL_MESSAGES.request(Consumer.single(), "s", "t", 0, Strategy.next(), 1, False)
        body = await reply(client, 100, poll.encode(dialect))
        (message,) = c.POLL_MESSAGES.decode_response(body, dialect).messages()
        assert (message.payload, message.headers) == (b"x", HEADERS)
        # Its next silent connection is understood from the start.
        other = await harness.root()
        assert other.session.dialect is dialect


async def test_a_send_in_another_dialect_is_read_again_with_its_ids() -> None:
    async with opened() as harness:
        b = await speaking(harness, B2)
        for name in ("s", "other"):
            await b.stream(name)
            await b.topic(name)
        sent = encode_send(0, 0, Partitioning.to_partition(0), [Message(b"x")])
        a = await speaking(harness, A)
        # Stream 0 is not a legal id in A; headers of 64 bytes show that this is B2.
        await reply(a, 101, sent.encode(B2))
        assert a.session.dialect is B2
        assert [m.payload for m in (await b.poll()).messages()] == [b"x"]
        # In the other direction: 56-byte headers and an assumed A.
        silent = harness.connect(A)
        await silent.login()
        await reply(silent, 101, sent.encode(A))
        assert silent.session.dialect is A
        assert len((await b.poll()).messages()) == 2


async def test_a_broken_send_is_refused_whatever_the_dialect() -> None:
    async with opened() as harness:
        sent = encode_send("s", "t", Partitioning.to_partition(0), [Message(b"x")])
        for dialect in ALL:
            client = await speaking(harness, dialect)
            assert await client.status(101, sent.encode(dialect)[:-1]) == 4036
            assert client.session.dialect is dialect


async def token_of(client: Client, name: str = "token") -> str:
    request = users.CreatePersonalAccessToken(name, 0)
    return (await client.call(c.CREATE_PERSONAL_ACCESS_TOKEN, request)).token


async def by_token(harness: Harness, token: str) -> Client:
    client = harness.connect()
    payload = users.LoginWithPersonalAccessToken(token).encode()
    assert await client.status(44, payload) == 0
    return client


async def test_a_token_goes_by_what_its_user_spoke_last() -> None:
    async with opened() as harness:
        root = await harness.root()
        token = await token_of(root)
        assert (await by_token(harness, token)).session.dialect is B2
        for dialect in (A, B1, B2, A):
            await speaking(harness, dialect)
            client = await by_token(harness, token)
            assert client.session.dialect is dialect
        # SDKs of B ask this by themselves, those of A do not.
        assert await client.status(12) == 0
        assert client.session.dialect is B2
        # The user's silent clients are somebody else.
        assert (await harness.root()).session.dialect is B2


async def test_our_own_commands_tell_b2_even_before_login() -> None:
    async with opened() as harness:
        await speaking(harness, A)
        token = await token_of(await harness.root())
        client = harness.connect(B1)
        assert await client.status(9000) == 40
        identity = await client.call(
            c.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, users.LoginWithPersonalAccessToken(token)
        )
        assert (identity.user_id, client.session.dialect) == (0, B2)


async def test_our_own_service_speaks_b2_and_teaches_nothing() -> None:
    async with opened() as harness:
        token = await token_of(await harness.root())
        await speaking(harness, A)
        service = harness.connect(A)
        login = users.LoginWithPersonalAccessToken(service_token(harness.broker.identity.secret))
        assert len(await reply(service, 44, login.encode())) == 4
        assert service.session.dialect is B2
        assert (await by_token(harness, token)).session.dialect is A


async def test_another_login_on_the_same_connection() -> None:
    async with opened() as harness:
        client = await speaking(harness, A)
        await reply(client, 38, users.LoginUser("iggy", "iggy", "0.9.0").encode())
        assert client.session.dialect is B2


# --- the access token of a login's reply --------------------------------------------------------


async def session_token(harness: Harness, name: str = "iggy", password: str = "iggy") -> str:
    client = harness.connect()
    assert await client.status(1, b"") == 0
    body = await reply(client, 38, users.LoginUser(name, password, "0.7.0").encode())
    return users.Identity.decode(body, A).token


async def token_status(harness: Harness, token: str) -> int:
    payload = users.LoginWithPersonalAccessToken(token).encode()
    return await harness.connect().status(44, payload)


async def test_the_access_token_logs_in() -> None:
    async with opened() as harness:
        token = await session_token(harness)
        assert token.startswith("iggypat-")
        client = harness.connect()
        body = await reply(client, 44, users.LoginWithPersonalAccessToken(token).encode())
        assert body == b"\x01\0\0\0"  # and gives no further token
        await client.call(c.CREATE_STREAM, topics.CreateStream("by token"))


async def test_the_access_token_ends() -> None:
    async with opened() as harness:
        root = await harness.root()
        await root.call(c.CREATE_USER, users.CreateUser("ann", "secret"))
        token = await session_token(harness, "ann", "secret")
        assert await token_status(harness, token) == 0
        harness.clock.now_us_ += 3_600_000_000 - 1000
        assert await token_status(harness, token) == 0
        harness.clock.now_us_ += 1000
        assert await token_status(harness, token) == 54
        fresh = await session_token(harness, "ann", "secret")
        assert await token_status(harness, fresh) == 0
        change = users.ChangePassword("ann", "secret", "other")
        await root.call(c.CHANGE_PASSWORD, change)
        assert await token_status(harness, fresh) == 20
        fresh = await session_token(harness, "ann", "other")
        inactive = users.UpdateUser("ann", None, users.UserStatus.INACTIVE)
        await root.call(c.UPDATE_USER, inactive)
        assert await token_status(harness, fresh) == 47
        await root.call(c.DELETE_USER, users.DeleteUser("ann"))
        assert await token_status(harness, fresh) == 20


async def test_an_access_token_cannot_be_made_up() -> None:
    async with opened() as harness:
        token = await session_token(harness)
        prefix = "iggypat-s."
        text = token.removeprefix(prefix)
        for position in range(len(text)):
            other = "A" if text[position] != "A" else "B"
            forged = prefix + text[:position] + other + text[position + 1 :]
            assert await token_status(harness, forged) == 20, position
        for odd in (prefix, prefix + text[:-1], prefix + "=" * 64, prefix + "é" * 20, text):
            assert await token_status(harness, odd) == 20


async def test_access_tokens_can_be_turned_off() -> None:
    async with opened(settings=BrokerSettings(session_token_ms=0)) as harness:
        assert await session_token(harness) == ""


# --- replies of one shape each ------------------------------------------------------------------


async def test_statistics_and_cluster_metadata() -> None:
    async with opened() as harness:
        bodies = {}
        for dialect in ALL:
            client = await speaking(harness, dialect)
            bodies[dialect] = await reply(client, 10)
            stats = system.Stats.decode(bodies[dialect], dialect)
            assert stats.encode(dialect) == bodies[dialect]
            cluster = await client.call(c.GET_CLUSTER_METADATA, NOTHING)
            assert cluster.name == "test"
        assert len(bodies[A]) == len(bodies[B1]) == len(bodies[B2]) - 20


async def test_strangers_among_the_clients() -> None:
    async with opened() as harness:
        harness.connect()
        for dialect, absent in ((A, 0), (B1, 2**32 - 1), (B2, 2**32 - 1)):
            client = await speaking(harness, dialect)
            body = await reply(client, 22)
            assert struct.unpack_from("<I", body, 4) == (absent,)


def test_messages_compare_by_what_they_hold() -> None:
    """The comparisons above would be empty if these fields did not count."""
    one = encode_send("s", "t", Partitioning.balanced(), [Message(b"x", HEADERS, id=1)])
    (message,) = decode_messages(one.area)
    assert message == Message(b"x", HEADERS, id=1)
    assert message != Message(b"x", b"", id=1)
    assert message != Message(b"x", HEADERS, id=2)


# --- versions that two SDKs state -----------------------------------------------------------------


@pytest.mark.parametrize("consumer", [0, 1, "reports"])
async def test_a_consumer_of_another_sdk_reads_what_was_sent(consumer: int | str) -> None:
    """Go 0.8.0 logs in with the bytes of Python 0.6.0 but sends no PING, and reads 64-byte headers.

    A poll that names no consumer may be Python's: it gets nothing once, and then what is there.
    """
    async with opened() as harness:
        writer = await speaking(harness, B2)
        await writer.stream("s")
        await writer.topic("s", "t")
        await writer.send(*(b"%d" % n for n in range(5)), stream="s", topic="t")
        client = harness.connect()
        login = users.LoginUser("iggy", "iggy", "0.8.0").encode()
        assert await client.status(38, login) == 0
        assert await client.status(12, b"") == 0
        poll = PollMessages(Consumer.single(consumer), "s", "t", 0, Strategy.first(), 10, False)
        found = await reply(client, 100, poll.encode(B2))
        if consumer == 0:
            assert found[12:16] == bytes(4), "nothing is right in either form"
            found = await reply(client, 100, poll.encode(B2))
        assert client.session.dialect is B2
        polled = PolledMessages.decode(found, B2)
        assert [message.payload for message in polled.messages()] == [b"%d" % n for n in range(5)]


async def test_python_that_polls_before_its_first_ping_reads_what_was_sent() -> None:
    """A connection string logs in while it connects: PING and the first poll come in any order."""
    async with opened() as harness:
        writer = await speaking(harness, B2)
        await writer.stream("s")
        await writer.topic("s", "t")
        await writer.send(b"one", b"two", stream="s", topic="t")
        client = harness.connect()
        assert await client.status(38, users.LoginUser("iggy", "iggy", "0.8.0").encode()) == 0
        poll = PollMessages(Consumer.single(), "s", "t", 0, Strategy.first(), 10, False).encode(B1)
        assert (await reply(client, 100, poll))[12:16] == bytes(4)
        assert await client.status(1, b"") == 0
        polled = PolledMessages.decode(await reply(client, 100, poll), B1)
        assert [message.payload for message in polled.messages()] == [b"one", b"two"]
        assert client.session.dialect is B1
