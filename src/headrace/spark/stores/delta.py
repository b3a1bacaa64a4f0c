"""A Delta table, without a jar: tasks write Parquet files, the driver commits them as one version.

The commit carries the transaction (query, window) that Delta's protocol has for this purpose. A
window that is not above the table's last one for this query is not written again, and of two
writers of one window the table's own conflict check lets one through. Files that were written and
never committed are what `VACUUM` removes.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, UnavailableError
from headrace.spark.stores.columns import cast, fit, refuse_kinds, refuse_twins

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame

FILE_ROWS_MAX = 500_000  # a task with more rows writes several files

_KINDS = frozenset(
    [
        "string",
        "byte",
        "short",
        "integer",
        "long",
        "float",
        "double",
        "boolean",
        "binary",
        "date",
        "timestamp",
        "timestamp_ntz",
    ]
)
_DEMANDS = frozenset(("delta.generationExpression", "delta.identity.start", "delta.invariants"))
"""Of a column, which a writer computes or checks."""


def check_installed() -> None:
    try:
        import deltalake  # noqa: F401 - is it there?
    except ImportError as error:
        raise ConfigError("a Delta table needs: pip install 'headrace[delta]'") from error


def write_window(frame: DataFrame, *, path: str, query: str, window: int, replace: bool) -> int:
    """Commit the frame as the query's window unless that is there; how many rows it added.

    ConfigError for a frame that does not fit the table, before anything is written.
    """
    check_installed()
    from deltalake import CommitProperties, DeltaTable
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import AddAction, RemoveAction, Transaction

    table = _table(frame, path)
    last = table.transaction_version(query)
    if last is not None and last >= window:
        return 0
    fitted, required = _fitted(frame, table, path)
    written = _write_files(fitted, path, required)
    actions: list[AddAction | RemoveAction] = [
        AddAction(
            path=name,
            size=size,
            partition_values={},
            modification_time=modified_ms,
            data_change=True,
            stats=json.dumps({"numRecords": rows}),
        )
        for name, size, rows, modified_ms in written
    ]
    try:
        table.create_write_transaction(
            actions,
            mode="overwrite" if replace else "append",
            schema=table.schema(),
            commit_properties=CommitProperties(app_transactions=[Transaction(query, window)]),
        )
    except CommitFailedError as error:
        if (DeltaTable(path).transaction_version(query) or -1) >= window:
            return 0  # somebody else wrote this window in the meantime
        raise UnavailableError(f"{path}: {error}") from error
    return sum(rows for _, _, rows, _ in written)


def _table(frame: DataFrame, path: str) -> DeltaTable:
    """Made with the frame's columns unless it is there."""
    from deltalake import DeltaTable, Schema

    if not DeltaTable.is_deltatable(path):
        fields = frame.schema.jsonValue()["fields"]
        refuse_twins(frame.columns, f"Delta table {path}")
        refuse_kinds(fields, _KINDS, f"Delta table {path}")
        schema = {"type": "struct", "fields": [{**each, "metadata": {}} for each in fields]}
        DeltaTable.create(path, Schema.from_json(json.dumps(schema)), mode="ignore")
    return DeltaTable(path)


def _fitted(frame: DataFrame, table: DeltaTable, path: str) -> tuple[DataFrame, list[str]]:
    """The rows as the table's columns have them, and the columns that may not be null."""
    place = f"Delta table {path}"
    refuse_twins(frame.columns, place)
    _refuse_features(table, place)
    fields = json.loads(table.schema().to_json())["fields"]
    casts = fit(frame.schema.jsonValue()["fields"], fields, place)
    return cast(frame, casts), [each["name"] for each in fields if not each["nullable"]]


def _refuse_features(table: DeltaTable, place: str) -> None:
    """What a table can ask of its writers and this one does not do: rows would be wrong."""
    found = table.metadata()
    if found.partition_columns:
        raise ConfigError(
            f"{place} is partitioned by {', '.join(found.partition_columns)}: it is written "
            "without partitions here; write to a table without, or by a function sink"
        )
    asked = [name for name in found.configuration if name.startswith("delta.constraints.")]
    mapping = found.configuration.get("delta.columnMapping.mode") or "none"
    if mapping != "none":
        asked.append("delta.columnMapping.mode")
    for each in table.schema().fields:
        asked += [f"{name} of column {each.name}" for name in each.metadata if name in _DEMANDS]
    if asked:
        raise ConfigError(
            f"{place} has {', '.join(sorted(asked))}, which this sink does not carry out; write "
            "to a table without, or by a function sink"
        )


def _write_files(
    frame: DataFrame, path: str, required: list[str]
) -> list[tuple[str, int, int, int]]:
    """(name, bytes, rows, time) of the files that hold the frame's rows."""

    def write_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        files = list(_task_files(batches, path, required))
        columns: list[list[Any]] = [list(column) for column in zip(*files, strict=True)]
        names = ("name", "bytes", "rows", "modified_ms")
        if files:
            yield pyarrow.RecordBatch.from_pydict(dict(zip(names, columns, strict=True)))

    kept = "name string, bytes bigint, rows bigint, modified_ms bigint"
    return [tuple(row) for row in frame.mapInArrow(write_part, kept).collect()]


def _task_files(
    batches: Iterator[pa.RecordBatch], path: str, required: list[str]
) -> Iterator[tuple[str, int, int, int]]:
    """A new name for every attempt: what a failed one wrote is never named in a commit."""
    import time

    import pyarrow.fs
    import pyarrow.parquet

    files, folder = pyarrow.fs.FileSystem.from_uri(path if "://" in path else f"file://{path}")
    rows: list[pa.RecordBatch] = []

    def write_file() -> tuple[str, int, int, int]:
        name = f"part-{uuid.uuid4()}.parquet"
        table = pyarrow.Table.from_batches(rows)
        pyarrow.parquet.write_table(table, f"{folder}/{name}", filesystem=files)
        size = int(files.get_file_info(f"{folder}/{name}").size)
        return name, size, table.num_rows, int(time.time() * 1000)

    for batch in batches:
        for name in required:
            if batch.column(name).null_count:
                raise ConfigError(f"{path}: column {name} may not be null, and a row has none")
        if batch.num_rows:
            rows.append(batch)
        if sum(each.num_rows for each in rows) >= FILE_ROWS_MAX:
            yield write_file()
            rows = []
    if rows:
        yield write_file()
