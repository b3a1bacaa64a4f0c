"""Options of reading an edge: what a container gives."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.spark.edges.offsets import EdgeLimits, Share
from headrace.spark.edges.options import parse_edge, reads_windows
from headrace.wire.umbilical.windows import NO_WINDOW, WindowGrid, format_window

TOPIC = {"windows": "true", "topic": "_pipeline.shop/valid"}


def test_an_edge_needs_nothing_but_its_topic() -> None:
    assert reads_windows(TOPIC)
    assert not reads_windows({"topic": "shop/orders"})
    options = parse_edge(TOPIC)
    assert (options.target.stream, options.target.topic) == ("_pipeline.shop", "valid")
    assert (options.starting, options.skip_until, options.share) == (None, NO_WINDOW, None)
    assert options.limits == EdgeLimits(bytes_max=256 << 20)
    assert options.application is None


def test_what_a_container_gives() -> None:
    window = 0x6B49D20000000007
    options = parse_edge(
        {
            **TOPIC,
            "address": "broker:8090",
            "alignWith": "_pipeline.shop/other, _pipeline.shop/third",
            "startingWindow": format_window(NO_WINDOW),
            "skipUntil": format_window(window),
            "maxWindowsPerTrigger": "4",
            "maxRowsPerTrigger": "5",
            "maxBytesPerTrigger": "6",
            "applicationWindowCount": "3",
            "windowMillis": "250",
            "startWindowMillis": "1700000000000",
            "partitionMask": "3",
            "partitionKeys": "0,2",
            "emptyBatchMillis": "5000",
        }
    )
    assert [(each.stream, each.topic) for each in options.aligned] == [
        ("_pipeline.shop", "other"),
        ("_pipeline.shop", "third"),
    ]
    assert {each.address for each in (options.target, *options.aligned)} == {"broker:8090"}
    assert (options.starting, options.skip_until) == (NO_WINDOW, window)
    assert (options.limits.windows_max, options.limits.rows_max) == (4, 5)
    assert options.limits.bytes_max == 6
    assert options.share == Share(3, (0, 2))
    assert options.application is not None
    assert options.application.count == 3
    assert options.application.grid == WindowGrid(1_700_000_000_000, 250)
    assert options.empty_batch_ms == 5000


@pytest.mark.parametrize(
    "wrong",
    [
        {"startingWindow": "now"},
        {"maxRowsPerTrigger": "-1"},
        {"partitionMask": "3"},
        {"partitionKeys": "1"},
        {"partitionMask": "1", "partitionKeys": "2"},
        {"applicationWindowCount": "2", "startWindowMillis": "1"},
        {"alignWith": "nowhere"},
        {"surprise": "1"},
    ],
)
def test_what_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        parse_edge({**TOPIC, **wrong})
