"""What of a project becomes its package."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from headrace.cli.pipeline.deploy import read_project
from headrace.errors import ConfigError, InvalidArgumentError


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
