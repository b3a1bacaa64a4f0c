"""A member of a consumer group, with any apache-iggy from 0.5.0 to 0.9.0.

Arguments: host:port, stream, topic, group. Prints one line per message, `partition offset payload`,
until its input is closed, then exits 0. Clients before 0.7.0 do not tell a message's partition: -1.
"""

import asyncio
import inspect
import os
import sys
from datetime import timedelta

from apache_iggy import AutoCommit, AutoCommitWhen, IggyClient, PollingStrategy


async def main(address, stream, topic, group):
    client = IggyClient(address)
    await client.connect()
    await client.login_user("iggy", "iggy")
    made = client.consumer_group(
        group,
        stream,
        topic,
        None,
        PollingStrategy.Next(),
        10,
        auto_commit=AutoCommit.When(AutoCommitWhen.ConsumingEachMessage()),
        poll_interval=timedelta(milliseconds=5),
    )
    consumer = await made if inspect.isawaitable(made) else made
    print("joined", flush=True)
    stop = asyncio.Event()

    async def take(message):
        text = message.payload().decode()
        partition = getattr(message, "partition_id", lambda: -1)()
        print(partition, message.offset(), text, flush=True)

    async def watch():
        await asyncio.to_thread(sys.stdin.read)
        stop.set()

    watching = asyncio.create_task(watch())
    await consumer.consume_messages(take, stop)
    await watching


asyncio.run(main(*sys.argv[1:]))
sys.stdout.flush()
os._exit(0)  # the client's own threads sometimes abort an interpreter that shuts down in order
