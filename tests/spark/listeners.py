"""Spark tells its listeners of things a moment after they happened; a test waits for that."""

from __future__ import annotations

from pyspark import SparkContext

WAIT_MS = 60_000


def wait_heard() -> None:
    """Until listeners have heard of all that happened so far in this process's Spark."""
    SparkContext.getOrCreate()._jsc.sc().listenerBus().waitUntilEmpty(WAIT_MS)
