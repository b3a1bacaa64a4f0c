"""Dead letters in the browser: seen with their reasons, sent again one by one or all together."""

from __future__ import annotations

import json

from playwright.sync_api import expect

from headrace.client.iggy import IggyClient
from headrace.wire.iggy.primitives import Strategy
from tests.browser.conftest import READER, Opens
from tests.browser.pictures import picture
from tests.browser.pipelines_stage import LETTERS, PipelinesStage


def orders(stage: PipelinesStage) -> list[str]:
    """What came back to the topic."""

    async def read(client: IggyClient) -> list[str]:
        polled = await client.poll(
            "shop", "orders", partition=0, strategy=Strategy.offset(0), count=100
        )
        return [json.loads(one.payload)["sku"] for one in polled.messages()]

    return stage.call(read)


def test_letters_are_seen_and_sent_again(stage: PipelinesStage, opens: Opens) -> None:
    page = opens("#/pipelines/shop?tab=letters", base=stage)
    box = page.locator(".letter-box")
    expect(box).to_contain_text("valid")
    expect(box).to_contain_text(f"{LETTERS} wait")
    listed = page.locator("table[aria-label='Dead letters'] tbody tr:not(.spacer)")
    expect(listed).to_have_count(LETTERS)
    expect(listed.first).to_contain_text("qty > 0 does not hold")
    picture(page, "pipelines-dead-letters")

    # One, looked at first.
    listed.filter(has_text="shop/orders/0/102").locator("button.link").click()
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text('"sku": "s2"')
    expect(dialog).to_contain_text("k2")
    dialog.get_by_role("button", name="Send again").click()
    dialog.get_by_role("button", name="Send again").click()
    expect(page.locator("#toasts")).to_contain_text("1 letter sent again")
    expect(listed).to_have_count(LETTERS - 1)
    assert orders(stage) == ["first", "s2"]

    # Two that are chosen.
    for number in (101, 103):
        listed.filter(has_text=f"shop/orders/0/{number}").locator("input").check()
    page.get_by_role("button", name="Send chosen again").click()
    dialog.get_by_role("button", name="Send again").click()
    expect(listed).to_have_count(LETTERS - 3)
    assert orders(stage) == ["first", "s2", "s1", "s3"]

    # The rest; those that were sent are seen on demand.
    page.get_by_role("button", name="Send all again").click()
    expect(dialog).to_contain_text("all 2 letters")
    dialog.get_by_role("button", name="Send again").click()
    expect(box).to_contain_text("0 wait")
    assert sorted(orders(stage)) == ["first", "s0", "s1", "s2", "s3", "s4"]
    page.get_by_label("Also those sent again").check()
    expect(listed).to_have_count(LETTERS)
    expect(listed.first).to_contain_text("sent again")


def test_a_reader_only_looks(stage: PipelinesStage, opens: Opens, complaints: list[str]) -> None:
    page = opens("#/pipelines/shop?tab=letters&redriven=1", base=stage, user=READER)
    expect(page.locator("table[aria-label='Dead letters']")).to_contain_text("qty > 0")
    expect(page.get_by_role("button", name="Send all again")).to_have_count(0)
    status = page.evaluate(
        "fetch('/api/v1/pipelines/shop/dead-letters/valid/redrive', {method: 'POST',"
        " headers: {'x-headrace-page': '1', 'content-type': 'application/json'}, body: '{}'})"
        ".then((answer) => answer.status)"
    )
    assert status == 403
    complaints.clear()  # the browser says that it was refused
