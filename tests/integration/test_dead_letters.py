"""Dead letters listed and re-driven: by the library that pages use, and from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.cli.main import app
from headrace.client.iggy import IggyClient
from headrace.client.sync import SyncIggyClient
from headrace.errors import InvalidArgumentError, NotFoundError, UnavailableError
from headrace.testing import LocalBroker
from headrace.transfer import dead_letters as d
from headrace.transfer.delivery import WindowDelivery
from headrace.transfer.redriving import Redriven, Redriving
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Partitioning, Strategy
from headrace.wire.iggy.user_headers import UserHeader, encode_headers, key_header

LETTERS = "orders.dead_letter"


def letter(stream: str, number: int, *, partition: int = 0, placed: bool = True) -> Message:
    """As a pipeline publishes one for message `number` of the topic `orders`."""
    said = {"reason": f"expects qty > {number}", "operator": "revenue"}
    if placed:
        said |= {"stream": stream, "topic": "orders"}
        said |= {"partition": str(partition), "offset": str(number)}
    headers = [UserHeader.of("tenant", "acme")]
    headers += [UserHeader.of(f"headrace.{name}", value.encode()) for name, value in said.items()]
    return Message(
        payload=b"row %d" % number,
        headers=key_header(b"k%d" % (number % 3)) + encode_headers(headers),
        origin_timestamp_us=1_700_000_000_000_000 + number,
    )


@pytest.fixture
def client(headrace_broker: LocalBroker) -> Iterator[SyncIggyClient]:
    with headrace_broker.client() as made:
        yield made


@pytest.fixture
def stream(client: SyncIggyClient, headrace_stream: str) -> str:
    """Ten letters of partition 1 of `orders`."""
    client.run(lambda c: c.create_topic(headrace_stream, "orders", partitions_count=2))
    client.run(lambda c: c.create_topic(headrace_stream, LETTERS))
    client.send(
        headrace_stream, LETTERS, [letter(headrace_stream, n, partition=1) for n in range(10)]
    )
    return headrace_stream


def read(client: SyncIggyClient, stream: str, topic: str, partition: int = 0) -> list[Message]:
    polled = client.poll(stream, topic, partition=partition, strategy=Strategy.first(), count=1000)
    return polled.messages()


def redrive_all(client: SyncIggyClient, stream: str, **options: Any) -> Redriven:
    return client.run(lambda c: Redriving(c, stream, LETTERS, **options).all())


def waiting(client: SyncIggyClient, stream: str) -> int:
    found = client.run(lambda c: d.summarize(c, stream, LETTERS))
    assert found is not None
    return found.waiting


def test_letters_say_why_and_where_from(client: SyncIggyClient, stream: str) -> None:
    letters = client.run(lambda c: d.list_letters(c, stream, LETTERS, count=4))
    assert [each.offset for each in letters] == [0, 1, 2, 3]
    third = letters[2]
    assert (third.reason, third.operator) == ("expects qty > 2", "revenue")
    assert str(third.place) == str(third.origin) == f"{stream}/orders/1/2"
    assert (third.key, third.payload, third.redrives) == (b"k2", b"row 2", 0)
    assert [each.key for each in third.headers] == [b"tenant"]
    last = client.run(lambda c: d.list_letters(c, stream, LETTERS, newest=True, count=2))
    assert [each.offset for each in last] == [8, 9]
    assert client.run(lambda c: d.list_letters(c, stream, "none")) == []
    assert client.run(lambda c: d.summarize(c, stream, "none")) is None
    with pytest.raises(NotFoundError, match="no letter 10"):
        client.run(lambda c: d.get_letter(c, stream, LETTERS, partition=0, offset=10))


def test_all_go_back_once_as_they_were(client: SyncIggyClient, stream: str) -> None:
    planned = redrive_all(client, stream, dry_run=True)
    assert (planned.letters, read(client, stream, "orders", 1)) == (10, [])
    assert redrive_all(client, stream).sent == {f"{stream}/orders": 10}
    back = read(client, stream, "orders", 1)
    assert [each.payload for each in back] == [b"row %d" % n for n in range(10)]
    assert back[4].key == b"k1"
    assert back[4].origin_timestamp_us == 1_700_000_000_000_004
    named = {each.key.decode(): each.value.decode() for each in back[4].user_headers}
    assert named["tenant"] == "acme"
    assert named["redrive.offset"] == "4"
    assert named["redrive.count"] == "1"
    assert "headrace.reason" not in named
    assert redrive_all(client, stream).letters == 0
    client.send(stream, LETTERS, [letter(stream, 77, partition=1)])
    assert waiting(client, stream) == 1
    assert redrive_all(client, stream).letters == 1
    assert redrive_all(client, stream, again=True).letters == 11
    assert len(read(client, stream, "orders", 1)) == 22


def test_chosen_ones_are_remembered_too(client: SyncIggyClient, stream: str) -> None:
    def choose(*offsets: int, **options: Any) -> Redriven:
        return client.run(lambda c: Redriving(c, stream, LETTERS, **options).chosen({0: offsets}))

    assert choose(7, 3, 4).letters == 3
    assert (choose(4, 5).letters, choose(4).known) == (1, 1)
    assert waiting(client, stream) == 6
    listed = client.run(lambda c: d.list_letters(c, stream, LETTERS))
    assert [each.offset for each in listed] == [0, 1, 2, 6, 8, 9]
    assert choose(0, 1, 2).letters == 3
    memory = client.run(lambda c: d.Memory.load(c, stream, LETTERS, 0))
    assert (memory.passed, memory.chosen) == (6, {7})
    done = redrive_all(client, stream)
    assert (done.letters, done.known) == (3, 1)
    memory = client.run(lambda c: d.Memory.load(c, stream, LETTERS, 0))
    assert (memory.passed, memory.chosen) == (10, set())
    assert choose(7, again=True).letters == 1
    seen = [each.payload for each in read(client, stream, "orders", 1)]
    assert sorted(seen) == sorted([*(b"row %d" % n for n in range(10)), b"row 7"])
    with pytest.raises(NotFoundError, match="no letter 99"):
        choose(1, 99)
    with pytest.raises(NotFoundError, match="no partition 5"):
        client.run(lambda c: Redriving(c, stream, LETTERS).chosen({5: [0]}))


@pytest.mark.parametrize("chosen", [False, True])
def test_a_run_that_is_cut_off_sends_nothing_twice(
    client: SyncIggyClient, stream: str, chosen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends after the broker published, before anything could be remembered."""
    publish = WindowDelivery.publish

    async def cut_off(self: WindowDelivery, *args: Any, **options: Any) -> bool:
        await publish(self, *args, **options)
        raise UnavailableError("cut off")

    def work(c: IggyClient) -> Any:
        redriving = Redriving(c, stream, LETTERS)
        return redriving.chosen({0: [2, 5]}) if chosen else redriving.all()

    with monkeypatch.context() as patched:
        patched.setattr(WindowDelivery, "publish", cut_off)
        with pytest.raises(UnavailableError):
            client.run(work)
    expected = 2 if chosen else 10
    assert len(read(client, stream, "orders", 1)) == expected
    assert waiting(client, stream) == 10
    client.run(work)
    assert len(read(client, stream, "orders", 1)) == expected
    assert waiting(client, stream) == 10 - expected


