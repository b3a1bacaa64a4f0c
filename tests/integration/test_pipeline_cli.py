"""headrace pipeline run|list|show|logs|stop with a pipeline of one's own, against `headrace up`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.server import Server, running

SCRIPT = """
import pyspark.sql.functions as F
from headrace import Application
from factor import FACTOR

app = Application("doubled", trigger="1 second")
app.topic("numbers", "mine/numbers", schema="n int")

@app.operator(to="mine/doubled", output_mode="append")
def doubled(numbers):
    return numbers.where("n is not null").select((F.col("n") * FACTOR).alias("n"))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("pipeline") / "server") as started:
        yield started


def test_a_pipeline_from_the_shell(server: Server, tmp_path: Path) -> None:
    (tmp_path / "doubled.py").write_text(SCRIPT)
    (tmp_path / "factor.py").write_text("FACTOR = 2\n")
    for arguments in (
        ("stream", "create", "mine"),
        ("topic", "create", "mine/numbers", "--partitions", "2"),
    ):
        assert server.headrace(*arguments).returncode == 0
    lines = "".join(f'{{"n": {n}}}\n' for n in range(500)) + "not json\n"
    assert server.headrace("produce", "mine/numbers", input=lines).returncode == 0

    done = server.headrace("pipeline", "run", str(tmp_path / "doubled.py"), "--available-now")
    assert done.returncode == 0, done.stderr + server.headrace("pipeline", "logs", "doubled").stdout
    assert "FINISHED" in done.stderr
    results = server.headrace("consume", "mine/doubled").stdout.splitlines()
    assert sorted(json.loads(line)["n"] for line in results) == [2 * n for n in range(500)]

    (listed,) = json.loads(server.headrace("pipeline", "list", "--json").stdout)
    assert (listed["name"], listed["state"]) == ("doubled", "FINISHED")
    shown = json.loads(server.headrace("pipeline", "show", "doubled", "--json").stdout)
    assert shown["rows"] == 501
    assert {one["name"] for one in shown["operators"]} == {"numbers", "doubled"}
    assert "StartContainer" in {event["type"] for event in shown["events"]}
    assert "doubled" in server.headrace("pipeline", "show", "doubled").stdout
    assert server.headrace("pipeline", "logs", "doubled").returncode == 0

    # What was submitted is what runs: the package is named by its content.
    (tmp_path / "factor.py").write_text("FACTOR = 3\n")
    assert server.headrace("produce", "mine/numbers", input='{"n": 1000}\n').returncode == 0
    again = server.headrace("pipeline", "run", str(tmp_path / "doubled.py"), "--available-now")
    assert again.returncode == 0, again.stderr
    results = server.headrace("consume", "mine/doubled").stdout.splitlines()
    assert len(results) == 501, "it goes on from its checkpoint"
    assert 3000 in [json.loads(line)["n"] for line in results]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("x = 1", "Application"),
        ("import headrace\nraise ValueError('my own words')", "my own words"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_a_script_that_cannot_run_is_refused_in_its_own_words(
    server: Server, tmp_path: Path, script: str, says: str
) -> None:
    (tmp_path / "wrong.py").write_text(script)
    done = server.headrace("pipeline", "run", str(tmp_path / "wrong.py"))
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
