"""Where a batch of an edge ends: it waits for what is missing, and runs to the publishers' end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import pytest

from headrace.client.partition_reader import Access, PartitionState, SourceState, TopicState
from headrace.errors import OffsetOutOfRangeError, UnavailableError
from headrace.runtime.system import system_runtime
from headrace.spark.edges import source as edge_following
from headrace.spark.edges.options import EdgeOptions, parse_edge
from headrace.spark.edges.source import EdgeFollowing, quiet_through
from headrace.spark.server import Remote
from headrace.spark.source.batch_plan import OtherTopicError
from headrace.wire.iggy.messages.extensions import (
    ListedPublisher,
    ListedWindow,
    WindowsListed,
    WindowSpan,
)

OPTIONS = parse_edge({"windows": "true", "topic": "_pipeline.app/a"})


class FakeRemote:
    """Topics by name, each with one publisher; a window is one message in partition 0."""

    def __init__(self, **topics: list[int]) -> None:
        self.windows = topics
        self.closed = {name: max(windows, default=-1) for name, windows in topics.items()}
        self.purged = self.start = -1
        self.ended = False
        self.page = 1000  # windows in one answer
        self.asked: list[tuple[str, int, int]] = []
        self.changed = asyncio.Event()
        self.reading = self

    async def call(self, call: Callable[[Any], Awaitable[Any]]) -> Any:
        return await call(self)

    def close(self, name: str, window: int, *, rows: bool = False) -> None:
        self.closed[name] = window
        if rows:
            self.windows[name].append(window)
        self.changed.set()

    async def list_windows(
        self, stream: str, topic: str, *, after: int, wait_ms: int
    ) -> WindowsListed:
        self.asked.append((topic, after, wait_ms))
        if wait_ms and self.closed[topic] <= after:
            self.changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), wait_ms / 1000)
        closed = self.closed[topic]
        windows = tuple(
            ListedWindow(window, 1, (WindowSpan(0, 0, at, 1, 1),))
            for at, window in enumerate(self.windows[topic])
            if after < window <= closed
        )
        complete = closed if len(windows) <= self.page else windows[self.page - 1].window
        publisher = ListedPublisher(
            name=topic,
            partition=0,
            last_window=closed,
            ended=self.ended,
            windows=windows[: self.page],
        )
        return WindowsListed(
            cluster="c",
            uid=sorted(self.windows).index(topic),
            closed=closed,
            complete=complete,
            purged=self.purged,
            resets=0,
            publishers=(publisher,),
        )

    async def describe(
        self, target: object, topics: object, *, sizes: bool
    ) -> tuple[SourceState, Access]:
        partition = PartitionState(0, 0, self.start, len(self.windows["a"]))
        return SourceState("c", (TopicState("0", "s", "a", (partition,)),)), Access()


def following(remote: FakeRemote, options: EdgeOptions = OPTIONS) -> EdgeFollowing:
    return EdgeFollowing(cast(Remote, remote), options, system_runtime().clock)


def offset(window: int) -> dict[str, Any]:
    return {"v": 1, "c": "c", "w": {"0": window}}


async def test_it_begins_with_the_oldest_window_there_is_unless_told_otherwise() -> None:
    remote = FakeRemote(a=[3, 5])
    remote.purged = 2
    assert await following(remote).initial_offset() == offset(2)
    told = parse_edge({"windows": "true", "topic": "_pipeline.app/a", "startingWindow": "4"})
    assert await following(remote, told).initial_offset() == offset(4)


async def test_a_window_that_is_closed_while_it_waits_is_read_at_once() -> None:
    remote = FakeRemote(a=[])
    source = following(remote)
    asking = asyncio.create_task(source.latest_offset(offset(-1)))
    await asyncio.sleep(0.01)
    remote.close("a", 4, rows=True)
    assert await asyncio.wait_for(asking, 30) == offset(4)
    assert source.reported_offset() == offset(4)


async def test_windows_without_rows_are_no_reason_for_a_batch() -> None:
    remote = FakeRemote(a=[1])
    remote.closed["a"] = 9
    assert await following(remote).latest_offset(offset(1)) == offset(1)


async def test_an_operator_with_timers_gets_an_empty_batch_now_and_then() -> None:
    timed = parse_edge({"windows": "true", "topic": "_pipeline.app/a", "emptyBatchMillis": "1"})
    remote = FakeRemote(a=[1])
    remote.closed["a"] = 9
    assert await following(remote, timed).latest_offset(offset(1)) == offset(9)
    assert await following(remote, timed).latest_offset(offset(9)) == offset(9)


async def test_a_first_batch_of_another_cluster_is_refused() -> None:
    """Its start is asked for again when it is repeated, and is the cluster's that answers now."""
    remote = FakeRemote(a=[3, 5])
    for end in ({**offset(5), "c": "other"}, {"v": 1, "c": "c", "w": {"9": 5}}):
        with pytest.raises(OtherTopicError, match="connect to the cluster of the checkpoint"):
            await following(remote).plan(await following(remote).initial_offset(), end)


