"""A little of everything over QUIC with apache-iggy 0.9.0. Arguments: host:port, name of a stream.

Prints what GET_ME tells about the transport (2 is QUIC). Exit 0 when all held.
"""

import asyncio
import datetime
import sys

import apache_iggy as iggy

SIZES = [1, 1000, 16_385, 300_000, 3_000_000]


async def main(address, stream):
    config = iggy.QuicConfig(
        server_address=address,
        server_name="localhost",
        validate_certificate=False,
        auto_login=iggy.AutoLogin.username_password("iggy", "iggy"),
    )
    client = iggy.IggyClient(config)
    await client.connect()
    await client.ping()
    await client.create_stream(stream)
    await client.create_topic(stream, "t", 2)
    for number, size in enumerate(SIZES):
        sent = await client.send_messages(
            stream, "t", 0, [iggy.SendMessage(bytes([number + 1]) * size)]
        )
        assert sent.confirmations[0].base_offset == number
    many = [iggy.SendMessage(f"{n}") for n in range(1000)]
    await asyncio.gather(*(client.send_messages(stream, "t", 1, many) for _ in range(5)))

    async def poll(partition, offset, count):
        return await client.poll_messages(
            stream,
            "t",
            consumer=iggy.Consumer.Single(1),
            polling_strategy=iggy.PollingStrategy.Offset(offset),
            count=count,
            auto_commit=False,
            partition_id=partition,
        )

    for number, size in enumerate(SIZES):
        (found,) = await poll(0, number, 1)
        assert found.payload() == bytes([number + 1]) * size
    assert len(await poll(1, 0, 5000)) == 5000
    refusal = "none"
    try:
        await client.create_stream(stream)
    except RuntimeError as error:
        refusal = str(error)
    assert "already exists" in refusal, refusal
    consumer = await client.consumer_group(
        "g",
        stream,
        "t",
        batch_length=100,
        polling_strategy=iggy.PollingStrategy.Next(),
        poll_interval=datetime.timedelta(milliseconds=5),
    )
    seen = 0
    async for _ in consumer.iter_messages():
        seen += 1
        if seen == 100:
            break
    me = await client.send_binary_request(20, b"")
    print(me[8], flush=True)


asyncio.run(main(*sys.argv[1:]))
