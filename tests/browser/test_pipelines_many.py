"""Fifty pipelines: the front page is calm, stays quick, and keeps the server's event loop free."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import Opens
from tests.browser.emulated_containers import small
from tests.browser.paints import PAINT_MS_MAX, first_paint_ms
from tests.browser.pipelines_stage import PipelinesStage

PIPELINES = 50
BUSY_SECONDS_MAX = 0.050
WATCHED_MS = 2_500


def test_fifty_pipelines_stay_usable(opens: Opens) -> None:
    with PipelinesStage() as stage:
        stage.launcher.beat_seconds = 0.5  # a real container's is a second
        names = [f"pipeline-{number:02}" for number in range(PIPELINES)]
        for name in names:
            stage.submit(small(name))
        for name in names:
            stage.until(name, lambda view: view["rows"] > 0)
        page = opens(base=stage)
        expect(page.locator(".hero h1")).to_have_text("Nothing is wrong")
        expect(page.locator(".hero")).to_contain_text(f"{PIPELINES} running pipelines keep up")
        expect(page.locator(".problem-card")).to_have_count(0)
        stage.launcher.behaviours[names[7]].crashes = True
        down = page.locator('.problem-card[data-kind="container down"]')
        expect(down).to_contain_text(names[7])
        expect(page.locator(".hero h1")).not_to_have_text("Nothing is wrong")
        with stage.watched() as longest:
            page.reload()
            expect(page.locator("table[aria-label=Pipelines] a.strong").first).to_be_visible()
            paint_ms = first_paint_ms(page)
            page.wait_for_timeout(WATCHED_MS)
        page.close()  # before the server goes
        print(f"first paint {paint_ms:.0f} ms, longest step {1000 * longest['busy']:.1f} ms")
        assert paint_ms < PAINT_MS_MAX
        assert longest["busy"] < BUSY_SECONDS_MAX