async def test_a_query_of_two_edges_waits_for_the_slower_one() -> None:
    both = parse_edge(
        {"windows": "true", "topic": "_pipeline.app/a", "alignWith": "_pipeline.app/b"}
    )
    remote = FakeRemote(a=[1, 2, 3], b=[])
    source = following(remote, both)
    asking = asyncio.create_task(source.latest_offset(offset(-1)))
    await asyncio.sleep(0.01)
    assert next(each[:2] for each in remote.asked if each[2]) == ("b", -1)
    remote.close("b", 2)
    assert await asyncio.wait_for(asking, 30) == offset(2)


async def test_a_run_to_the_end_waits_until_the_publishers_said_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edge_following, "END_SECONDS", 0.05)
    remote = FakeRemote(a=[1])
    source = following(remote)
    await source.end_when_ended()
    assert await source.latest_offset(offset(-1)) == offset(1)
    assert await source.latest_offset(offset(1)) is None, "ask again"
    remote.ended = True
    assert await source.latest_offset(offset(1)) == offset(1), "that was all"


async def test_a_batch_is_planned_from_its_two_offsets_alone() -> None:
    remote = FakeRemote(a=[1, 3, 5])
    source = following(remote)
    ((span, _),) = await source.plan(offset(1), offset(5))
    assert (span.start, span.end) == (1, 3)
    assert await source.plan(offset(5), offset(5)) == []


async def test_a_long_list_comes_in_pages() -> None:
    remote = FakeRemote(a=[1, 3, 5, 7, 9])
    remote.page = 2
    source = following(remote)
    assert await source.latest_offset(offset(-1)) == offset(3), "what follows is not listed yet"
    ((span, _),) = await source.plan(offset(-1), offset(9))
    assert (span.start, span.end) == (0, 5)


async def test_what_cannot_be_read_is_an_error() -> None:
    remote = FakeRemote(a=[1, 3, 5])
    with pytest.raises(UnavailableError, match="not closed any more"):
        await following(remote).plan(offset(1), offset(7))
    remote.start = 1
    with pytest.raises(OffsetOutOfRangeError, match="are gone"):
        await following(remote).plan(offset(-1), offset(5))
    remote.purged = 3
    with pytest.raises(OffsetOutOfRangeError, match="purged"):
        await following(remote).latest_offset(offset(1))


async def test_a_query_is_idle_as_far_as_its_edges_are_closed_and_read() -> None:
    remote = FakeRemote(a=[1, 3], b=[])
    remote.closed = {"a": 7, "b": 5}
    targets = [
        parse_edge({"windows": "true", "topic": f"_pipeline.app/{each}"}).target for each in "ab"
    ]
    known = cast(Remote, remote)
    assert await quiet_through(known, targets, {"0": 3, "1": 3}) == 5
    assert await quiet_through(known, targets, {"0": 2, "1": 3}) is None, "window 3 is unread"
    assert await quiet_through(known, targets, {}) is None
    assert await quiet_through(known, [], {}) is None
