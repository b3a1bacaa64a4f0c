"""Logs in, says so, and stays until its input ends. Argument: host:port."""

import asyncio
import sys

from apache_iggy import IggyClient


async def main(address):
    client = IggyClient(address)
    await client.connect()
    await client.login_user("iggy", "iggy")
    print("logged in", flush=True)
    await asyncio.to_thread(sys.stdin.read)


asyncio.run(main(sys.argv[1]))
