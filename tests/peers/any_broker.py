"""A little work through any broker. Arguments: host:port, name of a stream. Exit 0 when it held."""

import asyncio
import sys

from apache_iggy import IggyClient, PollingStrategy, SendMessage
from polling import poll


async def main(address, stream):
    client = IggyClient(address)
    await client.connect()
    await client.login_user("iggy", "iggy")
    await client.create_stream(stream)
    await client.create_topic(stream, "t", 1)
    try:
        await client.send_messages(stream, "t", 0, [SendMessage("first"), SendMessage("second")])
        partition = 0
    except RuntimeError:  # ids from 1 in the oldest
        partition = 1
        await client.send_messages(stream, "t", 1, [SendMessage("first"), SendMessage("second")])
    polled = await poll(client, stream, "t", partition, PollingStrategy.First(), 10)
    assert [message.payload() for message in polled] == [b"first", b"second"]


asyncio.run(main(*sys.argv[1:]))
