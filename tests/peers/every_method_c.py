"""Everything that apache-iggy 0.9.0 exposes, used once against a server: `every_method.py`'s peer.

Argument: host:port. What is used is noted by its name; at the end the names must be exactly those
the package exposes, so a method that nobody thought of fails the run. Prints them as JSON.
"""

import asyncio
import builtins
import datetime
import json
import os
import struct
import sys
import traceback

import apache_iggy as iggy

ADDRESS = sys.argv[1]
STREAM = "every-0.9.0"
QUICKLY = datetime.timedelta(milliseconds=5)
MINUTE = datetime.timedelta(minutes=1)
USED = set()


def public(kind):
    """What a class adds to Python's own that it is made of."""
    bases = [base for base in kind.__mro__ if base is getattr(builtins, base.__name__, None)]
    inherited = {name for base in bases for name in dir(base)}
    return [name for name in dir(kind) if not name.startswith("_") and name not in inherited]


class Noted:
    """Stands for an object or class of the client; what is taken from it is noted."""

    def __init__(self, target, name=None):
        self._target = target
        self._name = name or type(target).__name__

    def __getattr__(self, attribute):
        USED.add(f"{self._name}.{attribute}")
        return getattr(self._target, attribute)


def noted(name):
    return Noted(getattr(iggy, name), name)


def look(target, **expected):
    """Read every attribute of a value that the client made; some must be as expected."""
    name = type(target).__name__
    for attribute in public(type(target)):
        USED.add(f"{name}.{attribute}")
        value = getattr(target, attribute)
        if attribute in expected:
            assert value == expected[attribute], (name, attribute, value, expected[attribute])
    return target


def exposed():
    names = set()
    for name, kind in vars(iggy).items():
        if not name.startswith("_") and isinstance(kind, type):
            names |= {f"{name}.{attribute}" for attribute in public(kind)} or {name}
    return names


def message(data, **options):
    USED.add("SendMessage")
    return iggy.SendMessage(data, **options)


async def refused(expected, awaitable):
    try:
        await awaitable
    except (RuntimeError, ValueError) as error:
        found = str(error)
    else:
        found = "accepted"
    assert expected.lower() in found.lower(), (expected, found)


Strategy, Commit = noted("PollingStrategy"), noted("AutoCommit")
When, After = noted("AutoCommitWhen"), noted("AutoCommitAfter")
Expiry, Size, To = noted("IggyExpiry"), noted("MaxTopicSize"), noted("Partitioning")
Consumer, Key, Value = noted("Consumer"), noted("HeaderKey"), noted("HeaderValue")
Login, Backpressure, Durability = noted("AutoLogin"), noted("BackpressureMode"), noted("Durability")
Sharding, Status = noted("ProducerSharding"), noted("UserStatus")


# --- settings of clients --------------------------------------------------------------------------


def settings():
    """Those that need no server, or one of a transport that is not served here."""
    look(Login.disabled(), enabled=False, username=None)
    look(Login.username_password("a", "b"), enabled=True, username="a")
    look(Login.personal_access_token("t"), enabled=True)
    retry = {"enabled": True, "max_retries": 3, "interval": QUICKLY}
    for kind in ("Tcp", "Quic", "WebSocket"):
        look(getattr(iggy, f"{kind}ReconnectionConfig")(**retry), **retry)
    look(iggy.WebSocketFramingConfig(max_frame_size=4096), max_frame_size=4096)
    look(iggy.WebSocketConfig(server_address="127.0.0.1:1"), server_address="127.0.0.1:1")
    look(iggy.HttpConfig(api_url="http://127.0.0.1:1", retries=1), retries=1, has_jwt=False)
    look(iggy.QuicConfig(server_address="127.0.0.1:1", server_name="localhost"))
    look(Backpressure.block(), timeout=None)
    look(Backpressure.block_with_timeout(MINUTE), timeout=MINUTE)
    look(Backpressure.fail_immediately(), timeout=None)


async def connections():
    config = iggy.TcpConfig(
        server_address=ADDRESS,
        reconnection=iggy.TcpReconnectionConfig(max_retries=2, interval=QUICKLY),
        nodelay=True,
    )
    look(config, server_address=ADDRESS, tls_enabled=False, nodelay=True)
    client = Noted(iggy.IggyClient(config))
    await client.connect()
    await client.ping()
    await refused("Unauthenticated", client.create_stream("too early"))
    await refused("invalid credentials", client.login_user("iggy", "wrong"))
    await client.login_user("iggy", "iggy")
    other = Noted(noted("IggyClient").from_connection_string(f"iggy+tcp://iggy:iggy@{ADDRESS}"))
    await other.connect()
    assert await other.get_stream("nothing") is None
    await other.logout_user()
    await refused("Unauthenticated", other.create_stream("too late"))
    await other.login_user("iggy", "iggy")
    await other.get_streams()
    return client


