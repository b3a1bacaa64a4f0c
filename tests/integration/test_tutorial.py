"""The tutorial, from its first command to its last, as a reader would run it: with a real Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.test_docs import runnable
from tests.page_commands import run_commands

SECONDS = 600.0


@pytest.mark.soak  # Spark starts three times: minutes on a machine that does other things too
@pytest.mark.timeout(SECONDS + 60)
def test_every_command_of_the_tutorial_runs(tmp_path: Path) -> None:
    found = runnable("docs/tutorial.md")
    found.insert(-2, "headrace consume visits/totals --json > consumed.jsonl")
    output = run_commands(found, tmp_path, seconds=SECONDS)
    assert "2 passed" in output
    consumed = (tmp_path / "visits/consumed.jsonl").read_text()
    rows = [json.loads(json.loads(line)["payload"]) for line in consumed.splitlines()]
    totals = sorted((row["window"]["start"][14:16], row["kind"], row["total"]) for row in rows)
    assert totals[:3] == [("00", "click", 3.5), ("00", "view", 1.0), ("03", "view", 1.0)]
    assert len(totals) == len({each[:2] for each in totals}), "each window once"
