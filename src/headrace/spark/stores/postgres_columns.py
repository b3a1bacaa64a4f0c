"""Whether a frame fits a PostgreSQL table: looked up in its catalogue before anything is staged.

A value is written as what it is or not at all. What has parts is JSON; text goes into whatever
PostgreSQL reads as text (an enumeration, a uuid), but not into numbers and times, which could fail
for one row in a million.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.spark.stores.columns import refuse_kinds, refuse_twins, widens

if TYPE_CHECKING:
    import psycopg
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

    from headrace.spark.formats.json_text import check_json

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