# --- streams and topics ---------------------------------------------------------------------------


async def streams_and_topics(client):
    await client.create_stream(STREAM)
    stream = await client.get_stream(STREAM)
    look(stream, name=STREAM, topics_count=0, messages_count=0, topics=[])
    (listed,) = [one for one in await client.get_streams() if one.name == STREAM]
    look(listed, id=stream.id, created_at=stream.created_at)
    assert await client.get_stream("nothing") is None
    await client.update_stream(stream.id, "renamed", options={"colour": "blue"})
    await client.update_stream("renamed", STREAM)
    await refused("stream with name:  already exists", client.create_stream(STREAM))

    await client.create_topic(STREAM, "orders", 2)
    topic = await client.get_topic(STREAM, "orders")
    look(topic, id=0, name="orders", partitions_count=2, messages_count=0)
    assert [look(partition).id for partition in topic.partitions] == [0, 1]
    assert topic.compression_algorithm.lower() == "none"
    assert await client.get_topic(STREAM, "nothing") is None
    await refused("already exists", client.create_topic(STREAM, "orders", 1))
    await refused("not found", client.create_topic("nothing", "x", 1))
    await client.create_partitions(STREAM, "orders", 3)
    await client.delete_partitions(STREAM, "orders", 3)
    await refused("partitions count", client.delete_partitions(STREAM, "orders", 30))
    assert (await client.get_topic(STREAM, "orders")).partitions_count == 2
    await topic_options(client)
    await client.purge_stream(STREAM)


async def topic_options(client):
    specs = {spec.key: look(spec) for spec in await client.describe_options("topic")}
    assert {"durability", "message_expiry", "segment_size"} <= specs.keys()
    assert "1073741824" in str(specs["segment_size"].default_value)
    assert "replicated" in str(specs["durability"].default_value)
    assert await client.describe_options("stream") == []
    assert await client.describe_options("user") == []
    await client.create_topic(
        STREAM,
        "packed",
        1,
        compression_algorithm="gzip",
        message_expiry=Expiry.ExpireDuration(MINUTE),
        max_topic_size=Size.Custom(5_000_000_000),
        segment_size=128 << 20,
        durability=Durability.PERSISTED,
        consumer_offset_durability=Durability.REPLICATED,
        messages_required_to_save=10,
        size_of_messages_required_to_save=4096,
        preallocate_segments=False,
        options={"somebody.elses": "thing"},
    )
    topic = await client.get_topic(STREAM, "packed")
    assert topic.compression_algorithm.lower() == "gzip"
    given = topic.options.to_scalar_dict()
    assert given["durability"] == "persisted", given
    assert given["somebody.elses"] == "thing", given
    assert given["segment_size"] == 128 << 20, given
    assert given["message_expiry"] == 60_000_000, given
    assert not set(given) & set(topic.derived_options.to_scalar_dict())
    never, free = Expiry.NeverExpire(), Size.Unlimited()
    await client.update_topic(STREAM, "packed", "unpacked", message_expiry=never)
    changed = await client.get_topic(STREAM, "unpacked")
    assert changed.compression_algorithm.lower() == "gzip"  # what is not named stays
    assert changed.options.to_scalar_dict()["message_expiry"] == 2**64 - 1
    await client.update_topic(STREAM, "unpacked", "unpacked", "none", None, free, {"more": "x"})
    changed = await client.get_topic(STREAM, "unpacked")
    assert changed.compression_algorithm.lower() == "none"
    assert changed.options.to_scalar_dict()["more"] == "x"
    assert changed.options.to_scalar_dict()["somebody.elses"] == "thing"
    await client.create_topic(
        STREAM,
        "plain",
        1,
        message_expiry=Expiry.ServerDefault(),
        max_topic_size=Size.ServerDefault(),
    )
    derived = (await client.get_topic(STREAM, "plain")).derived_options.to_scalar_dict()
    assert derived["compression_algorithm"] == "none", derived
    names = [look(one).name for one in await client.get_topics(STREAM)]
    assert sorted(names) == ["orders", "plain", "unpacked"]
    assert sorted(look(one).name for one in (await client.get_stream(STREAM)).topics) == sorted(
        names
    )
    for name in ("plain", "unpacked"):
        await client.delete_topic(STREAM, name)


