"""Backups of a data directory in use, and what `verify` says of damage."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.cli.backup import taking
from headrace.cli.backup.manifest import MANIFEST
from headrace.cli.backup.taking import METADATA_FILE
from headrace.cli.main import app
from headrace.client.iggy import IggyClient
from headrace.client.sync import SyncIggyClient
from headrace.config.settings import Settings, parse_settings
from headrace.errors import ConfigError, CorruptionError, FormatError, LockedError
from headrace.storage.layout import decode_metadata, encode_metadata
from headrace.testing import LocalBroker
from headrace.wire.iggy.messages.messages import Message, encode_send
from headrace.wire.iggy.primitives import Partitioning, Strategy

SMALL_SEGMENTS = b"[storage]\nsegment_bytes_max = 1048576\n"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def ok(*arguments: str | Path) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def settings() -> Settings:
    return parse_settings(SMALL_SEGMENTS, {})


def broker_on(folder: Path) -> LocalBroker:
    broker = LocalBroker(settings=settings())
    shutil.rmtree(broker._folder)
    broker._folder = str(folder)
    return broker


def payloads(client: SyncIggyClient, topic: str, partition: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while True:
        start, told = Strategy.offset(len(found)), len(found)
        poll = partial(
            IggyClient.poll, stream="shop", topic=topic, partition=partition, strategy=start,
            count=1000,
        )  # fmt: skip
        polled = client.run(poll)
        found += [message.payload for message in polled.messages()]
        if len(found) == told:
            return found


class Worker(threading.Thread):
    """Does `work` over and over until told to end; an error of it is raised by `finish`."""

    def __init__(self, work: Callable[[int], None]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._over = threading.Event()
        self._error: BaseException | None = None
        self.done = 0
        self.some = threading.Event()

    def run(self) -> None:
        try:
            while not self._over.wait(0.01):
                self._work(self.done)
                self.done += 1
                if self.done >= 20:
                    self.some.set()
        except BaseException as error:
            self._error = error
            self.some.set()

    def finish(self) -> None:
        self._over.set()
        self.join()
        if self._error is not None:
            raise self._error


def test_a_backup_in_use_holds_what_was_acknowledged_and_windows_once(tmp_path: Path) -> None:
    """Messages, consumer offsets, closed windows and topics are all written while it is taken."""
    target, restored = tmp_path / "backup", tmp_path / "restored"
    with LocalBroker(settings=settings()) as broker:
        clients = [broker.client() for _ in range(4)]
        for client in clients[:1]:
            client.run(lambda c: c.create_stream("shop"))
            for topic in ("plain", "windows"):
                client.run(partial(IggyClient.create_topic, stream="shop", name=topic))
        opened = clients[1].run(lambda c: c.open_publisher("query", "run 1"))

        def send(number: int) -> None:
            message = Message(b"%08d" % number + bytes(20_000))
            clients[0].run(lambda c: c.send("shop", "plain", [message]))

        def close(number: int) -> None:
            batch = encode_send(
                "shop", "windows", Partitioning.to_partition(0), [Message(b"%d" % number)]
            )
            span = clients[1].run(lambda c: c.stage(opened, number, batch))
            clients[1].run(
                lambda c: c.close_window(
                    opened, previous=number - 1, window=number, manifest=[span]
                )
            )

        def create(number: int) -> None:
            clients[2].run(lambda c: c.create_topic("shop", f"topic-{number}"))

        workers = [Worker(send), Worker(close), Worker(create)]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                assert worker.some.wait(120)
            before = [worker.done for worker in workers]
            taken = ok("backup", target, "--data-dir", broker._folder)
        finally:
            for worker in workers:
                worker.finish()
    assert taken["tries"] < taking.TRIES_MAX
    assert ok("verify", target)["sound"]
    ok("restore", target, "--data-dir", restored)
    assert ok("verify", restored)["sound"]
    with broker_on(restored) as again:
        client = again.client()
        sent = [payload[:8] for payload in payloads(client, "plain")]
        assert sent == [b"%08d" % number for number in range(len(sent))]
        assert len(sent) >= before[0]
        last = client.run(lambda c: c.open_publisher("query", "run 2")).last_window
        assert last + 1 >= before[1]
        assert payloads(client, "windows") == [b"%d" % number for number in range(last + 1)]
        names = {topic.name for topic in client.run(lambda c: c.get_topics("shop"))}
        assert {f"topic-{number}" for number in range(before[2])} <= names
        for name in sorted(names)[:5]:
            on = [Message(b"on")]
            client.run(partial(IggyClient.send, stream="shop", topic=name, messages=on))
            assert payloads(client, name)[-1] == b"on"


def test_a_moment_in_which_the_state_moved_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned, made = taking._pinned, 0
    with LocalBroker() as broker:
        client = broker.client()
        client.run(lambda c: c.create_stream("shop"))

        def moving(*arguments: Any, **options: Any) -> Any:
            nonlocal made
            yield from pinned(*arguments, **options)
            if made < 2:
                made += 1
                client.run(partial(IggyClient.create_topic, stream="shop", name=f"topic-{made}"))

        monkeypatch.setattr(taking, "_pinned", moving)
        assert ok("backup", tmp_path / "backup", "--data-dir", broker._folder)["tries"] == 3
        monkeypatch.setattr(taking, "TRIES_MAX", 1)
        made = -1
        done = run("backup", tmp_path / "moved", "--data-dir", broker._folder)
        assert (done.exit_code, "never stood still" in done.stderr) == (0, True)


def test_checkpoints_are_taken_around_the_moment(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that finishes while the backup is taken is run again after a restore, with the
    offsets and the window it had: its commit may be missing, what it was planned with may not."""
    checkpoint = data_dir / "applications" / "shop" / "checkpoints" / "query"

    def finish(batch: int) -> None:
        for part in ("offsets", "windows", "commits"):
            (checkpoint / part).mkdir(parents=True, exist_ok=True)
            (checkpoint / part / str(batch)).write_text("v1")

    sweep = taking._sweep

    def while_a_batch_finishes(*arguments: Any) -> Any:
        finish(5)
        return sweep(*arguments)

    finish(4)
    (data_dir / "applications/shop/logs").mkdir()
    (data_dir / "applications/shop/logs/container.log").write_text("long")
    monkeypatch.setattr(taking, "_sweep", while_a_batch_finishes)
    ok("backup", tmp_path / "backup", "--data-dir", data_dir)
    kept = tmp_path / "backup" / checkpoint.relative_to(data_dir)
    found = {part.name: sorted(each.name for each in part.iterdir()) for part in kept.iterdir()}
    assert found == {"offsets": ["4", "5"], "windows": ["4", "5"], "commits": ["4"]}
    assert not (tmp_path / "backup/applications/shop/logs").exists()
    assert ok("verify", tmp_path / "backup")["sound"]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with three segments, which was stopped."""
    folder = tmp_path_factory.mktemp("backups") / "data"
    broker = LocalBroker(settings=settings()).start()
    client = broker.client()
    client.run(lambda c: c.create_stream("shop"))
    client.run(lambda c: c.create_topic("shop", "plain"))
    for _ in range(26):
        client.run(lambda c: c.send("shop", "plain", [Message(bytes(100_000))]))
    broker.stop()
    shutil.move(broker._folder, folder)
    return folder


@pytest.fixture
def data_dir(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "data"))


def segments(folder: Path) -> list[Path]:
    """Of the topic: the stream with the most bytes."""
    logs = sorted((folder / "node/log/streams").glob("*/*/*.log"))
    largest = max(logs, key=lambda path: path.stat().st_size).parent
    return [path for path in logs if path.parent == largest]


def problems(path: Path) -> str:
    done = run("verify", path, "--json")
    assert done.exit_code == 1, done.output
    return "\n".join(json.loads(done.stdout)["problems"])


def test_verify_reads_every_batch_and_every_end(data_dir: Path) -> None:
    found = ok("verify", data_dir)
    assert (found["sound"], found["segments"] >= 3, found["records"] >= 26) == (True, True, True)
    first, second, *_ = segments(data_dir)
    whole = first.read_bytes()
    spoiled = bytearray(whole)
    spoiled[len(whole) // 2] ^= 1
    first.write_bytes(spoiled)
    assert "damaged in" in problems(data_dir)
    first.write_bytes(whole)
    assert ok("verify", data_dir)["sound"]
    moved = second.rename(second.with_suffix(".away"))
    assert "nothing holds the offsets" in problems(data_dir) or "damaged" in problems(data_dir)
    moved.rename(second)


def test_verify_compares_metadata_with_data(data_dir: Path) -> None:
    folder = segments(data_dir)[0].parent
    path = folder / "range.json"
    metadata = decode_metadata(path.read_bytes(), str(path))
    away = folder.rename(folder.with_name("9"))
    assert "the disk does not" in problems(data_dir)
    away.rename(folder)
    with sqlite3.connect(data_dir / METADATA_FILE) as connection:
        key = f"{int(folder.parent.name):020d}/{int(folder.name):011d}"
        (value,) = connection.execute("SELECT value FROM ranges WHERE key = ?", (key,)).fetchone()
        sealed = value.replace(b"\xa3end\xff", b"\xa3end\xcd\x03\xe8")
        assert sealed != value
        connection.execute("UPDATE ranges SET value = ? WHERE key = ?", (sealed, key))
    connection.close()
    assert "the metadata says 1000" in problems(data_dir)
    path.write_bytes(encode_metadata(metadata).replace(b'"start":0', b'"start":1'))
    assert "checksum" in problems(data_dir)


def test_a_backup_that_was_changed_is_refused(data_dir: Path, tmp_path: Path) -> None:
    target, linked = tmp_path / "backup", tmp_path / "linked"
    ok("backup", target, "--data-dir", data_dir)
    assert run("backup", target, "--data-dir", data_dir).exit_code == 1
    ok("backup", linked, "--data-dir", data_dir, "--link")
    shared, last = segments(linked)[0], segments(linked)[-1]
    assert (shared.stat().st_nlink, last.stat().st_nlink) == (2, 1)
    assert ok("verify", linked)["sound"]
    assert not list(data_dir.glob(".backup-*"))
    spoiled = bytearray(last.read_bytes())
    file = segments(target)[-1]
    spoiled[100] ^= 1
    file.write_bytes(spoiled)
    assert "differs" in problems(target)
    done = run("restore", target, "--data-dir", tmp_path / "new")
    assert isinstance(done.exception, CorruptionError)
    with pytest.raises(FormatError, match="restore that file"):  # half a restore is not started
        broker_on(tmp_path / "new").start()
    full = run("restore", linked, "--data-dir", data_dir)
    assert "not empty" in str(full.exception)
    (target / MANIFEST).unlink()
    none = run("restore", target, "--data-dir", tmp_path / "other")
    assert isinstance(none.exception, ConfigError)
    assert "did not finish" in str(none.exception)


def test_a_data_node_of_a_cluster_is_backed_up_alone(data_dir: Path, tmp_path: Path) -> None:
    for other in ("placement", "broker", "controller"):
        shutil.rmtree(data_dir / other, ignore_errors=True)
    ok("backup", tmp_path / "backup", "--data-dir", data_dir)
    found = ok("verify", tmp_path / "backup")
    assert (found["sound"], found["notes"], found["records"] >= 26) == (True, [], True)
    nothing = run("backup", tmp_path / "other", "--data-dir", tmp_path)
    assert isinstance(nothing.exception, ConfigError)


def test_a_directory_in_use_is_not_verified_nor_upgraded() -> None:
    with LocalBroker() as broker:
        for command in (["verify", broker._folder], ["upgrade", "--data-dir", broker._folder]):
            done = run(*command)
            assert isinstance(done.exception, LockedError), done.output


def test_an_older_directory_is_upgraded_and_a_newer_one_refused(
    data_dir: Path, tmp_path: Path
) -> None:
    old = tmp_path / "old"
    shutil.copytree("tests/fixtures/store-v1", old / "node" / "log")
    shutil.rmtree(old / "node/log/streams/3")  # damaged on purpose
    assert ok("verify", old)["notes"][0] == "format version 1; the next start migrates it"
    assert run("upgrade", "--check", "--data-dir", old).exit_code == 1
    (row,) = ok("upgrade", "--data-dir", old)
    assert (row["found"], row["known"], row["outcome"]) == (1, 2, "migrated")
    (row,) = ok("upgrade", "--check", "--data-dir", old)
    assert row["outcome"] == "up to date"
    assert ok("verify", old)["sound"]
    with sqlite3.connect(data_dir / METADATA_FILE) as connection:
        connection.execute("PRAGMA user_version=9")
    connection.close()
    done = run("upgrade", "--data-dir", data_dir)
    assert isinstance(done.exception, FormatError)
    assert "install the release that wrote it" in str(done.exception)
    with pytest.raises(FormatError, match="version 9"):
        broker_on(data_dir).start()
