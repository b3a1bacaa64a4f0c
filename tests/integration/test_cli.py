"""Every noun and verb of the command line that speaks to the broker, against a real server."""

from __future__ import annotations

import json
import stat
import time
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.cli import doctor, profiles
from headrace.cli.main import app
from headrace.observability.escaping import note
from tests.integration.server import Server, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("cli") / "server") as started:
        yield started


class Shell:
    """Runs commands in this process, each with a connection of its own."""

    def __init__(self, server: Server, home: Path) -> None:
        self.environment = {
            "HEADRACE_ADDRESS": server.addresses["iggy"], "XDG_CONFIG_HOME": str(home),
        }  # fmt: skip
        self._runner = CliRunner()

    def __call__(self, *arguments: str, input: str | None = None) -> Result:
        return self._runner.invoke(app, arguments, input=input, env=self.environment)

    def ok(self, *arguments: str, input: str | None = None) -> str:
        done = self(*arguments, input=input)
        assert done.exit_code == 0, (arguments, done.output, done.exception)
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))


@pytest.fixture
def shell(server: Server, tmp_path: Path) -> Shell:
    return Shell(server, tmp_path / "config")


def test_a_topic_is_changed_and_grown(shell: Shell) -> None:
    shell.ok("stream", "create", "works")
    shell.ok("stream", "rename", "works", "plant")
    made = shell.json("topic", "create", "plant/raw", "--partitions", "2", "--replicas", "1")
    assert (made["partitions"], made["replicas"]) == (2, 1)
    changed = shell.json(
        "topic", "update", "plant/raw", "--name", "fine", "--expiry", "60",
        "--max-bytes", "5000000000",
    )  # fmt: skip
    assert (changed["name"], changed["expiry_seconds"], changed["max_bytes"]) == (
        "fine", 60, 5 * 10**9,
    )  # fmt: skip
    kept = shell.json("topic", "update", "plant/fine", "--expiry", "0")
    assert (kept["name"], kept["expiry_seconds"], kept["max_bytes"]) == ("fine", None, 5 * 10**9)
    shell.ok("partition", "add", "plant/fine", "3")
    shell.ok("partition", "remove", "plant/fine", "1")
    shell.ok("produce", "plant/fine", "--partition", "3", input="a\nb\n")
    assert shell.json("topic", "show", "plant/fine")["partitions"][3]["messages"] == 2
    shell.ok("segment", "delete", "plant/fine", "--partition", "0")
    shell.ok("topic", "purge", "plant/fine")
    assert shell.json("topic", "show", "plant/fine")["messages"] == 0
    shell.ok("produce", "plant/fine", input="c\n")
    shell.ok("stream", "purge", "plant")
    assert shell.json("stream", "show", "plant")["messages"] == 0
    shell.ok("stream", "delete", "plant")


def test_json_lines_carry_keys_and_headers_both_ways(shell: Shell, tmp_path: Path) -> None:
    shell.ok("stream", "create", "lines")
    shell.ok("topic", "create", "lines/t", "--partitions", "3")
    given = [
        {"key": f"k{n % 4}", "payload": {"n": n}, "headers": {"kind": "test", "n": n}}
        for n in range(40)
    ]
    given.append({"payload_base64": "/w==", "key": "binary"})
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in given))
    sending = ("produce", "lines/t", "--file", str(file), "--format", "jsonl", "--header", "by=cli")
    shell.ok(*sending)
    rows = [json.loads(line) for line in shell.ok("consume", "lines/t", "--json").splitlines()]
    (binary,) = [row for row in rows if row["key"] == "binary"]
    assert binary["payload_base64"] == "/w=="
    for key in range(4):
        mine = [row for row in rows if row["key"] == f"k{key}"]
        assert [json.loads(row["payload"])["n"] for row in mine] == list(range(key, 40, 4))
        assert len({row["partition"] for row in mine}) == 1
        assert mine[0]["headers"] == {"by": "cli", "kind": "test", "n": str(key)}
    again = tmp_path / "again.jsonl"
    again.write_text(shell.ok("consume", "lines/t", "--json"))
    shell.ok("produce", "lines/t", "--file", str(again), "--format", "jsonl")
    assert shell.json("topic", "show", "lines/t")["messages"] == 82
    bad = shell("produce", "lines/t", "--format", "jsonl", input='{"payload": "x"}\n{"pay": 1}\n')
    assert "line 2 has no payload" in str(bad.exception)


