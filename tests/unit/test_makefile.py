"""`make test` names the folders of its parts; a new folder must not be left out."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_parts_are_the_whole() -> None:
    makefile = (ROOT / "Makefile").read_text()
    parts = re.findall(r"^(?:COMPUTING|PAGES|RUNNING) *:= (.+)$", makefile, re.MULTILINE)
    named = [folder for part in parts for folder in part.split()]
    found = {f"tests/{path.relative_to(ROOT / 'tests').parts[0]}"
             for path in (ROOT / "tests").rglob("test_*.py")}  # fmt: skip
    assert sorted(named) == sorted(found)
