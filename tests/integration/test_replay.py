"""`headrace replay` into a topic: what it keeps, where it stops, and going on after a cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.cli.main import app
from headrace.cli.messages import replay_jobs
from headrace.client.sync import SyncIggyClient
from headrace.errors import UnavailableError
from headrace.testing import LocalBroker
from headrace.transfer.copying import Pace, route
from headrace.transfer.delivery import WindowDelivery
from headrace.wire.iggy.messages.messages import Message, encode_send
from headrace.wire.iggy.primitives import Partitioning, Strategy
from headrace.wire.iggy.user_headers import UserHeader, encode_headers, key_header


def message(number: int) -> Message:
    return Message(
        payload=b"%05d" % number + b"x" * (number % 7),
        headers=key_header(b"k%d" % (number % 5)) + encode_headers([UserHeader.of("n", number)]),
        origin_timestamp_us=0 if number % 2 else 1_600_000_000_000_000 + number,
    )


class Shell:
    def __init__(self, broker: LocalBroker, home: Path) -> None:
        self.environment = {
            "HEADRACE_ADDRESS": broker.address, "XDG_CONFIG_HOME": str(home),
            "XDG_STATE_HOME": str(home),
        }  # fmt: skip

    def __call__(self, *arguments: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, ["replay", *arguments], env=self.environment)
        assert result.exit_code == code, (arguments, result.output, result.exception)
        if code == 0 and "--json" in arguments:
            return json.loads(result.stdout)
        return result.exception if result.exception and code == 1 else result.output


@pytest.fixture
def client(headrace_broker: LocalBroker) -> Iterator[SyncIggyClient]:
    with headrace_broker.client() as made:
        yield made


@pytest.fixture
def shell(headrace_broker: LocalBroker, tmp_path: Path) -> Shell:
    return Shell(headrace_broker, tmp_path)


@pytest.fixture
def stream(client: SyncIggyClient, headrace_stream: str) -> str:
    """300 messages in partition 0 and 100 in partition 1 of `orders`; `copy` and `wide` are
    empty."""
    for name, count in (("orders", 2), ("copy", 2), ("wide", 3)):
        client.run(
            lambda c, name=name, count=count: c.create_topic(  # type: ignore[misc]  # mypy and defaults of lambdas
                headrace_stream, name, partitions_count=count
            )
        )
    for partition, numbers in ((0, range(300)), (1, range(300, 400))):
        where = Partitioning.to_partition(partition)
        # `send` would tell the time of those that say none.
        laid = encode_send(headrace_stream, "orders", where, map(message, numbers))
        client.send_batch(laid)
    return headrace_stream


def read(client: SyncIggyClient, stream: str, topic: str, partition: int) -> list[Message]:
    polled = client.poll(stream, topic, partition=partition, strategy=Strategy.first(), count=5000)
    return polled.messages()


def test_everything_that_makes_a_message_is_kept(
    client: SyncIggyClient, stream: str, shell: Shell
) -> None:
    assert shell(f"{stream}/orders", "--to", f"{stream}/copy", "--json")["sent_now"] == 400
    for partition in range(2):
        before, after = (read(client, stream, name, partition) for name in ("orders", "copy"))
        assert [(m.payload, m.headers, m.id) for m in before] == [
            (m.payload, m.headers, m.id) for m in after
        ]
        assert [m.origin_timestamp_us or m.timestamp_us for m in before] == [
            m.origin_timestamp_us for m in after
        ]
    assert list(Path(shell.environment["XDG_STATE_HOME"]).rglob("*.json")) == []


def test_a_span_is_offsets_or_times(client: SyncIggyClient, stream: str, shell: Shell) -> None:
    name, to = f"{stream}/orders", ("--to", f"{stream}/copy")
    planned = shell(name, *to, "--from", "250", "--until", "290", "--dry-run", "--json")
    assert planned["messages"] == 40
    assert (planned["partitions"][0]["start"], planned["partitions"][0]["end"]) == (250, 290)
    assert read(client, stream, "copy", 0) == []
    assert "250" in shell(name, *to, "--from", "250", "--until", "290", "--dry-run")
    shell(name, *to, "--from", "250", "--until", "290", "--partition", "0", "--rate", "400")
    assert [m.payload[:5] for m in read(client, stream, "copy", 0)] == [
        b"%05d" % n for n in range(250, 290)
    ]
    client.send(stream, "orders", [message(999)], partitioning=Partitioning.to_partition(1))
    (last,) = read(client, stream, "orders", 1)[-1:]
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(last.timestamp_us / 1e6, UTC).isoformat()
    assert shell(name, *to, "--from", moment, "--dry-run", "--json")["messages"] == 1
    assert shell(name, *to, "--until", moment, "--dry-run", "--json")["messages"] == 400
    shell(name, code=2)
    shell(name, *to, "--pipeline", "p", code=2)
    assert "no topic" in str(shell(name, "--to", f"{stream}/none", code=1))


@pytest.mark.parametrize("published", [False, True])
def test_a_replay_that_was_cut_off_goes_on(
    client: SyncIggyClient,
    stream: str,
    shell: Shell,
    published: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The third batch: the broker has published it and nobody heard, or it never came there."""
    monkeypatch.setattr(Pace, "batch", 64)
    publish, calls = WindowDelivery.publish, 0

    async def cut_off(self: WindowDelivery, *args: Any, **options: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls == 3 and not published:
            raise UnavailableError("cut off")
        done = await publish(self, *args, **options)
        if calls == 3:
            raise UnavailableError("cut off")
        return done

    with monkeypatch.context() as patched:
        patched.setattr(WindowDelivery, "publish", cut_off)
        assert "cut off" in str(shell(f"{stream}/orders", "--to", f"{stream}/copy", code=1))
    came = 192 if published else 128
    assert len(read(client, stream, "copy", 0)) == came
    client.send(stream, "orders", [message(999)])
    (job,) = Path(shell.environment["XDG_STATE_HOME"]).rglob("*.json")
    done = shell("--resume", job.stem, "--json")
    assert (done["messages"], done["sent_now"]) == (400, 400 - came)
    for partition in range(2):
        before, after = (read(client, stream, name, partition) for name in ("orders", "copy"))
        assert [m.payload for m in after] == [m.payload for m in before if m.payload[:5] < b"00999"]
    assert "unfinished: none" in str(shell("--resume", job.stem, code=1))


def test_a_replay_of_another_life_of_the_topic_is_refused(
    client: SyncIggyClient, stream: str, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut_off(*args: Any, **options: Any) -> int:
        raise UnavailableError("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(replay_jobs, "carry_out", cut_off)
        shell(f"{stream}/orders", "--to", f"{stream}/copy", code=1)
    client.run(lambda c: c.purge_topic(stream, "orders"))
    (job,) = Path(shell.environment["XDG_STATE_HOME"]).rglob("*.json")
    assert "not the topic it was" in str(shell("--resume", job.stem, code=1))


def test_keys_find_their_partition_in_a_wider_topic(
    client: SyncIggyClient, stream: str, shell: Shell
) -> None:
    shell(f"{stream}/orders", "--to", f"{stream}/wide")
    homes: dict[bytes | None, int] = {}
    for partition in range(3):
        for each in read(client, stream, "wide", partition):
            assert homes.setdefault(each.key, partition) == partition
    assert len(homes) == 5
    by_key: dict[bytes | None, list[bytes]] = {}
    for each in read(client, stream, "wide", homes[b"k3"]):
        by_key.setdefault(each.key, []).append(each.payload[:5])
    assert by_key[b"k3"] == [b"%05d" % n for n in range(3, 400, 5)]


def test_routing_cuts_an_area_as_it_should() -> None:
    messages = [message(number) for number in range(50)] + [Message(b"no key")]
    laid = encode_send("s", "t", Partitioning.balanced(), messages)
    assert route(laid.area, laid.starts, 7, counts=(9, 9)) == [(7, (laid.area, laid.starts))]
    from headrace.wire.iggy.messages.messages import decode_messages

    parts = dict(route(laid.area, laid.starts, 7, counts=(9, 2)))
    found = {home: decode_messages(area) for home, (area, _) in parts.items()}
    assert sum(map(len, found.values())) == 51
    assert found[1][-1].payload == b"no key", "7 modulo 2"
    for home, (area, starts) in parts.items():
        assert len(starts) == len(found[home])
        assert len(area) == sum(64 + len(m.payload) + len(m.headers) for m in found[home])
