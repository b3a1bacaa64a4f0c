"""The source's driver and task halves called as Spark calls them, against both kinds of server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import monotonic, sleep, time
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from headrace.client import partition_reader as reading_module
from headrace.client.arrow import to_area
from headrace.client.iggy import IggyClient
from headrace.client.partition_reader import Access, ReadFrom
from headrace.errors import NotFoundError, OffsetOutOfRangeError, UnavailableError
from headrace.spark.options import Target
from headrace.spark.server import Window, connect
from headrace.spark.source import following
from headrace.spark.source.batch_plan import DataLossError, OffsetRange, OtherTopicError
from headrace.spark.source.reading import Reading
from headrace.spark.source.source import TopicReader, TopicStreamReader
from headrace.wire.iggy.columns import MessageBuffer
from headrace.wire.iggy.messages.extensions import PublisherOpened
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Consumer, Partitioning
from tests.spark.conftest import AnyServer
from tests.spark.headrace_server import HeadraceServer
from tests.spark.plain_server import PlainServer
from tests.spark.test_topics import ask, describe, made

ALL = ReadAllAvailable()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_USERNAME", "iggy")
    monkeypatch.setenv("HEADRACE_PASSWORD", "secret")
    monkeypatch.setattr(following, "STORE_SECONDS", 60.0)  # two writes of a disk that may be busy


def send(target: Target, *payloads: str, partition: int = 0) -> None:
    messages = [Message(each.encode()) for each in payloads]
    where = Partitioning.to_partition(partition)
    ask(target, lambda c: c.send(target.stream, target.topic, messages, partitioning=where))


def settings(server: AnyServer, topic: str, **options: object) -> dict[str, str]:
    given = {"address": server.address, "stream": "s", "topic": topic, **options}
    return {name: str(value) for name, value in given.items()}


def stream(server: AnyServer, topic: str, **options: object) -> TopicStreamReader:
    given = {"startingOffsets": "earliest", **options}
    return TopicStreamReader(settings(server, topic, **given), StructType())


def rows(source: TopicStreamReader | TopicReader, tasks: list[Any]) -> list[dict[str, Any]]:
    return [row for task in tasks for batch in source.read(task) for row in batch.to_pylist()]


def payloads(source: TopicStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    return sorted(row["payload"].decode() for row in rows(source, source.partitions(start, end)))


def read_all(source: TopicReader) -> list[str]:
    return sorted(row["payload"].decode() for row in rows(source, source.partitions()))


def recreate(server: AnyServer, target: Target) -> None:
    ask(target, lambda c: c.delete_topic(target.stream, target.topic))
    made(server, target.topic, partitions=1)


def test_a_pattern_follows_topics_and_partitions_that_come_later(server: AnyServer) -> None:
    first = made(server, "grow-a", partitions=1)
    made(server, "other", partitions=1)
    send(first, "a0", "a1")
    source = stream(server, "grow-*")
    start = source.initialOffset()
    end = source.latestOffset(start, ALL)
    assert payloads(source, start, end) == ["a0", "a1"]

    # Another run of the query, from its checkpoint.
    second = made(server, "grow-b", partitions=2)
    ask(first, lambda c: c.create_partitions("s", "grow-a", 1))
    source = stream(server, "grow-*", startingOffsets="latest")
    assert source.latestOffset(end, ALL) == end, "nothing to read is no batch"
    send(first, "a2", partition=1)
    send(second, "b0", "b1", partition=1)
    later = source.latestOffset(end, ReadMaxRows(2))
    last = source.latestOffset(later, ALL)
    read = payloads(source, end, later)
    assert len(read) == 2
    assert sorted(read + payloads(source, later, last)) == ["a2", "b0", "b1"]
    assert len(last["p"]) == 3, "an empty partition has no position yet"
    found = rows(source, source.partitions(start, last))
    assert {(row["topic"], row["partition"]) for row in found} == {
        *(("grow-a", 0), ("grow-a", 1), ("grow-b", 1)),
    }
    reported = source.reportLatestOffset()
    assert reported is not None
    assert len(reported["p"]) == 4
    batch = TopicReader(settings(server, "grow-a,grow-b"), StructType())
    assert read_all(batch) == ["a0", "a1", "a2", "b0", "b1"]
    some = {"startingOffsets": '{"grow-a": {"0": 1}}', "endingOffsets": '{"grow-b": {"1": 1}}'}
    batch = TopicReader(settings(server, "grow-a,grow-b", **some), StructType())
    assert read_all(batch) == ["a1", "a2", "b0"]
    with pytest.raises(NotFoundError, match=r"no topic of s matches nothing\*"):
        stream(server, "nothing*").initialOffset()
    with pytest.raises(NotFoundError, match="no topic s/missing"):
        stream(server, "grow-a,missing").initialOffset()


def test_positions_by_time(server: AnyServer) -> None:
    target = made(server, "times", partitions=2)
    for each in ("one", "two", "three"):
        send(target, each)
    found = rows(batch := TopicReader(settings(server, "times"), StructType()), batch.partitions())
    second, third = found[1]["timestamp"], found[2]["timestamp"]
    iso = TopicReader(settings(server, "times", startingOffsets=second.isoformat()), StructType())
    assert read_all(iso) == ["three", "two"]
    until = settings(server, "times", endingOffsets=second.isoformat())
    assert read_all(TopicReader(until, StructType())) == ["one"]
    after = int(third.timestamp() * 1000) + 1
    assert (
        read_all(TopicReader(settings(server, "times", startingOffsets=after), StructType())) == []
    )
    follow = stream(server, "times", startingOffsets=third.isoformat())
    start = follow.initialOffset()
    assert payloads(follow, start, follow.latestOffset(start, ALL)) == ["three"]


def test_large_partitions_are_read_by_several_tasks(server: AnyServer) -> None:
    target = made(server, "large", partitions=1)
    sent = [f"{i:0200}" for i in range(100)]
    send(target, *sent)
    source = stream(server, "large", partitionBytes=4000)
    start = source.initialOffset()
    end = source.latestOffset(start, ALL)
    tasks = source.partitions(start, end)
    assert 5 <= len(tasks) <= 10
    assert payloads(source, start, end) == sent
    assert len(stream(server, "large").partitions(start, end)) == 1


# --- lost messages


def test_retention_under_a_running_query(
    plain: PlainServer, caplog: pytest.LogCaptureFixture
) -> None:
    target = made(plain, "trimmed", partitions=1)
    send(target, *"abcdef")
    source, skipping = stream(plain, "trimmed"), stream(plain, "trimmed", onDataLoss="skip")
    start = source.initialOffset()
    end = source.latestOffset(start, ReadMaxRows(2))
    (task,) = source.partitions(start, end)
    plain.known_topics["s", "trimmed"].trimmed = 4
    with pytest.raises(DataLossError, match="retention removed partition 0 of s/trimmed up to 4"):
        source.latestOffset(end, ALL)
    with pytest.raises(DataLossError, match="retention removed"):
        source.partitions(start, end)
    with pytest.raises(OffsetOutOfRangeError):
        list(source.read(task))  # planned before, started after: never other messages instead
    with caplog.at_level(logging.WARNING, logger="headrace"):
        later = skipping.latestOffset(end, ALL)
    assert "kind='trimmed'" in caplog.text
    assert list(later["b"].values()) == [4]
    assert payloads(skipping, end, later) == ["e", "f"]
    assert skipping.latestOffset(later, ALL) == later
    plain.known_topics["s", "trimmed"].trimmed = 5
    assert payloads(skipping, end, later) == ["f"], "lost after the offset was written"
    explicit = settings(plain, "trimmed", startingOffsets='{"0": 1}')
    with pytest.raises(OffsetOutOfRangeError):
        TopicReader(explicit, StructType()).partitions()
    assert read_all(TopicReader({**explicit, "onDataLoss": "skip"}, StructType())) == ["f"]


def fill(target: Target, first: int, count: int) -> None:
    """Messages that take a quarter of a segment each."""
    for number in range(first, first + count):
        send(target, f"{number:016000}")


def start_of(target: Target) -> int:
    ((_, _, partition),) = describe(target)[0].partitions()
    return partition.start


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + 180
    while not condition():
        assert monotonic() < deadline, "not in time"
        sleep(0.05)


def test_what_retention_itself_removes(
    trimming: HeadraceServer, caplog: pytest.LogCaptureFixture
) -> None:
    target = made(trimming, "expiring", partitions=1)
    fill(target, 0, 12)
    source, skipping = (
        stream(trimming, "expiring", onDataLoss=each, columns="offset") for each in ("fail", "skip")
    )
    start = source.initialOffset()
    end = source.latestOffset(start, ReadMaxRows(2))
    (task,) = source.partitions(start, end)
    ask(target, lambda c: c.update_topic("s", "expiring", "expiring", message_expiry_us=1))
    wait_until(lambda: start_of(target) > 2)
    kept = start_of(target)
    with pytest.raises(DataLossError, match="retention removed partition 0 of s/expiring"):
        source.latestOffset(end, ALL)
    with pytest.raises(DataLossError, match="retention removed"):
        source.partitions(start, end)
    with pytest.raises(OffsetOutOfRangeError):
        list(source.read(task))  # from the data nodes, with a ticket from before
    with caplog.at_level(logging.WARNING, logger="headrace"):
        later = skipping.latestOffset(end, ALL)
    assert f"kind='trimmed' what='partition 0 of s/expiring' position=2 resumed={kept}" in (
        caplog.text
    )
    read = [row["offset"] for row in rows(skipping, skipping.partitions(end, later))]
    assert read == list(range(kept, 12))


def test_retention_waits_for_a_query_with_a_group(trimming: HeadraceServer) -> None:
    target = made(trimming, "awaited", partitions=1)
    fill(target, 0, 8)
    source = stream(trimming, "awaited", consumerGroup="g", columns="offset")
    start = source.initialOffset()
    end = source.latestOffset(start, ReadMaxRows(6))
    source.commit(end)
    connect(target).run(source.following._group.on_idle())
    fill(target, 8, 8)
    ask(target, lambda c: c.update_topic("s", "awaited", "awaited", message_expiry_us=1))
    wait_until(lambda: start_of(target) > 0)
    sleep(0.5)  # some more rounds
    assert start_of(target) <= 6, "what was read may go, the rest stays"
    last = source.latestOffset(end, ALL)
    read = [row["offset"] for row in rows(source, source.partitions(end, last))]
    assert read == list(range(6, 16))


def test_the_first_batch_keeps_its_beginning(server: AnyServer) -> None:
    """Spark asks for the initial offset again when it runs the batch, and after a crash."""
    target = made(server, "began", partitions=1)
    send(target, "before")
    source = stream(server, "began", startingOffsets="latest")
    start = source.initialOffset()
    send(target, "a", "b")
    end = source.latestOffset(start, ALL)
    send(target, "c")
    assert payloads(source, source.initialOffset(), end) == ["a", "b"]
    again = stream(server, "began", startingOffsets="latest")
    assert payloads(again, again.initialOffset(), end) == ["a", "b"]
    assert payloads(again, end, again.latestOffset(end, ALL)) == ["c"]


def test_purged_recreated_and_deleted_topics(headrace: HeadraceServer) -> None:
    target = made(headrace, "lives", partitions=1)
    send(target, "old")
    source, skipping = stream(headrace, "lives"), stream(headrace, "lives", onDataLoss="skip")
    start = source.initialOffset()
    end = source.latestOffset(start, ALL)
    ask(target, lambda c: c.purge_topic("s", "lives"))
    send(target, "new")
    with pytest.raises(OtherTopicError, match="was purged"):
        source.latestOffset(end, ALL)
    with pytest.raises(OtherTopicError, match="was purged"):
        source.partitions(start, end)
    purged = skipping.latestOffset(end, ALL)
    assert payloads(skipping, end, purged) == ["new"]
    recreate(headrace, target)
    send(target, "newer")
    with pytest.raises(OtherTopicError, match="deleted and created again"):
        source.latestOffset(purged, ALL)
    recreated = skipping.latestOffset(purged, ALL)
    assert payloads(skipping, purged, recreated) == ["newer"]
    other_cluster = {**recreated, "c": "another"}
    with pytest.raises(OtherTopicError, match="another cluster"):
        source.latestOffset(other_cluster, ALL)
    wiped = skipping.latestOffset(other_cluster, ALL)
    assert payloads(skipping, other_cluster, wiped) == ["newer"]
    ask(target, lambda c: c.delete_topic("s", "lives"))
    with pytest.raises(NotFoundError, match="no topic s/lives"):
        skipping.latestOffset(recreated, ALL)


def test_a_planned_batch_is_of_the_topic_and_the_cluster_that_it_was_planned_in(
    headrace: HeadraceServer,
) -> None:
    """Spark repeats a batch that stands in its offset log, whatever has happened since."""
    target = made(headrace, "planned", partitions=1)
    send(target, "old")
    source = stream(headrace, "planned")
    skipping = stream(headrace, "planned", onDataLoss="skip")
    start = source.initialOffset()
    end = source.latestOffset(start, ALL)
    elsewhere = {**end, "c": "another"}
    with pytest.raises(OtherTopicError, match=r"another cluster.*new checkpoint.*onDataLoss"):
        source.partitions(start, elsewhere)
    assert payloads(skipping, start, elsewhere) == []
    later = skipping.latestOffset(elsewhere, ALL)
    assert payloads(skipping, elsewhere, later) == ["old"], "once"

    recreate(headrace, target)
    send(target, "new")
    with pytest.raises(OtherTopicError, match=r"created again.*new checkpoint.*onDataLoss"):
        source.partitions(start, end)
    assert payloads(skipping, start, end) == []
    later = skipping.latestOffset(end, ALL)
    assert payloads(skipping, end, later) == ["new"]
    assert skipping.latestOffset(later, ALL) == later

    ask(target, lambda c: c.delete_topic("s", "planned"))
    for each in (source, skipping):
        with pytest.raises(NotFoundError, match=r"no topic s/planned.*new checkpoint"):
            each.partitions(start, end)


def test_what_a_broker_gave_is_of_the_cluster_that_was_planned(headrace: HeadraceServer) -> None:
    target = made(headrace, "polled", partitions=1)
    send(target, "a")
    reader = TopicReader(settings(headrace, "polled", readFrom="broker"), StructType())
    (task,) = reader.partitions()
    assert [row["payload"] for row in rows(reader, [task])] == [b"a"]
    task.span = replace(task.span, cluster="another")
    with pytest.raises(OtherTopicError, match="another cluster"):
        rows(reader, [task])


def test_a_publisher_that_was_forgotten_is_opened_again(headrace: HeadraceServer) -> None:
    """A query that had nothing to write for longer than the server remembers it."""
    target = made(headrace, "forgotten", partitions=1)
    server = connect(target)
    window = Window("spark/forgotten", "run", 0)
    gone = PublisherOpened(publisher=10**9, epoch=1, last_window=-1)
    server.remote._publishers[window.publisher, window.run] = gone
    area, starts = to_area(pa.array([b"a"]), None, None)
    span = server.run(server.remote.stage(target, window, 0, area, starts))
    assert server.run(server.remote.close_window(window, [span], b""))
    assert read_all(TopicReader(settings(headrace, "forgotten"), StructType())) == ["a"]
    nowhere = replace(target, topic="nowhere")
    with pytest.raises(NotFoundError):
        server.run(server.remote.stage(nowhere, window, 0, area, starts))


def test_available_now_ends_where_it_began(headrace: HeadraceServer) -> None:
    target = made(headrace, "now", partitions=1)
    send(target, "a", "b")
    source = stream(headrace, "now")
    start = source.initialOffset()
    source.prepareForTriggerAvailableNow()
    send(target, "c")
    ask(target, lambda c: c.create_partitions("s", "now", 1))
    send(target, "d", partition=1)
    end = source.latestOffset(start, ALL)
    assert payloads(source, start, end) == ["a", "b"]
    begun = monotonic()
    assert source.latestOffset(end, ALL) == end
    assert monotonic() - begun < 5


# --- where messages are read


@pytest.fixture
def reading(headrace: HeadraceServer) -> Iterator[tuple[Target, Reading]]:
    target = made(headrace, "places", partitions=1)
    ask(target, lambda c: c.purge_topic("s", "places"))
    send(target, "a", "b", "c")
    reading = connect(target).remote.reading
    yield target, reading
    reading._reader._avoided_until = 0.0


def read(
    target: Target, access: Access, span: OffsetRange, read_from: ReadFrom = "auto"
) -> list[MessageBuffer]:
    server = connect(target)
    runs = server.iterate(server.remote.reading.read(target, access, span, read_from))
    return [area for areas in runs for area in areas]


def span_of(target: Target) -> tuple[OffsetRange, Any]:
    state, access = describe(target)
    ((key, topic, each),) = state.partitions()
    return OffsetRange(
        topic.topic, key, each.generation, each.start, each.end, cluster=state.cluster
    ), access


def test_data_nodes_out_of_reach_are_told_once_and_the_broker_asked(
    reading: tuple[Target, Reading],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    target, reader = reading
    span, access = span_of(target)
    assert len(read(target, access, span, "data-nodes")) == 1
    assert not caplog.records
    monkeypatch.setattr(reading_module, "FALLBACK_SECONDS", 0.1)
    monkeypatch.setattr(reading_module, "RETRY_SECONDS", 0.1)
    # Nobody listens at these addresses; a ticket of its own so that no connection is there yet.
    reader._reader._reached = False
    away = replace(access, ticket=access.ticket + b"x", placement="127.0.0.1:1,127.0.0.1:2")
    with caplog.at_level(logging.WARNING, logger="headrace"):
        for _ in range(3):
            ((_, starts),) = read(target, away, span)
            assert len(starts) == 3
    assert [record.name for record in caplog.records] == ["headrace.spark.source.reading"]
    assert caplog.records[0].getMessage().startswith("data nodes are out of reach")
    closed = replace(away, placement="127.0.0.1:1", ticket=access.ticket + b"y")
    with pytest.raises(UnavailableError):
        read(target, closed, span, "data-nodes")
    # Any of several placement managers will do.
    several = replace(access, placement=f"127.0.0.1:1, {access.placement}", ticket=access.ticket)
    reader._reader.data_nodes._clients.clear()
    assert len(read(target, several, span, "data-nodes")) == 1


def test_a_ticket_is_renewed_before_it_ends(reading: tuple[Target, Reading]) -> None:
    target, _ = reading
    span, access = span_of(target)
    ended = replace(access, ticket=b"no longer good", expires_ms=int(time() * 1000))
    ((_, starts),) = read(target, ended, span, "data-nodes")
    assert len(starts) == 3
    ask(target, lambda c: c.purge_topic("s", "places"))
    with pytest.raises(OtherTopicError, match="deleted or purged"):
        read(target, ended, span, "data-nodes")


def test_the_broker_never_gives_messages_of_another_life(reading: tuple[Target, Reading]) -> None:
    target, _ = reading
    span, access = span_of(target)
    ask(target, lambda c: c.purge_topic("s", "places"))
    send(target, "x", "y", "z")
    with pytest.raises(OtherTopicError, match="deleted or purged"):
        read(target, replace(access, ticket=b""), span, "broker")


# --- waiting, and group offsets


def counted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    calls: list[float] = []
    describe = Reading.describe

    async def count(self: Reading, *args: Any, **options: Any) -> Any:
        calls.append(monotonic())
        return await describe(self, *args, **options)

    monkeypatch.setattr(Reading, "describe", count)
    return calls


def test_an_idle_source_waits_at_the_data_nodes(
    headrace: HeadraceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = made(headrace, "idle", partitions=2)
    send(target, "a")
    source = stream(headrace, "idle")
    end = source.latestOffset(source.initialOffset(), ALL)
    source.following._pace.on_asked(monotonic())
    source.following._pace._wait = 0.6
    source.following._pace._answered = float("inf")  # asked again at once, however busy we are
    calls = counted(monkeypatch)
    begun = monotonic()
    assert source.latestOffset(end, ALL) == end
    assert monotonic() - begun >= 0.6
    assert len(calls) <= 3, "a wait, not a loop"
    source.following._pace._wait = 20.0
    source.following._pace._answered = float("inf")  # asked again at once, however busy we are
    soon = threading.Timer(0.2, lambda: send(target, "b", partition=1))
    soon.start()
    begun = monotonic()
    later = source.latestOffset(end, ALL)
    assert monotonic() - begun < 15
    soon.join()
    assert payloads(source, end, later) == ["b"]


def group_offset(target: Target, group: str) -> int | None:
    found: list[int | None] = []

    async def get(client: IggyClient) -> None:
        offset = await client.get_consumer_offset(Consumer.group(group), "s", target.topic, 0)
        found.append(None if offset is None else offset.stored_offset)

    ask(target, get)
    return found[0]


def test_finished_batches_are_stored_for_the_group(
    server: AnyServer, caplog: pytest.LogCaptureFixture
) -> None:
    target = made(server, "lag", partitions=1)
    send(target, *"abcd")
    stored: Callable[[], int | None]
    if isinstance(server, PlainServer):
        stored = lambda: server.known_topics["s", "lag"].groups.get("g", {}).get(0)  # noqa: E731
    else:
        stored = lambda: group_offset(target, "g")  # noqa: E731
    source = stream(server, "lag", consumerGroup="g")
    start = source.initialOffset()
    end = source.latestOffset(start, ReadMaxRows(3))
    assert stored() is None, "planned, not finished"
    last = source.latestOffset(end, ALL)
    source.latestOffset(last, ALL)
    assert stored() == 3
    # Another query on the same group: the group follows it, no position is taken from there.
    other = stream(server, "lag", consumerGroup="g")
    begin = other.initialOffset()
    assert begin == start
    end = other.latestOffset(begin, ReadMaxRows(2))
    other.commit(end)
    connect(target).run(other.following._group.on_idle())
    assert stored() == 1
    assert source.latestOffset(last, ALL) == last
    assert not caplog.records
