"""Where results go beside topics: declarations that `Application.store` takes.

    app.store("revenue", Parquet("/data/revenue"))
    app.store("revenue", Delta("/data/revenue_table"))
    app.store("revenue", Postgres("env:SHOP_DB", "revenue", key=("sku",)), output_mode="update")
    app.store("revenue", Console())

Each says how it delivers. The exactly-once ones write a window under its id and pass over one that
is there, so that a batch that is run again after a crash adds nothing. This module imports neither
pyspark nor a database's driver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from headrace.errors import ConfigError
from headrace.ids import WindowId
from headrace.wire.umbilical.windows import format_window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Delivery = Literal["exactly-once", "at-least-once"]
ROWS = "rows"  # the input port of every store

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?\Z")
_PASSWORD = re.compile(r"password\s*=|://[^/@\s]*:[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class Batch:
    """What a sink function is told beside its rows.

    A batch that was cut off is run again with the same rows, ids and `replay=True`: a sink that
    writes under its `window_id` (or `batch_id`) and overwrites is exactly-once.
    """

    window_id: int
    batch_id: int
    replay: bool
    query: str = ""
    """What the output is known by: the same over restarts and versions, another for new state."""
    output_mode: str = "append"


@runtime_checkable
class Store(Protocol):
    """A place for rows."""

    kind: ClassVar[str]
    delivery: ClassVar[Delivery]
    modes: ClassVar[tuple[str, ...]]

    @property
    def place(self) -> str:
        """For plans and messages; no secrets."""

    def __call__(self, rows: DataFrame, batch: Batch) -> int:
        """Write one window; how many rows that were, -1 for "nobody counted"."""


@dataclass(frozen=True, slots=True)
class Console:
    """Print the rows of every window into the container's log; for trying things out."""

    kind: ClassVar[str] = "console"
    delivery: ClassVar[Delivery] = "at-least-once"
    modes: ClassVar[tuple[str, ...]] = ("append", "update", "complete")

    rows_max: int = 20

    @property
    def place(self) -> str:
        return "console"

    def __call__(self, rows: DataFrame, batch: Batch) -> int:
        window = format_window(WindowId(batch.window_id))
        found = rows.limit(self.rows_max + 1).collect()
        print(f"window {window}{' (again)' if batch.replay else ''}", flush=True)
        for row in found[: self.rows_max]:
            print(f"  {row.asDict(recursive=True)}", flush=True)
        if len(found) > self.rows_max:
            print(f"  ... and more: {self.rows_max} are shown", flush=True)
        return min(len(found), self.rows_max)


@dataclass(frozen=True, slots=True)
class Parquet:
    """A folder of Parquet files on a file system that renames folders in one step."""

    kind: ClassVar[str] = "parquet"
    delivery: ClassVar[Delivery] = "exactly-once"
    modes: ClassVar[tuple[str, ...]] = ("append", "update")

    path: str

    def __post_init__(self) -> None:
        from headrace.spark.stores.parquet import check_path

        check_path(self.path)

    @property
    def place(self) -> str:
        return f"parquet {self.path}"

    def __call__(self, rows: DataFrame, batch: Batch) -> int:
        from headrace.spark.stores.parquet import write_window

        window = f"{batch.window_id:016x}"  # names sort as windows do
        return write_window(rows, path=self.path, query=batch.query, window=window)


@dataclass(frozen=True, slots=True)
class Delta:
    """A Delta table; `output_mode="complete"` replaces its rows with every window."""

    kind: ClassVar[str] = "delta"
    delivery: ClassVar[Delivery] = "exactly-once"
    modes: ClassVar[tuple[str, ...]] = ("append", "update", "complete")

    path: str

    @property
    def place(self) -> str:
        return f"delta {self.path}"

    def __call__(self, rows: DataFrame, batch: Batch) -> int:
        from headrace.spark.stores.delta import write_window

        return write_window(
            rows,
            path=self.path,
            query=batch.query,
            window=batch.window_id,
            replace=batch.output_mode == "complete",
        )


@dataclass(frozen=True, slots=True)
class Postgres:
    """A PostgreSQL table, made if it is not there.

    `address` is a connection string without a password, or where one stands: `env:NAME`,
    `file:PATH`. With a `key` (columns with a unique index) rows replace those of the same key;
    `output_mode="update"` needs one.
    """

    kind: ClassVar[str] = "postgres"
    delivery: ClassVar[Delivery] = "exactly-once"
    modes: ClassVar[tuple[str, ...]] = ("append", "update", "complete")

    address: str
    table: str
    key: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _TABLE.match(self.table):
            raise ConfigError(f"table {self.table!r}: write table or schema.table")
        if not self.address.startswith(("env:", "file:")) and _PASSWORD.search(self.address):
            raise ConfigError(
                "a password would stand in plans and logs; give the connection string as "
                "env:NAME or file:PATH"
            )

    @property
    def place(self) -> str:
        return f"postgres {self.table}"

    def __call__(self, rows: DataFrame, batch: Batch) -> int:
        from headrace.spark.stores.postgres import write_window

        return write_window(
            rows,
            address=self.address,
            table=self.table,
            key=self.key,
            query=batch.query,
            window=batch.window_id,
            mode=batch.output_mode,
        )


STORES: Mapping[str, Callable[..., Store]] = {
    f"{kind.__module__}:{kind.__qualname__}": kind for kind in (Console, Parquet, Delta, Postgres)
}


def store_arguments(store: Store) -> dict[str, Any]:
    """What `make_store` makes it of again, as JSON."""
    return {
        each.name: list(value) if isinstance(value := getattr(store, each.name), tuple) else value
        for each in fields(store)  # type: ignore[arg-type]  # all stores are dataclasses
    }


def make_store(reference: str, arguments: Mapping[str, Any]) -> Store:
    if reference not in STORES:
        raise ConfigError(f"there is no store {reference}")
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in arguments.items()
    }
    return STORES[reference](**values)


def check_store(store: Store, output_mode: str) -> None:
    if output_mode not in store.modes:
        raise ConfigError(
            f"{store.place} takes output_mode {' or '.join(store.modes)}, not {output_mode}"
        )
    if isinstance(store, Postgres) and output_mode == "update" and not store.key:
        raise ConfigError(
            f'{store.place} in output_mode "update" replaces rows by their key: Postgres(..., '
            'key=("sku",))'
        )
