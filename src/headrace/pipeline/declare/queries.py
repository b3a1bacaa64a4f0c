"""A streaming query of an application: what the builder hands to whoever starts it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.pipeline.declare.declarations import Stage
    from headrace.pipeline.declare.properties import PropertyValues

    Tail = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class Query:
    """One streaming query: a terminal stage with all that feeds it."""

    name: str
    frame: DataFrame
    mode: str
    topic: str | None = None  # where the rows go, or
    key: str | None = None
    stage: Stage | None = None  # the sink function they are given to, with its
    values: PropertyValues | None = None  # of all properties, as they are at the moment
    operators: tuple[str, ...] = ()  # fused in it, upstream first
    tail: Tail | None = None
    """The operators that are called for every batch, because a property of theirs is live."""
    letters: bool = False  # it publishes dead letters
    stateful: str = ""  # the operator that Spark keeps state for, and that drops late rows

    def finish(self, batch: DataFrame) -> DataFrame:
        """The rows that leave, out of a batch of `frame`."""
        return batch if self.tail is None else self.tail(batch)
