"""The columns of a message, in Arrow and in Spark."""

from __future__ import annotations

COLUMNS = (
    "stream",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "origin_timestamp",
    "id",
    "key",
    "headers",
    "payload",
)
