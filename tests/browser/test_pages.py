"""Every page, at two window sizes: it shows what it should, fits, and complains of nothing."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from headrace.web.server import live
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Consumer
from tests.browser import pictures
from tests.browser.conftest import DESK, NOBODY, PHONE, READER, Opens
from tests.dashboard_stack import Stack

PAGES = [
    ("#/overview", "Overview", "Busiest topics"),
    ("#/topics", "Topics", "shop/orders"),
    ("#/streams", "Streams", "telemetry"),
    ("#/topics/shop/orders", "orders", "Partition 2"),
    ("#/topics/shop/orders/messages?partition=0&open=119", "orders", "customer-0"),
    ("#/topics/shop/orders/groups", "orders", "billing"),
    ("#/topics/shop/orders/ranges", "orders", "open"),
    ("#/groups", "Consumer groups", "billing"),
    ("#/groups/shop/orders/billing", "billing", "Lag over time"),
    ("#/cluster", "Cluster", "Healthy"),
    ("#/workers", "Workers", "Who leads which shard"),
    ("#/clients", "Clients", "iggy"),
    ("#/users", "Users", "reader"),
]


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_every_page_at_both_sizes(stack: Stack, opens: Opens, size: tuple[int, int]) -> None:
    page = opens(size=size, theme="dark" if size == PHONE else "light")
    for address, title, words in PAGES:
        page.goto(f"{page.url.partition('#')[0]}{address}")
        expect(page.locator("h1")).to_have_text(title)
        expect(page.locator("#main")).to_contain_text(words)
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{address} is {wide} pixels too wide"
        assert page.title() == f"{title} · Headrace"
    if pictures.WANTED:
        pictures.take_pictures(page, stack.url, phone=size == PHONE)


def test_what_happens_is_seen_without_asking(stack: Stack, opens: Opens) -> None:
    page = opens("#/topics?filter=notes")
    cell = page.locator("tbody tr:has-text('notes') td").nth(3)
    before = int(cell.inner_text())
    stack.call(lambda client: client.send("shop", "notes", [Message(payload=b"more")]))
    expect(cell).to_have_text(str(before + 1))
    expect(page.locator(".live")).to_have_text("live")


def test_lag_is_seen_over_time(stack: Stack, opens: Opens) -> None:
    page = opens("#/groups/shop/orders/billing")
    lag = page.locator(".figure-value").first
    expect(lag).to_have_text("160")
    stack.call(
        lambda client: client.store_consumer_offset(
            Consumer.group("billing"), "shop", "orders", partition=0, offset=99
        )
    )
    expect(lag).to_have_text("60")
    expect(page.locator(".chart-line")).to_have_attribute("d", re.compile("^M.*L"))
    expect(page.locator("tbody tr:not(.spacer)").first.locator("td").nth(1)).to_have_text("20")


def test_a_page_that_is_not_there(opens: Opens, complaints: list[str]) -> None:
    page = opens("#/nowhere")
    expect(page.locator("h1")).to_have_text("No such page")
    page.goto(f"{page.url.partition('#')[0]}#/topics/shop/missing")
    expect(page.get_by_role("alert")).to_contain_text("there is no topic shop/missing")
    assert [text for text in complaints if "404" not in text] == []
    complaints.clear()


def test_theme_is_kept(opens: Opens) -> None:
    page = opens("#/overview")
    back = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(back)
    page.get_by_role("button", name="Change between light and dark").click()
    dark = page.evaluate(back)
    assert light != dark
    page.reload()
    expect(page.locator("h1")).to_have_text("Overview")
    assert page.evaluate(back) == dark


def _buttons(page: Page) -> set[str]:
    found = page.locator("#main button").all()
    return {one.get_attribute("aria-label") or one.inner_text() for one in found}


def test_who_may_only_read_is_offered_no_changes(stack: Stack, opens: Opens) -> None:
    page = opens("#/topics/shop/orders", user=READER)
    expect(page.locator("[data-role]")).to_have_text("read only")
    expect(page.locator("#main")).to_contain_text("Partition 2")
    assert not _buttons(page) & {"Produce", "Change", "Partitions", "Purge", "Delete"}
    changes = ("New topic", "New stream", "New user", "Purge shop", "Delete shop", "Delete reader")
    for address in ("#/topics", "#/streams", "#/users", "#/groups/shop/orders/billing"):
        page.goto(f"{stack.url}/{address}")
        expect(page.locator("tbody tr:not(.spacer)").first).to_be_visible()
        assert not _buttons(page) & {*changes, "Delete"}
    page.goto(f"{stack.url}/#/workers")
    expect(page.locator(".shard")).to_have_count(64)
    assert not [name for name in _buttons(page) if name.startswith("Shard ")]


def test_who_may_nothing_is_told_so(opens: Opens) -> None:
    page = opens("#/topics", user=NOBODY)
    expect(page.locator("#main")).to_contain_text("No topics yet.")
    for address, words in (
        ("#/cluster", "You may not see the state of the servers."),
        ("#/workers", "You may not see the state of the servers."),
        ("#/clients", "You may not see who is connected."),
        ("#/users", "You may not see the users."),
    ):
        page.goto(f"{page.url.partition('#')[0]}{address}")
        expect(page.locator("#main")).to_contain_text(words)


def test_a_lost_connection_comes_back(
    stack: Stack, opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "CONNECTION_SECONDS_MAX", 0.2)
    page = opens("#/topics?filter=notes")
    state = page.locator(".live")
    expect(state).to_have_text("reconnecting…")
    monkeypatch.undo()
    expect(state).to_have_text("live")
    cell = page.locator("tbody tr:has-text('notes') td").nth(3)
    before = int(cell.inner_text())
    stack.call(lambda client: client.send("shop", "notes", [Message(payload=b"again")]))
    expect(cell).to_have_text(str(before + 1))
    expect(page.locator(".live")).to_have_text("live")
