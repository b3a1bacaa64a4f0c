"""Group offsets: what is due, and that storing them never ends a query."""

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from typing import cast

import pytest

from headrace.errors import UnavailableError
from headrace.spark.groups import GroupOffsets, due
from headrace.spark.offsets import Offsets, PartitionState, SourceState, TopicState
from headrace.spark.options import Target, parse_source
from headrace.spark.reading import Reading

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
    def __init__(self) -> None:
        self.calls: list[Mapping[tuple[str, int], int]] = []
        self.future: Future[None] = Future()
        self.at_once = False

    def store_soon(
        self, target: Target, group: str, offsets: Mapping[tuple[str, int], int]
    ) -> Future[None]:
        assert group == "g"
        self.calls.append(offsets)
        self.future = Future()
        if self.at_once:
            self.future.set_result(None)
        return self.future


def at(offset: int) -> Offsets:
    return Offsets("here", {("12", 0): (0, offset)})


def test_a_position_is_stored_once_and_again_after_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = parse_source({"topic": "s/t", "consumerGroup": "g"}, streaming=True)
    group, stub = GroupOffsets(options), Stub()
    reading = cast(Reading, stub)
    group.on_finished(reading, at(10), STATE)
    group.on_finished(reading, at(20), STATE)
    assert stub.calls == [{("t", 0): 9}], "one at a time"
    stub.future.set_result(None)
    group.on_finished(reading, at(20), STATE)
    assert stub.calls == [{("t", 0): 9}, {("t", 0): 19}]
    stub.future.set_exception(UnavailableError("gone"))
    with caplog.at_level(logging.WARNING):
        group.on_idle()
        group.on_finished(reading, at(20), STATE)
        stub.future.set_exception(UnavailableError("gone"))
        group.on_idle()
    assert [record.getMessage() for record in caplog.records] == [
        "offsets of group g are not stored: gone"
    ]
    group.on_finished(reading, at(20), STATE)
    stub.future.set_result(None)
    group.on_idle()
    group.on_finished(reading, at(20), STATE)
    assert stub.calls == [{("t", 0): 9}, *[{("t", 0): 19}] * 3]


def test_an_idle_query_has_stored_its_latest_position() -> None:
    options = parse_source({"topic": "s/t", "consumerGroup": "g"}, streaming=True)
    group, stub = GroupOffsets(options), Stub()
    reading = cast(Reading, stub)
    group.on_finished(reading, at(10), STATE)
    group.on_finished(reading, at(20), STATE)
    stub.at_once = True
    stub.future.set_result(None)
    group.on_idle()
    assert stub.calls == [{("t", 0): 9}, {("t", 0): 19}]


def test_without_a_group_nothing_is_stored() -> None:
    group, stub = GroupOffsets(parse_source({"topic": "s/t"}, streaming=True)), Stub()
    group.on_finished(cast(Reading, stub), at(10), STATE)
    group.on_idle()
    assert not stub.calls
