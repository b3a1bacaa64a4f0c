"""Print what apache-iggy 0.8.0 sees of a topic, message by message, as one hash.

Arguments: host:port, stream, topic, partitions.
"""

import asyncio
import hashlib
import os
import sys

from apache_iggy import IggyClient, PollingStrategy


async def main(address, stream, topic, partitions):
    client = IggyClient(address)
    await client.connect()
    await client.login_user("iggy", "iggy")
    digest = hashlib.sha256()
    for partition in range(int(partitions)):
        offset = 0
        while True:
            got = await client.poll_messages(
                stream, topic, partition, PollingStrategy.Offset(offset), 500, auto_commit=False
            )
            if not got:
                break
            for m in got:
                fields = (m.id(), m.offset(), m.timestamp(), m.checksum(), m.payload())
                digest.update(repr(fields).encode())
            offset = got[-1].offset() + 1
        digest.update(f"{partition}:{offset}".encode())
        following = await client.poll_messages(
            stream, topic, partition, PollingStrategy.Next(), 1, auto_commit=False
        )
        digest.update(repr([m.offset() for m in following]).encode())
    details = await client.get_topic(stream, topic)
    print(digest.hexdigest(), details.messages_count)


asyncio.run(main(*sys.argv[1:]))
sys.stdout.flush()
os._exit(0)  # the client's own threads sometimes abort an interpreter that shuts down in order
