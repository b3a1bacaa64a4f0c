"""Group offsets: what is due, and that storing them never ends a query."""

import asyncio
import logging
from collections.abc import Mapping
from typing import cast

import pytest

from headrace.client.partition_reader import PartitionState, SourceState, TopicState
from headrace.errors import HeadraceError, UnavailableError
from headrace.spark.options import Target, parse_source
from headrace.spark.source import following
from headrace.spark.source.batch_plan import Offsets
from headrace.spark.source.following import GroupOffsets, due
from headrace.spark.source.reading import Reading

STATE = SourceState(
    "here",
    (TopicState("12", "s", "t", (PartitionState(0, 0, 0, 50), PartitionState(1, 2, 0, 50))),),
)


def test_what_is_due() -> None:
    finished = Offsets("here", {("12", 0): (0, 10), ("12", 1): (2, 0)})
    assert due(finished, STATE, {}) == {("12", 0): 9}, "nothing was read of the other one"
    assert due(finished, STATE, {("12", 0): 9}) == {}
    assert due(finished, STATE, {("12", 0): 4}) == {("12", 0): 9}
    assert due(Offsets("here", {("12", 1): (1, 10)}), STATE, {}) == {}, "another generation"
    assert due(Offsets("there", {("12", 0): (0, 10)}), STATE, {}) == {}
    assert due(Offsets("here", {("12", 0): (0, 51)}), STATE, {}) == {}, "more than there is"


class Stub:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.calls: list[Mapping[tuple[str, int], int]] = []
        self.answers: list[asyncio.Future[None]] = []

    async def store(
        self, target: Target, group: str, offsets: Mapping[tuple[str, int], int]
    ) -> None:
        assert group == "g"
        self.calls.append(offsets)
        self.answers.append(asyncio.get_running_loop().create_future())
        await self.answers[-1]


def at(offset: int) -> Offsets:
    return Offsets("here", {("12", 0): (0, offset)})


def make(**options: str) -> tuple[GroupOffsets, Stub]:
    stub = Stub()
    parsed = parse_source({"topic": "s/t", **options}, streaming=True)
    return GroupOffsets(parsed, cast(Reading, stub)), stub


async def answered(stub: Stub, error: HeadraceError | None = None) -> None:
    await asyncio.sleep(0)  # the store begins
    if error is None:
        stub.answers[-1].set_result(None)
    else:
        stub.answers[-1].set_exception(error)
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_position_is_stored_once_and_again_after_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group, stub = make(consumerGroup="g")
    await group.on_finished(at(10), STATE)
    await asyncio.sleep(0)
    await group.on_finished(at(20), STATE)
    await asyncio.sleep(0)
    assert stub.calls == [{("t", 0): 9}], "one at a time"
    await answered(stub)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await group.on_finished(at(20), STATE)
            await answered(stub, UnavailableError("gone"))
            await group.on_idle()
    assert [record.getMessage() for record in caplog.records] == [
        "offsets of group g are not stored: gone"
    ]
    await group.on_finished(at(20), STATE)
    await answered(stub)
    await group.on_idle()
    await group.on_finished(at(20), STATE)
    await asyncio.sleep(0)
    assert stub.calls == [{("t", 0): 9}, *[{("t", 0): 19}] * 3]


async def test_an_idle_query_has_stored_its_latest_position() -> None:
    group, stub = make(consumerGroup="g")
    await group.on_finished(at(10), STATE)
    await group.on_finished(at(20), STATE)
    idle = asyncio.create_task(group.on_idle())
    await answered(stub)
    await answered(stub)
    await idle
    assert stub.calls == [{("t", 0): 9}, {("t", 0): 19}]


async def test_a_slow_broker_delays_an_idle_query_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(following, "STORE_SECONDS", 0.01)
    group, stub = make(consumerGroup="g")
    await group.on_finished(at(10), STATE)
    with caplog.at_level(logging.WARNING):
        await group.on_idle()
        await group.on_finished(at(20), STATE)
        await group.on_idle()
    assert [record.getMessage() for record in caplog.records] == [
        "offsets of group g are not stored: no answer in time"
    ]
    assert stub.calls == [{("t", 0): 9}], "still one at a time"
    await answered(stub)
    await group.on_finished(at(20), STATE)
    await answered(stub)
    assert stub.calls == [{("t", 0): 9}, {("t", 0): 19}]


async def test_without_a_group_nothing_is_stored() -> None:
    group, stub = make()
    await group.on_finished(at(10), STATE)
    await group.on_idle()
    await asyncio.sleep(0)
    assert not stub.calls