# --- messages -------------------------------------------------------------------------------------

HEADERS = {
    "Raw": b"\0\1",
    "String": "text",
    "Bool": True,
    "Int8": -8,
    "Int16": -16,
    "Int32": -32,
    "Int64": -64,
    "Int128": -128,
    "UnsignedInt8": 8,
    "UnsignedInt16": 16,
    "UnsignedInt32": 32,
    "UnsignedInt64": 64,
    "UnsignedInt128": 128,
    "Float32": 0.5,
    "Float64": 0.25,
}


async def sending_and_polling(client):
    texts = [f"text {n} äöü €" for n in range(10)]
    sent = await client.send_messages(STREAM, "orders", 0, [message(text) for text in texts])
    (placed,) = look(sent).confirmations
    look(placed, topic_id=0, partition_id=0, base_offset=0)
    headers = {getattr(Key, k)(v): getattr(Value, k)(v) for k, v in HEADERS.items()}
    long = [message(bytes([n]) * (n * 1000 + 1), user_headers=headers) for n in range(10)]
    sent = await client.send_messages(STREAM, "orders", To.partition_id(0), long)
    assert sent.confirmations[0].base_offset == 10
    await client.send_messages(STREAM, "orders", 1, [message("elsewhere", id=77)])

    async def poll(strategy, count, partition=0, commit=False, consumer="reader"):
        found = await client.poll_messages(
            STREAM,
            "orders",
            consumer=Consumer.Single(consumer),
            polling_strategy=strategy,
            count=count,
            auto_commit=commit,
            partition_id=partition,
        )
        return [Noted(one) for one in found]

    got = await poll(Strategy.First(), 100)
    assert [m.payload() for m in got[:10]] == [text.encode() for text in texts]
    assert [len(m.payload()) for m in got[10:]] == [n * 1000 + 1 for n in range(10)]
    assert [m.offset() for m in got] == list(range(20))
    assert len({m.id() for m in got}) == 20
    assert all(m.id() and m.checksum() and m.timestamp() and m.origin_timestamp() for m in got)
    assert all(m.length() == len(m.payload()) for m in got)
    assert {m.partition_id() for m in got} == {0}
    assert not got[0].user_headers()
    assert dict(got[10].user_headers()) == headers
    USED.add("UserHeaders.to_scalar_dict")
    assert sorted(map(str, got[10].user_headers().to_scalar_dict().values())) == sorted(
        map(str, HEADERS.values())
    )

    async def offsets(strategy, count, **options):
        return [m.offset() for m in await poll(strategy, count, **options)]

    assert await offsets(Strategy.Offset(18), 10) == [18, 19]
    assert await offsets(Strategy.Offset(20), 10) == []
    assert await offsets(Strategy.Last(), 3) == [17, 18, 19]
    assert await offsets(Strategy.Timestamp(got[10].timestamp()), 100) == list(range(10, 20))
    assert await offsets(Strategy.Next(), 2) == [0, 1]
    assert await offsets(Strategy.Next(), 2, commit=True) == [0, 1]
    assert await offsets(Strategy.Next(), 2, commit=True) == [2, 3]
    assert await offsets(Strategy.Next(), 2, consumer=9, partition=None) == [0, 1]
    (only,) = await poll(Strategy.First(), 5, partition=1)
    assert (only.payload(), only.id()) == (b"elsewhere", 77)
    one = [message("x")]
    await refused("partition", client.send_messages(STREAM, "orders", 99, one))
    await refused("not found", client.send_messages(STREAM, "nothing", 0, one))
    for _ in range(4):
        await client.send_messages(STREAM, "orders", To.balanced(), [message("balanced")])
    keyed = [
        (await client.send_messages(STREAM, "orders", To.messages_key("k"), [message("k")]))
        .confirmations[0]
        .partition_id
        for _ in range(3)
    ]
    assert len(set(keyed)) == 1
    topic = await client.get_topic(STREAM, "orders")
    assert topic.messages_count == 28
    assert all(partition.messages_count > 0 for partition in topic.partitions)
    await client.purge_topic(STREAM, "orders")
    assert (await client.get_topic(STREAM, "orders")).messages_count == 0


