"""One server and one Chromium for all browser tests; what a page complains of fails its test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from headrace.client.iggy import IggyClient
from headrace.web.broker_api.groups import ROLES
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Partitioning
from headrace.wire.iggy.user_headers import UserHeader, encode_headers, key_header
from tests.browser.pictures import lively
from tests.browser.pipelines_stage import PipelinesStage, fill_letters, submit_all
from tests.dashboard_stack import ROOT, Stack

CHROMIUM = "/usr/bin/chromium"
PATIENCE_MS = 30_000  # pages are fed every second or two, and the machine may be busy
DESK, PHONE = (1280, 800), (390, 844)
READER, NOBODY = ("reader", "reader"), ("nobody", "nobody")

Opens = Callable[..., Page]

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="package")
def stack() -> Iterator[Stack]:
    with Stack() as started:
        started.call(_fill)
        with lively(started):
            yield started


async def _fill(client: IggyClient) -> None:
    await client.create_user(*READER, permissions=ROLES["read"])
    await client.create_user(*NOBODY)
    for stream in ("shop", "telemetry"):
        await client.create_stream(stream)
    await client.create_topic(
        "shop", "orders", partitions_count=3, message_expiry_us=7 * 86400 * 10**6
    )
    await client.create_topic("shop", "notes")
    await client.create_topic("telemetry", "frames")
    await client.create_group("shop", "orders", "billing")
    orders = [_order(number) for number in range(120)]
    await client.send("shop", "orders", orders, partitioning=Partitioning.to_partition(0))
    await client.send("shop", "orders", orders[:40], partitioning=Partitioning.to_partition(1))
    await client.send(
        "shop", "notes", [Message(payload=b"plain words"), Message(payload=b"\x00\xff\x10binary")]
    )
    await client.send("telemetry", "frames", [Message(payload=_arrow())])


def _order(number: int) -> Message:
    item = ("tea", "mug", "lamp")[number % 3]
    text = f'{{"order": {number}, "item": "{item}", "amount": {number * 1.5}}}'
    key = key_header(b"customer-%d" % (number % 7))
    return Message(
        payload=text.encode(), headers=key + encode_headers([UserHeader.of("source", "web")])
    )


def _arrow() -> bytes:
    import pyarrow as pa

    table = pa.table({"sensor": ["north", "south"], "celsius": [21.5, 19.25]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@pytest.fixture(scope="package")
def stage() -> Iterator[PipelinesStage]:
    """A server of its own, with pipelines in trouble."""
    with PipelinesStage() as started:
        started.call(fill_letters)
        submit_all(started)
        yield started


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Of this package alone: while it is there a loop runs in this thread, and others cannot."""
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def complaints() -> list[str]:
    """What pages said on their consoles; a test that provokes something takes it out."""
    return []


@pytest.fixture
def opens(stack: Stack, browser: Browser, complaints: list[str]) -> Iterator[Opens]:
    """`opens("#/topics", size=PHONE, user=READER)`: a page, logged in unless user is None."""
    contexts: list[BrowserContext] = []

    def open_page(
        address: str = "",
        *,
        size: tuple[int, int] = DESK,
        user: tuple[str, str] | None = ROOT,
        theme: str = "light",
        base: Stack = stack,
    ) -> Page:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if theme == "dark" else "light",
            reduced_motion="reduce",
            permissions=["clipboard-read", "clipboard-write"],
        )
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        if user is not None:
            cookie = {"name": "headrace_session", "value": base.session(user), "url": base.url}
            context.add_cookies([cookie])  # type: ignore[list-item]  # a plain dict is what it takes
        page = context.new_page()
        page.on(
            "console",
            lambda said: (
                complaints.append(said.text) if said.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{base.url}/{address}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
