"""The tutorial, from its first command to its last, as a reader would run it: with a real Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.server import running
from tests.integration.test_docs import environment_of, runnable
from tests.page_commands import run_commands

SECONDS = 600.0


@pytest.mark.soak  # Spark starts three times: minutes on a machine that does other things too
@pytest.mark.timeout(SECONDS + 60)
def test_every_command_of_the_tutorial_runs(tmp_path: Path) -> None:
    found = runnable("docs/tutorial.md")
    with running(tmp_path / "server") as server:
        output = run_commands(found, tmp_path, environment_of(server), seconds=SECONDS)
        consumed = server.headrace("consume", "visits/totals", "--json")
    assert "2 passed" in output
    rows = [json.loads(json.loads(line)["payload"]) for line in consumed.stdout.splitlines()]
    totals = sorted((row["window"]["start"][14:16], row["kind"], row["total"]) for row in rows)
    assert totals[:3] == [("00", "click", 3.5), ("00", "view", 1.0), ("03", "view", 1.0)]
    assert len(totals) == len({each[:2] for each in totals}), "each window once"