async def producers(client):
    direct = look(iggy.DirectProducerConfig(batch_length=5), batch_length=5)
    ordered = iggy.BackgroundProducerConfig(
        sharding=Sharding.ORDERED, linger_time=QUICKLY, failure_mode=Backpressure.block()
    )
    look(ordered, num_shards=1)
    assert Sharding.BALANCED != Sharding.ORDERED
    for number, mode in enumerate((direct, ordered)):
        producer = Noted(
            await client.producer(
                STREAM, f"made-{number}", mode=mode, topic_partitions_count=1, send_retries=1
            )
        )
        await producer.send([message(f"{n}") for n in range(7)])
        await producer.send_one(message("one"))
        await producer.send_with_partitioning([message("there")], To.partition_id(0))
        await producer.send_to(STREAM, f"made-{number}", [message("to")], To.partition_id(0))
        await producer.shutdown()
        assert (await client.get_topic(STREAM, f"made-{number}")).messages_count == 10
    lost = Noted(await client.producer(STREAM, "made-lost", mode=direct, send_retries=0))
    await client.delete_topic(STREAM, "made-lost")
    try:
        await lost.send([message("nowhere")])
    except iggy.ProducerSendError as error:
        look(error)
    else:
        raise AssertionError("it was sent")
    await lost.shutdown()


# --- groups ---------------------------------------------------------------------------------------


async def consumer_of(client, name, commit, batch=3, **options):
    return Noted(
        await client.consumer_group(
            name,
            STREAM,
            "events",
            None,
            Strategy.Next(),
            batch,
            auto_commit=commit,
            poll_interval=QUICKLY,
            **options,
        )
    )


async def consume(consumer, count):
    found, stop = [], asyncio.Event()

    async def take(one):
        found.append(one.offset())
        if len(found) == count:
            stop.set()

    await asyncio.wait_for(consumer.consume_messages(take, stop), 60)
    return found[:count]


async def groups(client):
    await client.create_topic(STREAM, "events", 1)
    await client.send_messages(STREAM, "events", 0, [message(str(n)) for n in range(6)])
    await client.create_consumer_group(STREAM, "events", "team")
    await client.join_consumer_group(STREAM, "events", "team")
    details = look(await client.get_consumer_group(STREAM, "events", "team"), name="team")
    (member,) = details.members
    look(member, partitions=[0], partitions_count=1)
    (listed,) = await client.get_consumer_groups(STREAM, "events")
    look(listed, name="team", members_count=1, partitions_count=1)
    found = await client.poll_messages(
        STREAM,
        "events",
        consumer=Consumer.Group("team"),
        polling_strategy=Strategy.Next(),
        count=4,
        auto_commit=True,
        partition_id=0,
    )
    assert [one.offset() for one in found] == [0, 1, 2, 3]
    await client.leave_consumer_group(STREAM, "events", "team")
    await client.delete_consumer_group(STREAM, "events", "team")
    assert await client.get_consumer_group(STREAM, "events", "team") is None


async def every_way_to_commit(client):
    whens = [When.PollingMessages(), When.ConsumingAllMessages(), When.ConsumingEachMessage()]
    whens.append(When.ConsumingEveryNthMessage(2))
    afters = [After.ConsumingAllMessages(), After.ConsumingEachMessage()]
    afters.append(After.ConsumingEveryNthMessage(2))
    ways = [Commit.Interval(QUICKLY)]
    ways += [Commit.When(when) for when in whens]
    ways += [Commit.After(after) for after in afters[1:]]
    ways += [Commit.IntervalOrWhen(QUICKLY, when) for when in whens[:2]]
    ways += [Commit.IntervalOrAfter(QUICKLY, after) for after in afters[:2]]
    for number, commit in enumerate(ways):
        consumer = await consumer_of(client, f"way-{number}", commit)
        assert await consume(consumer, 6) == list(range(6)), number
    for number, commit in enumerate([Commit.Disabled(), Commit.After(afters[0])]):
        consumer = await consumer_of(client, f"late-{number}", commit, batch=6)
        assert await consume(consumer, 6) == list(range(6)), number


async def stored_offsets(client):
    consumer = await consumer_of(client, "readers", Commit.Disabled(), allow_replay=True)
    assert (consumer.name(), consumer.stream(), consumer.topic()) == ("readers", STREAM, "events")
    assert await consume(consumer, 3) == [0, 1, 2]
    assert consumer.partition_id() == 0
    assert consumer.get_last_consumed_offset(0) >= 2
    await consumer.store_offset(1, 0)
    assert consumer.get_last_stored_offset(0) == 1
    again = await consumer_of(client, "readers", Commit.Disabled(), allow_replay=True)
    found = []
    async for one in again.iter_messages():
        USED.add("ReceiveMessageIterator")
        found.append(one.offset())
        if len(found) == 3:
            break
    assert found == [2, 3, 4], found
    await again.delete_offset(0)
    await refused("consumer offset", again.delete_offset(0))
    await refused("invalid offset", again.store_offset(1_000_000, 0))