def test_a_second_failure_is_traced_to_the_first_place() -> None:
    first = d.parse_letter(letter("s", 5), 0)
    from headrace.transfer.redriving import to_message

    sent = to_message(first)
    again = [UserHeader.of("headrace.stream", b"s"), UserHeader.of("headrace.topic", b"orders")]
    again += [UserHeader.of("headrace.partition", b"0"), UserHeader.of("headrace.offset", b"90")]
    second = d.parse_letter(
        Message(payload=sent.payload, headers=sent.headers + encode_headers(again)), 0
    )
    assert (str(second.place), str(second.origin)) == ("s/orders/0/90", "s/orders/0/5")
    assert second.redrives == 1
    assert d.parse_letter(to_message(second), 0).redrives == 2


def test_letters_without_a_home_are_refused_or_passed_by(
    client: SyncIggyClient, stream: str
) -> None:
    client.send(stream, LETTERS, [letter(stream, 10, placed=False)])
    with pytest.raises(InvalidArgumentError, match=r"letter 10 .* does not say where"):
        redrive_all(client, stream)
    client.run(lambda c: c.create_topic(stream, "elsewhere", partitions_count=3))
    done = client.run(
        lambda c: Redriving(c, stream, LETTERS, to=(stream, "elsewhere")).chosen({0: [10]})
    )
    assert done.sent == {f"{stream}/elsewhere": 1}
    client.send(stream, LETTERS, [letter(stream, 11, placed=False)])
    done = redrive_all(client, stream, skip_homeless=True)
    assert (done.letters, done.known, done.homeless) == (10, 1, 1)
    with pytest.raises(NotFoundError, match="no topic"):
        redrive_all(client, stream, to=(stream, "nowhere"), again=True)


def test_keys_choose_the_partition_of_another_topic(client: SyncIggyClient, stream: str) -> None:
    client.run(lambda c: c.create_topic(stream, "wide", partitions_count=3))
    redrive_all(client, stream, to=(stream, "wide"))
    client.run(lambda c: c.create_topic(stream, "sent", partitions_count=3))
    for number in range(3):
        key = b"k%d" % number
        client.send(stream, "sent", [Message(key)], partitioning=Partitioning.by_key(key))
    for partition in range(3):
        homes = {each.payload for each in read(client, stream, "sent", partition)}
        assert {each.key for each in read(client, stream, "wide", partition)} == homes


def test_the_command_line(headrace_broker: LocalBroker, stream: str, tmp_path: Any) -> None:
    environment = {"HEADRACE_ADDRESS": headrace_broker.address, "XDG_CONFIG_HOME": str(tmp_path)}
    name = f"{stream}/{LETTERS}"

    def run(*arguments: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, ["dead-letters", *arguments], env=environment)
        assert result.exit_code == code, (arguments, result.output, result.exception)
        return json.loads(result.stdout) if "--json" in arguments and not code else result.output

    assert run("summary", name, "--json")[0]["waiting"] == 10
    listed = run("list", name, "--json", "-n", "3")
    assert [each["reason"] for each in listed] == [f"expects qty > {n}" for n in range(3)]
    assert "qty > 9" in run("list", name)
    shown = run("show", name, "--offset", "4", "--json")
    assert (shown["payload"], shown["headers"]) == ("row 4", {"tenant": "acme"})
    assert "row 4" in run("show", name, "--offset", "4")
    run("redrive", name, code=2)
    run("redrive", name, "--all", "--offset", "1", code=2)
    assert run("redrive", name, "--all", "--dry-run", "--json")["redriven"] == 10
    assert run("redrive", name, "--offset", "1", "--offset", "3", "--json")["redriven"] == 2
    done = run("redrive", name, "--all", "--json")
    assert (done["redriven"], done["known"], done["topics"]) == (8, 2, {f"{stream}/orders": 8})
    assert "0 re-driven" in run("redrive", name, "--all")
    assert run("list", name, "--json") == []
    assert len(run("list", name, "--all", "--json")) == 10
