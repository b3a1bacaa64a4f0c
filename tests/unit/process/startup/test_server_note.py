"""Why a server could not start is told by the options and the folder that were given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace import errors as e
from headrace.cli.advice import report
from headrace.config.settings import Settings
from headrace.process.startup.server_note import explaining_start, write_note


def told(error: e.HeadraceError, data_dir: str = "/data") -> tuple[str, int]:
    settings = Settings(data_dir=data_dir, iggy_port=9090, http_port=80)
    with pytest.raises(e.HeadraceError) as caught, explaining_start(settings):
        raise error
    return report(caught.value, as_json=False)


@pytest.mark.parametrize(
    ("error", "says", "status"),
    [
        (
            e.ConfigError("cannot listen on 127.0.0.1:9090: address already in use"),
            "--iggy-port",
            2,
        ),
        (
            e.ConfigError("cannot listen on ::1:12378: address already in use"),
            "--placement-port",
            2,
        ),
        (e.ConfigError("cannot listen on 0.0.0.0:80: permission denied"), "--http-port above", 2),
        (
            e.ConfigError("cannot listen on 10.1.1.1:1: cannot assign requested address"),
            "--host",
            2,
        ),
        (e.ConfigError("another mistake"), "headrace: another mistake", 2),
        (e.LockedError("held", path="/data/log/LOCK"), "another headrace uses /data", 1),
        (e.StorageError("Permission denied", path="/data/x", errno=13), "/data/x: permission", 2),
        (e.StorageError("Read-only file system", path="/data/x", errno=30), "--data-dir", 2),
        (e.DiskFullError("no space left", path="/data/x"), "the disk of /data is full", 1),
        (e.FormatError("version 99: install the release", path="/data/f"), "version 99", 1),
    ],
)
def test_a_start_that_fails_says_what_to_change(
    error: e.HeadraceError, says: str, status: int
) -> None:
    text, found = told(error)
    assert says in text
    assert found == status
    assert "=" not in text, "words, not fields"


def test_who_has_the_directory_is_named(tmp_path: Path) -> None:
    write_note(str(tmp_path), {"iggy": "127.0.0.1:9090"}, "")
    text, status = told(e.LockedError("held"), str(tmp_path))
    assert f"process {os.getpid()}, Iggy clients on 127.0.0.1:9090" in text
    assert f"`headrace down --data-dir {tmp_path}`" in text
    assert status == 1
