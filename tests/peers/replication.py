"""Replication factors on a cluster of three data nodes. Argument: host:port. Exit 0 if all held."""

import asyncio
import sys

from apache_iggy import IggyClient, SendMessage


async def main(address):
    client = IggyClient(address)
    await client.connect()
    await client.login_user("iggy", "iggy")
    await client.create_stream("replicated")
    for factor in (1, 2, 3):
        await client.create_topic("replicated", f"t{factor}", 1, replication_factor=factor)
        await client.send_messages("replicated", f"t{factor}", 0, [SendMessage("x")])
    refused = ""
    try:
        await client.create_topic("replicated", "t4", 1, replication_factor=4)
    except RuntimeError as error:
        refused = str(error)
    assert refused.startswith("InvalidReplicationFactor"), refused


asyncio.run(main(sys.argv[1]))
