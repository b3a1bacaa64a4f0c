"""The documentation site as a reader sees it: nothing is cut off, and code is coloured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from playwright.sync_api import Browser

from tests.page_commands import ROOT

WIDE = """() => {
  const right = document.querySelector("article").getBoundingClientRect().right;
  const cut = (table) => {
    const box = table.closest(".md-typeset__table") ?? table;
    return table.getBoundingClientRect().right > right + 1 || box.scrollWidth > box.clientWidth + 1;
  };
  const tables = [...document.querySelectorAll("article table")];
  return tables.filter(cut).map((table) => table.innerText.slice(0, 80));
}"""
PLAIN = """() => [...document.querySelectorAll("article pre code")]
  .filter((code) => code.closest(".language-console, .language-python, .language-json"))
  .filter((code) => !code.querySelector("span[class]:not([id])"))
  .map((code) => code.innerText.slice(0, 80))"""
ELSEWHERE = """() => performance.getEntriesByType("resource")
  .map((entry) => entry.name).filter((name) => !name.startsWith(location.origin))"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Requests are nothing to print."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """Its address, and its pages."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, timeout=120, check=True,
    )  # fmt: skip
    pages = [str(page.parent.relative_to(folder)) for page in folder.rglob("index.html")]
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", sorted(pages)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_no_table_is_cut_off_and_code_is_coloured(
    site: tuple[str, list[str]], browser: Browser
) -> None:
    address, pages = site
    assert len(pages) > 30
    assert len(pages) >= len(list((ROOT / "docs").rglob("*.md")))
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    try:
        for name in pages:
            page.goto(f"{address}/{name}/")
            assert page.evaluate(WIDE) == [], name
            assert page.evaluate(PLAIN) == [], name
            assert page.evaluate(ELSEWHERE) == [], f"{name} is fetched from elsewhere"
    finally:
        page.close()