def test_reading_starts_at_a_time(shell: Shell) -> None:
    shell.ok("stream", "create", "timed")
    shell.ok("topic", "create", "timed/t")
    shell.ok("produce", "timed/t", "--rate", "50", input="".join(f"{n}\n" for n in range(20)))
    rows = [json.loads(line) for line in shell.ok("consume", "timed/t", "--json").splitlines()]
    assert rows[-1]["timestamp_us"] - rows[0]["timestamp_us"] > 200_000, "50 a second"
    middle = datetime.fromtimestamp(rows[10]["timestamp_us"] / 1e6, UTC).isoformat()
    later = [
        json.loads(x)
        for x in shell.ok("consume", "timed/t", "--json", "--from", middle).splitlines()
    ]
    assert later == [row for row in rows if row["timestamp_us"] >= rows[10]["timestamp_us"]]
    assert shell.ok("consume", "timed/t", "--from", "1h").split() == [str(n) for n in range(20)]
    assert shell.ok("consume", "timed/t", "--from", "latest") == ""
    assert shell("consume", "timed/t", "--from", "yesterday").exit_code == 2


def test_groups_tell_their_lag_and_offsets_can_be_moved(shell: Shell) -> None:
    shell.ok("stream", "create", "lagging")
    shell.ok("topic", "create", "lagging/t", "--partitions", "2")
    shell.ok("produce", "lagging/t", "--partition", "1", input="".join(f"{n}\n" for n in range(10)))
    shell.ok("group", "create", "lagging/t", "readers")
    (listed,) = shell.json("group", "list", "lagging/t")
    assert (listed["name"], listed["partitions"], listed["members"]) == ("readers", 2, 0)
    assert shell.json("group", "show", "lagging/t", "readers")["lag"] == 10
    place = ("lagging/t", "readers", "--group", "--partition", "1")
    shell.ok("offset", "set", *place, "--offset", "6")
    shown = shell.json("group", "show", "lagging/t", "readers")
    assert shown["lag"] == 3
    assert shown["partitions"][1] == {
        "partition": 1, "member": None, "stored": 6, "next": 10, "lag": 3,
    }  # fmt: skip
    assert [row["stored"] for row in shell.json("offset", "get", *place[:3])] == [None, 6]
    shell.ok("offset", "delete", *place)
    assert shell.json("group", "show", "lagging/t", "readers")["lag"] == 10
    shell.ok("offset", "set", "lagging/t", "7", "--partition", "1", "--offset", "9")
    assert shell.json("offset", "get", "lagging/t", "7")[1]["lag"] == 0
    shell.ok("group", "delete", "lagging/t", "readers")
    assert shell.json("group", "list", "lagging/t") == []


