"""`make test` names the folders of its two halves; a new folder must not be left out."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_halves_are_the_whole() -> None:
    makefile = (ROOT / "Makefile").read_text()
    halves = re.findall(r"^(?:COMPUTING|RUNNING) *:= (.+)$", makefile, re.MULTILINE)
    named = [folder for half in halves for folder in half.split()]
    found = {f"tests/{path.relative_to(ROOT / 'tests').parts[0]}"
             for path in (ROOT / "tests").rglob("test_*.py")}  # fmt: skip
    assert sorted(named) == sorted(found)
