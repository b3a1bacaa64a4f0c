"""Log in with a token in the connection string, apache-iggy 0.8.0. Argument: the string."""

import asyncio
import os
import sys

from apache_iggy import IggyClient


async def main(connection_string):
    client = IggyClient.from_connection_string(connection_string)
    await client.connect()
    await client.ping()
    await client.create_stream("by-token")
    assert (await client.get_stream("by-token")).name == "by-token"


asyncio.run(main(sys.argv[1]))
sys.stdout.flush()
os._exit(0)  # the client's own threads sometimes abort an interpreter that shuts down in order
