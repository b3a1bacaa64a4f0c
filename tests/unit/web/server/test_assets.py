"""The dashboard's files: all there, tagged, and nothing else is reached."""

from __future__ import annotations

import re

from headrace.web.server.assets import load_assets
from tests.unit.web.stage import ask, make


def test_every_module_that_is_imported_is_there_and_nothing_is_from_elsewhere() -> None:
    assets = load_assets()
    assert {"index.html", "app.js", "style.css", "pages/topics.js"} <= assets.keys()
    for name, asset in assets.items():
        text = asset.body.decode()
        addresses = set(re.findall(r"https?://[^\"'\s)]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name
        folder = name.rpartition("/")[0]
        for found in re.findall(r"""(?:from|import) "(\.[^"]+)";""", text):
            parts = [part for part in folder.split("/") if part]
            for step in found.split("/"):
                if step == "..":
                    parts.pop()
                elif step != ".":
                    parts.append(step)
            assert "/".join(parts) in assets, f"{name} imports {found}"
    page = assets["index.html"].body.decode()
    assert 'rel="modulepreload" href="/static/pages/topics.js"' in page
    assert "<style" not in page, "the policy forbids styles in the page"


async def test_files_are_served_with_their_tag_and_a_policy() -> None:
    app, _ = make()
    answer = await ask(app, "/", user=None)
    assert answer.text == "<html>"
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = await ask(app, "/", user=None, headers=[("if-none-match", answer.headers["etag"])])
    assert again.status_code == 304
    for path in ("/static/nothing.js", "/static/../api.py", "/static/%2e%2e/api.py"):
        assert (await ask(app, path, user=None)).status_code == 404


async def test_errors_have_the_policy_too() -> None:
    app, _ = make()
    answer = await ask(app, "/api/pipelines", user=None)
    assert answer.status_code == 401
    assert "content-security-policy" in answer.headers
