"""`headrace up` and the command line against it, as a person would use them."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.wire.sbp.frames import FRAME_BYTES_MAX
from tests.integration.server import Server, running, wait_until_gone

RSS_GROWTH_BYTES_MAX = 64 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("up") / "server") as started:
        yield started


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_streams_topics_and_messages_from_the_shell(server: Server) -> None:
    ok(server.headrace("stream", "create", "shell"))
    ok(server.headrace("topic", "create", "shell/lines", "--partitions", "2"))
    lines = "".join(f"line {n} ü\n" for n in range(2500))
    done = server.headrace("produce", "shell/lines", "--partition", "1", input=lines)
    assert "stored 2500 messages" in done.stderr
    assert ok(server.headrace("consume", "shell/lines")) == lines
    one = ok(server.headrace("consume", "shell/lines", "--json", "--from", "7", "--count", "1"))
    message = json.loads(one)
    assert (message["partition"], message["offset"], message["payload"]) == (1, 7, "line 7 ü")
    shown = json.loads(ok(server.headrace("topic", "show", "shell/lines", "--json")))
    assert [p["messages"] for p in shown["partitions"]] == [0, 2500]
    assert "lines" in ok(server.headrace("topic", "list", "shell"))
    assert "lines" in ok(server.headrace("stream", "show", "shell"))
    ok(server.headrace("topic", "delete", "shell/lines"))
    ok(server.headrace("stream", "delete", "shell"))
    names = [s["name"] for s in json.loads(ok(server.headrace("stream", "list", "--json")))]
    assert "shell" not in names


def test_keys_travel_with_messages(server: Server) -> None:
    ok(server.headrace("stream", "create", "keyed"))
    ok(server.headrace("topic", "create", "keyed/t", "--partitions", "3"))
    for key in ("a", "b", "c"):
        ok(server.headrace("produce", "keyed/t", "--key", key, input=f"1{key}\n2{key}\n"))
    rows = [
        json.loads(line)
        for line in ok(server.headrace("consume", "keyed/t", "--json")).splitlines()
    ]
    assert sorted((row["key"], row["payload"]) for row in rows) == [
        (key, f"{n}{key}") for key in "abc" for n in (1, 2)
    ]
    assert all(len({row["partition"] for row in rows if row["key"] == key}) == 1 for key in "abc")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("topic", "show", "no/such"), 1, "there is no topic"),
        (("topic", "show", "nonsense"), 2, "STREAM/TOPIC"),
        (("stream", "delete", "absent"), 1, "stream"),
        (("stream", "list", "--password", "wrong"), 1, "--password"),
        (("stream", "list", "--address", "127.0.0.1:1"), 1, "headrace up"),
        (("pipeline", "show", "absent"), 1, "there is no pipeline 'absent'"),
        (("pipeline", "run", "absent.py"), 2, "absent.py"),
        (("up", "--host", "0.0.0.0"), 2, "--insecure"),
        (("up", "--dev", "--host", "0.0.0.0"), 2, "loopback"),
    ],
)
def test_errors_say_what_to_do_next(
    server: Server, arguments: tuple[str, ...], code: int, says: str
) -> None:
    done = server.headrace(*arguments)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_server_on_the_same_data_is_refused(server: Server) -> None:
    ports = [
        part for name in ("iggy", "placement", "node", "http") for part in (f"--{name}-port", "0")
    ]
    done = server.headrace("up", "--dev", "--data-dir", str(server.folder / "data"), *ports)
    assert done.returncode == 1
    assert "--data-dir" in done.stderr


def test_secrets_are_for_the_owner_alone(server: Server) -> None:
    secret = server.folder / "data" / "secrets" / "cluster"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert secret.read_text() not in server.log


def garbage(seed: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    yield b"GET / HTTP/1.1\r\n\r\n"
    yield b"\xff" * 4096
    yield (FRAME_BYTES_MAX + 1).to_bytes(
        4, "big"
    ) + b"\x17" * 64  # one byte more than a frame may be
    yield (0x7FFFFFFF).to_bytes(4, "little") + (101).to_bytes(4, "little") + b"x" * 1000
    yield b"hrpc\x09\x00\x00" + (0x7FFFFFFF).to_bytes(4, "big") + b"y" * 1000
    for _ in range(40):
        yield chance.randbytes(chance.randint(1, 3000))


def rss(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("port", ["iggy", "placement_manager", "data_node", "umbilical", "http"])
def test_garbage_on_any_port_harms_nobody(server: Server, port: str) -> None:
    host, _, number = server.addresses[port].rpartition(":")
    pids = [server.process.pid, *server.children()]
    before = sum(map(rss, pids))
    for data in garbage(seed=11):
        with socket.create_connection((host, int(number)), timeout=10) as connection:
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
            except ConnectionError:
                pass  # being cut off is one of the legal answers
    assert sum(map(rss, pids)) - before < RSS_GROWTH_BYTES_MAX
    ok(server.headrace("stream", "list"))
    ok(server.headrace("pipeline", "list"))


def test_the_api_needs_a_login(server: Server) -> None:
    import httpx

    base = f"http://{server.addresses['http']}"
    with httpx.Client(trust_env=False) as client:
        assert client.get(f"{base}/health").text == "ok\n"
        assert "Headrace" in client.get(base).text, "the page holds nothing and asks by itself"
        for path in ("/api/overview", "/api/pipelines", "/api/v1/overview"):
            assert client.get(base + path).status_code == 401
            assert client.get(base + path, auth=("iggy", "wrong")).status_code == 401
            assert client.get(base + path, auth=("iggy", "iggy")).status_code == 200
        # The password that everybody knows runs no code.
        posted = client.post(f"{base}/api/pipelines", auth=("iggy", "iggy"), json={"entry": "x"})
        assert posted.status_code == 403
        file = server.folder / "data/secrets/http-token"
        assert posted.json()["token_file"] == str(file)
        assert file.stat().st_mode & 0o777 == 0o600
        assert f"HTTP token  {file.read_text()}" in server.log
        token = {"x-headrace-token": file.read_text()}
        # A form on a foreign page can make a browser post, but not as JSON.
        posted = client.post(
            f"{base}/api/pipelines", auth=("iggy", "iggy"), data={"entry": "x"}, headers=token
        )
        assert posted.status_code == 400
        # A foreign site whose name leads here (DNS rebinding) is told nothing.
        foreign = {"host": "evil.example:3000", "sec-fetch-site": "same-origin", **token}
        for path in ("/", "/health", "/api/overview"):
            answer = client.get(base + path, auth=("iggy", "iggy"), headers=foreign)
            assert answer.status_code == 421


@pytest.mark.parametrize("option", ["--host", "--iggy-host", "--data-dir"])
def test_an_option_that_was_given_nothing_starts_nothing(tmp_path: Path, option: str) -> None:
    command = [sys.executable, "-m", "headrace.cli.main", "up", "--dev", option, ""]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert done.returncode == 2
    assert f"{option} was given nothing" in done.stderr
    assert not list(tmp_path.iterdir())


def test_ctrl_c_stops_cleanly_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:
        children = server.children()
        assert children
        server.headrace("stream", "create", "kept")
        assert server.stop(signal.SIGINT) == 0
        assert wait_until_gone(children) == []
        assert "Traceback" not in server.log
        server.start()
        assert "kept" in ok(server.headrace("stream", "list"))
        assert "clean=True" in server.log
        assert server.stop(signal.SIGTERM) == 0


def test_kill_9_during_writes_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """Real clients of two generations write; the server dies twice, at a moment of its own."""
    with running(tmp_path / "server") as server:
        ok(server.headrace("stream", "create", "s"))
        ok(server.headrace("topic", "create", "s/t0"))
        ok(server.headrace("topic", "create", "s/t1"))
        for topic, version, acknowledged_min in (("t0", "0.8.0", 400), ("t1", "0.9.0", 700)):
            children = server.children()
            writer = server.peer(version, "numbered_writer.py", "s", topic, "0", "7")
            assert writer.stdout is not None
            acknowledged = 0
            while acknowledged < acknowledged_min:
                acknowledged = int(writer.stdout.readline())
            server.kill()
            writer.kill()
            acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
            writer.wait()
            writer.stdout.close()
            assert wait_until_gone(children) == [], "the control plane outlived its parent"
            server.start()
            reader = server.peer(version, "numbered_reader.py", "s", topic, "0")
            output, _ = reader.communicate(timeout=60)
            assert reader.returncode == 0
            assert acknowledged <= int(output) <= acknowledged + 7 * 2
        assert "clean=False" in server.log


def test_a_generated_root_password_is_shown_once(tmp_path: Path) -> None:
    with running(tmp_path / "server", arguments=()) as server:
        password = server.log.split("\n  password ")[1].split()[0]
        listing = server.headrace("stream", "list", f"--password={password}")
        assert listing.returncode == 0, listing.stderr
        assert server.headrace("stream", "list").returncode == 1, "iggy/iggy is for --dev alone"
        server.stop()
        server.start()
        assert server.log.count(password) == 1


async def test_statistics_are_the_machines_own(server: Server) -> None:
    from headrace.client.iggy import IggyClient
    from headrace.net.addresses import parse_address
    from headrace.runtime.system import system_runtime

    address = parse_address(server.addresses["iggy"])
    async with await IggyClient.connect(system_runtime(), *address) as client:
        await client.login("iggy", "iggy")
        await client.get_stats()
        stats = await client.get_stats()
    assert stats.process_id == server.process.pid
    assert 10 << 20 < stats.memory_usage < stats.total_memory
    assert 0 < stats.free_disk_space < stats.total_disk_space
    assert stats.threads_count > 1
    assert stats.hostname == socket.gethostname()
    assert stats.clients_count >= 1
