"""What the threads of a container are doing, in Python and in the JVM."""

from __future__ import annotations

import json
import sys
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def stack_traces(spark: SparkSession | None) -> str:
    """As JSON."""
    python = [
        {"name": str(identity), "stack": traceback.format_stack(frame)}
        for identity, frame in sys._current_frames().items()
    ]
    jvm: list[dict[str, Any]] = []
    if spark is not None:
        from headrace.spark.session.queries import thread_dump

        jvm = thread_dump(spark)
    return json.dumps({"python": python, "jvm": jvm})
