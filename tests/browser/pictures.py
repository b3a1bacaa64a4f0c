"""Pictures for the documentation, taken by the tests when HEADRACE_SCREENSHOTS=1.

Otherwise nothing is written: fonts differ from machine to machine. For them the server gets a
stream on which something happens; the tests' own streams stay as they are.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect

from headrace.client.iggy import IggyClient
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Consumer, Partitioning
from headrace.wire.iggy.user_headers import UserHeader, encode_headers, key_header
from tests.dashboard_stack import Stack

WANTED = os.environ.get("HEADRACE_SCREENSHOTS") == "1"
IMAGES = Path(__file__).parents[2] / "docs" / "images"
HISTORY_SECONDS = 60
TOPICS = {"trades": 4, "quotes": 6, "orders": 3, "positions": 2, "news": 1}
PAGES = {
    "overview": ("#/overview", "Busiest topics"),
    "topics": ("#/topics", "market/trades"),
    "messages": ("#/topics/market/trades/messages?partition=0&from=offset&offset=20", "ACME"),
    "group": ("#/groups/market/trades/risk", "Lag over time"),
}
PHONE_PAGES = ("topics", "messages")


def picture(page: Page, name: str) -> None:
    if not WANTED:
        return
    IMAGES.mkdir(exist_ok=True)
    path = IMAGES / f"{name}.png"
    page.screenshot(path=str(path))
    with Image.open(path) as image:
        image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def take_pictures(page: Page, base: str, *, phone: bool) -> None:
    """Of every page in PAGES, while something happens."""
    for name in PHONE_PAGES if phone else PAGES:
        address, words = PAGES[name]
        page.goto(f"{base}/{address}")
        expect(page.locator("#main")).to_contain_text(words)
        if name == "messages":
            page.locator(".message summary").nth(1).click()
        page.wait_for_timeout(2_500)
        picture(page, f"dashboard-{name}-phone" if phone else f"dashboard-{name}")


@contextmanager
def lively(stack: Stack) -> Iterator[None]:
    """Something happens in the stream `market`, for a minute already."""
    if not WANTED:
        yield
        return
    over = threading.Event()
    stack.call(_prepare)
    thread = threading.Thread(target=_feed, args=(stack, over))
    thread.start()
    time.sleep(HISTORY_SECONDS)
    try:
        yield
    finally:
        over.set()
        thread.join()


async def _prepare(client: IggyClient) -> None:
    await client.create_stream("market")
    for topic, partitions in TOPICS.items():
        week = 7 * 86400 * 10**6
        await client.create_topic(
            "market", topic, partitions_count=partitions, message_expiry_us=week
        )
    for topic, group in (("trades", "risk"), ("quotes", "ticker"), ("orders", "ledger")):
        await client.create_group("market", topic, group)


def _feed(stack: Stack, over: threading.Event) -> None:
    dice = random.Random(7)
    sent = dict.fromkeys(TOPICS, 0)
    while not over.wait(0.25):
        for weight, (topic, partitions) in enumerate(TOPICS.items()):
            count = dice.randint(2, 40 - 7 * weight)
            messages = [_trade(dice) for _ in range(count)]
            partition = dice.randrange(partitions)
            stack.call(
                lambda client, topic=topic, messages=messages, partition=partition: client.send(  # type: ignore[misc]  # mypy cannot infer a lambda's default
                    "market", topic, messages, partitioning=Partitioning.to_partition(partition)
                )
            )
            sent[topic] += count if partition == 0 else 0
        if sent["trades"] > 60 and dice.random() < 0.4:
            stack.call(lambda client: _consume(client, sent["trades"] - dice.randint(1, 60)))


async def _consume(client: IggyClient, offset: int) -> None:
    await client.store_consumer_offset(
        Consumer.group("risk"), "market", "trades", partition=0, offset=offset
    )


def _trade(dice: random.Random) -> Message:
    name = dice.choice(["ACME", "GLOBEX", "INITECH", "UMBRELLA"])
    text = (
        f'{{"symbol": "{name}", "price": {dice.uniform(10, 200):.2f}, '
        f'"quantity": {dice.randint(1, 500)}, "venue": "{dice.choice(["XETR", "XNYS"])}"}}'
    )
    headers = [UserHeader.of("source", "feed-3"), UserHeader.of("schema", 2)]
    return Message(
        payload=text.encode(), headers=key_header(name.encode()) + encode_headers(headers)
    )
