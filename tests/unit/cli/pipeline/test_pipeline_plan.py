"""headrace pipeline dry-run and plan: the file's code runs in a process of its own, no server."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

import headrace
from headrace.cli.main import app
from headrace.cli.pipeline import plan as pipeline_plan
from headrace.errors import ConfigError

FILE = """
from headrace import Application

app = Application("shop")
app.topic("orders", "shop/orders", schema="sku string, qty int")

@app.operator
def valid(orders, *, minimum=1):
    return orders

@app.operator(to="shop/totals", isolate=True, MEMORY_MB=2048)
def totals(valid):
    return valid
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    source = str(Path(headrace.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "shop.py").write_text(FILE)
    return tmp_path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["pipeline", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_dry_run_shows_containers_operators_streams_and_memory(folder: Path) -> None:
    view = json.loads(run("dry-run", str(folder / "shop.py"), "--json"))
    names = [[one["name"] for one in each["operators"]] for each in view["containers"]]
    assert names == [["orders", "valid"], ["totals"]]
    assert view["containers"][1]["heap_mb"] == 2048
    assert view["memory_mb"] == sum(one["memory_mb"] for one in view["containers"])
    assert [one["fused"] for one in view["streams"]] == [True, False]
    (output,) = view["outputs"]
    assert (output["operator"], output["to"]) == ("totals", "shop/totals")
    assert output["delivery"] == "exactly-once"
    text = run("dry-run", str(folder / "shop.py"))
    for says in (
        "container 0:",
        "container 1:",
        "heap 2048",
        "shop/totals",
        "valid.output",
        "exactly-once",
    ):
        assert says in text
    backfill = ("--from", "2026-01-01", "--backfill-name", "b1", "--set", "valid.minimum=3")
    view = json.loads(run("dry-run", str(folder / "shop.py"), "--json", *backfill))
    assert view["name"] == "shop.b1"
    assert view["containers"][1]["operators"][0]["writes"] == "shop/totals.b1"


def test_a_plan_is_a_file_that_can_be_planned_again(folder: Path) -> None:
    text = run("plan", str(folder / "shop.py"))
    (folder / "plan.json").write_text(text)
    assert run("plan", str(folder / "plan.json")) == text
    (folder / "job.py").write_text("spark.readStream.load().writeStream.queryName('a').start()")
    plan = json.loads(run("plan", str(folder / "job.py")))
    assert (plan["name"], [one["name"] for one in plan["operators"]]) == ("job", ["a"])


def test_what_is_wrong_is_told_in_its_own_words(folder: Path) -> None:
    for text, says in (
        (FILE.replace("def totals(valid)", "def totals(walid)"), "'walid', which does not exist"),
        ("raise ValueError('my own words')", r"ValueError: my own words \(shop.py:1\)"),
        ("import nothing_like_that", "No module named 'nothing_like_that'"),
    ):
        (folder / "shop.py").write_text(text)
        with pytest.raises(ConfigError, match=says):
            run("dry-run", str(folder / "shop.py"))
    with pytest.raises(ConfigError, match="there is no file"):
        run("plan", str(folder / "missing.py"))


def test_a_dry_run_says_how_each_sink_delivers(folder: Path) -> None:
    stores = """
from headrace.pipeline.declare.stores import Console, Parquet

app.store("valid", Parquet("/data/out"), name="files")
app.store("valid", Console(), name="seen")


@app.sink(inputs={"rows": "valid"})
def own(rows):
    pass
"""
    (folder / "stored.py").write_text(FILE + stores)
    view = json.loads(run("dry-run", str(folder / "stored.py"), "--json"))
    found = {one["operator"]: (one["to"], one["delivery"]) for one in view["outputs"]}
    del found["totals"]
    assert found == {
        "files": ("parquet /data/out", "exactly-once"),
        "seen": ("console", "at-least-once"),
        "own": ("a function", "at-least-once"),
    }


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("validate", "raise SystemExit(3)", "ended by itself with status 3"),
        ("plan", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended by signal 9"),
        ("plan", "def broken(:", "SyntaxError"),
        ("dry-run", "1 / 0", "ZeroDivisionError: division by zero (bad.py:2)"),
    ],
)
def test_no_file_makes_a_traceback(folder: Path, command: str, code: str, says: str) -> None:
    (folder / "bad.py").write_text(f"from headrace import Application\n{code}\n")
    result = CliRunner().invoke(app, ["pipeline", command, str(folder / "bad.py")])
    assert isinstance(result.exception, ConfigError), result.exception
    assert says in str(result.exception)
    assert "Traceback" not in str(result.exception)


def test_a_file_that_never_ends_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_plan, "DESCRIBE_SECONDS", 0.5)
    (folder / "slow.py").write_text("from headrace import Application\nimport time; time.sleep(99)")
    result = CliRunner().invoke(app, ["pipeline", "validate", str(folder / "slow.py")])
    assert isinstance(result.exception, ConfigError)
    assert "was not done within 0.5 s" in str(result.exception)
    assert "building every operator of" in result.stderr, "that something is done is said at once"
