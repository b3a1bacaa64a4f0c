"""Headrace: a durable streaming log and supervised PySpark pipelines on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.pipeline.application import Application, Batch
    from headrace.pipeline.dag import Dag

__all__ = ["Application", "Batch", "Dag"]


def __getattr__(name: str) -> object:
    """Import a public name at its first use: the command line must not pay for pipelines."""
    if name in ("Application", "Batch"):
        from headrace.pipeline import application

        return getattr(application, name)
    if name == "Dag":
        from headrace.pipeline.dag import Dag

        return Dag
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
