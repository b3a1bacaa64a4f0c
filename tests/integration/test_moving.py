"""`headrace import` and `headrace export`: what is kept, and what a kill -9 leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from headrace.cli.main import app
from headrace.cli.messages import exporting
from headrace.cli.messages.records import from_line, to_line
from headrace.client.sync import SyncIggyClient
from headrace.config.broker import BrokerSettings
from headrace.config.settings import Settings
from headrace.errors import HeadraceError, InvalidArgumentError
from headrace.testing import LocalBroker
from headrace.wire.iggy.columns import COLUMNS
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Partitioning, Strategy
from headrace.wire.iggy.user_headers import UserHeader, encode_headers, key_header

MESSAGES = 600
KILLED_AFTER = 150
RATE = 300


def message(number: int) -> Message:
    headers = [UserHeader.of("n", number), UserHeader.of("tenant", "acmé")]
    return Message(
        payload=b"%05d" % number + bytes([number % 256]) * (number % 9),
        headers=key_header(b"k%d" % (number % 5)) + encode_headers(headers),
        id=number + 1,
        origin_timestamp_us=1_600_000_000_000_000 + number,
    )


def kept(messages: list[Message]) -> list[tuple[Any, ...]]:
    """What a message is, wherever it is stored."""
    return [(m.payload, m.headers, m.id, m.origin_timestamp_us) for m in messages]


def fill(client: SyncIggyClient, stream: str, topic: str, partitions: int = 3) -> None:
    client.run(lambda c: c.create_topic(stream, topic, partitions_count=partitions))
    for partition in range(partitions):
        messages = [message(number) for number in range(partition, MESSAGES, partitions)]
        where = Partitioning.to_partition(partition)
        client.send(stream, topic, messages, partitioning=where)


def read(client: SyncIggyClient, stream: str, topic: str, partition: int = 0) -> list[Message]:
    found: list[Message] = []
    while True:
        at = found[-1].offset + 1 if found else 0
        polled = client.poll(
            stream, topic, partition=partition, strategy=Strategy.offset(at), count=1000
        ).messages()
        if not polled:
            return found
        found += polled


def count_of(client: SyncIggyClient, stream: str, topic: str) -> int:
    details = client.get_topic(stream, topic)
    return 0 if details is None else details.topic.messages_count


class Shell:
    def __init__(self, broker: LocalBroker, home: Path) -> None:
        self.environment = {"HEADRACE_ADDRESS": broker.address, "XDG_CONFIG_HOME": str(home)}

    def __call__(self, *arguments: str) -> Any:
        result = CliRunner().invoke(app, [*arguments, "--json"], env=self.environment)
        if isinstance(result.exception, HeadraceError):
            raise result.exception
        assert result.exit_code == 0, (arguments, result.output, result.exception)
        return json.loads(result.stdout)

    def killed(self, *arguments: str, when: Callable[[], bool]) -> None:
        """Run a command in a process of its own, and kill -9 it as soon as `when` holds."""
        command = [sys.executable, "-m", "headrace.cli.main", *arguments]
        environment = {**os.environ, **self.environment}
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            deadline = time.monotonic() + 100
            while not when():
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL


@pytest.fixture
def client(headrace_broker: LocalBroker) -> Iterator[SyncIggyClient]:
    with headrace_broker.client() as made:
        yield made


@pytest.fixture
def shell(headrace_broker: LocalBroker, tmp_path: Path) -> Shell:
    return Shell(headrace_broker, tmp_path)


# --- files ----------------------------------------------------------------------------------------


def test_a_line_loses_nothing() -> None:
    odd = Message(
        payload=b"\xff\0",
        headers=key_header(b"\xfe" * 300)
        + encode_headers([UserHeader(b"\xfd", b"\0\0\0\0"), UserHeader.of("n", 1.5)]),
        id=2**127,
        origin_timestamp_us=7,
    )
    for each in (odd, message(3), Message(b"plain")):
        back, partition = from_line(json.dumps(to_line(4, each)).encode(), 1)
        assert (back, partition) == (each, 4)
    with pytest.raises(InvalidArgumentError, match="line 9"):
        from_line(b'{"payload": "x", "typed_headers": [["!", "RAW", "", "RAW"]]}', 9)


def test_jsonl_out_and_in_again_through_a_kill(
    client: SyncIggyClient, headrace_stream: str, shell: Shell, tmp_path: Path
) -> None:
    fill(client, headrace_stream, "orders")
    file = tmp_path / "orders.jsonl"
    done = shell("export", f"{headrace_stream}/orders", str(file))
    assert done["messages"] == MESSAGES
    importing = ("import", "jsonl", f"{headrace_stream}/back", str(file), "--partitions", "3")
    shell.killed(
        *importing, "--rate", str(RATE),
        when=lambda: count_of(client, headrace_stream, "back") > KILLED_AFTER,
    )  # fmt: skip
    there = count_of(client, headrace_stream, "back")
    assert there < MESSAGES
    done = shell(*importing)[f"{headrace_stream}/back"]
    assert 0 < done["messages"] <= MESSAGES - there, "a batch may have been on its way"
    for partition in range(3):
        before, after = (read(client, headrace_stream, t, partition) for t in ("orders", "back"))
        assert kept(after) == kept(before)
    assert shell(*importing)[f"{headrace_stream}/back"]["messages"] == 0
    with file.open("a") as more:
        more.write('\n{"payload": {"late": true}, "partition": 2}\n')
    assert shell(*importing)[f"{headrace_stream}/back"]["messages"] == 1
    assert read(client, headrace_stream, "back", 2)[-1].payload == b'{"late":true}'
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([lines[0], *lines[2:]]))
    with pytest.raises(InvalidArgumentError, match="it is another file"):
        shell(*importing)


def test_a_bad_line_is_named_and_nothing_after_it_comes(
    client: SyncIggyClient, headrace_stream: str, shell: Shell, tmp_path: Path
) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"payload": "a"}\n{"pay": "b"}\n')
    with pytest.raises(InvalidArgumentError, match="line at byte 17 has no payload"):
        shell("import", "jsonl", f"{headrace_stream}/bad", str(file))
    assert count_of(client, headrace_stream, "bad") == 0


def test_tables_have_the_columns_of_sparks_source(
    client: SyncIggyClient,
    headrace_stream: str,
    shell: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporting, "ROW_GROUP_ROWS", 100)
    fill(client, headrace_stream, "orders")
    name = f"{headrace_stream}/orders"
    parquet, arrow = tmp_path / "o.parquet", tmp_path / "o.arrow"
    shell("export", name, str(parquet))
    table = pq.read_table(parquet)
    assert table.num_rows == MESSAGES
    assert pq.ParquetFile(parquet).num_row_groups == 3, "a poll is not cut"
    rows = table.to_pylist()
    assert tuple(rows[0]) == COLUMNS
    at = {(row["partition"], row["offset"]): row for row in rows}
    assert at[1, 0]["payload"] == message(1).payload
    assert at[1, 0]["key"] == b"k1"
    assert dict(at[1, 0]["headers"])["tenant"] == "acmé".encode()
    span = ("--partition", "1", "--from", "10", "--until", "30", "--columns", "offset,payload")
    assert shell("export", name, str(arrow), *span)["partitions"] == {"1": [10, 30]}
    with pa.OSFile(str(arrow)) as source:
        found = pa.ipc.open_file(source).read_all()
    assert found.column_names == ["offset", "payload"]
    assert found.column("offset").to_pylist() == list(range(10, 30))
    empty = tmp_path / "empty.parquet"
    shell("export", name, str(empty), "--from", "latest")
    assert (pq.read_table(empty).num_rows, pq.read_schema(empty)) == (0, table.schema)


def test_an_export_that_fails_leaves_no_file(
    client: SyncIggyClient,
    headrace_stream: str,
    shell: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(client, headrace_stream, "orders")
    file = tmp_path / "folder" / "o.parquet"
    file.parent.mkdir()
    with pytest.raises(HeadraceError, match="no topic"):
        shell("export", f"{headrace_stream}/none", str(file))
    with pytest.raises(HeadraceError, match="no column wrong"):
        shell("export", f"{headrace_stream}/orders", str(file), "--columns", "wrong")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(HeadraceError, match=r"pip install 'headrace\[spark\]'"):
            shell("export", f"{headrace_stream}/orders", str(file))
    assert list(file.parent.iterdir()) == []
    file.write_text("mine")
    with pytest.raises(HeadraceError, match="--overwrite"):
        shell("export", f"{headrace_stream}/orders", str(file))
    shell("export", f"{headrace_stream}/orders", str(file), "--overwrite")
    assert pq.read_table(file).num_rows == MESSAGES


# --- Iggy -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("plain", "dialect"), [(True, "B2"), (False, "B2"), (False, "C")])
def test_iggy_through_a_kill(
    client: SyncIggyClient, headrace_stream: str, shell: Shell, plain: bool, dialect: str
) -> None:
    settings = msgspec.structs.replace(Settings(), broker=BrokerSettings(extensions=not plain))
    with LocalBroker(settings=settings) as there:
        source = there.client()
        source.run(lambda c: c.create_stream("shop"))
        fill(source, "shop", "orders")
        importing = (
            "import", "iggy", "shop", "--source-address", there.address,
            "--to", headrace_stream, "--source-dialect", dialect,
        )  # fmt: skip
        shell.killed(
            *importing, "--rate", str(RATE),
            when=lambda: count_of(client, headrace_stream, "orders") > KILLED_AFTER,
        )  # fmt: skip
        came = count_of(client, headrace_stream, "orders")
        assert came < MESSAGES
        name = f"{headrace_stream}/orders"
        assert 0 < shell(*importing)[name]["messages"] <= MESSAGES - came
        for partition in range(3):
            here = kept(read(client, headrace_stream, "orders", partition))
            there_ = kept(read(source, "shop", "orders", partition))
            if dialect == "C":  # its polls have one origin timestamp for a whole batch
                here, there_ = ([each[:3] for each in side] for side in (here, there_))
            assert here == there_
        source.send("shop", "orders", [message(7)], partitioning=Partitioning.to_partition(1))
        assert shell(*importing)[name]["messages"] == 1
        source.run(lambda c: c.purge_topic("shop", "orders"))
        if plain:
            with pytest.raises(HeadraceError, match="not the topic it was"):
                shell(*importing)


# --- Kafka ----------------------------------------------------------------------------------------


class Kafka:
    """librdkafka's own mock cluster: a broker on a TCP port that real clients speak Kafka to."""

    def __init__(self) -> None:
        self.producer = Producer({"test.mock.num.brokers": 1, "linger.ms": 0})
        (broker,) = self.producer.list_topics(timeout=10).brokers.values()
        self.address = f"{broker.host}:{broker.port}"

    def produce(self, topic: str, numbers: range) -> None:
        for number in numbers:
            self.producer.produce(
                topic,
                message(number).payload,
                key=f"k{number % 5}",
                partition=number % 4,
                timestamp=1_600_000_000_000 + number,
                headers=[("n", str(number).encode()), ("long", b"v" * 300)],
            )
        assert self.producer.flush(30) == 0


