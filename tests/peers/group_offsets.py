"""Stored offsets of a consumer group, apache-iggy 0.8.0. Argument: host:port."""

import asyncio
import os
import sys
from datetime import timedelta

from apache_iggy import AutoCommit, IggyClient, PollingStrategy, SendMessage


async def refused(name, awaitable):
    try:
        await awaitable
    except RuntimeError as error:
        text = str(error)
    else:
        raise AssertionError("accepted what should have been refused")
    assert text.startswith(name), text


async def consumer_of(client):
    return await client.consumer_group(
        "readers",
        "offsets",
        "events",
        None,
        PollingStrategy.Next(),
        3,
        auto_commit=AutoCommit.Disabled(),
        poll_interval=timedelta(milliseconds=5),
        allow_replay=True,
    )


async def take(consumer, count):
    found = []
    async for message in consumer.iter_messages():
        found.append(message.offset())
        if len(found) == count:
            return found


async def main(address):
    client = IggyClient(address)
    await client.connect()
    await client.login_user("iggy", "iggy")
    await client.create_stream("offsets")
    await client.create_topic("offsets", "events", 1)
    await client.send_messages("offsets", "events", 0, [SendMessage(str(n)) for n in range(10)])

    consumer = await consumer_of(client)
    assert (consumer.name(), consumer.stream(), consumer.topic()) == (
        "readers",
        "offsets",
        "events",
    )
    assert await take(consumer, 3) == [0, 1, 2]
    assert consumer.get_last_consumed_offset(0) == 2
    await consumer.store_offset(1, None)
    assert consumer.get_last_stored_offset(0) == 1

    again = await consumer_of(client)  # the same connection, so the same member
    found = await asyncio.wait_for(take(again, 3), 60)
    assert found == [2, 3, 4], found
    await again.delete_offset(0)
    await refused("ConsumerOffsetNotFound", again.delete_offset(0))
    await refused("InvalidOffset", again.store_offset(1_000_000, 0))


asyncio.run(main(sys.argv[1]))
sys.stdout.flush()
os._exit(0)  # the client's own threads sometimes abort an interpreter that shuts down in order
