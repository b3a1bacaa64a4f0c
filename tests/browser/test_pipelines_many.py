"""Fifty pipelines: the front page stays quick, and the server's event loop free."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import Opens
from tests.browser.emulated_containers import Behaviour, small
from tests.browser.pipelines_stage import PipelinesStage

PIPELINES = 50
PAINT_MS_MAX = 1_000
BUSY_SECONDS_MAX = 0.050
WATCHED_MS = 3_000


def test_fifty_pipelines_stay_usable(opens: Opens) -> None:
    with PipelinesStage() as stage:
        for number in range(PIPELINES):
            slow = number % 10 == 0
            behaviour = Behaviour(arrives=5_000 if slow else 500, takes=4_000)
            behaviour.backlog = 50_000 if slow else 0
            stage.submit(small(f"pipeline-{number:02}"), behaviour)
        stage.until("pipeline-49", lambda view: view["rows"] > 0)
        page = opens(base=stage)
        expect(page.locator(".problem-card").first).to_be_visible()
        with stage.watched() as longest:
            page.reload()
            links = page.locator("table[aria-label=Pipelines] tbody a.strong")
            expect(links.first).to_be_visible()
            paint = page.evaluate(
                "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            )
            page.wait_for_timeout(WATCHED_MS)
        print(f"first paint {paint:.0f} ms, longest step {1000 * longest['busy']:.1f} ms")
        assert paint < PAINT_MS_MAX
        assert longest["busy"] < BUSY_SECONDS_MAX
