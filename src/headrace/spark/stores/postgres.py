"""A PostgreSQL table: tasks copy rows into a staging table, the driver moves them in one step.

One transaction moves what the tasks staged into the table and the query's window in
`headrace_windows` up. A window that is not above that one is not written again. Rows of attempts
that the driver does not know of (a task that was run twice) stay behind and are truncated.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, InvalidArgumentError, UnavailableError
from headrace.spark.options import resolve_reference
from headrace.spark.stores.postgres_columns import (
    PART,
    ROW,
    check_fit,
    check_frame,
    column_type,
    table_columns,
    unique_keys,
)

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from psycopg.sql import Composed
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

WINDOWS = "headrace_windows"
STAGING_VERSION = 2
CONNECT_SECONDS = 10


def check_installed() -> None:
    try:
        import psycopg  # noqa: F401 - is it there?
    except ImportError as error:
        raise ConfigError("PostgreSQL needs: pip install 'headrace[postgres]'") from error


def write_window(
    frame: DataFrame,
    *,
    address: str,
    table: str,
    key: Sequence[str],
    query: str,
    window: int,
    mode: str,
) -> int:
    """Move the frame into the table as the query's window unless it is there; how many rows.

    ConfigError for a frame that does not fit the table, before anything is staged.
    """
    check_installed()
    check_frame(frame.schema, key, f"PostgreSQL table {table}")
    columns = list(frame.columns)
    with _connect(address) as connection:
        if _last_window(connection, query) >= window:
            return 0
        staging = _prepare(connection, frame, table, key, query)
    parts = _stage(frame, address, staging, columns)
    with _connect(address) as connection:
        return _move(connection, staging, table, columns, key, parts, (query, window), mode)


def _connect(address: str) -> psycopg.Connection[Any]:
    import psycopg

    resolved = address
    if address.startswith(("env:", "file:")):
        resolved = resolve_reference(address)
        if not resolved:
            raise ConfigError(f"{address} is not set where the pipeline runs")
    try:
        return psycopg.connect(resolved, connect_timeout=CONNECT_SECONDS)
    except psycopg.OperationalError as error:
        # The message names host and port; the connection string may hold a password.
        raise UnavailableError(f"PostgreSQL cannot be reached: {error}") from None


def _sql(text: str, *names: str) -> Composed:
    from psycopg import sql

    return sql.SQL(text).format(*(sql.Identifier(*name.split(".")) for name in names))


def _list(columns: Sequence[str], template: str = "{}") -> Composed:
    from psycopg import sql

    each = [sql.SQL(template).format(sql.Identifier(name)) for name in columns]
    return sql.SQL(", ").join(each)


def _last_window(connection: psycopg.Connection[Any], query: str) -> int:
    connection.execute(
        _sql(
            "CREATE TABLE IF NOT EXISTS {} (query text PRIMARY KEY, window_id bigint NOT NULL, "
            "committed_at timestamptz NOT NULL DEFAULT now())",
            WINDOWS,
        )
    )
    found = connection.execute(
        _sql("SELECT window_id FROM {} WHERE query = %s", WINDOWS), (query,)
    ).fetchone()
    return -1 if found is None else int(found[0])


def _prepare(
    connection: psycopg.Connection[Any],
    frame: DataFrame,
    table: str,
    key: Sequence[str],
    query: str,
) -> str:
    """Make the table and the query's staging table unless they are there."""
    from psycopg import sql

    definitions = [
        sql.SQL("{} " + column_type(field.dataType)).format(sql.Identifier(field.name))
        for field in frame.schema.fields
    ]
    make = _sql("CREATE TABLE IF NOT EXISTS {} (", table) + sql.SQL(", ").join(definitions)
    if key:
        make += sql.SQL(", PRIMARY KEY (") + _list(key) + sql.SQL(")")
    connection.execute(make + sql.SQL(")"))
    columns = _checked(connection, frame.schema, table, key)
    # Other columns, another staging table: what an earlier version staged is of no use.
    identity = json.dumps([STAGING_VERSION, query, table, columns])
    staging = f"headrace_stage_{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    connection.execute(
        _sql(
            "CREATE UNLOGGED TABLE IF NOT EXISTS {} AS SELECT ''::text AS {}, 0::bigint AS {}, ",
            staging,
            PART,
            ROW,
        )
        + _list(frame.columns)
        + _sql(" FROM {} WITH NO DATA", table)
    )
    return staging


