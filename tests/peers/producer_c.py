"""A producer of apache-iggy 0.9.0 that tries again: numbered messages through a poor network.

Arguments: host:port, stream, topic, batches, messages in each.
"""

import asyncio
import datetime
import sys

import apache_iggy as iggy

SOON = datetime.timedelta(milliseconds=20)


async def main(address, stream, topic, batches, size):
    client = iggy.IggyClient(
        iggy.TcpConfig(
            server_address=address,
            auto_login=iggy.AutoLogin.username_password("iggy", "iggy"),
            reconnection=iggy.TcpReconnectionConfig(
                max_retries=20, interval=SOON, reestablish_after=SOON
            ),
        )
    )
    await client.connect()
    producer = await client.producer(
        stream,
        topic,
        mode=iggy.DirectProducerConfig(batch_length=int(size)),
        send_retries=5,
        send_retry_interval=SOON,
    )
    for batch in range(int(batches)):
        first = batch * int(size)
        await producer.send([iggy.SendMessage(f"{first + n}") for n in range(int(size))])
    await producer.shutdown()


asyncio.run(main(*sys.argv[1:]))
