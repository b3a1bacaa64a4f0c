"""How an application's topics are read: the options that the connector gets."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.pipeline.declare.declarations import TopicInput
from headrace.pipeline.declare.inputs import read_stream


class Reader:
    """Takes down what a DataFrame would be read with."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.readStream = self

    def format(self, _: str) -> Reader:
        return self

    def option(self, name: str, value: Any) -> Reader:
        self.given[name] = value
        return self

    def options(self, **values: Any) -> Reader:
        self.given |= values
        return self

    def load(self) -> Reader:
        return self


def options(topic: TopicInput) -> dict[str, Any]:
    reader: Any = Reader()
    read_stream(reader, topic, (), address="here:1")
    return dict(reader.given)


def test_the_source_stores_no_positions_since_several_queries_may_read_it() -> None:
    assert "consumerGroup" not in options(TopicInput("orders", "shop/orders"))


def test_a_gap_is_skipped_unless_it_is_to_stop_the_query() -> None:
    assert options(TopicInput("orders", "shop/orders"))["onDataLoss"] == "skip"
    strict = TopicInput("orders", "shop/orders", on_data_loss="fail")
    assert options(strict)["onDataLoss"] == "fail"
    with pytest.raises(ConfigError, match="on_data_loss"):
        TopicInput("orders", "shop/orders", on_data_loss="ignore")
