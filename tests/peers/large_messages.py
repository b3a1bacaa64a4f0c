"""Sends and polls messages of many sizes, apache-iggy 0.6.0 and newer; prints the bytes read.

Usage: large_messages.py CONNECTION_STRING STREAM
"""

import asyncio
import sys

from apache_iggy import IggyClient, PollingStrategy, SendMessage
from polling import poll

SIZES = [1, 100, 16_383, 16_384, 16_385, 300_000, 3_000_000]


def payload(number, size):
    return bytes([number + 1]) * size


async def main(connection_string, stream):
    client = IggyClient.from_connection_string(connection_string)
    await client.connect()
    await client.create_stream(stream)
    await client.create_topic(stream, "sizes", 1)
    for number, size in enumerate(SIZES):
        await client.send_messages(stream, "sizes", 0, [SendMessage(payload(number, size))])
    polled = await poll(client, stream, "sizes", 0, PollingStrategy.First(), 100)
    assert [message.payload() for message in polled] == [
        payload(number, size) for number, size in enumerate(SIZES)
    ]
    print(sum(SIZES), flush=True)


asyncio.run(main(*sys.argv[1:]))
