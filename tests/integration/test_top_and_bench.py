"""`headrace top` and `headrace bench` against a real broker, in a real terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import struct
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from fcntl import ioctl
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.cli.main import main
from headrace.testing import LocalBroker
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Consumer, Partitioning


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker() as started:
        client = started.client()
        client.run(lambda c: c.create_stream("shop"))
        client.run(lambda c: c.create_topic("shop", "orders"))
        client.run(lambda c: c.create_topic("shop", "returns"))
        client.run(lambda c: c.create_group("shop", "orders", "billing"))
        where = Partitioning.to_partition(0)
        client.run(
            lambda c: c.send("shop", "orders", [Message(b"x" * 50)] * 100, partitioning=where)
        )
        group = Consumer.group("billing")
        client.run(
            lambda c: c.store_consumer_offset(group, "shop", "orders", partition=0, offset=59)
        )
        yield started


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(broker: LocalBroker, *arguments: str) -> Done:
    """What the program does, without the half second that a process takes to start."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["headrace", *arguments, "--address", broker.address]
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
    code = ended.value.code
    return Done(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


def test_top_tells_programs_what_it_sees(broker: LocalBroker) -> None:
    answer = run(broker, "top", "--once", "--json", "--interval", "0.2", "--http", "none")
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert found["server"]["messages"] == 100
    assert found["server"]["streams"] == 1
    topics = {row["topic"]: row for row in found["topics"]}
    assert topics["shop/orders"]["messages"] == 100
    assert topics["shop/orders"]["messages_per_second"] == 0
    assert found["groups"] == [
        {"group": "billing", "topic": "shop/orders", "members": 0, "lag": 40, "lag_per_second": 0.0}
    ]
    assert found["pipelines"] is None
    lines = run(
        broker, "top", "--json", "--count", "2", "--interval", "0.2", "--http", "127.0.0.1:1"
    ).stdout.splitlines()
    looks = [json.loads(line) for line in lines]
    assert [look["topics"][0]["messages_per_second"] for look in looks] == [None, 0.0]
    assert "127.0.0.1:1" in looks[0]["pipelines_error"]


def test_top_without_a_terminal_prints_once(broker: LocalBroker) -> None:
    answer = run(broker, "top", "--interval", "0.2", "--http", "none", "--sort", "name")
    assert answer.returncode == 0, answer.stderr
    assert "shop/orders" in answer.stdout
    assert "billing" in answer.stdout
    assert run(broker, "top", "--sort", "colour").returncode == 2


class Terminal:
    """A program in a pseudo-terminal; what it wrote so far is `shown`."""

    def __init__(self, *arguments: str) -> None:
        self._pid, self._master = pty.fork()
        if self._pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(sys.executable, [sys.executable, "-m", "headrace.cli.main", *arguments])
        ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.shown = ""

    def wait_for(self, text: str, *, seconds: float = 20) -> None:
        """Until this is written, counting from the last text that was waited for."""
        deadline = time.monotonic() + seconds
        while text not in self.shown:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._master], [], [], max(0.0, left))
            assert ready, f"no {text!r} in {self.shown[-2000:]!r}"
            self.shown += os.read(self._master, 65536).decode("utf-8", "replace")
        self.shown = self.shown.split(text, 1)[1]

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def attributes(self) -> list[Any]:
        return termios.tcgetattr(self._master)[:4]

    def end(self) -> int:
        """Exit status."""
        while True:
            try:
                if not os.read(self._master, 65536):
                    break
            except OSError:
                break  # how Linux says that the other side is closed
        _, status = os.waitpid(self._pid, 0)
        os.close(self._master)
        return os.waitstatus_to_exitcode(status)


def test_top_in_a_terminal_listens_to_keys(broker: LocalBroker) -> None:
    terminal = Terminal("top", "--address", broker.address, "--http", "none", "--interval", "30")
    before = terminal.attributes()
    terminal.wait_for("headrace top")
    terminal.wait_for("shop/orders")
    terminal.wait_for("sort: rate")
    terminal.press("s")
    terminal.wait_for("sort: lag")
    terminal.press("p")
    terminal.wait_for("PAUSED")
    terminal.press("pr")
    terminal.wait_for("shop/returns")
    terminal.press("q")
    assert terminal.attributes() is not None
    assert terminal.end() == 0
    assert before


def test_bench_measures_saves_and_compares(broker: LocalBroker, tmp_path: Path) -> None:
    base = str(tmp_path / "reports" / "first")
    load = ("--size", "200", "--batch", "50", "--connections", "2", "--partitions", "2",
            "--duration", "0.6", "--warmup", "0")  # fmt: skip
    answer = run(broker, "bench", "both", *load, "--report", base, "--json")
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert json.loads(Path(f"{base}.json").read_text()) == found
    sent, polled = found["produce"], found["consume"]
    assert sent["messages"] == sent["requests"] * 50 > 0
    assert sent["bytes"] == sent["messages"] * 200
    assert polled["messages"] >= sent["messages"], "what was sent before the end is read"
    assert found["end_to_end"]["latency_ms"]["p50"] > 0
    assert sent["latency_ms"]["p50"] <= sent["latency_ms"]["p99.9"] <= sent["latency_ms"]["max"]
    assert found["settings"]["batch"] == 50
    assert "<svg" in Path(f"{base}.html").read_text()
    streams = json.loads(run(broker, "stream", "list", "--json").stdout)
    assert [row["name"] for row in streams] == ["shop"], "what it made is gone"
    found["produce"]["messages_per_second"] = 1e9  # so that the next is surely slower
    Path(f"{base}.json").write_text(json.dumps(found))
    kept = ("--keep", "--topic", "bench/kept", "--ack", "persisted")
    compared = ("--compare", f"{base}.json", "--json")
    again = run(broker, "bench", "produce", *load, "--rate", "500", *kept, *compared)
    assert again.returncode == 0, again.stderr
    second = json.loads(again.stdout)
    assert 0 < second["produce"]["messages"] <= 400, "500 a second, for 0.6 seconds"
    assert second["compared"]["produce messages_per_second"]["percent"] < 0
    assert "consume messages_per_second" not in second["compared"]
    reading = run(broker, "bench", "consume", *load, "--topic", "bench/kept")
    assert reading.returncode == 0, reading.stderr
    assert "poll" in reading.stdout


def test_bench_says_what_is_wrong(broker: LocalBroker, tmp_path: Path) -> None:
    for arguments, code, text in (
        (("consume", "--topic", "shop/none"), 1, "no topic shop/none"),
        (("--size", "1000000", "--batch", "1000"), 2, "1000000000 bytes"),
        (("--duration", "99999"), 2, "--duration"),
        (("--compare", str(tmp_path / "none.json")), 2, "none.json"),
    ):
        answer = run(broker, "bench", *arguments)
        assert answer.returncode == code, answer.stderr
        assert text in answer.stderr
