"""Sends numbered messages without end; prints each batch's last number once it is acknowledged.

Usage: numbered_writer.py ADDRESS STREAM TOPIC PARTITION BATCH
"""

import asyncio
import sys

from apache_iggy import IggyClient
from apache_iggy import SendMessage as Message


def payload(number: int) -> bytes:
    """Told apart by content and by length, so that a shifted or cut message shows."""
    return b"%d:" % number + bytes((number + i) % 256 for i in range(number % 97 + 1))


async def main() -> None:
    address, stream, topic = sys.argv[1:4]
    partition, batch = int(sys.argv[4]), int(sys.argv[5])
    client = IggyClient.from_connection_string(f"iggy://iggy:iggy@{address}")
    await client.connect()
    number = 0
    while True:
        messages = [Message(payload(n)) for n in range(number, number + batch)]
        await client.send_messages(stream, topic, partition, messages)
        number += batch
        print(number, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
