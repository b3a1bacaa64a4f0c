"""The client for people's own programs, against a real broker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import headrace.client
from headrace.client import Client, Record, SyncClient, Watermark
from headrace.client.connection import BrokerConnection
from headrace.client.sending import Sender
from headrace.client.url import parse_url
from headrace.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    UnauthenticatedError,
    UnavailableError,
)
from headrace.runtime.system import system_runtime
from headrace.testing import LocalBroker
from headrace.wire.iggy.classic_frames import RequestFrame
from headrace.wire.iggy.columns import COLUMNS
from headrace.wire.iggy.messages.messages import Message as WireMessage
from headrace.wire.iggy.messages.messages import encode_send
from headrace.wire.iggy.primitives import Partitioning
from tests.integration.test_dialect_c import Cutter


@pytest.fixture
async def client(headrace_broker: LocalBroker, headrace_stream: str) -> AsyncIterator[Client]:
    async with headrace.client.connect(headrace_broker.url) as connected:
        yield connected


@pytest.fixture
def blocking(headrace_broker: LocalBroker) -> Iterator[SyncClient]:
    with headrace.client.connect_sync(headrace_broker.url) as connected:
        yield connected


async def test_a_message_arrives_as_it_was_sent(client: Client, headrace_stream: str) -> None:
    topic = f"{headrace_stream}/orders"
    await client.create_topic(topic, partitions=3)
    before = datetime.now(UTC)
    receipt = await client.send(
        topic, {"sku": "tea"}, key="tea", headers={"source": "web", "try": 2, "raw": b"\0"}
    )
    (message,) = [each async for each in client.read(topic)]
    assert (message.topic, message.partition) == (topic, receipt.partition)
    assert message.offset == receipt.offset == 0
    assert message.json() == {"sku": "tea"}
    assert message.text == '{"sku":"tea"}'
    assert message.key == b"tea"
    assert message.headers == {"source": "web", "try": 2, "raw": b"\0"}
    assert message.origin_timestamp is not None
    assert abs(message.timestamp - before) < timedelta(seconds=60)


async def test_keys_stay_together_and_receipts_are_right(
    client: Client, headrace_stream: str
) -> None:
    topic = f"{headrace_stream}/t"
    await client.create_topic(topic, partitions=4)
    records = [Record(f"{n}", key=f"key {n % 11}") for n in range(300)]
    receipts = await client.send_many(topic, [*records, "without a key"])
    homes: dict[str, set[int | None]] = {}
    found = {(m.partition, m.offset): m async for m in client.read(topic)}
    assert len(found) == 301
    for record, receipt in zip(records, receipts, strict=False):
        assert receipt.partition is not None
        assert receipt.offset is not None
        assert found[receipt.partition, receipt.offset].text == record.payload
        homes.setdefault(str(record.key), set()).add(receipt.partition)
    assert all(len(each) == 1 for each in homes.values())
    assert len(set.union(*homes.values())) > 1
    # Any Iggy client puts the key in the same place: the server works it out here.
    await client._connection.call(
        lambda iggy: iggy.send(
            headrace_stream, "t", [WireMessage(b"x")], partitioning=Partitioning.by_key(b"key 3")
        )
    )
    (last,) = [m async for m in client.read(topic) if m.payload == b"x"]
    assert {last.partition} == homes["key 3"]


async def test_reading_from_here_to_there(client: Client, headrace_stream: str) -> None:
    topic = f"{headrace_stream}/t"
    await client.create_topic(topic, partitions=2)
    for n in range(10):
        await client.send(topic, str(n), partition=n % 2)
        if n == 5:
            middle = [m async for m in client.read(topic)][-1].timestamp

    async def texts(**options: object) -> list[str]:
        return sorted([m.text async for m in client.read(topic, **options)])  # type: ignore[arg-type]  # as given

    assert await texts() == [str(n) for n in range(10)]
    assert await texts(start="latest") == []
    assert await texts(start=3) == ["6", "7", "8", "9"]
    assert await texts(start={0: 4}, end={0: 5, 1: 1}) == ["1", "8"]
    assert await texts(partition=1, start=1, count=2) == ["3", "5"]
    assert await texts(count=3, partition=0) == ["0", "2", "4"]
    assert await texts(start=middle) == ["5", "6", "7", "8", "9"]
    assert await texts(end=middle.isoformat()) == ["0", "1", "2", "3", "4"]
    with pytest.raises(InvalidArgumentError, match="earliest"):
        await texts(start="yesterday")
    with pytest.raises(NotFoundError, match="partition 7"):
        await texts(partition=7)
    with pytest.raises(NotFoundError, match="no topic"):
        [m async for m in client.read(f"{headrace_stream}/none")]


async def test_following_sees_what_comes(client: Client, headrace_stream: str) -> None:
    topic = f"{headrace_stream}/t"
    await client.create_topic(topic)
    await client.send(topic, "old")
    seen: list[str] = []
    caught_up, both = asyncio.Event(), asyncio.Event()

    async def follow() -> None:
        async for message in client.read(topic, follow=True):
            seen.append(message.text)
            caught_up.set()
            if len(seen) == 3:
                both.set()

    task = asyncio.ensure_future(follow())
    async with asyncio.timeout(20):
        await caught_up.wait()
        await client.send_many(topic, ["new", "newer"])
        await both.wait()
    task.cancel()
    await asyncio.wait([task])
    assert seen == ["old", "new", "newer"]


async def test_whoever_follows_a_topic_sees_its_next_life_from_the_start(
    client: Client, headrace_stream: str
) -> None:
    """An offset of a topic that was purged, or made again, means nothing in the new one."""
    topic = f"{headrace_stream}/t"
    await client.create_topic(topic)
    await client.send_many(topic, ["a", "b", "c"])
    read: list[str] = []
    consumed: list[str] = []

    async def follow() -> None:
        async for message in client.read(topic, follow=True):
            read.append(message.text)

    async def consume() -> None:
        async with client.consumer(topic, "g", auto_commit=False) as consumer:
            async for message in consumer:
                consumed.append(message.text)
                await consumer.commit()

    tasks = [asyncio.ensure_future(follow()), asyncio.ensure_future(consume())]

    async def wait_for(*texts: str) -> None:
        while not read == consumed == list(texts):
            if done := [task for task in tasks if task.done()]:
                await done[0]
            await asyncio.sleep(0.02)

    async with asyncio.timeout(30):
        await wait_for("a", "b", "c")
        await client.purge_topic(topic)
        await client.send(topic, "d")
        await wait_for("a", "b", "c", "d")
        marks = await client.watermarks(topic, group="g")
        assert [mark.lag for mark in marks] == [0]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)

    read.clear()
    async with asyncio.timeout(30):
        follower = aiter(client.batches(topic, follow=True))
        assert [m.text for m in await anext(follower)] == ["d"]
        await client.delete_topic(topic)
        await client.create_topic(topic)
        await client.send(topic, "e")
        assert [m.text for m in await anext(follower)] == ["e"]


async def test_tables_in_and_out(client: Client, headrace_stream: str) -> None:
    topic = f"{headrace_stream}/t"
    await client.create_topic(topic, partitions=2)
    rows = 3000
    table = pa.table(
        {
            "payload": [f"row {n}" for n in range(rows)],
            "key": [None if n % 3 == 0 else f"k{n % 7}" for n in range(rows)],
            "ignored": list(range(rows)),
        }
    )
    assert await client.send_arrow(topic, table) == rows
    headers = pa.array([[("h", b"1")], None], pa.map_(pa.string(), pa.binary()))
    extra = pa.record_batch({"payload": ["a", "b"], "headers": headers, "partition": [1, 1]})
    assert await client.send_arrow(topic, extra) == 2
    found = await client.read_arrow(topic)
    assert found.column_names == list(COLUMNS)
    assert found.num_rows == rows + 2
    by_payload = {row["payload"]: row for row in found.to_pylist()}
    assert by_payload[b"row 1"]["key"] == b"k1"
    assert by_payload[b"row 3"]["key"] is None
    assert by_payload[b"a"]["headers"] == [("h", b"1")]
    assert by_payload[b"b"]["partition"] == 1
    again = [m async for m in client.read(topic)]
    assert {m.payload: (m.partition, m.offset) for m in again} == {
        payload: (row["partition"], row["offset"]) for payload, row in by_payload.items()
    }
    few = await client.read_arrow(topic, columns=["offset", "payload"], text=True, count=5)
    assert few.schema == pa.schema([("offset", pa.int64()), ("payload", pa.string())])
    assert few.num_rows == 5
    empty = await client.read_arrow(topic, start="latest")
    assert (empty.num_rows, empty.schema) == (0, found.schema)
    for wrong in (pa.table({"value": ["x"]}), pa.table({"payload": [1]})):
        with pytest.raises(InvalidArgumentError, match="payload"):
            await client.send_arrow(topic, wrong)
    with pytest.raises(InvalidArgumentError, match="no column nothing"):
        await client.read_arrow(topic, columns=["nothing"])


async def test_no_message_of_a_table_is_looked_at_by_itself(
    client: Client, headrace_stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"{headrace_stream}/t"
    await client.create_topic(topic)

    def refuse(*_: object) -> None:
        raise AssertionError("message by message")

    monkeypatch.setattr("headrace.wire.iggy.batch.walk", refuse)
    monkeypatch.setattr("headrace.wire.iggy.messages.messages.decode_messages", refuse)
    monkeypatch.setattr("headrace.wire.iggy.messages.messages.encode_send", refuse)
    monkeypatch.setattr("headrace.client.session.encode_send", refuse)
    rows = {
        "payload": ["x" * (n % 40 + 1) for n in range(5000)],
        "key": [str(n) for n in range(5000)],
    }
    assert await client.send_arrow(topic, pa.table(rows)) == 5000
    found = await client.read_arrow(topic, text=True)
    assert found.column("payload").to_pylist() == rows["payload"]
    with pytest.raises(AssertionError, match="by message"):
        [m async for m in client.read(topic)]


async def test_a_plain_server_is_polled(client: Client, headrace_stream: str) -> None:
    """As against an Iggy server, which has no tickets."""
    topic = f"{headrace_stream}/t"
    await client.create_topic(topic, partitions=2)
    client._connection._hello = [None]
    receipts = await client.send_many(topic, [Record(str(n), partition=n % 2) for n in range(50)])
    assert receipts[0].offset is None
    assert sorted([int(m.text) async for m in client.read(topic)]) == list(range(50))
    assert (await client.read_arrow(topic, start=20)).num_rows == 10
    assert await client.watermarks(topic) == (Watermark(0, 0, 25), Watermark(1, 0, 25))


async def test_a_group_shares_the_work_and_remembers_it(
    client: Client, headrace_stream: str
) -> None:
    topic = f"{headrace_stream}/t"
    await client.create_topic(topic, partitions=4)
    await client.send_many(topic, [Record(str(n), partition=n % 4) for n in range(40)])
    async with client.consumer(topic, "g", auto_commit=False) as one:
        async with client.consumer(topic, "g", auto_commit=False, follow=False) as two:
            await one._share()
            assert sorted(one.partitions + two.partitions) == [0, 1, 2, 3]
            assert len(list(one.partitions)) == 2
            lost = [m async for m in two]
            assert len(lost) == 20  # and never committed
        first = []
        async for message in one:
            first.append(message)
            if len(first) == 25:
                await one.commit()
                break
        assert list(one.partitions) == [0, 1, 2, 3]  # two has left
    committed = {m.partition: m.offset + 1 for m in first}
    marks = await client.watermarks(topic, group="g")
    assert {m.partition: m.committed for m in marks if m.committed} == committed
    assert sum(mark.lag for mark in marks) == 40 - 25
    async with client.consumer(topic, "g", follow=False) as three:
        rest = [m async for m in three]
    assert len(rest) == 15
    assert {m.text for m in first} | {m.text for m in rest} == {str(n) for n in range(40)}
    assert sum(m.lag for m in await client.watermarks(topic, group="g")) == 0
    async with client.consumer(topic, "late", start="latest", follow=False) as four:
        assert [m async for m in four] == []


async def test_an_error_while_consuming_commits_nothing(
    client: Client, headrace_stream: str
) -> None:
    topic = f"{headrace_stream}/t"
    await client.create_topic(topic)
    await client.send_many(topic, ["a", "b"])

    async def fail() -> None:
        async with client.consumer(topic, "g") as consumer:
            async for _ in consumer:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with client.consumer(topic, "g", follow=False) as consumer:
        assert [m.text async for m in consumer] == ["a", "b"]


async def test_streams_and_topics(client: Client, headrace_stream: str) -> None:
    topic = f"{headrace_stream}/t"
    await client.create_topic(topic, partitions=2, expiry=timedelta(hours=1))
    with pytest.raises(AlreadyExistsError):
        await client.create_topic(topic)
    await client.create_topic(topic, exist_ok=True)
    await client.send(topic, "x")
    await client.add_partitions(topic, 1)
    found = await client.topic(topic)
    assert (found.name, found.partitions, found.messages) == (topic, 3, 1)
    assert found.expiry == timedelta(hours=1)
    assert await client.topics(headrace_stream) == (found,)
    assert [s.topics for s in await client.streams() if s.name == headrace_stream] == [1]
    await client.purge_topic(topic)
    assert [m async for m in client.read(topic)] == []
    await client.delete_topic(topic)
    assert await client.topics(headrace_stream) == ()
    with pytest.raises(NotFoundError, match="no topic"):
        await client.topic(topic)
    with pytest.raises(NotFoundError):
        await client.send(topic, "x", partition=0)
    with pytest.raises(InvalidArgumentError, match="stream/topic"):
        await client.send("orders", "x")


async def test_who_may_not_and_who_is_not_there(headrace_broker: LocalBroker) -> None:
    with pytest.raises(UnauthenticatedError):
        await headrace.client.connect(f"headrace://x:y@{headrace_broker.address}").open()
    with pytest.raises(UnavailableError):
        async with headrace.client.connect("headrace://127.0.0.1:1", retry_seconds=0.1):
            pass


async def test_a_broker_that_restarts_costs_a_pause() -> None:
    def restart(broker: LocalBroker) -> None:
        broker.stop()
        broker.start()

    with LocalBroker() as broker:
        async with headrace.client.connect(broker.url) as client:
            await client.create_topic("s/t")
            await client.send("s/t", "before")
            async with client.producer("s/t", linger=60) as producer:
                await producer.send("during")
                await asyncio.get_running_loop().run_in_executor(None, restart, broker)
            await client.send("s/t", "after")
            texts = [m.text async for m in client.read("s/t")]
        assert texts == ["before", "during", "after"]


async def test_a_send_whose_answer_was_lost_is_stored_once(
    client: Client, headrace_broker: LocalBroker, headrace_stream: str
) -> None:
    await client.create_topic(f"{headrace_stream}/t")
    server = parse_url(headrace_broker.url, {})
    seen: set[int] = set()

    def first_time(frame: RequestFrame) -> bool:
        assert frame.head is not None
        new = frame.head.number not in seen and frame.head.number > 0
        seen.add(frame.head.number)
        return new

    async with Cutter(server.port, first_time) as cutter:
        link = BrokerConnection(system_runtime(), server, retry_seconds=20)
        await link.hello()
        link.server = replace(server, port=cutter.port)  # the sender's connection goes through it
        sender = Sender(link)
        for n in range(5):
            request = encode_send(
                headrace_stream, "t", Partitioning.to_partition(0), [WireMessage(b"%d" % n)]
            )
            assert (await sender.send(request)).placed[0].base_offset == n
        assert cutter.cuts == 5
        await sender.close()
        await link.close()
    assert [m.text async for m in client.read(f"{headrace_stream}/t")] == ["0", "1", "2", "3", "4"]


def test_without_asyncio(blocking: SyncClient, headrace_stream: str) -> None:
    topic = f"{headrace_stream}/t"
    blocking.create_topic(topic, partitions=2)
    with blocking.producer(topic) as producer:
        deliveries = [producer.send({"n": n}, key=str(n % 5)) for n in range(100)]
        assert producer.wait(deliveries[0]).offset == 0
    assert sorted(m.json()["n"] for m in blocking.read(topic)) == list(range(100))
    assert next(iter(blocking.read(topic, follow=True))).offset == 0  # and let go of
    assert blocking.read_arrow(topic).num_rows == 100
    with blocking.consumer(topic, "g", follow=False) as consumer:
        assert len(list(consumer)) == 100
    assert sum(mark.lag for mark in blocking.watermarks(topic, group="g")) == 0
    blocking.close()
    with pytest.raises(UnavailableError, match="closed"):
        blocking.streams()


def test_what_a_notebook_shows(blocking: SyncClient, headrace_stream: str) -> None:
    topic = f"{headrace_stream}/<b>"
    blocking.create_topic(topic)
    blocking.send_many(topic, [{"n": n, "offset": "<i>"} for n in range(30)])
    newest = blocking.tail(topic, 3)
    frame = newest.to_pandas(json=True)
    assert list(frame["n"]) == [27, 28, 29]
    assert list(frame["payload_offset"]) == ["<i>"] * 3
    assert list(frame["offset"]) == [27, 28, 29]
    page = blocking.tail(topic, 30)._repr_html_()
    assert page.count("<tr>") == 21
    assert "30 messages, the last 20" in page
    assert "<i>" not in page
    assert "&lt;b&gt;" in page
    assert "&lt;b&gt;" in blocking.topics(headrace_stream)._repr_html_()
    assert "<th>lag</th>" in blocking.watermarks(topic)._repr_html_()
    blocking.send(topic, "not JSON")
    with pytest.raises(InvalidArgumentError, match="JSON"):
        blocking.tail(topic).to_pandas(json=True)


def test_a_client_without_arrow_reads_and_writes(
    headrace_broker: LocalBroker, headrace_stream: str, tmp_path: Path
) -> None:
    """pyarrow is an extra; and whoever imports the package alone pays for nothing."""
    code = f"""
import sys
sys.modules["pyarrow"] = sys.modules["pandas"] = None
import headrace.client
assert "numpy" not in sys.modules
with headrace.client.connect_sync({headrace_broker.url!r}) as client:
    client.create_topic("{headrace_stream}/t")
    client.send("{headrace_stream}/t", "x", key="k")
    assert [m.text for m in client.read("{headrace_stream}/t")] == ["x"]
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
