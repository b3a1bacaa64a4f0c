"""Where apache-iggy 0.9.0 sends balanced and keyed messages: the partitions, as a line of JSON.

Arguments: host:port, stream, topic, partitions.
"""

import asyncio
import json
import sys

import apache_iggy as iggy


async def main(address, stream, topic, partitions):
    client = iggy.IggyClient.from_connection_string(f"iggy+tcp://iggy:iggy@{address}")
    await client.connect()
    await client.create_stream(stream)
    await client.create_topic(stream, topic, int(partitions))
    ways = [iggy.Partitioning.balanced()] * 8
    ways += [iggy.Partitioning.messages_key(f"key {n % 3}") for n in range(9)]
    ways += [iggy.Partitioning.partition_id(n) for n in range(int(partitions))]
    found = []
    for way in ways:
        sent = await client.send_messages(stream, topic, way, [iggy.SendMessage("x")])
        found += [placed.partition_id for placed in sent.confirmations]
    print(json.dumps(found), flush=True)


asyncio.run(main(*sys.argv[1:]))
