"""Once through the dashboard without a mouse."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.conftest import Opens
from tests.browser.keys import go
from tests.dashboard_stack import Stack


def _focus(page: Page) -> str:
    return str(
        page.evaluate(
            "document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText"
        )
    )


def _tab_to(page: Page, name: str, most: int = 60) -> None:
    for _ in range(most):
        page.keyboard.press("Tab")
        if _focus(page).strip().startswith(name):
            ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert ring == "solid", f"nobody sees that {name} has the focus"
            return
    raise AssertionError(f"{name} is not reached by Tab")


def test_once_through_by_keys(stack: Stack, opens: Opens) -> None:
    page = opens(user=None)
    expect(page.get_by_label("User")).to_be_focused()
    page.keyboard.type("iggy")
    page.keyboard.press("Tab")
    page.keyboard.type("iggy")
    page.keyboard.press("Enter")
    expect(page.locator(".frame")).to_be_visible()

    page.reload()
    expect(page.locator(".frame")).to_be_visible()
    page.keyboard.press("Tab")
    assert _focus(page) == "Skip to content"
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()

    for key, title in (
        ("c", "Consumer groups"),
        ("n", "Cluster"),
        ("s", "Streams"),
        ("t", "Topics"),
    ):
        go(page, key)
        expect(page.locator("h1")).to_have_text(title)
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_contain_text("Keyboard shortcuts")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)

    expect(page.locator("tbody")).to_contain_text("shop/notes")
    page.keyboard.press("/")
    page.keyboard.type("shop")
    expect(page.locator("tbody tr:not(.spacer)")).to_have_count(2)
    _tab_to(page, "shop/notes")
    page.keyboard.press("ArrowDown")
    assert _focus(page) == "shop/orders"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("notes")

    expect(page.get_by_role("button", name="Produce")).to_be_visible()
    _tab_to(page, "Produce")
    page.keyboard.press("Enter")
    page.keyboard.type("typed by hand")
    for _ in range(5):
        page.keyboard.press("Tab")
    assert _focus(page) == "Send"
    page.keyboard.press("Enter")
    expect(page.locator("#toasts")).to_contain_text("Message sent")
    _tab_to(page, "Messages")
    page.keyboard.press("Enter")
    expect(page.locator(".message").first).to_contain_text("typed by hand")
    page.locator("#main").focus()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "SUMMARY":
            break
    page.keyboard.press("Enter")
    expect(page.locator(".message .value").first).to_have_text("typed by hand")
    page.keyboard.press("d")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    _tab_to(page, "Log out", most=120)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
