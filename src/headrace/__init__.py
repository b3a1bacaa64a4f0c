"""Headrace: a durable streaming log and supervised PySpark pipelines on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.pipeline.application import Application, Batch

__all__ = ["Application", "Batch"]


def __getattr__(name: str) -> object:
    """Import a public name at its first use: the command line must not pay for pipelines."""
    if name in ("Application", "Batch"):
        from headrace.pipeline import application

        return getattr(application, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
