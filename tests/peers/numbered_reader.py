"""Polls a partition from its first message to its end and checks every byte; prints the count.

Usage: numbered_reader.py ADDRESS STREAM TOPIC PARTITION
"""

import asyncio
import sys

from apache_iggy import IggyClient, PollingStrategy
from numbered_writer import payload
from polling import poll


async def main() -> None:
    address, stream, topic = sys.argv[1:4]
    partition = int(sys.argv[4])
    client = IggyClient.from_connection_string(f"iggy://iggy:iggy@{address}")
    await client.connect()
    number = 0
    while True:
        where = PollingStrategy.Offset(value=number)
        polled = await poll(client, stream, topic, partition, where, 500)
        if not polled:
            break
        for message in polled:
            assert message.offset() == number, (message.offset(), number)
            assert message.payload() == payload(number), number
            number += 1
    print(number, flush=True)


asyncio.run(main())
