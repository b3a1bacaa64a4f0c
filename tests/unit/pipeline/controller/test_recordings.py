"""Which recordings there are, by the names that anybody may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import NotFoundError
from headrace.pipeline.controller.container_launches import read_recording
from headrace.pipeline.controller.views import RecordedWindow
from headrace.runtime.system import system_runtime


def test_only_what_was_recorded_is_read(tmp_path: Path) -> None:
    disk = system_runtime().disk
    (tmp_path / "recordings/revenue-1").mkdir(parents=True)
    (tmp_path / "recordings/revenue-1/0001.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "other").mkdir()
    (tmp_path / "other/0001.jsonl").write_text('{"a": 2}\n')
    path = str(tmp_path / "recordings")
    assert read_recording(disk, path, "revenue-1") == [
        RecordedWindow(window="0001", rows=[{"a": 1}])
    ]
    for odd in ("\0", "..", ".", "", "../other", "a" * 300, "revenue-1/", "none"):
        with pytest.raises(NotFoundError):
            read_recording(disk, path, odd)
    with pytest.raises(NotFoundError):
        read_recording(disk, f"{path}/none", "revenue-1")
