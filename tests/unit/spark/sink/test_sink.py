"""What the sink tells, and where it sends keys."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from headrace.errors import ConfigError
from headrace.net.iggy_server import DIRECT_BYTES_MAX
from headrace.spark.options import parse_sink
from headrace.spark.server import Window
from headrace.spark.sink import sink
from headrace.spark.sink.sink import Delivered, pieces

PLAIN = Delivered(3)
STAGED = Delivered(3, Window("p", "run", 0))


def test_at_least_once_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sink, "_told", set())
    with caplog.at_level(logging.WARNING, logger="headrace"):
        sink.commit(parse_sink({"topic": "s/t", "delivery": "at-least-once"}), [PLAIN])
        assert not caplog.records, "whoever asked for it knows"
        for _ in range(3):
            sink.commit(parse_sink({"topic": "s/t"}), [PLAIN, PLAIN])
    (record,) = caplog.records
    assert "at least once" in record.getMessage()


def test_a_batch_is_delivered_in_one_way() -> None:
    with pytest.raises(ConfigError, match="different windows"):
        sink.commit(parse_sink({"topic": "s/t"}), [STAGED, PLAIN])


def test_the_number_of_partitions_is_asked_once_per_task_and_only_for_keys() -> None:
    asked: list[int] = []

    def count() -> int:
        asked.append(len(asked))
        return 3

    options = parse_sink({"topic": "s/t"})
    batch = pa.RecordBatch.from_pydict({"payload": ["a", "b"], "key": ["x", "y"]})
    list(pieces(options, [batch.select(["payload"])], count))
    assert not asked
    list(pieces(options, [batch, batch], count))
    assert asked == [0]
    list(pieces(options, [batch], count))
    assert asked == [0, 1], "the topic may have grown"


def test_requests_are_small_enough_to_be_received_in_place() -> None:
    """A request holds 16 bytes for each message beside the messages themselves."""
    for size in (0, 200, 5000):
        batch = pa.RecordBatch.from_pydict({"payload": [b"x" * size] * 60_000})
        found = list(pieces(parse_sink({"topic": "s/t"}), [batch], lambda: 1))
        assert len(found) > 1
        assert sum(len(starts) for _, _, starts in found) == batch.num_rows
        if size:  # empty ones are all index
            assert all(len(area) + 16 * len(starts) < DIRECT_BYTES_MAX for _, area, starts in found)