# --- users, figures, raw requests -----------------------------------------------------------------


async def users(client):
    topics = {0: iggy.TopicPermissions(poll_messages=True)}
    rights = iggy.Permissions(
        global_permissions=iggy.GlobalPermissions(read_streams=True),
        streams={(await client.get_stream(STREAM)).id: iggy.StreamPermissions(topics=topics)},
    )
    made = await client.create_user("bob", "secret", Status.Active, rights)
    look(made, username="bob", status=Status.Active)
    look(made.permissions)
    look(made.permissions.global_permissions, read_streams=True, manage_users=False)
    (stream,) = made.permissions.streams.values()
    look(stream, manage_stream=False)
    look(stream.topics[0], poll_messages=True, manage_topic=False)
    bob = Noted(iggy.IggyClient(ADDRESS))
    await bob.connect()
    await bob.login_user("bob", "secret")
    assert (await bob.get_stream(STREAM)).name == STREAM
    await refused("Unauthorized", bob.create_stream("bobs"))
    await bob.change_password("bob", "secret", "secret2")
    await client.update_permissions("bob", None)
    await refused("Unauthorized", bob.get_streams())
    await client.update_user("bob", "bobby", Status.Inactive, {"shoe": "42"})
    look(await client.get_user("bobby"), status=Status.Inactive, permissions=None)
    names = [look(user).username for user in await client.get_users()]
    assert sorted(names)[:2] == ["bobby", "iggy"], names
    await client.delete_user("bobby")
    assert await client.get_user("bobby") is None


async def figures_and_raw_requests(client):
    stats = look(await client.get_stats())
    assert stats.streams_count >= 1
    assert stats.clients_count >= 1
    # The broker keeps no cache metrics; the kinds are made by hand where they can be.
    look(iggy.CacheMetricsKey(1, 2, 3), stream_id=1, topic_id=2, partition_id=3)
    USED.update(f"CacheMetrics.{name}" for name in public(iggy.CacheMetrics))
    assert stats.cache_metrics == {}
    me = await client.send_binary_request(20, b"")
    (client_id,) = struct.unpack_from("<I", me)
    assert await client.send_binary_request(21, struct.pack("<I", client_id)) == me
    assert me[:9] in await client.send_binary_request(22, b"")
    raw = await client.send_binary_request(42, b"\x06laptop" + bytes(8))
    token = raw[1:].decode()
    assert b"laptop" in await client.send_binary_request(41, b"")
    other = Noted(
        iggy.IggyClient(
            iggy.TcpConfig(
                server_address=ADDRESS, auto_login=iggy.AutoLogin.personal_access_token(token)
            )
        )
    )
    await other.connect()
    assert (await other.get_stream(STREAM)).name == STREAM
    await client.send_binary_request(43, b"\x06laptop")
    place = b"\x02\x0b" + STREAM.encode() + b"\x02\x06orders"
    await client.send_binary_request(102, place + struct.pack("<IB", 0, 1))
    # A consumer's offset, which has no method of its own.
    consumer = b"\x01\x01\x04" + struct.pack("<I", 5)
    assert await client.send_binary_request(120, consumer + place + b"\x01" + bytes(4)) == b""
    archive = await client.send_binary_request(11, bytes([2, 1, 4]))
    assert archive.startswith(b"PK")
    await refused("invalid command", client.send_binary_request(60_000, b""))


async def main():
    settings()
    client = await connections()
    await streams_and_topics(client)
    await sending_and_polling(client)
    await producers(client)
    await groups(client)
    await every_way_to_commit(client)
    await stored_offsets(client)
    await users(client)
    await figures_and_raw_requests(client)
    await client.delete_stream(STREAM)
    assert await client.get_stream(STREAM) is None
    assert exposed() == USED & exposed(), sorted(exposed() - USED)
    print(json.dumps(sorted(USED & exposed())), flush=True)


status = 0
try:
    asyncio.run(main())
except BaseException:
    traceback.print_exc()
    status = 1
sys.stdout.flush()
os._exit(status)  # the client's own threads sometimes abort an interpreter that shuts down in order
