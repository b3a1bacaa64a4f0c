"""One client of any apache-iggy generation that stays connected and does what it is told.

Arguments: host:port, stream, topic, the number of the first partition (1 for 0.5.0, else 0).
Orders come as lines of JSON: ["send", texts] and ["poll"]. The answer to a poll is a line of JSON,
[payload in hex, id, offset, timestamp, checksum, length] for each message, from 0.9.0 also its
origin timestamp and user headers; to a send, null.
"""

import asyncio
import json
import os
import sys

from apache_iggy import IggyClient, PollingStrategy, SendMessage
from polling import poll


def shown_by_the_newest(message):
    if not hasattr(message, "user_headers"):
        return []
    found = message.user_headers()
    return [message.origin_timestamp(), sorted(map(repr, (found or {}).items()))]


async def main(address, stream, topic, first):
    partition = int(first)
    client = IggyClient(address)
    await client.connect()
    await client.login_user("iggy", "iggy")
    print("connected", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        order, *rest = json.loads(line)
        answer = None
        if order == "send":
            messages = [SendMessage(text) for text in rest[0]]
            await client.send_messages(stream, topic, partition, messages)
        else:
            found = await poll(client, stream, topic, partition, PollingStrategy.First(), 1000)
            answer = [
                [m.payload().hex(), m.id(), m.offset(), m.timestamp(), m.checksum(), m.length()]
                for m in found
            ]
            for row, m in zip(answer, found, strict=True):
                row += shown_by_the_newest(m)
        print(json.dumps(answer), flush=True)


asyncio.run(main(*sys.argv[1:]))
sys.stdout.flush()
os._exit(0)  # the client's own threads sometimes abort an interpreter that shuts down in order
