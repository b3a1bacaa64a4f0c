"""What every button does, seen in the broker."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from headrace.wire.iggy.primitives import Strategy
from tests.browser.conftest import Opens
from tests.dashboard_stack import Stack


def _submit(page: Page, action: str, **fields: str) -> None:
    box = page.locator("dialog")
    for name, value in fields.items():
        box.locator(f"[name={name}]").fill(value)
    box.get_by_role("button", name=action, exact=True).click()
    expect(box).to_have_count(0)


def _confirm(page: Page, action: str, word: str) -> None:
    box = page.locator("dialog")
    go = box.get_by_role("button", name=action, exact=True)
    expect(go).to_be_disabled()
    box.get_by_label(f"Type {word} to confirm").fill(word)
    go.click()
    expect(box).to_have_count(0)


def test_the_life_of_a_stream_and_a_topic(stack: Stack, opens: Opens) -> None:
    page = opens("#/streams")
    page.get_by_role("button", name="New stream").click()
    _submit(page, "Create stream", name="garden")
    expect(page.locator("tbody")).to_contain_text("garden")
    page.goto(f"{stack.url}/#/topics")
    page.get_by_role("button", name="New topic").click()
    page.locator("dialog [name=stream]").select_option("garden")
    _submit(page, "Create topic", name="beds", partitions="2", hours="48", mib="64")
    expect(page.locator("h1")).to_have_text("beds")
    details = stack.call(lambda client: client.get_topic("garden", "beds"))
    assert details is not None
    assert (details.topic.partitions_count, details.topic.message_expiry_us) == (2, 172_800_000_000)
    assert details.topic.max_size_bytes == 64 << 20

    page.get_by_role("button", name="Change", exact=True).click()
    _submit(page, "Save", hours="0", mib="0")
    expect(page.locator(".figure-value").nth(3)).to_have_text("forever")
    page.get_by_role("button", name="Partitions", exact=True).click()
    _submit(page, "Add", count="2")
    expect(page.locator("tbody")).to_contain_text("Partition 3")

    page.get_by_role("button", name="Produce").click()
    page.locator("dialog [name=partition]").select_option("1")
    _submit(page, "Send", value='{"bed": 7}', key="rose", headers="tool=spade")
    polled = stack.call(
        lambda client: client.poll("garden", "beds", partition=1, strategy=Strategy.first())
    )
    (message,) = polled.messages()
    assert (message.payload, message.key) == (b'{"bed": 7}', b"rose")
    assert message.user_headers[-1].key == b"tool"

    page.get_by_role("button", name="Purge", exact=True).click()
    _confirm(page, "Purge", "beds")
    expect(page.locator("#toasts")).to_contain_text("garden/beds purged")
    details = stack.call(lambda client: client.get_topic("garden", "beds"))
    assert details is not None
    assert details.topic.messages_count == 0
    page.get_by_role("button", name="Delete", exact=True).click()
    _confirm(page, "Delete", "beds")
    expect(page.locator("h1")).to_have_text("Topics")
    assert stack.call(lambda client: client.get_topic("garden", "beds")) is None

    page.goto(f"{stack.url}/#/streams")
    page.get_by_role("button", name="Purge garden").click()
    _confirm(page, "Purge", "garden")
    page.get_by_role("button", name="Delete garden").click()
    _confirm(page, "Delete", "garden")
    expect(page.locator("tbody")).not_to_contain_text("garden")
    assert stack.call(lambda client: client.get_stream("garden")) is None


def test_what_is_refused_is_said_in_the_form(opens: Opens, complaints: list[str]) -> None:
    page = opens("#/streams")
    page.get_by_role("button", name="New stream").click()
    page.locator("dialog [name=name]").fill("shop")
    page.get_by_role("button", name="Create stream").click()
    expect(page.locator("dialog .problem")).not_to_be_empty()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("dialog")).to_have_count(0)
    assert all("409" in text for text in complaints)
    complaints.clear()


def test_groups_are_made_and_deleted(stack: Stack, opens: Opens) -> None:
    page = opens("#/topics/shop/notes/groups")
    page.get_by_role("button", name="New group").click()
    _submit(page, "Create group", name="readers")
    page.get_by_role("link", name="readers").click()
    expect(page.locator("h1")).to_have_text("readers")
    expect(page.locator("#main")).to_contain_text("Nobody reads in this group")
    page.get_by_role("button", name="Delete", exact=True).click()
    _confirm(page, "Delete", "readers")
    expect(page.locator("h1")).to_have_text("Consumer groups")
    assert stack.call(lambda client: client.get_group("shop", "notes", "readers")) is None


def test_users_are_made_kept_out_and_deleted(stack: Stack, opens: Opens) -> None:
    page = opens("#/users")
    page.get_by_role("button", name="New user").click()
    page.locator("dialog [name=role]").select_option("write")
    _submit(page, "Create user", name="gardener", password="spade-and-fork")
    page.get_by_role("button", name="gardener", exact=True).click()
    expect(page.locator("dialog")).to_contain_text("send messages")
    page.locator("dialog footer").get_by_role("button", name="Close").click()
    row = page.locator("tbody tr", has_text="gardener")
    row.get_by_role("button", name="Deactivate").click()
    expect(row).to_contain_text("inactive")
    row.get_by_role("button", name="Activate").click()
    expect(row.locator(".badge")).to_have_text("active")
    row.get_by_role("button", name="Delete gardener").click()
    _confirm(page, "Delete", "gardener")
    expect(row).to_have_count(0)
    assert stack.call(lambda client: client.get_user("gardener")) is None


def test_a_shard_is_given_to_a_worker(stack: Stack, opens: Opens) -> None:
    page = opens("#/workers")
    tile = page.get_by_role("button", name=re.compile("^Shard 9,"))
    tile.click()
    name = stack.call(lambda client: client.get_shards()).workers[0].name
    page.locator("dialog select").select_option(name)
    page.get_by_role("button", name="Move", exact=True).click()
    expect(page.locator("#toasts")).to_contain_text("Shard 9 is led by worker 0")
    expect(tile).to_have_attribute("aria-label", re.compile("given to worker 0$"))
    assert stack.call(lambda client: client.get_shards()).shards[9].pinned == name
    tile.click()
    page.locator("dialog select").select_option("")
    page.get_by_role("button", name="Move", exact=True).click()
    expect(page.locator("#toasts")).to_contain_text("Balance decides who leads shard 9")
    assert stack.call(lambda client: client.get_shards()).shards[9].pinned == ""
    expect(page.get_by_role("button", name=re.compile("^Shard 0,"))).to_have_count(0)


def test_the_message_browser(stack: Stack, opens: Opens) -> None:
    page = opens("#/topics/shop/orders/messages?partition=0")
    messages = page.locator(".message")
    expect(messages).to_have_count(50)
    expect(messages.first.locator(".offset")).to_have_text("119")
    page.get_by_role("button", name="Oldest").click()
    expect(messages.first.locator(".offset")).to_have_text("0")
    page.get_by_role("button", name="Newer").click()
    expect(messages.first.locator(".offset")).to_have_text("50")
    page.get_by_role("button", name="Older").click()
    expect(messages.first.locator(".offset")).to_have_text("0")
    page.get_by_role("button", name="Offset", exact=True).click()
    page.get_by_label("Offset", exact=True).fill("90")
    page.keyboard.press("Enter")
    expect(messages.first.locator(".offset")).to_have_text("90")
    page.get_by_role("button", name="Time", exact=True).click()
    expect(messages.first.locator(".offset")).to_have_text("0")
    page.get_by_label("How many").select_option("20")
    expect(messages).to_have_count(20)

    page.get_by_role("button", name="Newest").click()
    page.get_by_label("Filter messages").fill("lamp")
    page.keyboard.press("Enter")
    expect(page.locator(".toolbar.foot")).to_contain_text("of 120 looked at")
    for one in messages.locator(".preview").all_inner_texts():
        assert "lamp" in one
    messages.first.locator("summary").click()
    expect(page).to_have_url(re.compile("open=119"))
    expect(messages.first.locator(".value")).to_contain_text('"order": 119')
    expect(messages.first).to_contain_text("source")
    messages.first.get_by_role("button", name="Copy value").click()
    assert '"order": 119' in page.evaluate("navigator.clipboard.readText()")
    messages.first.get_by_role("button", name="Copy as JSON").click()
    assert '"offset": 119' in page.evaluate("navigator.clipboard.readText()")
    page.get_by_label("Decode as").select_option("hex")
    expect(messages.first.locator(".value")).to_contain_text("7b 22 6f 72")
    address = page.url
    page.goto(f"{stack.url}/#/overview")
    page.goto(address)
    expect(messages.first.locator(".value")).to_contain_text("7b 22 6f 72")


def test_formats_are_told_apart(stack: Stack, opens: Opens) -> None:
    page = opens("#/topics/telemetry/frames/messages")
    page.locator(".message summary").click()
    expect(page.locator(".message tbody")).to_contain_text("north")
    expect(page.locator(".message thead")).to_contain_text("celsius double")
    page.goto(f"{stack.url}/#/topics/shop/notes/messages?from=oldest")
    page.locator(".message summary").nth(1).click()
    expect(page.locator(".message .value")).to_contain_text("00 ff 10 62")
    page.get_by_label("Decode as").select_option("text")
    page.locator(".message summary").first.click()
    expect(page.locator(".message .value").first).to_have_text("plain words")


def test_following_shows_what_comes(stack: Stack, opens: Opens) -> None:
    page = opens("#/topics/shop/notes/messages")
    page.get_by_role("button", name="Follow").click()
    expect(page.get_by_role("button", name="Following")).to_have_attribute("aria-pressed", "true")
    from headrace.wire.iggy.messages.messages import Message

    stack.call(lambda client: client.send("shop", "notes", [Message(payload=b"just now")]))
    expect(page.locator(".message").first).to_contain_text("just now")
    page.get_by_role("button", name="Following").click()
    expect(page.get_by_role("button", name="Follow", exact=True)).to_be_visible()


def test_tables_sort_and_the_address_remembers(opens: Opens) -> None:
    page = opens("#/topics")
    page.get_by_role("button", name="Messages").click()
    names = page.locator("tbody tr td:first-child")
    expect(names.first).to_have_text("shop/orders")
    page.get_by_role("button", name="Messages").click()
    expect(names.last).to_have_text("shop/orders")
    assert "sort=messages" in page.url
    page.get_by_label("Filter topics").fill("telem")
    expect(names).to_have_count(1)
    page.reload()
    expect(names).to_have_count(1)


def test_the_menu_of_a_small_window(opens: Opens) -> None:
    page = opens("#/overview", size=(390, 844))
    link = page.get_by_role("link", name="Cluster")
    expect(link).to_be_hidden()
    page.get_by_role("button", name="Menu").click()
    link.click()
    expect(page.locator("h1")).to_have_text("Cluster")
    expect(page.get_by_role("link", name="Users")).to_be_hidden()
