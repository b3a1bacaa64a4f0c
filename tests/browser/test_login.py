"""Getting in and out, with the broker's users; and what a session is worth to other pages."""

from __future__ import annotations

import httpx
from playwright.sync_api import expect

from tests.browser.conftest import Opens
from tests.dashboard_stack import ROOT, Stack


def test_in_and_out(opens: Opens, complaints: list[str]) -> None:
    page = opens("#/topics?filter=orders", user=None)
    page.get_by_label("User").fill("iggy")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_have_text("Unknown user or wrong password.")
    assert len(complaints) == 1
    assert "401" in complaints.pop()
    page.get_by_label("Password").fill("iggy")
    page.keyboard.press("Enter")
    expect(page.locator("tbody")).to_contain_text("shop/orders")  # where the address led
    (cookie,) = page.context.cookies()
    assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Strict")
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    assert page.context.cookies() == []


def test_a_session_that_ended_asks_again(stack: Stack, opens: Opens, complaints: list[str]) -> None:
    page = opens("#/overview")
    expect(page.locator("h1")).to_have_text("Overview")
    headers = {"x-headrace-page": "1"}
    (cookie,) = page.context.cookies()
    jar = {str(cookie["name"]): str(cookie["value"])}
    with httpx.Client(cookies=jar, trust_env=False, timeout=60) as client:
        assert client.delete(f"{stack.url}/api/v1/session", headers=headers).status_code == 204
        assert client.get(f"{stack.url}/api/v1/overview").status_code == 401
    page.goto(f"{stack.url}/#/users")
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    page.get_by_label("User").fill(ROOT[0])
    page.get_by_label("Password").fill(ROOT[1])
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Users")
    assert all("401" in text for text in complaints)
    complaints.clear()


def test_a_session_alone_changes_nothing(stack: Stack) -> None:
    """The cookie is not enough: the request must come from our page."""
    jar = {"headrace_session": stack.session()}
    with httpx.Client(cookies=jar, trust_env=False, base_url=stack.url, timeout=60) as client:
        body = {"name": "stolen"}
        assert client.post("/api/v1/streams", json=body).status_code == 403
        other = {"x-headrace-page": "1", "sec-fetch-site": "cross-site"}
        assert client.post("/api/v1/streams", json=body, headers=other).status_code == 403
        names = [one["name"] for one in client.get("/api/v1/streams").json()["streams"]]
        assert "stolen" not in names


def test_nothing_is_loaded_from_elsewhere(opens: Opens, stack: Stack) -> None:
    page = opens("#/overview")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    expect(page.locator("h1")).to_have_text("Overview")
    assert asked
    assert all(url.startswith(stack.url) for url in asked)
    policy = httpx.get(stack.url, trust_env=False, timeout=60).headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
