"""JSON payloads with a schema, decoded by the source, against `from_json` over the raw source.

Both read the same topic by the same tasks. A ratio of 2.5 is the goal: here the figure to reach is
above 1, as the limit is Spark's own way to do it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from benchmarks.spark_bench import PAYLOAD_BYTES, Bench, Measured, bench, compare, fill
from benchmarks.spark_read import _table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = "sku string, qty int, price double, at timestamp"


def _payloads(first: int, count: int) -> pa.Array:
    rows = []
    for i in range(first, first + count):
        row = {
            "sku": f"sku-{i % 1000}",
            "qty": i % 97,
            "price": i / 4,
            "at": f"2026-01-01T12:00:{i % 60:02}Z",
            "user": f"user-{i}",
        }
        text = json.dumps(row)
        rows.append(f'{text[:-1]}, "note": "{"x" * (PAYLOAD_BYTES - len(text) - 12)}"}}'.encode())
    return pa.array(rows)


def _source(run: Bench) -> Any:
    return run.spark.read.format("headrace").options(**run.topic("json"))


def _native(run: Bench) -> DataFrame:
    return _source(run).option("payloadFormat", "json").schema(SCHEMA).load()


def _from_json(run: Bench) -> DataFrame:
    raw = _source(run).option("columns", "payload").load()
    return raw.select(F.from_json(F.col("payload").cast("string"), SCHEMA).alias("row")).select(
        "row.*"
    )


def run() -> list[dict[str, Any]]:
    def native() -> Measured:
        return _table(_native(each))

    def from_json() -> Measured:
        return _table(_from_json(each))

    with bench() as each:
        fill(each.target("json"), _payloads)
        return [compare("JSON with a schema, limit: from_json", native, from_json)]


if __name__ == "__main__":
    for result in run():
        print(result)
