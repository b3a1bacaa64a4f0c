"""Projects of pipelines: what `init` makes and leaves alone, and what becomes a package."""

from __future__ import annotations

import base64
import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli.main import app
from headrace.cli.pipeline.projects import FILES, read_project
from headrace.errors import ConfigError, InvalidArgumentError

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


def project(folder: Path) -> Path:
    for name in ("shop.py", "lib/money.py", "data/prices.csv", ".env", "venv/x.py", ".git/config"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder / "shop.py"


def test_all_files_but_hidden_and_built_ones(tmp_path: Path) -> None:
    package = read_project(project(tmp_path), None)
    assert package["entry"] == "shop.py"
    assert sorted(package["files"]) == ["data/prices.csv", "lib/money.py", "shop.py"]
    assert base64.b64decode(package["files"]["lib/money.py"]) == b"lib/money.py"
    below = read_project(tmp_path / "lib/money.py", tmp_path)
    assert below["entry"] == "lib/money.py"
    assert sorted(below["files"]) == sorted(package["files"])


def test_what_is_no_project_is_refused(tmp_path: Path) -> None:
    script = project(tmp_path)
    with pytest.raises(ConfigError, match="no file"):
        read_project(tmp_path / "missing.py", None)
    with pytest.raises(ConfigError, match="not in the project"):
        read_project(script, tmp_path / "lib")
    (tmp_path / "requirements.txt").write_text("polars\n")
    with pytest.raises(InvalidArgumentError, match="not locked"):
        read_project(script, None)
    (tmp_path / "requirements.txt").unlink()
    with (tmp_path / "large.bin").open("wb") as large:
        large.truncate(30 << 20)
    with pytest.raises(ConfigError, match="larger than 20 MiB"):
        read_project(script, None)
