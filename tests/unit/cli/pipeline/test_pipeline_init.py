"""headrace pipeline init: what it makes, and what it does not overwrite."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli.main import app
from headrace.cli.pipeline.init import FILES
from headrace.errors import ConfigError

runner = CliRunner()


def test_a_project_has_its_name_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = runner.invoke(app, ["pipeline", "init", "my-visits", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"folder": "my-visits", "files": sorted(FILES)}
    folder = tmp_path / "my-visits"
    assert {path.name for path in folder.iterdir()} == set(FILES)
    for path in folder.iterdir():
        assert "$" not in path.read_text().replace("$ ", ""), path
    assert tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"] == "my-visits"
    names: dict[str, object] = {}
    exec((folder / "pipeline.py").read_text(), names)
    plan = names["app"].plan()  # type: ignore[attr-defined]  # an Application
    assert plan["name"] == "my-visits" or "my-visits" in json.dumps(plan)
    for events in ("events.jsonl", "later.jsonl"):
        for line in (folder / events).read_text().splitlines():
            assert set(json.loads(line)) == {"kind", "value", "at"}


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = runner.invoke(app, ["pipeline", "init", "x", "--folder", str(tmp_path)])
    assert isinstance(done.exception, ConfigError)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    done = runner.invoke(app, ["pipeline", "init", "x", "--folder", str(tmp_path / "empty")])
    assert done.exit_code == 0
    assert (tmp_path / "empty/pipeline.py").is_file()


@pytest.mark.parametrize("name", ["", "1st", "a b", "a/b", "ü"])
def test_a_bad_name_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert runner.invoke(app, ["pipeline", "init", name]).exit_code == 2
    assert not list(tmp_path.iterdir())
