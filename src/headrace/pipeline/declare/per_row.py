"""Functions of rows, wrapped so that one that fails costs its row and not the batch.

    @per_row("sku string, total double")
    def priced(row):
        return {"sku": row["sku"], "total": PRICES[row["sku"]] * row["qty"]}

    @app.operator(to="shop/totals")
    def totals(orders):
        return priced(orders)

A row for which the function raises, or returns what does not fit the schema, goes to the
dead-letter topic of the operator whose result it is in, with the exception as the reason
(`bad_rows.py`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.pipeline.declare.declarations import ON_BAD_ROW

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    RowFunction = Callable[[dict[str, Any]], Mapping[str, Any] | Sequence[Mapping[str, Any]] | None]

FAILED = "_failed"  # column of a row that the function failed on: what to do, why, and with what
FAILED_TYPE = "struct<action:string,reason:string,row:string>"
REASON_CHARACTERS_MAX = 200
CARRIED = "_record_"  # columns with this prefix lead a row back to its message


def per_row(
    schema: str, *, on_bad_row: str = "dead_letter"
) -> Callable[[RowFunction], Callable[..., DataFrame]]:
    """Make a function of a row, as a dict, a function of DataFrames with the columns of `schema`.

    It returns a dict, a list of dicts for several rows, or None for no row. `on_bad_row` says what
    happens to a row that it fails on: "dead_letter", "drop" or "fail".
    """
    if on_bad_row not in ON_BAD_ROW:
        raise ConfigError(f"on_bad_row is one of {', '.join(ON_BAD_ROW)}: {on_bad_row!r}")

    def wrap(function: RowFunction) -> Callable[..., DataFrame]:
        @functools.wraps(function)  # so that its parameter's name is the input port
        def apply(*rows: DataFrame, **named: DataFrame) -> DataFrame:
            (frame,) = (*rows, *named.values())
            return _apply(frame, function, schema, on_bad_row)

        return apply

    return wrap


def _apply(rows: DataFrame, function: RowFunction, schema: str, on_bad_row: str) -> DataFrame:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    result = StructType.fromDDL(schema)
    carried = [each for each in rows.schema.fields if each.name.startswith(CARRIED)]
    failed = StructType.fromDDL(f"{FAILED} {FAILED_TYPE}")
    whole = StructType([*result, *carried, *failed])
    mapper = RowMapper(
        function,
        to_arrow_schema(result, timezone="UTC"),
        to_arrow_schema(whole, timezone="UTC"),
        tuple(each.name for each in carried),
        on_bad_row,
    )
    return rows.mapInArrow(mapper, whole)


@dataclass(frozen=True, slots=True)
class RowMapper:
    """Runs in Spark's workers, batch by batch."""

    function: RowFunction
    result: pa.Schema
    whole: pa.Schema
    carried: tuple[str, ...]
    action: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield self._map(batch)

    def _map(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        made = _Made()
        inputs = batch.drop_columns(list(self.carried)).to_pylist()
        for index, row in enumerate(inputs):
            try:
                for each in _rows(self.function(dict(row))):
                    made.add(self._checked(each), index)
            except Exception as error:  # the user's code: it costs this row
                reason = f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]
                made.fail(index, {"action": self.action, "reason": reason, "row": _text(row)})
        origin = pa.array(made.origins, pa.int64())
        columns = pa.Table.from_pylist(made.rows, schema=self.result).combine_chunks()
        arrays = [
            *(_one(column) for column in columns.columns),
            *(batch.column(name).take(origin) for name in self.carried),
            pa.array(made.failures, self.whole.field(FAILED).type),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.whole)

    def _checked(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Of the schema's fields; raises for a value that does not fit its column."""
        import pyarrow as pa

        if unknown := sorted(set(row) - set(self.result.names)):
            raise ValueError(f"the result has {', '.join(unknown)}, which the schema has not")
        for each in self.result:
            pa.scalar(row.get(each.name), each.type)
        return {name: row.get(name) for name in self.result.names}


@dataclass(slots=True)
class _Made:
    """What a batch has become so far; a row that failed has nulls and a failure."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    failures: list[dict[str, str] | None] = field(default_factory=list)

    def add(self, row: dict[str, Any], origin: int) -> None:
        self.rows.append(row)
        self.origins.append(origin)
        self.failures.append(None)

    def fail(self, origin: int, failure: dict[str, str]) -> None:
        # Rows that the function gave before it failed are taken back: a row counts as one.
        while self.origins and self.origins[-1] == origin:
            for each in (self.rows, self.origins, self.failures):
                each.pop()
        self.rows.append({})
        self.origins.append(origin)
        self.failures.append(failure)


def _rows(result: Any) -> Iterator[Mapping[str, Any]]:
    if result is None:
        return
    for each in [result] if isinstance(result, Mapping) else result:
        if not isinstance(each, Mapping):
            raise TypeError(f"a row is a dict, not {type(each).__name__}")
        yield each


def _one(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _text(row: Mapping[str, Any]) -> str:
    return json.dumps(row, default=str)