@pytest.fixture(scope="module")
def kafka() -> Kafka:
    return Kafka()


def test_kafka_through_a_kill(
    client: SyncIggyClient, headrace_stream: str, shell: Shell, kafka: Kafka
) -> None:
    kafka.produce("orders", range(MESSAGES))
    to = f"{headrace_stream}/orders"
    importing = ("import", "kafka", "orders", "--bootstrap", kafka.address, "--to", to)
    shell.killed(
        *importing, "--rate", str(RATE),
        when=lambda: count_of(client, headrace_stream, "orders") > KILLED_AFTER,
    )  # fmt: skip
    came = count_of(client, headrace_stream, "orders")
    assert came < MESSAGES
    assert 0 < shell(*importing)[to]["messages"] <= MESSAGES - came
    for partition in range(4):
        found = read(client, headrace_stream, "orders", partition)
        expected = list(range(partition, MESSAGES, 4))
        assert [m.payload for m in found] == [message(number).payload for number in expected]
        assert [m.origin_timestamp_us for m in found] == [
            (1_600_000_000_000 + number) * 1000 for number in expected
        ]
        last, number = found[-1], expected[-1]
        headers = {each.key: each.value for each in last.user_headers}
        assert headers[b"n"] == str(number).encode()
        assert headers[b"long"] + headers[b"long.1"] == b"v" * 300
        assert last.key == f"k{number % 5}".encode()
    assert shell(*importing)[to]["messages"] == 0
    kafka.producer.produce("orders", None, key="gone", partition=0, headers=[("empty", None)])
    assert kafka.producer.flush(30) == 0
    done = shell(*importing)[to]
    assert done["messages"] == 1
    assert len(done["remarks"]) == 2
    tombstone = read(client, headrace_stream, "orders", 0)[-1]
    assert (tombstone.payload, tombstone.key) == (b"\0", b"gone")
    assert {each.key for each in tombstone.user_headers} >= {b"headrace.tombstone"}


def test_kafka_that_is_not_there_is_said(
    headrace_stream: str, shell: Shell, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = ("--to", f"{headrace_stream}/t")
    with pytest.raises(HeadraceError, match="refuses its settings"):
        shell("import", "kafka", "t", *to, "--config", "no.such=1")
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(HeadraceError, match=r"pip install 'headrace\[kafka\]'"):
        shell("import", "kafka", "t", *to)
