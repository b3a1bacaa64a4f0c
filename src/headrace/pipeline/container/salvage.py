"""What becomes of a micro-batch that failed: records to blame are told of and set aside, by policy,
and the rest of the batch goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from headrace.errors import InvalidArgumentError
from headrace.ids import WindowId
from headrace.pipeline.container.failed_batch import FoundRecord, Isolator
from headrace.pipeline.declare.inspection import is_stateful, streaming_nodes
from headrace.pipeline.windows import format_window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.pipeline.declare.application import Application
    from headrace.pipeline.declare.queries import Query
    from headrace.runtime.interfaces import Disk
    from headrace.spark.options import SinkOptions

    Publish = Callable[[DataFrame, SinkOptions], int]
    """Publishes dead letters as the batch's window, once."""
    OnFound = Callable[[FoundRecord, str], None]

BATCHES_REMEMBERED = 1024


class Salvage:
    """For one query; called in the thread of its batches."""

    def __init__(self, isolator: Isolator, on_found: OnFound) -> None:
        self._isolator = isolator
        self._on_found = on_found
        self._bad_rows: dict[int, Counter[str]] = {}

    def rest(
        self, error: Exception, window: WindowId, batch_id: int, publish: Publish
    ) -> DataFrame | None:
        """What the batch gives without its bad records; None when none is to blame.

        InvalidArgumentError names the record when it is to stop the query.
        """
        name = format_window(window)
        isolated = self._isolator.isolate(error, batch_id, name)
        if isolated is None:
            return None
        for found in isolated.found:
            self._on_found(found, name)
        stopping = [found for found in isolated.found if found.action == "fail"]
        if stopping:
            raise InvalidArgumentError(stopping[0].describe(name)) from error
        self._bad_rows[batch_id] = Counter(found.operator for found in isolated.found)
        self._bad_rows.pop(batch_id - BATCHES_REMEMBERED, None)
        for operator, letters in isolated.letters.items():
            # Before the rest: a batch that is cut off in between is searched again, and its dead
            # letters are there already.
            publish(letters, self._isolator.letter_sink(operator))
        return isolated.frame

    def take_bad_rows(self, batch_id: int) -> Mapping[str, int]:
        """Records of a batch that were set aside, by operator."""
        return self._bad_rows.pop(batch_id, Counter())


def make_salvage(
    app: Application,
    spark: SparkSession,
    query: Query,
    *,
    address: str,
    disk: Disk,
    checkpoint: str,
    on_found: OnFound,
) -> Salvage | None:
    """None for a query whose batches cannot be taken apart: one that keeps state, or reads more
    than topics."""
    if query.letters or query.name not in app.stages or is_stateful(streaming_nodes(query.frame)):
        return None
    feeds = [
        feed.partition(".")[0]
        for name in query.operators
        for feed in (app.stages[name].ports.values() if name in app.stages else ())
    ]
    if not set(feeds) <= set(query.operators):
        return None  # some of its rows come from other containers
    isolator = Isolator(app, spark, query, address=address, disk=disk, checkpoint=checkpoint)
    return Salvage(isolator, on_found)
