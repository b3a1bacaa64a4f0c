"""One way to poll for all generations: 0.9.0 asks for who polls, and for names of its arguments."""

import apache_iggy


async def poll(client, stream, topic, partition, strategy, count, auto_commit=False):
    who = {}
    if hasattr(apache_iggy, "Consumer"):
        who["consumer"] = apache_iggy.Consumer.Single(0)
    return await client.poll_messages(
        stream=stream,
        topic=topic,
        partition_id=partition,
        polling_strategy=strategy,
        count=count,
        auto_commit=auto_commit,
        **who,
    )
