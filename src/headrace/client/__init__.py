"""Talking to a broker from Python, with and without asyncio.

    async with headrace.client.connect("headrace://iggy:iggy@127.0.0.1:8090") as client:
        await client.send("shop/orders", {"sku": "tea", "qty": 2}, key="tea")

    with headrace.client.connect_sync() as client:
        for message in client.read("shop/orders"):
            print(message.key, message.json())

In come the calls of people's programs; out go requests to a broker, and to data nodes for reading.
`session.py` has the client's methods, `blocking.py` the same for programs that wait; `connection`
owns a connection that is made again when it breaks, `iggy` speaks the protocol on it. `sending`
gathers and sends messages; `topic_reader` and `partition_reader` read them. Begin with
`session.py`.

Names are imported at their first use: whoever needs one module of this package pays for that alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.client.blocking import (
        SyncClient,
        SyncConsumer,
        SyncProducer,
        connect,
        connect_sync,
    )
    from headrace.client.consuming import GroupConsumer
    from headrace.client.records import (
        Message,
        MessageBatch,
        Receipt,
        Record,
        StreamInfo,
        TopicInfo,
        Watermark,
    )
    from headrace.client.sending import Delivery, Producer
    from headrace.client.session import Client

__all__ = [
    "Client",
    "Delivery",
    "GroupConsumer",
    "Message",
    "MessageBatch",
    "Producer",
    "Receipt",
    "Record",
    "StreamInfo",
    "SyncClient",
    "SyncConsumer",
    "SyncProducer",
    "TopicInfo",
    "Watermark",
    "connect",
    "connect_sync",
]

_HOMES = {
    "Client": "session",
    "Delivery": "sending",
    "GroupConsumer": "consuming",
    "Message": "records",
    "MessageBatch": "records",
    "Producer": "sending",
    "Receipt": "records",
    "Record": "records",
    "StreamInfo": "records",
    "SyncClient": "blocking",
    "SyncConsumer": "blocking",
    "SyncProducer": "blocking",
    "TopicInfo": "records",
    "Watermark": "records",
    "connect": "blocking",
    "connect_sync": "blocking",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"headrace.client.{_HOMES[name]}"), name)
