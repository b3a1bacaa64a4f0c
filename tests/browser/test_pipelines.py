"""The pages of pipelines in a real browser: what they show, and what every button does.

Pipelines are emulated (`emulated_containers`); controller, broker, API and pages are the real ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import DESK, PATIENCE_MS, PHONE, READER, Opens
from tests.browser.emulated_containers import Behaviour, small
from tests.browser.keys import go
from tests.browser.pictures import picture
from tests.browser.pipelines_stage import NO_PRICE, PipelinesStage


@pytest.fixture(scope="module")
def shared(stage: PipelinesStage, browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    """One page for all tests that need nothing special, and what it complains of."""
    said: list[str] = []
    context = browser.new_context(
        viewport={"width": DESK[0], "height": DESK[1]}, reduced_motion="reduce"
    )
    context.set_default_timeout(PATIENCE_MS)
    cookie = {"name": "headrace_session", "value": stage.session(), "url": stage.url}
    context.add_cookies([cookie])  # type: ignore[list-item]  # a plain dict is what it takes
    page = context.new_page()
    page.on("console", lambda one: said.append(one.text) if one.type != "log" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    yield page, said
    context.close()


@pytest.fixture
def page(stage: PipelinesStage, shared: tuple[Page, list[str]]) -> Iterator[Page]:
    """On the front page, loaded anew."""
    page, said = shared
    visit(page, stage, "/")
    yield page
    assert said == []


def visit(page: Page, stage: PipelinesStage, address: str) -> None:
    page.goto("about:blank")  # a change of the fragment alone would load nothing
    page.goto(f"{stage.url}/#{address}")


def press(page: Page, name: str, *, within: str = "main") -> None:
    page.locator(within).get_by_role("button", name=name, exact=True).click()


def agree(page: Page, name: str) -> None:
    """In the dialog that asks."""
    page.locator("dialog").get_by_role("button", name=name, exact=True).click()


def told(page: Page, text: str) -> None:
    expect(page.locator("#toasts .toast", has_text=text).first).to_be_visible()


def reach(page: Page, text: str) -> None:
    """By the Tab key, then press Enter there."""
    there = re.compile(rf"^\s*{re.escape(text)}\s*$")
    expect(page.locator("a, button").filter(has_text=there).first).to_be_visible()
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == text:
            page.keyboard.press("Enter")
            return
    raise AssertionError(f"Tab does not lead to {text}")


def figure(page: Page, name: str) -> Any:
    return page.locator(f'[data-figure="{name}"] .figure-value')


# the front page


def test_the_front_page_opens_on_what_is_wrong(page: Page, stage: PipelinesStage) -> None:
    failing = page.locator('.problem-card[data-kind="operator fails"]')
    expect(failing).to_contain_text("counted of billing fails again and again")
    expect(failing).to_contain_text("Read the error beside its log line")
    expect(page.locator(".hero h1")).to_contain_text("you now")
    behind = page.locator('.problem-card[data-kind="falls behind"]')
    expect(behind).to_contain_text("clicks is")
    expect(behind).to_contain_text("does not catch up")
    severities = page.locator(".problem-card").evaluate_all(
        "cards => cards.map((one) => one.classList[1])"
    )
    order = ["critical", "warning", "notice"]
    assert severities == sorted(severities, key=order.index)
    rows = page.locator("table[aria-label=Pipelines] tbody a.strong")
    expect(rows.first).to_have_text("billing")
    row = page.locator("tr", has_text="clicks")
    expect(row).to_contain_text("never")
    expect(row).to_contain_text(stage.show("clicks")["package"][:8])
    counted = re.match(r"\d+", page.locator(".hero h1").inner_text())
    assert counted is not None
    expect(page.locator('[data-nav="now"] .count')).to_have_text(counted[0])
    picture(page, "pipelines-front")


def test_a_problem_leads_to_its_pipeline_and_to_the_error(
    page: Page, stage: PipelinesStage
) -> None:
    card = page.locator('.problem-card[data-kind="operator fails"]')
    card.get_by_role("button", name="Errors").click()
    expect(page).to_have_url(re.compile(r"#/pipelines/billing\?tab=errors"))
    expect(page.locator(".error-title").first).to_have_text(NO_PRICE)
    lines = page.locator(".log-lines").first
    expect(lines).to_contain_text("query_failed")
    expect(lines).to_contain_text('File "/opt/spark/python/shop.py", line 41')
    picture(page, "pipelines-errors")


# looking


def test_the_graph_shows_rows_lag_and_pressure(page: Page, stage: PipelinesStage) -> None:
    visit(page, stage, "/pipelines/clicks")
    nodes = page.locator(".dag-node")
    expect(nodes).to_have_count(4)
    orders = page.locator('.dag-node[data-operator="orders"]')
    expect(orders).to_contain_text("reads shop/orders")
    expect(orders).to_contain_text("rows/s")
    expect(orders).to_contain_text("wait")
    expect(orders).to_have_class(re.compile("pressure-high"))
    expect(page.locator(".dag-link.split")).to_have_count(2)
    press(page, "Physical")
    expect(page).to_have_url(re.compile("view=physical"))
    expect(page.locator(".dag-container")).to_have_count(3)
    expect(page.locator(".tl-bar").nth(3)).to_be_attached()
    expect(figure(page, "catchUp")).to_have_text("never")
    expect(figure(page, "lag")).not_to_have_text("none")
    expect(page.locator('[data-figure="bottleneck"]')).to_contain_text("busy")
    picture(page, "pipelines-graph")


def test_an_operator_has_its_figures_properties_and_attributes(
    page: Page, stage: PipelinesStage
) -> None:
    visit(page, stage, "/pipelines/shop")
    page.locator('.dag-node[data-operator="valid"]').focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("operator=valid"))
    panel = page.locator(".operator-panel")
    expect(panel).to_contain_text("minimum")
    expect(panel).to_contain_text("EXPECT")
    page.reload()
    expect(panel.locator("h2")).to_contain_text("valid")
    press(page, "Close valid")
    expect(panel).to_be_hidden()


def test_figures_of_spark_reach_the_page(page: Page, stage: PipelinesStage) -> None:
    visit(page, stage, "/pipelines/shop")
    expect(figure(page, "watermark")).to_have_text(re.compile(r"2 min \d+ s"))
    expect(figure(page, "state")).to_have_text(re.compile("MiB"))
    expect(figure(page, "late")).not_to_have_text("0")
    expect(figure(page, "code")).to_have_text(stage.show("shop")["package"][:8])


def test_events_come_as_they_happen_and_are_filtered(page: Page, stage: PipelinesStage) -> None:
    visit(page, stage, "/pipelines/billing?tab=events")
    table = page.locator("table[aria-label=Events]")
    expect(table).to_contain_text("Submit application")
    page.get_by_label("Filter the table").fill("submit")
    expect(table.locator("tbody tr:not(.spacer)")).to_have_count(1)


def test_logs_are_of_a_container_and_a_level(page: Page, stage: PipelinesStage) -> None:
    visit(page, stage, "/pipelines/billing?tab=logs")
    log = page.locator(".log")
    expect(log).to_contain_text("container_started")
    page.get_by_label("Level").select_option("ERROR")
    expect(log).not_to_contain_text("container_started")
    expect(log).to_contain_text("ValueError")
    expect(page).to_have_url(re.compile("level=ERROR"))
    page.get_by_label("Find in the log").fill("traceback")
    expect(log).not_to_contain_text("query_failed")
    expect(log).to_contain_text("Traceback")
    visit(page, stage, "/pipelines/shop?tab=logs")
    second = stage.show("shop")["containers"][1]["id"]
    page.get_by_label("Container", exact=True).select_option(second)
    expect(log).to_contain_text("operator=enriched")


def test_the_list_filters_and_keeps_its_address(page: Page, stage: PipelinesStage) -> None:
    expect(page.locator(".hero")).to_be_visible()
    go(page, "p")
    expect(page).to_have_url(re.compile("#/pipelines$"))
    expect(page.get_by_label("Filter the table")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("calm")
    links = page.locator("table[aria-label=Pipelines] tbody a.strong")
    expect(links).to_have_count(1)
    expect(page).to_have_url(re.compile("filter=calm"))
    page.reload()
    expect(links).to_have_count(1)
    links.first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("calm")


def test_an_unknown_pipeline_is_said_to_be_unknown(
    stage: PipelinesStage, opens: Opens, complaints: list[str]
) -> None:
    page = opens("#/pipelines/nothing", base=stage)
    expect(page.get_by_role("alert")).to_contain_text("there is no pipeline")
    complaints.clear()  # the browser says that it got a 404


def test_an_error_names_its_record_and_shows_the_row(page: Page, stage: PipelinesStage) -> None:
    behaviour = stage.launcher.behaviours["calm"]
    behaviour.error = (
        "counted failed on shop/orders partition 0 offset 0 in window 6ab3c1f2: no qty"
    )
    behaviour.errors_left = 1
    visit(page, stage, "/pipelines/calm?tab=errors")
    record = page.get_by_role("link", name="shop/orders partition 0 offset 0")
    expect(record).to_have_attribute("href", re.compile("#/topics/shop/orders/messages.*open=0"))
    expect(page.locator(".facts")).to_contain_text("6ab3c1f2")
    page.locator(".row-sample summary").click()
    expect(page.locator(".row-sample .sample")).to_contain_text('"sku": "first"')


# doing


def test_stop_and_resume(page: Page, stage: PipelinesStage) -> None:
    visit(page, stage, "/pipelines/calm")
    press(page, "Stop")
    agree(page, "Cancel")
    assert stage.show("calm")["state"] == "RUNNING"
    press(page, "Stop")
    agree(page, "Stop")
    told(page, "Stopping calm: it drains and ends")
    expect(page.locator(".page-head")).to_contain_text("Stopped; resume it")
    assert stage.show("calm")["state"] == "STOPPED"
    expect(page.locator(".dag-node.resting").first).to_be_visible()
    expect(page.locator(".dag-node.failing")).to_have_count(0)
    press(page, "Resume")
    agree(page, "Resume")
    told(page, "Resuming calm: from its checkpoints")
    expect(page.locator(".page-head .badge")).to_have_text("running")
    stage.until("calm", lambda view: view["containers"][0]["state"] == "ACTIVE")


def test_a_killed_container_is_replaced(page: Page, stage: PipelinesStage) -> None:
    visit(page, stage, "/pipelines/shop?tab=containers")
    killed = stage.show("shop")["containers"][2]["id"]
    row = page.locator("tr", has_text=killed)
    row.get_by_role("button", name="Kill").click()
    agree(page, "Kill")
    told(page, f"Killing {killed}")
    told(page, "Recover container")
    row = page.locator("tr", has_text=stage.show("shop")["containers"][2]["id"])
    expect(row).to_contain_text("active")
    expect(page.locator("tr", has_text=killed)).to_have_count(0)
    assert stage.show("shop")["restarts"] == 1


def test_the_buttons_of_containers_are_in_sight(stage: PipelinesStage, opens: Opens) -> None:
    for width in (1400, 1280, 1024):
        page = opens("#/pipelines/shop?tab=containers", size=(width, 900), base=stage)
        buttons = page.locator(".row-actions")
        expect(buttons).to_have_count(len(stage.show("shop")["containers"]))
        for number in range(buttons.count()):
            box = buttons.nth(number).bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= width, f"cut off at {width}"


def test_a_stack_trace_is_asked_of_the_container(page: Page, stage: PipelinesStage) -> None:
    visit(page, stage, "/pipelines/calm?tab=containers")
    press(page, "Stack trace")
    expect(page.locator("dialog")).to_contain_text("shop.py:41 in revenue")
    expect(page.locator("dialog")).to_contain_text("stream execution thread")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)


def test_a_live_property_counts_at_once(page: Page, stage: PipelinesStage) -> None:
    visit(page, stage, "/pipelines/shop?operator=valid")
    press(page, "Change minimum")
    page.locator("dialog input").fill("many")
    agree(page, "Set")
    expect(page.locator("dialog .problem")).to_have_text("write a number")
    page.locator("dialog input").fill("3")
    agree(page, "Set")
    told(page, "minimum of valid is set to 3")
    expect(page.locator('[data-property="minimum"]')).to_have_text("3")
    assert stage.launcher.properties["shop.valid"] == {"minimum": 3}


def test_another_property_starts_its_queries_again(page: Page, stage: PipelinesStage) -> None:
    visit(page, stage, "/pipelines/shop?operator=enriched")
    press(page, "Change currency")
    page.locator("dialog input").fill("CHF")
    agree(page, "Set")
    expect(page.locator('[data-property="currency"]')).to_have_text("CHF")
    enriched = stage.until("shop", lambda view: _operator(view, "enriched")["run"] > 1)
    assert _operator(enriched, "enriched")["properties"] == {"currency": "CHF"}


def test_an_operator_is_scaled(page: Page, stage: PipelinesStage) -> None:
    visit(page, stage, "/pipelines/clicks?operator=enriched")
    press(page, "Scale", within=".operator-panel")
    page.locator("dialog input").fill("2")
    agree(page, "Scale")
    told(page, "enriched goes to 2 instances")
    expect(page.locator('.dag-node[data-operator="enriched"]')).to_contain_text("×2")
    assert len(stage.show("clicks")["containers"]) == 4


def test_scaling_is_offered_where_it_helps(page: Page, stage: PipelinesStage) -> None:
    card = page.locator('.problem-card[data-kind="falls behind"]')
    expect(card.locator(".problem-next")).not_to_be_empty()


def test_a_topic_is_read_again(page: Page, stage: PipelinesStage) -> None:
    visit(page, stage, "/pipelines/shop")
    press(page, "Replay")
    page.locator("dialog select[name=kind]").select_option("earliest")
    agree(page, "Replay")
    told(page, "orders is read again from earliest")
    stage.until("shop", lambda view: view["events"][-1]["type"] != "Replay")
    replays = [one for one in stage.show("shop")["events"] if one["type"] == "Replay"]
    assert [(one["operator"], one["starting"]) for one in replays] == [("orders", "earliest")]


def test_a_pipeline_is_rolled_back(page: Page, stage: PipelinesStage) -> None:
    visit(page, stage, "/pipelines/calm")
    stage.until("calm", lambda view: view["committed_window"] > "0")
    press(page, "Roll back")
    wanted = page.locator("dialog select").input_value()
    agree(page, "Roll back")
    told(page, "calm goes back to")
    (event,) = [one for one in stage.show("calm")["events"] if one["type"] == "RollBack"]
    assert event["window"] == wanted


def test_rows_are_recorded_and_shown(page: Page, stage: PipelinesStage) -> None:
    visit(page, stage, "/pipelines/shop?operator=revenue")
    press(page, "Record rows")
    expect(page.locator("dialog .sample").first).to_contain_text('{"sku":"s0","qty":0}')
    agree(page, "Stop recording")
    told(page, "Recording of revenue stopped")


def test_a_failed_pipeline_is_resumed_from_the_front_page(
    page: Page, stage: PipelinesStage
) -> None:
    stage.submit(small("broken", attempts=0), Behaviour(crashes=True))
    stage.until("broken", lambda view: view["state"] == "FAILED")
    card = page.locator('.problem-card[data-kind="failed"]')
    expect(card).to_contain_text("broken failed and is not tried again")
    stage.launcher.behaviours["broken"].crashes = False
    card.get_by_role("button", name="Resume").click()
    agree(page, "Resume")
    stage.until("broken", lambda view: view["containers"][0]["state"] == "ACTIVE")
    expect(card).to_have_count(0)


def test_everything_is_done_without_a_mouse(page: Page, stage: PipelinesStage) -> None:
    stage.submit(small("keyed"))
    expect(page.locator("tr", has_text="keyed")).to_be_visible()
    go(page, "p")
    expect(page).to_have_url(re.compile("#/pipelines$"))
    reach(page, "keyed")
    expect(page.locator("h1")).to_have_text("keyed")
    expect(page.locator(".page-head")).to_contain_text("Runs and keeps up")
    reach(page, "Stop")
    page.keyboard.press("Tab")  # the dialog opens on what changes nothing
    page.keyboard.press("Enter")
    stage.until("keyed", lambda view: view["state"] == "STOPPED")
    expect(page.locator(".page-head")).to_contain_text("Stopped")
    reach(page, "Resume")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    stage.until("keyed", lambda view: view["state"] == "RUNNING")
    reach(page, "Logs")
    expect(page).to_have_url(re.compile("tab=logs"))
    expect(page.locator(".log")).to_contain_text("container_started")


# who may


def test_a_reader_sees_everything_and_no_button(
    stage: PipelinesStage, opens: Opens, complaints: list[str]
) -> None:
    page = opens(base=stage, user=READER)
    expect(page.locator('.problem-card[data-kind="operator fails"]')).to_be_visible()
    expect(page.get_by_role("button", name="Scale")).to_have_count(0)
    visit(page, stage, "/pipelines/shop?operator=valid")
    expect(page.locator(".operator-panel")).to_contain_text("minimum")
    for name in ("Stop", "Replay", "Roll back", "Change minimum", "Record rows", "Scale"):
        expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
    visit(page, stage, "/pipelines/shop?tab=containers")
    expect(page.get_by_role("button", name="Stack trace").first).to_be_visible()
    expect(page.get_by_role("button", name="Kill")).to_have_count(0)
    status = page.evaluate(
        "fetch('/api/v1/pipelines/shop/stop', {method: 'POST',"
        " headers: {'x-headrace-page': '1'}}).then((answer) => answer.status)"
    )
    assert status == 403
    complaints.clear()  # the browser says that it was refused
    assert stage.show("shop")["state"] == "RUNNING"


def test_narrow_windows_have_no_sideways_scroll(stage: PipelinesStage, opens: Opens) -> None:
    page = opens(base=stage, size=PHONE, theme="dark")
    for address in (
        "/",
        "/pipelines",
        "/pipelines/clicks?operator=enriched",
        "/pipelines/shop?tab=containers",
        "/pipelines/billing?tab=errors",
        "/pipelines/billing?tab=logs",
        "/pipelines/shop?tab=events",
    ):
        visit(page, stage, address)
        expect(page.locator("main .stack > *").first).to_be_visible()
        wider = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wider <= 0, address
        if address == "/":
            picture(page, "pipelines-front-phone")


def _operator(view: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in view["operators"] if one["name"] == name)
    return found
