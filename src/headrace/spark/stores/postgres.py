"""A PostgreSQL table: tasks copy rows into a staging table, the driver moves them in one step.

One transaction moves what the tasks staged into the table and the query's window in
`headrace_windows` up. A window that is not above that one is not written again. Rows of attempts
that the driver does not know of (a task that was run twice) stay behind and are truncated.

Whether a frame fits the table is looked up in PostgreSQL's catalogue before anything is staged. A
value is written as what it is or not at all. What has parts is JSON; text goes into whatever
PostgreSQL reads as text (an enumeration, a uuid), but not into numbers and times, which could fail
for one row in a million.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, InvalidArgumentError, UnavailableError
from headrace.spark.options import resolve_reference
from headrace.spark.stores.columns import refuse_kinds, refuse_twins, widens

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from psycopg.sql import Composed
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType


PART = "headrace_part"
ROW = "headrace_row"
NAME_BYTES_MAX = 63  # PostgreSQL cuts off the rest

_TYPES = {
    "string": "text",
    "byte": "smallint",
    "short": "smallint",
    "integer": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
    "binary": "bytea",
}
_TAKES = {
    "byte": ("int2", "int4", "int8", "float4", "float8"),
    "short": ("int2", "int4", "int8", "float4", "float8"),
    "integer": ("int4", "int8", "float8"),
    "long": ("int8",),
    "float": ("float4", "float8"),
    "double": ("float8",),
    "boolean": ("bool",),
    "date": ("date",),
    "timestamp": ("timestamptz",),
    "timestamp_ntz": ("timestamp",),
    "binary": ("bytea",),
}
_NOT_TEXT = frozenset(
    [
        "int2",
        "int4",
        "int8",
        "numeric",
        "float4",
        "float8",
        "money",
        "bool",
        "date",
        "time",
        "timetz",
        "timestamp",
        "timestamptz",
        "interval",
        "bytea",
    ]
)
_COLUMNS = """
SELECT a.attname, coalesce(b.typname, t.typname), coalesce(b.typcategory, t.typcategory),
       CASE WHEN b.oid IS NULL THEN a.atttypmod ELSE t.typtypmod END,
       format_type(a.atttypid, a.atttypmod),
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',
       a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_type b ON b.oid = nullif(t.typbasetype, 0) AND t.typtype = 'd'
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE = """
SELECT array_agg(a.attname::text) FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid
    AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indimmediate
    AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid
"""


@dataclass(frozen=True, slots=True)
class TableColumn:
    name: str
    kind: str
    """PostgreSQL's short name of the type, of the base type for a domain."""
    category: str
    modifier: int
    text: str
    """The type as people write it."""
    needed: bool
    """It is never null, and has no default."""
    computed: bool


def column_type(kind: DataType) -> str:
    """Of a column that is made for it; what has parts is kept as JSON."""
    name = kind.jsonValue()
    if isinstance(name, str):
        return f"numeric{name.removeprefix('decimal')}" if "decimal" in name else _TYPES[name]
    return "jsonb"


def check_frame(schema: StructType, key: Sequence[str], place: str) -> None:
    """ConfigError for columns that no table of PostgreSQL could hold."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from headrace.spark.formats.encoding import check_json

    refuse_twins(schema.names, place)
    refuse_kinds(schema.jsonValue()["fields"], frozenset(_TYPES), place)
    for name in schema.names:
        if len(name.encode()) > NAME_BYTES_MAX or name in (PART, ROW):
            raise ConfigError(f"{place}: a column cannot be called {name} there; rename it")
    for name in key:
        if name not in schema.names:
            raise ConfigError(f"{place}: the key {name} is no column of the result")
    for each in to_arrow_schema(schema, timezone="UTC"):
        check_json(each.type, each.name)


def table_columns(connection: psycopg.Connection[Any], table: str) -> list[TableColumn]:
    """Of a table by its quoted name; none when there is no such table."""
    return [TableColumn(*row) for row in connection.execute(_COLUMNS, (table,)).fetchall()]


def unique_keys(connection: psycopg.Connection[Any], table: str) -> list[set[str]]:
    return [set(names) for (names,) in connection.execute(_UNIQUE, (table,)).fetchall()]


def check_fit(schema: StructType, columns: Sequence[TableColumn], place: str) -> None:
    """ConfigError with the column's name where a value could be lost, changed or refused."""
    held = {each.name: each for each in columns}
    for field in schema.fields:
        column = held.get(field.name)
        if column is None:
            raise ConfigError(
                f"{place}: the table has no column {field.name}; add it to the table, or leave it "
                "out of the result"
            )
        if column.computed:
            raise ConfigError(f"{place}: the table computes column {field.name} itself")
        if not _takes(column, field.dataType.jsonValue()):
            raise ConfigError(
                f"{place}: column {field.name} is {field.dataType.simpleString()}, the table has "
                f"{column.text}; cast it, or change the table"
            )
    for column in columns:
        if column.needed and column.name not in schema.names:
            raise ConfigError(
                f"{place}: column {column.name} may not be null, and the result has none"
            )


def _takes(column: TableColumn, kind: Any) -> bool:
    if not isinstance(kind, str):
        return column.kind in ("json", "jsonb")
    if kind == "string":
        return column.kind not in _NOT_TEXT and column.category not in ("A", "C")
    if column.kind == "numeric":
        whole = kind in ("byte", "short", "integer", "long") or kind.startswith("decimal")
        return whole and (column.modifier < 0 or widens(kind, _numeric(column.modifier)))
    return column.kind in _TAKES.get(kind, ())


def _numeric(modifier: int) -> str:
    """Precision and scale as PostgreSQL packs them; a scale has 11 bits and a sign."""
    packed = modifier - 4
    return f"decimal({packed >> 16 & 0xFFFF},{((packed & 0x7FF) ^ 1024) - 1024})"


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

    from headrace.spark.formats.encoding import json_values

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
