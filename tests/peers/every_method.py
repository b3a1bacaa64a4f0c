"""Everything that apache-iggy 0.5.0, 0.6.0, 0.7.0 or 0.8.0 exposes, used once against a server.

Arguments: host:port, the client's version. What is used is noted by its name; at the end the names
must be exactly those the package exposes, so a method that nobody thought of fails the run.
Prints them as JSON. Run with the interpreter that has that version.
"""

import asyncio
import datetime
import inspect
import json
import os
import sys
import traceback

import apache_iggy

ADDRESS, VERSION = sys.argv[1:3]
GENERATION = int(VERSION.split(".")[1])
FIRST = 1 if GENERATION == 5 else 0  # the number of the first partition
STREAM = f"every-{VERSION}"
QUICKLY = datetime.timedelta(milliseconds=5)
USED = set()


class Noted:
    """Stands for an object or class of the client; what is taken from it is noted."""

    def __init__(self, target, name=None):
        self._target = target
        self._name = name or type(target).__name__

    def __getattr__(self, attribute):
        USED.add(f"{self._name}.{attribute}")
        return getattr(self._target, attribute)


def noted(name):
    return Noted(getattr(apache_iggy, name), name)


Strategy, Commit = noted("PollingStrategy"), noted("AutoCommit")
When, After = noted("AutoCommitWhen"), noted("AutoCommitAfter")


def message(data):
    USED.add("SendMessage")
    return apache_iggy.SendMessage(data)


def exposed():
    names = set()
    for name in dir(apache_iggy):
        kind = getattr(apache_iggy, name)
        if name.startswith("_") or not isinstance(kind, type):
            continue
        public = [attribute for attribute in dir(kind) if not attribute.startswith("_")]
        names |= {f"{name}.{attribute}" for attribute in public} or {name}
    return names


async def settled(value):
    """Older clients give some things at once that newer ones give later."""
    return await value if inspect.isawaitable(value) else value


async def refused(names, awaitable):
    """The refusal's name, by generation: 0.5.0 tells names from numbers."""
    expected = names if isinstance(names, str) else names[GENERATION > 5]
    try:
        await awaitable
    except RuntimeError as error:
        found = str(error)
    else:
        found = "accepted"
    assert found.startswith(expected), (expected, found)


async def connections():
    client = Noted(apache_iggy.IggyClient(ADDRESS))
    await client.connect()
    await client.ping()
    await refused("InvalidCredentials", client.login_user("iggy", "wrong"))
    await client.login_user("iggy", "iggy")
    if GENERATION > 5:
        maker = noted("IggyClient")
        other = Noted(maker.from_connection_string(f"iggy+tcp://iggy:iggy@{ADDRESS}"))
        await other.connect()
        assert await other.get_stream("nothing") is None
    return client


async def streams_and_topics(client):
    await client.create_stream(STREAM)
    stream = Noted(await client.get_stream(STREAM))
    assert (stream.name, stream.topics_count, stream.messages_count) == (STREAM, 0, 0)
    assert (await client.get_stream(stream.id)).name == STREAM
    assert stream.id >= FIRST
    assert await client.get_stream("nothing") is None
    await client.create_topic(STREAM, "orders", 2)
    topic = Noted(await client.get_topic(STREAM, "orders"))
    assert (topic.id, topic.name, topic.partitions_count, topic.messages_count) == (
        FIRST,
        "orders",
        2,
        0,
    )
    assert (await client.get_topic(stream.id, topic.id)).name == "orders"
    assert await client.get_topic(STREAM, "nothing") is None
    packed = {"compression_algorithm": "gzip", "replication_factor": 1}
    if GENERATION == 5:
        await client.create_topic(STREAM, "packed", 1, topic_id=40, **packed)
        assert (await client.get_topic(STREAM, 40)).name == "packed"
        await client.create_stream(f"{STREAM}-numbered", 4000)
        assert (await client.get_stream(4000)).name == f"{STREAM}-numbered"
        await refused("StreamIdAlreadyExists", client.create_stream("other", 4000))
        await refused("TopicIdAlreadyExists", client.create_topic(STREAM, "x", 1, topic_id=40))
    elif GENERATION == 6:
        await client.create_topic(STREAM, "packed", 1, **packed)
    else:
        minute = datetime.timedelta(minutes=1)
        limits = {"message_expiry": minute, "max_topic_size": 5_000_000_000}
        await client.create_topic(STREAM, "packed", 1, **packed, **limits)
    assert (await client.get_stream(STREAM)).topics_count == 2
    await refused("StreamNameAlreadyExists", client.create_stream(STREAM))
    await refused("TopicNameAlreadyExists", client.create_topic(STREAM, "orders", 1))
    missing = ("StreamNameNotFound", "StreamIdNotFound")
    await refused(missing, client.create_topic("nothing", "x", 1))
    await refused("StreamIdNotFound", client.create_topic(7777, "x", 1))


