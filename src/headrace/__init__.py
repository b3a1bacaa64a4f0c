"""Headrace: a durable streaming log and supervised PySpark pipelines on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.pipeline.application import Application, Batch
    from headrace.pipeline.dag import Dag
    from headrace.pipeline.per_row import per_row
    from headrace.pipeline.stores import Console, Delta, Parquet, Postgres

__all__ = [
    "Application",
    "Batch",
    "Console",
    "Dag",
    "Delta",
    "Parquet",
    "Postgres",
    "per_row",
]

_HOMES = {
    "Application": "application",
    "Batch": "application",
    "Console": "stores",
    "Dag": "dag",
    "Delta": "stores",
    "Parquet": "stores",
    "Postgres": "stores",
    "per_row": "per_row",
}


def __getattr__(name: str) -> object:
    """Import a public name at its first use: the command line must not pay for pipelines."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"headrace.pipeline.{_HOMES[name]}"), name)
