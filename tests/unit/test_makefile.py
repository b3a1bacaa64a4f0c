"""`make test` names the folders of its parts, and pre-commit has the checks of `make check`."""

from __future__ import annotations

import re
from pathlib import Path

import yaml  # type: ignore[import-untyped]  # a dependency of mkdocs; no stubs

ROOT = Path(__file__).parents[2]


def test_the_parts_are_the_whole() -> None:
    makefile = (ROOT / "Makefile").read_text()
    parts = re.findall(r"^(?:COMPUTING|PAGES|RUNNING) *:= (.+)$", makefile, re.MULTILINE)
    named = [folder for part in parts for folder in part.split()]
    found = {f"tests/{path.relative_to(ROOT / 'tests').parts[0]}"
             for path in (ROOT / "tests").rglob("test_*.py")}  # fmt: skip
    assert sorted(named) == sorted(found)


def test_pre_commit_has_the_checks_of_make_check() -> None:
    makefile = (ROOT / "Makefile").read_text()
    checks = re.search(r"^check:.*\n((?:\t.+\n)+)", makefile, re.MULTILINE)
    assert checks
    wanted = [line.replace("$(BIN)", ".venv/bin").strip() for line in checks[1].splitlines()]
    settings = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [one["repo"] for one in settings["repos"]] == ["local"]  # nothing to download
    assert [hook["entry"] for hook in settings["repos"][0]["hooks"]] == wanted
