"""Headrace: a durable streaming log and supervised PySpark pipelines on it.

What a pipeline's file imports is here: `Application` and what belongs to it. Other public names are
in `headrace.client` (programs that send and read), `headrace.testing` (fixtures for tests) and
`headrace.spark.limited_daemon` (a setting of Spark). Everything else may change between releases.

To read the code, begin with docs/architecture.md: it has a picture of the packages below this one,
and the journey of a record through them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.pipeline.declare.application import Application, Batch
    from headrace.pipeline.declare.dag import Dag
    from headrace.pipeline.declare.per_row import per_row
    from headrace.pipeline.declare.stores import Console, Delta, Parquet, Postgres

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
    "Application": "declare.application",
    "Batch": "declare.application",
    "Console": "declare.stores",
    "Dag": "declare.dag",
    "Delta": "declare.stores",
    "Parquet": "declare.stores",
    "Postgres": "declare.stores",
    "per_row": "declare.per_row",
}


def __getattr__(name: str) -> object:
    """Import a public name at its first use: the command line must not pay for pipelines."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"headrace.pipeline.{_HOMES[name]}"), name)
