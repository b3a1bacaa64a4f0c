"""The command line as a person meets it: errors, closed pipes, questions, servers that restart."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli.advice import report
from headrace.cli.main import app
from headrace.errors import HeadraceError
from tests.integration.server import Server, running
from tests.ports import free_port

COMMAND = [sys.executable, "-m", "headrace.cli.main"]
SECONDS = 60.0


@dataclass(frozen=True)
class Done:
    code: int
    output: str
    said: str


def run(server: Server, *arguments: str, input: str = "") -> Done:
    """A command in this process, with what `main` would print of its error."""
    given = {
        "HEADRACE_ADDRESS": server.addresses["iggy"], "HEADRACE_HTTP": server.addresses["http"],
    }  # fmt: skip
    done = CliRunner().invoke(app, arguments, input=input, env=given)
    if isinstance(done.exception, HeadraceError):
        text, code = report(done.exception, as_json="--json" in arguments)
        return Done(code, done.stdout, f"{done.stderr}{text}\n")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Done(done.exit_code, done.stdout, done.stderr)


def ok(server: Server, line: str, *more: str, input: str = "") -> str:
    done = run(server, *line.split(), *more, input=input)
    assert done.code == 0, done.said
    return done.output


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("line") / "server") as started:
        for line in (
            "stream create shop", "topic create shop/orders --partitions 2",
            "topic create shop/few", "user create reader --new-password secret",
        ):  # fmt: skip
            ok(started, line)
        ok(started, "produce shop/orders", input="".join(f"{n}\n" for n in range(5000)))
        yield started


def environment(server: Server, **more: str) -> dict[str, str]:
    addresses = {
        "HEADRACE_ADDRESS": server.addresses["iggy"], "HEADRACE_HTTP": server.addresses["http"],
    }  # fmt: skip
    return {**os.environ, **addresses, **more}


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("stream create shop", 1, "there is a stream 'shop' already"),
        ("stream show nope", 1, "there is no stream 'nope'\n  See `headrace stream list`."),
        ("topic list nope", 1, "there is no stream 'nope'\n  See `headrace stream list`."),
        ("topic show shop/nope", 1, "there is no topic shop/nope\n  See `headrace topic list`."),
        ("topic create shop/x --partitions 0", 2, "--partitions"),
        ("stream create " + "x" * 300, 1, "300 bytes are too many for this name"),
        ("topic create nope/x", 1, "there is no stream 'nope'"),
        ("consume shop/orders --partition 9", 1, "shop/orders has no partition 9"),
        ("consume shop/orders --group g --partition 1", 2, "leave --partition out"),
        ("consume shop/orders --from yesterday", 2, "--from takes"),
        ("group list shop/nope", 1, "there is no topic shop/nope"),
        ("group show shop/orders nope", 1, "has no group 'nope'\n  See `headrace group list"),
        ("offset set shop/orders me --partition 9 --offset 1", 1, "has no partition 9"),
        ("user show nobody", 1, "there is no user 'nobody'\n  See `headrace user list`."),
        ("user delete nobody", 1, "there is no user 'nobody'"),
        ("user delete iggy", 1, "is root, which cannot be deleted"),
        ("token delete nothing", 1, "there is no token 'nothing'\n  See `headrace token list`."),
        ("partition remove shop/few 5", 1, "shop/few has fewer than 5 partitions"),
        ("segment list shop/few --partition 3", 1, "shop/few has no partition 3"),
        ("container list nope", 1, "there is no pipeline 'nope'\n  See `headrace pipeline list`."),
        ("stream list --password wrong", 1, "unknown user 'iggy', or wrong password"),
        ("stream list --token nonsense", 1, "does not know this token"),
        ("stream list --address nowhere", 2, "--address is HOST:PORT"),
        ("stream list --address 127.0.0.1:1", 1, "cannot connect to 127.0.0.1:1: connection ref"),
        ("stream list --address DATA_NODE", 1, "it is not the Iggy port"),
        ("pipeline list --http IGGY", 1, "is not the dashboard"),
        ("stream list --tls --address IGGY", 1, "--tls-ca"),
        ("stream create x --username reader --password secret", 1, "may not create stream"),
    ],
)
def test_an_error_is_a_sentence_that_fits(server: Server, line: str, code: int, says: str) -> None:
    for word, name in (("DATA_NODE", "data_node"), ("IGGY", "iggy")):
        line = line.replace(word, server.addresses[name])
    done = run(server, *line.split())
    assert done.code == code, done.said
    assert says in done.said
    assert "command=" not in done.said
    assert done.output == ""


def test_a_message_that_is_too_large_is_refused_with_the_limit(server: Server) -> None:
    done = run(server, "produce", "shop/few", input="x" * 10_000_001)
    assert done.code == 1
    assert "a payload of 10,000,001 bytes is too large: it may have 10,000,000" in done.said


def test_a_file_of_the_system_that_fails_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = server.headrace("backup", f"{tmp_path}/file/x", f"--data-dir={server.folder}/data")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"headrace: {tmp_path}/file/x: not a directory\n"


def test_topics_of_all_streams_and_what_they_are_made_of(server: Server) -> None:
    topics = json.loads(ok(server, "topic list --json"))
    assert {("shop", "orders"), ("shop", "few")} <= {(one["stream"], one["name"]) for one in topics}
    assert topics[0]["expiry_seconds"] is None
    partitions = json.loads(ok(server, "partition list shop/orders --json"))
    assert sum(one["messages"] for one in partitions) == 5000
    segments = json.loads(ok(server, "segment list shop/orders --json"))
    assert sum(one["messages"] for one in segments) == 5000
    assert all(one["open"] and one["bytes"] > 0 for one in segments)
    assert {one["partition"] for one in segments} == {0, 1}


@pytest.mark.parametrize("line", ["consume shop/orders", "topic list"])
def test_a_reader_that_goes_away_is_no_failure(server: Server, line: str) -> None:
    with subprocess.Popen(
        [*COMMAND, *line.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(server),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(SECONDS) == 0


class Terminal:
    """A command with a terminal of its own."""

    def __init__(self, command: list[str], **environment: str) -> None:
        self.text = ""
        self.pid, self._descriptor = pty.fork()
        if self.pid == 0:  # pragma: no cover  # the child
            os.execve(sys.executable, [*COMMAND, *command], {**os.environ, **environment})

    def see(self, words: str) -> None:
        deadline = time.monotonic() + SECONDS
        while words not in self.text:
            assert time.monotonic() < deadline, self.text
            self._read()

    def _read(self) -> bool:
        ready, _, _ = select.select([self._descriptor], [], [], 0.1)
        try:
            data = os.read(self._descriptor, 4096) if ready else b"?"
        except OSError:  # how a terminal ends
            return False
        self.text += data.decode() if ready else ""
        return bool(data)

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def end(self) -> int:
        while self._read():
            pass
        os.close(self._descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_somebody_at_a_terminal_is_asked_before_a_topic_is_deleted(server: Server) -> None:
    ok(server, "topic create shop/doomed")
    ok(server, "produce shop/doomed", input="a\nb\n")
    address = {"HEADRACE_ADDRESS": server.addresses["iggy"]}
    for answer, code in (("n\n", 1), ("y\n", 0)):
        terminal = Terminal(["topic", "delete", "shop/doomed"], **address)
        terminal.see("Delete shop/doomed: 2 messages")
        terminal.type(answer)
        assert terminal.end() == code, terminal.text
        assert run(server, "topic", "show", "shop/doomed").code == (1 if answer == "y\n" else 0)
    ok(server, "topic create shop/doomed")
    assert Terminal(["topic", "delete", "shop/doomed", "--yes"], **address).end() == 0
    ok(server, "topic create shop/doomed")
    ok(server, "topic delete shop/doomed")  # a script is not asked


def test_a_group_goes_on_where_it_was(server: Server) -> None:
    topic = "shop/grouped"
    ok(server, "topic create", topic)
    ok(server, "produce", topic, input="".join(f"{n}\n" for n in range(10)))

    def read(*more: str) -> list[str]:
        return ok(server, "consume --group billing", topic, *more).split()

    assert read("--count", "3") == ["0", "1", "2"]
    assert read("--count", "2") == ["3", "4"]
    assert read() == ["5", "6", "7", "8", "9"]
    assert read() == []
    assert json.loads(ok(server, "group show", topic, "billing", "--json"))["lag"] == 0


def test_ctrl_c_keeps_what_a_group_has_printed(server: Server) -> None:
    topic = "shop/stopped"
    ok(server, "topic create", topic)
    ok(server, "produce", topic, input="1\n2\n")
    command = [*COMMAND, "consume", topic, "--group", "g", "--follow"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(server)
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"1\n", b"2\n"]
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=SECONDS)
        assert (process.returncode, said) == (0, b"")
    ok(server, "produce", topic, input="3\n")
    assert ok(server, "consume --group g", topic) == "3\n"


def piped(*command: str, at: dict[str, str]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen([*COMMAND, *command], env=at, stdin=pipe, stdout=pipe, stderr=pipe)


def test_produce_and_follow_outlive_the_server(tmp_path: Path) -> None:
    """It is killed and started again while messages flow: each arrives once, in order."""
    iggy = free_port()
    up = [
        *COMMAND, "up", "--dev", "--detach", f"--data-dir={tmp_path / 'data'}",
        f"--iggy-port={iggy}", *(f"--{name}-port=0" for name in ("quic", "placement", "node")),
        "--http-port=0",
    ]  # fmt: skip
    at = {**os.environ, "HEADRACE_ADDRESS": f"127.0.0.1:{iggy}", "PYTHONUNBUFFERED": "1"}

    def start() -> int:
        done = subprocess.run(up, capture_output=True, text=True, check=False, timeout=SECONDS)
        assert done.returncode == 0, done.stderr
        note = json.loads((tmp_path / "data" / "up.json").read_text())
        return int(note["pid"])

    pid = start()
    try:
        for line in ("stream create s", "topic create s/t"):
            subprocess.run([*COMMAND, *line.split()], env=at, check=True, capture_output=True)
        with (
            piped("consume", "s/t", "--follow", at=at) as reader,
            piped("produce", "s/t", at=at) as writer,
        ):
            assert reader.stdout is not None
            assert writer.stdin is not None
            assert writer.stderr is not None
            into, out_of = writer.stdin, reader.stdout
            got: list[int] = []
            following = threading.Thread(target=lambda: got.extend(map(int, out_of)))
            following.start()
            sent = 0

            def send_until(enough: Callable[[], bool]) -> None:
                nonlocal sent
                deadline = time.monotonic() + SECONDS
                while not enough():
                    assert time.monotonic() < deadline, (sent, len(got))
                    into.write(b"%d\n" % sent)
                    into.flush()
                    sent += 1
                    time.sleep(0.01)

            send_until(lambda: len(got) >= 20)
            os.kill(pid, signal.SIGKILL)
            before = sent
            send_until(lambda: sent >= before + 20)
            pid = start()
            before = len(got)
            send_until(lambda: len(got) > before + 50)
            into.close()
            said = writer.stderr.read().decode()
            assert writer.wait(SECONDS) == 0, said
            assert f"stored {sent} messages in s/t" in said
            assert "trying again" in said
            deadline = time.monotonic() + SECONDS
            while len(got) < sent and time.monotonic() < deadline:
                time.sleep(0.05)
            reader.send_signal(signal.SIGINT)
            assert reader.wait(SECONDS) == 0
            following.join(SECONDS)
            assert got == list(range(sent))
    finally:
        os.kill(pid, signal.SIGKILL)
