"""`headrace up --detach` and `headrace down`, as scripts use them: the next line just works."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.process.startup.server_note import RunningServer, read_note, started, write_note
from tests.integration.server import wait_until_gone

PORTS = [f"--{name}-port=0" for name in ("iggy", "quic", "placement", "node", "http")]


def headrace(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Its pipes are read to their end, so a server that kept one would keep the test."""
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *arguments],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environment},
    )  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    there = read_note(str(tmp_path / "data"))
    if there is not None:
        os.kill(there.pid, 9)


def test_it_returns_when_clients_are_served_and_down_ends_it(data: Path) -> None:
    """A first password is shown to who starts it, and not logged."""
    ready = data.parent / "ready.json"
    up = ["up", *PORTS, f"--data-dir={data}"]
    first = headrace(*up, "--detach", f"--ready-file={ready}")
    assert first.returncode == 0, first.stderr
    addresses = json.loads(ready.read_text())
    for name in ("iggy", "http", "data_node"):
        assert addresses[name] in first.stderr
    assert "Ctrl-C" not in first.stderr
    assert f"headrace down --data-dir {data}" in first.stderr
    log = data / "up.log"
    assert str(log) in first.stderr
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    password = re.search(r"^  password (\S+)$", first.stderr, re.M)
    assert password is not None
    server = {"HEADRACE_ADDRESS": addresses["iggy"], "HEADRACE_PASSWORD": password[1]}
    made = headrace("stream", "create", "next-line", **server)
    assert made.returncode == 0, made.stderr
    there = read_note(str(data))
    assert there is not None
    assert there.addresses == addresses
    for again in (up, [*up, "--detach"]):
        second = headrace(*again)
        assert second.returncode == 1
        assert f"already runs on {data} (process {there.pid}" in second.stderr
        assert "headrace down" in second.stderr
    down = headrace("down", f"--data-dir={data}")
    assert (down.returncode, "has stopped" in down.stderr) == (0, True)
    assert wait_until_gone([there.pid], 0) == []
    assert "stopping" in log.read_text()
    assert password[1] not in log.read_text()
    gone = headrace("down", f"--data-dir={data}")
    assert (gone.returncode, "no `headrace up` runs on" in gone.stderr) == (1, True)


def test_what_keeps_it_from_starting_is_read_at_once(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failed = headrace(
            "up", "--dev", "--detach", *PORTS, f"--iggy-port={port}", f"--data-dir={data}"
        )
    assert failed.returncode in (1, 2)
    assert str(port) in failed.stderr
    assert "in the background" not in failed.stderr
    assert read_note(str(data)) is None


def test_a_note_counts_while_its_process_lives(tmp_path: Path) -> None:
    write_note(str(tmp_path), {"iggy": "127.0.0.1:8090"}, "")
    assert read_note(str(tmp_path)) == RunningServer(
        os.getpid(), started(os.getpid()), {"iggy": "127.0.0.1:8090"}
    )
    note = tmp_path / "up.json"
    note.write_text(note.read_text().replace(started(os.getpid()), "1"))
    assert read_note(str(tmp_path)) is None, "the same process id, used again"
    note.write_text("{")
    assert read_note(str(tmp_path)) is None
