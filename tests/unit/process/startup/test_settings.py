"""What `headrace up` and the roles make of their settings before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.process.startup.settings import load_settings


def test_folders_are_meant_from_where_the_command_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings("", {}).data_dir == str(tmp_path / "headrace-data")
    Path("settings.toml").write_text('data_dir = "../x"\n[controller]\nshared_path = "mount"\n')
    settings = load_settings("settings.toml", {})
    assert settings.data_dir == str(tmp_path.parent / "x")
    assert settings.controller.shared_path == str(tmp_path / "mount")
    assert load_settings("settings.toml", {"data_dir": "/d"}).data_dir == "/d"
    Path("settings.toml").write_text('[controller]\nshared_path = "s3a://bucket/x"\n')
    assert load_settings("settings.toml", {}).controller.shared_path == "s3a://bucket/x"
    assert load_settings("", {}).controller.shared_path == ""