def _checked(
    connection: psycopg.Connection[Any], schema: StructType, table: str, key: Sequence[str]
) -> list[tuple[str, str]]:
    """The table's columns that are written, with their types; ConfigError if they do not fit."""
    place, name = f"PostgreSQL table {table}", _sql("{}", table).as_string(connection)
    columns = table_columns(connection, name)
    check_fit(schema, columns, place)
    if key and set(key) not in unique_keys(connection, name):
        raise ConfigError(
            f"{place} has no unique index on ({', '.join(key)}), by which rows are to be replaced; "
            "make one, or leave out the key"
        )
    return [(each.name, each.text) for each in columns if each.name in schema.names]


def _stage(
    frame: DataFrame, address: str, staging: str, columns: list[str]
) -> list[tuple[str, int]]:
    """(part, rows) of each task."""

    def write_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        for part, rows in _copy(batches, address, staging, columns):
            yield pyarrow.RecordBatch.from_pydict({"part": [part], "rows": [rows]})

    return [
        (row.part, row.rows)
        for row in frame.mapInArrow(write_part, "part string, rows bigint").collect()
    ]


def _copy(
    batches: Iterator[pa.RecordBatch], address: str, staging: str, columns: list[str]
) -> Iterator[tuple[str, int]]:
    """Copy a task's rows under a name of this attempt's own; nothing for no rows."""
    part, count = uuid.uuid4().hex, 0
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return
    statement = (
        _sql("COPY {} ({}, {}, ", staging, PART, ROW) + _list(columns) + _sql(") FROM STDIN")
    )
    with (
        _connect(address) as connection,
        connection.cursor() as cursor,
        cursor.copy(statement) as copy,
    ):
        for batch in chain((first,), batches):
            values = [_values(*column) for column in zip(batch.columns, columns, strict=True)]
            for number, row in enumerate(zip(*values, strict=True), start=count):
                copy.write_row((part, number, *row))
            count += batch.num_rows
    yield part, count


def _values(column: pa.Array, name: str) -> list[Any]:
    import pyarrow
    import pyarrow.compute as pc

    from headrace.spark.formats.json_text import json_values

    if pyarrow.types.is_nested(column.type):
        column = json_values(column)
    elif pyarrow.types.is_string(column.type) and pc.any(pc.match_substring(column, "\0")).as_py():
        raise InvalidArgumentError(
            f"column {name}: a text holds the character 0, which PostgreSQL cannot keep"
        )
    values: list[Any] = column.to_pylist()
    return values


def _move(
    connection: psycopg.Connection[Any],
    staging: str,
    table: str,
    columns: list[str],
    key: Sequence[str],
    parts: list[tuple[str, int]],
    identity: tuple[str, int],
    mode: str,
) -> int:
    moved = connection.execute(
        _sql(
            "INSERT INTO {0} AS w (query, window_id) VALUES (%s, %s) ON CONFLICT (query) DO UPDATE "
            "SET window_id = excluded.window_id, committed_at = now() "
            "WHERE w.window_id < excluded.window_id RETURNING window_id",
            WINDOWS,
        ),
        identity,
    ).fetchone()
    if moved is None:
        return 0  # somebody else wrote this window in the meantime
    if mode == "complete":
        connection.execute(_sql("DELETE FROM {}", table))
    insert = _sql("INSERT INTO {} (", table) + _list(columns) + _sql(") SELECT ")
    rows = _sql(" FROM {} WHERE {} = ANY(%(parts)s)", staging, PART)
    if key:
        # Of one key the window's last row counts: a statement replaces a row once.
        insert += _sql("DISTINCT ON (") + _list(key) + _sql(") ") + _list(columns) + rows
        insert += _sql(" ORDER BY ") + _list(key)
        insert += _sql(", array_position(%(parts)s, {}) DESC, {} DESC", PART, ROW)
        others = [name for name in columns if name not in key]
        changes = _sql("UPDATE SET ") + _list(others, "{0} = excluded.{0}")
        insert += _sql(" ON CONFLICT (") + _list(key) + _sql(") DO ")
        insert += changes if others else _sql("NOTHING")
    else:
        insert += _list(columns) + rows
    written = connection.execute(insert, {"parts": [part for part, _ in parts]}).rowcount
    expected = sum(rows for _, rows in parts)
    if not key and written != expected:
        raise UnavailableError(
            f"{expected} rows were staged for {table} and {written} were there: another writer of "
            "this query has cleared them"
        )
    connection.execute(_sql("TRUNCATE {}", staging))
    return expected
