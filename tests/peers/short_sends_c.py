"""apache-iggy 0.9.0 reads at the end of a partition what it sends there, few messages at a time.

Arguments: host:port, stream, topic, SENDs, messages in each. Ends with an error for anything that
it did not send.
"""

import asyncio
import sys

from apache_iggy import IggyClient, PollingStrategy, SendMessage
from polling import poll


async def main(address, stream, topic, sends, size):
    client = IggyClient(address)
    await client.connect()
    await client.login_user("iggy", "iggy")
    await client.create_stream(stream)
    await client.create_topic(stream, topic, 1)

    async def read(first, count):
        return await poll(client, stream, topic, 0, PollingStrategy.Offset(value=first), count)

    assert await read(0, 10) == []
    sent = []
    for number in range(int(sends)):
        first = len(sent)
        sent += [f"message {n} of {number}".encode() * (n + 1) for n in range(int(size))]
        messages = [SendMessage(payload) for payload in sent[first:]]
        await client.send_messages(stream, topic, 0, messages)
        check(await read(first, 100), first, sent[first:])
    for first in (0, 3, len(sent) // 2 + 1):
        check(await read(first, 10_000), first, sent[first:])
        check(await read(first, int(size) + 1), first, sent[first : first + int(size) + 1])


def check(found, first, expected):
    assert [message.payload() for message in found] == expected
    assert [message.offset() for message in found] == list(range(first, first + len(expected)))


asyncio.run(main(*sys.argv[1:]))