async def sending_and_polling(client):
    texts = [f"text {n} äöü €" for n in range(10)]
    await client.send_messages(STREAM, "orders", FIRST, [message(text) for text in texts])
    long = [f"{n}" * (n * 1000 + 1) for n in range(10)]
    await client.send_messages(STREAM, "orders", FIRST, [message(text) for text in long])
    await client.send_messages(STREAM, "orders", FIRST + 1, [message("elsewhere")])

    async def poll(strategy, count, partition=FIRST, commit=False):
        found = await client.poll_messages(STREAM, "orders", partition, strategy, count, commit)
        return [Noted(one) for one in found]

    got = await poll(Strategy.First(), 100)
    assert [m.payload() for m in got] == [text.encode() for text in texts + long]
    assert [m.offset() for m in got] == list(range(20))
    assert len({m.id() for m in got}) == 20
    assert all(m.id() and m.checksum() and m.timestamp() for m in got)
    assert all(m.length() == len(m.payload()) for m in got)
    if GENERATION == 5:
        assert all(m.checksum() < 2**32 for m in got)  # CRC-32
    if GENERATION >= 7:
        assert {m.partition_id() for m in got} == {0}

    async def offsets(strategy, count, **options):
        return [m.offset() for m in await poll(strategy, count, **options)]

    assert await offsets(Strategy.Offset(18), 10) == [18, 19]
    assert await offsets(Strategy.Offset(20), 10) == []
    assert await offsets(Strategy.Last(), 3) == [17, 18, 19]
    assert await offsets(Strategy.Timestamp(got[10].timestamp()), 100) == list(range(10, 20))
    assert await offsets(Strategy.Next(), 2) == [0, 1]
    assert await offsets(Strategy.Next(), 2, commit=True) == [0, 1]
    assert await offsets(Strategy.Next(), 2, commit=True) == [2, 3]
    (only,) = await poll(Strategy.First(), 5, partition=FIRST + 1)
    assert only.payload() == b"elsewhere"
    one = [message("x")]
    await refused("PartitionNotFound", client.send_messages(STREAM, "orders", 99, one))
    missing = ("TopicNameNotFound", "TopicIdNotFound")
    await refused(missing, client.send_messages(STREAM, "nothing", FIRST, one))
    none = client.poll_messages(STREAM, "orders", FIRST, Strategy.First(), 0, False)
    await refused("InvalidMessagesCount", none)  # by the client itself
    assert (await client.get_topic(STREAM, "orders")).messages_count == 21


async def consumer_of(client, name, commit, batch=3, **options):
    consumer = client.consumer_group(
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
    return Noted(await settled(consumer))


async def consume(consumer, count):
    found, stop = [], asyncio.Event()

    async def take(one):
        found.append(one.offset())
        if len(found) == count:
            stop.set()

    await asyncio.wait_for(consumer.consume_messages(take, stop), 60)
    return found[:count]


async def every_way_to_commit(client):
    await client.create_topic(STREAM, "events", 1)
    await client.send_messages(STREAM, "events", FIRST, [message(str(n)) for n in range(6)])
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
    # These two do not commit before the partition's last message: one batch must hold it.
    for number, commit in enumerate([Commit.Disabled(), Commit.After(afters[0])]):
        consumer = await consumer_of(client, f"late-{number}", commit, batch=6)
        assert await consume(consumer, 6) == list(range(6)), number


async def stored_offsets(client):
    consumer = await consumer_of(client, "readers", Commit.Disabled(), allow_replay=True)
    assert (consumer.name(), consumer.stream(), consumer.topic()) == ("readers", STREAM, "events")
    assert await consume(consumer, 3) == [0, 1, 2]
    assert consumer.partition_id() == FIRST
    assert consumer.get_last_consumed_offset(FIRST) >= 2
    await consumer.store_offset(1, FIRST)
    assert consumer.get_last_stored_offset(FIRST) == 1
    again = await consumer_of(client, "readers", Commit.Disabled(), allow_replay=True)
    if GENERATION >= 7:
        found = []
        async for one in again.iter_messages():
            USED.add("ReceiveMessageIterator")
            found.append(one.offset())
            if len(found) == 3:
                break
    else:
        found = await consume(again, 3)
    assert found == [2, 3, 4], found
    await again.store_offset(3, None)
    await again.delete_offset(FIRST)
    await refused("ConsumerOffsetNotFound", again.delete_offset(FIRST))
    await refused("InvalidOffset", again.store_offset(1_000_000, FIRST))


async def main():
    client = await connections()
    await streams_and_topics(client)
    await sending_and_polling(client)
    await every_way_to_commit(client)
    await stored_offsets(client)
    assert exposed() == USED, exposed() ^ USED
    print(json.dumps(sorted(USED)), flush=True)


status = 0
try:
    asyncio.run(main())
except BaseException:
    traceback.print_exc()
    status = 1
sys.stdout.flush()
os._exit(status)  # the client's own threads sometimes abort an interpreter that shuts down in order
