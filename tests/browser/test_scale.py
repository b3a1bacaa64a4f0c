"""1,000 topics and 50 pipelines: the page is there within a second, and holds nobody up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace
from playwright.sync_api import expect

from headrace.client.iggy import IggyClient
from headrace.pipeline.controller.views import ApplicationRow, ApplicationView
from headrace.wire.iggy.messages.messages import Message
from tests.browser.conftest import Opens
from tests.browser.paints import PAINT_MS_MAX, first_paint_ms
from tests.dashboard_stack import Stack
from tests.unit.web.stage import Pipelines

TOPICS, STREAMS, PIPELINES = 1_000, 10, 50
BUSY_SECONDS_MAX = 0.050


class Fifty(Pipelines):
    """One application's state under fifty names."""

    def list(self) -> list[ApplicationRow]:
        (one,) = super().list()
        return [replace(one, name=f"shop-{number:02}") for number in range(PIPELINES)]

    def show(self, name: str) -> ApplicationView:
        return replace(super().show("shop"), name=name)


def _fill(stack: Stack) -> None:
    """On several connections: they share the syncs that each creation costs."""

    def one_stream(number: int) -> None:
        stack.call(lambda client: _fill_stream(client, number))

    with ThreadPoolExecutor(STREAMS) as threads:
        list(threads.map(one_stream, range(STREAMS)))


async def _fill_stream(client: IggyClient, number: int) -> None:
    stream = f"stream-{number}"
    await client.create_stream(stream)
    for topic in range(number, TOPICS, STREAMS):
        await client.create_topic(stream, f"topic-{topic:04}")
        if topic < 100:
            await client.send(stream, f"topic-{topic:04}", [Message(payload=b"x")])
    await client.create_group(stream, f"topic-{number:04}", "readers")


def test_a_thousand_topics(opens: Opens, capsys: pytest.CaptureFixture[str]) -> None:
    with Stack(pipelines=Fifty()) as stack:
        _fill(stack)
        with stack.watched() as longest:
            page = opens("#/topics", base=stack)
            expect(page.locator("tbody")).to_contain_text("topic-0000")
            rows_ms = page.evaluate("performance.now()")
            paint_ms = first_paint_ms(page)
            expect(page.locator(".table-count")).to_have_text(str(TOPICS))
            assert page.locator("tbody tr").count() < 100, "only the rows in sight are drawn"
            page.get_by_label("Filter topics").fill("topic-0777")
            expect(page.locator("tbody tr:not(.spacer)")).to_have_count(1)
            page.get_by_label("Filter topics").fill("")
            page.locator(".table-scroll").evaluate("node => { node.scrollTop = node.scrollHeight }")
            expect(page.locator("tbody")).to_contain_text("topic-0999")
            for address in ("#/overview", "#/groups", "#/streams", "#/cluster"):
                page.goto(f"{stack.url}/{address}")
                expect(page.locator("h1")).to_be_visible()
                page.wait_for_timeout(1_000)  # the samplers work meanwhile
            page.goto("about:blank")  # its connection ends before the server does
    with capsys.disabled():
        print(
            f"\n{TOPICS} topics, {PIPELINES} pipelines: first paint {paint_ms:.0f} ms, rows in the "
            f"table after {rows_ms:.0f} ms; longest callback of the event loop "
            f"{longest['busy'] * 1000:.1f} ms of processor time, "
            f"{longest['wall'] * 1000:.1f} ms by the clock"
        )
    assert paint_ms < PAINT_MS_MAX
    assert longest["busy"] < BUSY_SECONDS_MAX
