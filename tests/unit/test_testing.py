"""The broker and the fixtures that users' tests get."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.client.sync import SyncIggyClient
from headrace.errors import HeadraceError
from headrace.testing import LocalBroker
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Strategy


def payloads(client: SyncIggyClient, stream: str) -> list[bytes]:
    polled = client.poll(stream, "t", partition=0, strategy=Strategy.first())
    return [message.payload for message in polled.messages()]


def test_a_broker_starts_soon_keeps_its_data_and_leaves_nothing() -> None:
    started = time.process_time()
    with LocalBroker() as broker:
        assert time.process_time() - started < 5.0
        folder = Path(broker._folder)
        client = broker.client()
        client.run(lambda c: c.create_stream("s"))
        client.run(lambda c: c.create_topic("s", "t"))
        client.send("s", "t", [Message(b"one"), Message(b"two")])
        broker.stop()
        broker.start()
        assert payloads(broker.client(), "s") == [b"one", b"two"]
        assert folder.is_dir()
    assert not folder.exists()


def test_a_broker_that_cannot_start_says_why() -> None:
    broker = LocalBroker()
    shutil.rmtree(broker._folder)
    Path(broker._folder).touch()
    try:
        with pytest.raises(HeadraceError):
            broker.start()
        broker.stop()
    finally:
        Path(broker._folder).unlink()


def test_the_fixtures_serve_a_test_of_somebody_else(tmp_path: Path) -> None:
    test = tmp_path / "test_theirs.py"
    test.write_text(
        "from headrace.wire.iggy.messages.messages import Message\n"
        "seen = []\n"
        "def test_one(headrace_broker, headrace_stream):\n"
        "    seen.append(headrace_stream)\n"
        "    client = headrace_broker.client()\n"
        "    client.run(lambda c: c.create_topic(headrace_stream, 't'))\n"
        "    client.send(headrace_stream, 't', [Message(b'x')])\n"
        "def test_two(headrace_broker, headrace_stream):\n"
        "    names = [s.name for s in headrace_broker.client().run(lambda c: c.get_streams())]\n"
        "    assert names == [headrace_stream] != seen\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", str(test)]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_plugin_costs_other_test_runs_nothing() -> None:
    code = "import sys, headrace.testing.plugin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "uvloop", "headrace.testing.broker"} & set(done.stdout.split())