def test_a_user_may_do_what_it_was_permitted(shell: Shell) -> None:
    shell.ok("stream", "create", "guarded")
    shell.ok("topic", "create", "guarded/in")
    shell.ok("topic", "create", "guarded/out")
    shell.ok("user", "create", "ann", "--new-password", "secret one")
    ann = ("--username", "ann", "--password", "secret one")
    assert shell("topic", "show", "guarded/in", *ann).exit_code != 0
    shell.ok(
        "permission", "set", "ann", "--allow", "guarded/in:all", "--allow", "guarded:read_stream"
    )
    assert shell.json("topic", "show", "guarded/in", *ann)["messages"] == 0
    shell.ok("produce", "guarded/in", *ann, input="x\n")
    assert shell("produce", "guarded/out", *ann, input="x\n").exit_code != 0
    shown = shell.json("user", "show", "ann")
    assert "guarded:read_stream" in shown["permissions"]
    listed = [row["permission"] for row in shell.json("permission", "show", "ann")]
    assert listed == shown["permissions"]
    assert "guarded/in:send_messages" in listed
    known = {row["name"] for row in json.loads(shell.ok("permission", "list", "--json"))}
    assert known >= {rule.rpartition(":")[2] for rule in listed}
    assert shown["active"]
    shell.ok("user", "password", "ann", "--current", "secret one", "--new", "secret two")
    assert shell("stream", "list", *ann).exit_code != 0
    shell.ok("user", "disable", "ann")
    ann = ("--username", "ann", "--password", "secret two")
    assert shell("client", "me", *ann).exit_code != 0
    shell.ok("user", "enable", "ann")
    shell.ok("user", "rename", "ann", "anna")
    assert [u["name"] for u in shell.json("user", "list")] == ["iggy", "anna"]
    shell.ok("user", "delete", "anna")
    unknown = shell("permission", "set", "iggy", "--allow", "fly")
    assert (unknown.exit_code, "manage_servers" in unknown.output) == (2, True)
    nowhere = shell("permission", "set", "iggy", "--allow", "nowhere:read_stream")
    assert (nowhere.exit_code, "no stream" in nowhere.output) == (2, True)


def test_a_token_stands_for_its_user(shell: Shell) -> None:
    token = shell.json("token", "create", "robot", "--expiry", "3600")["token"]
    assert shell.ok("token", "create", "for-ever").strip()
    expires = {row["name"]: row["expires_at_us"] for row in shell.json("token", "list")}
    assert expires["for-ever"] is None
    assert 3500e6 < expires["robot"] - time.time() * 1e6 < 3600e6
    assert "never" in shell.ok("token", "list")
    assert shell.json("client", "me", "--token", token)["transport"] == "tcp"
    shell.ok("token", "delete", "robot")
    assert shell("client", "me", "--token", token).exit_code != 0


def test_clients_and_the_server_are_told(shell: Shell, tmp_path: Path) -> None:
    me = shell.json("client", "me")
    assert me["address"].startswith("127.0.0.1:")
    listed = shell.json("client", "list")  # this command, and who makes the pages
    assert me["user"] in {each["user"] for each in listed}
    gone = shell("client", "show", str(me["id"]))
    assert (gone.exit_code, "client list" in str(gone.exception)) == (1, True)
    assert shell.json("server", "ping")["milliseconds"] > 0
    stats = shell.json("server", "stats")
    assert stats["server_version"]
    assert stats["total_disk_space"] > 0
    (node,) = shell.json("server", "nodes")
    assert (node["role"], node["address"]) == ("leader", shell.environment["HEADRACE_ADDRESS"])
    archive = tmp_path / "snapshot.zip"
    shell.ok("server", "snapshot", "-o", str(archive))
    assert zipfile.ZipFile(archive).testzip() is None
    assert "process id" in shell.ok("server", "stats")


def test_shards_are_listed_and_given_to_a_worker(shell: Shell) -> None:
    shell.ok("stream", "create", "sharded")
    shell.ok("topic", "create", "sharded/t", "--partitions", "3")
    found = shell.json("shard", "list")
    (worker,) = found["workers"]
    assert (worker["worker"], worker["role"], worker["shards"]) == (0, "coordinator", 64)
    assert worker["address"] == shell.environment["HEADRACE_ADDRESS"]
    assert worker["partitions"] == sum(each["partitions"] for each in found["shards"]) >= 3
    assert {(each["worker"], each["name"]) for each in found["shards"]} == {(0, worker["name"])}
    moved = shell.json("shard", "move", "7", "0")
    assert moved == {"shard": 7, "worker": worker["name"], "pinned": worker["name"]}
    assert shell.json("shard", "list")["shards"][7]["pinned"] == 0
    told = shell.ok("shard", "list").splitlines()
    assert told[0] == "Workers"
    assert "Shards" in told
    assert "balance decides" in shell("shard", "move", "7", "").stderr
    assert shell.json("shard", "list")["shards"][7]["pinned"] is None
    for arguments, reason in (
        (("0", "0"), "stays with the worker that coordinates"),
        (("64", "0"), "no shard 64"),
        (("1", "nobody"), "no worker that lives"),
    ):
        refused = shell("shard", "move", *arguments)
        assert (refused.exit_code, reason in str(refused.exception)) == (1, True)


