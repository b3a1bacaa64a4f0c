"""Calls the functions that an application declares with `@app.committed`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from headrace.pipeline.declare.declarations import SPARK, Hook

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def call_hook(hook: Hook, window: int, spark: SparkSession | None) -> None:
    """With the window id under whatever name the function gives it."""
    names = inspect.signature(hook.function).parameters
    (first,) = (name for name in names if name != SPARK)
    extra = {SPARK: spark} if SPARK in names else {}
    hook.function(**{first: window}, **extra)
