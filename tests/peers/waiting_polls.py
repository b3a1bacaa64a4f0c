"""A consumer of any apache-iggy generation that asks again at once, beside a producer.

Arguments: host:port, stream, the number of the first partition (1 for 0.5.0, else 0). Prints how
often it asked for how many messages.
"""

import asyncio
import os
import sys
import time

from apache_iggy import IggyClient, PollingStrategy, SendMessage
from polling import poll

MESSAGES = 20
PAUSE_SECONDS = 0.03


async def connected(address):
    client = IggyClient(address)
    await client.connect()
    await client.login_user("iggy", "iggy")
    return client


async def produce(client, stream, partition):
    for number in range(MESSAGES):
        await asyncio.sleep(PAUSE_SECONDS)
        await client.send_messages(stream, "t", partition, [SendMessage(f"m{number}")])


async def main(address, stream, first):
    partition = int(first)
    producer, consumer = await connected(address), await connected(address)
    await producer.create_stream(stream)
    await producer.create_topic(stream, "t", 1)
    task = asyncio.create_task(produce(producer, stream, partition))
    found, polls, until = [], 0, time.monotonic() + 30
    while len(found) < MESSAGES and time.monotonic() < until:
        strategy = PollingStrategy.Offset(len(found))
        found += await poll(consumer, stream, "t", partition, strategy, 10)
        polls += 1
    await task
    assert [m.payload() for m in found] == [b"m%d" % number for number in range(MESSAGES)]
    print(polls, MESSAGES, flush=True)


asyncio.run(main(*sys.argv[1:]))
sys.stdout.flush()
os._exit(0)  # the client's own threads sometimes abort an interpreter that shuts down in order