def test_the_doctor_finds_the_server_well(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "CLOCK_SECONDS_MAX", 60.0)  # a busy machine looks like another
    found = shell.json("doctor", "--data-dir", str(tmp_path))
    by_check = {each["check"]: each for each in found}
    assert by_check["server"]["level"] == by_check["clock"]["level"] == "ok"
    assert "answers in" in by_check["server"]["text"]
    assert "✓ server" in shell.ok("doctor", "--data-dir", str(tmp_path))


def test_a_profile_says_where_to_go_and_keeps_no_secret(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(server, tmp_path / "config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    address = shell.environment.pop("HEADRACE_ADDRESS")
    monkeypatch.delenv("HEADRACE_ADDRESS", raising=False)
    refused = shell("profile", "set", "here", "--password", "iggy")
    assert (refused.exit_code, "env:NAME" in refused.output) == (2, True)
    shell.ok("profile", "set", "here", "--address", address, "--username", "iggy",
             "--password", "env:CLI_TEST_PASSWORD")  # fmt: skip
    shell.ok("profile", "set", "elsewhere", "--address", "127.0.0.1:1")
    assert stat.S_IMODE(profiles.path().stat().st_mode) == 0o600
    assert 'iggy"' not in profiles.path().read_text().replace('"username": "iggy"', "")
    shell.environment["CLI_TEST_PASSWORD"] = "iggy"
    assert shell.json("stream", "list") is not None, "the first one is the current one"
    assert shell("stream", "list", "--profile", "elsewhere").exit_code == 1
    shell.ok("profile", "use", "elsewhere")
    assert shell("stream", "list").exit_code == 1
    shell.ok("stream", "list", "--profile", "here")
    shell.ok("stream", "list", "--address", address)
    unknown = shell("stream", "list", "--profile", "nowhere")
    assert "here" in str(unknown.exception)
    listed = {row["name"]: row["current"] for row in shell.json("profile", "list")}
    assert listed == {"elsewhere": True, "here": False}
    assert shell.json("profile", "show")["name"] == "elsewhere"
    shell.ok("profile", "delete", "elsewhere")
    shell.environment["CLI_TEST_PASSWORD"] = ""
    missing = shell("stream", "list", "--profile", "here")
    assert "CLI_TEST_PASSWORD" in str(missing.exception)


HOSTILE = "x\n[red]iggy \x1b[2K\r\u202e\x9b"


def test_names_of_others_do_not_speak_to_the_terminal(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    stream, user = f"s {HOSTILE}", f"u {HOSTILE}"
    shell.ok("stream", "create", stream)
    shell.ok("topic", "create", f"{stream}/{HOSTILE}")
    shell.ok("group", "create", f"{stream}/{HOSTILE}", HOSTILE)
    shell.ok("user", "create", user, "--new-password", "secret one")
    shown = [
        shell.ok(*command)
        for command in (
            ("stream", "list"),
            ("stream", "show", stream),
            ("topic", "list", stream),
            ("topic", "show", f"{stream}/{HOSTILE}"),
            ("group", "list", f"{stream}/{HOSTILE}"),
            ("user", "list"),
            ("user", "show", user),
        )
    ]
    note(f"headrace: there is no {HOSTILE[2:]}")
    for text in (*shown, capsys.readouterr().err):
        assert all(each.isprintable() for each in text.replace("\n", "")), ascii(text)
        assert not any(line.startswith("[red]iggy") for line in text.splitlines())
    assert any("\\x1b" in text and "[red]" in text for text in shown)
    shell.ok("stream", "delete", stream)
    shell.ok("user", "delete", user)
