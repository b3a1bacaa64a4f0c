"""Writes a small web shop's orders with the real Apache Iggy client for Python.

Runs in an environment of its own that holds nothing but `apache-iggy`, as a user's program would.
Prints one JSON line per batch sent, so that whoever started it can show progress. After the first
batch it waits for a line on stdin: Spark needs a while to start, orders should flow while it works.
Before the closing events it waits for another: something has to be left for after the kill.

Usage: producer.py ADDRESS USER PASSWORD STREAM TOPIC EVENTS EVENTS_PER_SECOND SEED
"""

import asyncio
import json
import random
import sys
import time
from datetime import UTC, datetime, timedelta

from apache_iggy import IggyClient
from apache_iggy import SendMessage as Message

SKUS = ["tea", "coffee", "mug", "kettle", "notebook", "pen"]
PARTITIONS = 2
BATCH_EVENTS = 500
# Event time runs faster than the clock, so that a short demonstration crosses many windows.
EVENT_TIME_START = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECONDS_PER_EVENT = 0.05
OUT_OF_ORDER_SECONDS = 8.0  # less than the pipeline's watermark allows, so nothing is late
CLOSING_SECONDS = 3600.0


def order(number: int, chance: random.Random) -> dict[str, object]:
    seconds = number * SECONDS_PER_EVENT - chance.random() * OUT_OF_ORDER_SECONDS
    return {
        "order_id": f"o-{number}",
        "sku": chance.choice(SKUS),
        "qty": chance.randint(1, 5),
        "price": chance.randint(100, 9900) / 100,
        "at": (EVENT_TIME_START + timedelta(seconds=seconds)).isoformat(timespec="milliseconds"),
        "customer": f"c-{chance.randint(1, 500)}",
    }


async def main() -> None:
    address, user, password, stream, topic = sys.argv[1:6]
    events, rate, seed = int(sys.argv[6]), float(sys.argv[7]), int(sys.argv[8])
    chance = random.Random(seed)
    client = IggyClient.from_connection_string(f"iggy://{user}:{password}@{address}")
    await client.connect()
    started = time.monotonic()
    sent = 0
    while sent < events:
        batch = [order(n, chance) for n in range(sent, min(sent + BATCH_EVENTS, events))]
        partition = (sent // BATCH_EVENTS) % PARTITIONS
        await client.send_messages(
            stream, topic, partition, [Message(json.dumps(o)) for o in batch]
        )
        sent += len(batch)
        print(json.dumps({"sent": sent}), flush=True)
        if sent == len(batch):
            await asyncio.to_thread(sys.stdin.readline)
            started = time.monotonic() - sent / rate
        ahead = sent / rate - (time.monotonic() - started)
        if ahead > 0:
            await asyncio.sleep(ahead)
    await asyncio.to_thread(sys.stdin.readline)
    # The closing events move the watermark past every window, so that append mode emits them all.
    # They come an hour later, so the window they fall into stays open and is not reported.
    closing = order(events, chance)
    at = EVENT_TIME_START + timedelta(seconds=events * SECONDS_PER_EVENT + CLOSING_SECONDS)
    closing |= {"order_id": "closing", "at": at.isoformat(timespec="milliseconds")}
    for partition in range(PARTITIONS):
        await client.send_messages(stream, topic, partition, [Message(json.dumps(closing))])
    print(json.dumps({"sent": sent, "closed": True}), flush=True)


asyncio.run(main())
