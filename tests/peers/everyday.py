"""What everyday use does with apache-iggy 0.8.0. Argument: host:port. Exit 0 when all held."""

import asyncio
import datetime
import os
import sys

from apache_iggy import IggyClient, PollingStrategy, SendMessage


async def refused(awaitable):
    """The text of the exception; fails when there is none."""
    try:
        await awaitable
    except RuntimeError as error:
        return str(error)
    raise AssertionError("accepted what should have been refused")


async def connected(address):
    client = IggyClient(address)
    await client.connect()
    await client.login_user("iggy", "iggy")
    return client


async def streams_and_topics(client):
    await client.ping()
    await client.create_stream("shop")
    stream = await client.get_stream("shop")
    assert (stream.id, stream.name, stream.topics_count, stream.messages_count) == (0, "shop", 0, 0)
    assert (await client.get_stream(0)).name == "shop"
    assert await client.get_stream("nothing") is None
    await client.create_topic("shop", "orders", 3)
    await client.create_topic(
        "shop",
        "brief",
        1,
        compression_algorithm="gzip",
        replication_factor=1,
        message_expiry=datetime.timedelta(seconds=90),
        max_topic_size=5_000_000_000,
    )
    topic = await client.get_topic("shop", "orders")
    assert (topic.id, topic.name, topic.partitions_count, topic.messages_count) == (
        0,
        "orders",
        3,
        0,
    )
    assert (await client.get_topic(0, 1)).name == "brief"
    assert await client.get_topic("shop", "nothing") is None
    assert (await client.get_stream("shop")).topics_count == 2


async def errors(address, client):
    async def check(name, awaitable):
        text = await refused(awaitable)
        assert text.startswith(name), (name, text)

    one = [SendMessage("x")]
    first = PollingStrategy.First()
    await check("StreamNameAlreadyExists", client.create_stream("shop"))
    await check("TopicNameAlreadyExists", client.create_topic("shop", "orders", 1))
    await check("StreamIdNotFound", client.create_topic("nothing", "x", 1))
    await check("TooManyPartitions", client.create_topic("shop", "many", 1001))
    await check("PartitionNotFound", client.send_messages("shop", "orders", 99, one))
    await check("TopicIdNotFound", client.send_messages("shop", "nothing", 0, one))
    await check("PartitionNotFound", client.poll_messages("shop", "orders", 99, first, 1, False))
    stranger = IggyClient(address)
    await stranger.connect()
    await check("InvalidCredentials", stranger.login_user("iggy", "wrong"))
    await check("Unauthenticated", stranger.create_stream("x"))
    await client.ping()


async def poll(client, strategy, count, topic="orders", partition=0, commit=False):
    return await client.poll_messages("shop", topic, partition, strategy, count, commit)


async def sending_and_polling(client):
    texts = [f"text {n} äöü €" for n in range(10)]
    await client.send_messages("shop", "orders", 0, [SendMessage(t) for t in texts])
    blobs = [bytes([n]) * (n * 1000 + 1) for n in range(10)]
    await client.send_messages("shop", "orders", 0, [SendMessage(b) for b in blobs])
    expected = [t.encode() for t in texts] + blobs
    got = await poll(client, PollingStrategy.First(), 100)
    assert [m.payload() for m in got] == expected
    assert [m.offset() for m in got] == list(range(20))
    assert all(m.partition_id() == 0 and m.length() == len(m.payload()) for m in got)
    assert len({m.id() for m in got}) == 20
    assert all(m.id() and m.checksum() and m.timestamp() for m in got)

    async def offsets(strategy, count, **options):
        return [m.offset() for m in await poll(client, strategy, count, **options)]

    assert await offsets(PollingStrategy.Offset(5), 4) == [5, 6, 7, 8]
    assert await offsets(PollingStrategy.Offset(18), 10) == [18, 19]
    assert await offsets(PollingStrategy.Offset(20), 10) == []
    assert await offsets(PollingStrategy.Last(), 3) == [17, 18, 19]
    second = got[10].timestamp()
    assert await offsets(PollingStrategy.Timestamp(second), 100) == list(range(10, 20))
    assert await offsets(PollingStrategy.Timestamp(got[-1].timestamp() + 1), 100) == []
    assert await offsets(PollingStrategy.Next(), 2) == [0, 1]
    assert await offsets(PollingStrategy.Next(), 2, commit=True) == [0, 1]
    assert await offsets(PollingStrategy.Next(), 2, commit=True) == [2, 3]
    assert await offsets(PollingStrategy.Next(), 1) == [4]
    assert await offsets(PollingStrategy.First(), 5, partition=1) == []
    assert (await client.get_topic("shop", "orders")).messages_count == 20
    assert (await client.get_stream("shop")).messages_count == 20


async def sizes(client):
    await client.create_topic("shop", "sizes", 1)
    lengths = [1, 2, 63, 64, 65, 4095, 65_536, 1_000_000, 8_388_608, 10_000_000]
    for number, length in enumerate(lengths):
        body = bytes([65 + number]) * length
        await client.send_messages("shop", "sizes", 0, [SendMessage(body)])
    # 24 MB at once: more than a batch may hold, acknowledged as one.
    await client.send_messages("shop", "sizes", 0, [SendMessage(b"z" * 2_400_000)] * 10)
    for number, length in enumerate(lengths + [2_400_000] * 10):
        (message,) = await poll(client, PollingStrategy.Offset(number), 1, topic="sizes")
        letter = 65 + number if number < len(lengths) else ord("z")
        assert message.payload() == bytes([letter]) * length, number
    too_big = await refused(
        client.send_messages("shop", "sizes", 0, [SendMessage(b"x" * 10_000_001)])
    )
    assert too_big.startswith("TooBigMessagePayload"), too_big
    await client.ping()
    assert (await client.get_topic("shop", "sizes")).messages_count == 20
    # A poll of everything is bounded, and what it returns is whole.
    some = await poll(client, PollingStrategy.First(), 100, topic="sizes")
    assert 0 < len(some) < 20
    assert [m.offset() for m in some] == list(range(len(some)))


async def many(client):
    await client.create_topic("shop", "many", 1)
    for batch in range(20):
        messages = [SendMessage(f"{batch}/{n}") for n in range(1000)]
        await client.send_messages("shop", "many", 0, messages)
    seen = 0
    while True:
        got = await poll(client, PollingStrategy.Next(), 777, topic="many", commit=True)
        if not got:
            break
        for message in got:
            assert message.offset() == seen
            assert message.payload() == f"{seen // 1000}/{seen % 1000}".encode()
            seen += 1
    assert seen == 20_000


async def main(address):
    client = await connected(address)
    await streams_and_topics(client)
    await errors(address, client)
    await sending_and_polling(client)
    await sizes(client)
    await many(client)
    print("everything held")


asyncio.run(main(sys.argv[1]))
sys.stdout.flush()
os._exit(0)  # the client's own threads sometimes abort an interpreter that shuts down in order
