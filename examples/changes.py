"""Change data to Delta: a database's changes in, its table as it is now and their history out.

    pip install 'headrace[delta]'
    headrace pipeline run examples/changes.py

The changes are what Debezium and its kin write: an operation (`c`reate, `u`pdate, `d`elete), the
row after it, and a number that grows. Two Delta tables come out, each window in one commit:

* `history`: every change, appended
* `customers`: the newest row of each customer that was not deleted; `output_mode="complete"`
  replaces the table's rows with every window, so nobody ever reads half of one

    python -c 'import deltalake; print(deltalake.DeltaTable("/tmp/lake/customers").to_pandas())'
"""

import os

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from headrace import Application, Delta

LAKE = os.environ.get("LAKE", "/tmp/lake")  # of the server's environment: this runs there

SAMPLE = {
    "changes": [
        {"op": "c", "number": 1, "id": 1, "row": {"name": "Ann", "city": "Oslo"}},
        {"op": "c", "number": 2, "id": 2, "row": {"name": "Bob", "city": "Rome"}},
        {"op": "u", "number": 3, "id": 1, "row": {"name": "Ann", "city": "Bergen"}},
        {"op": "d", "number": 4, "id": 2, "row": None},
        {"op": "c", "number": 5, "id": 3, "row": {"name": "Cid", "city": "Paris"}},
    ]
}

app = Application("changes", trigger="1 second")
app.topic(
    "changes",
    "shop/customer-changes",
    schema="op string, number bigint, id bigint, row struct<name: string, city: string>",
    on_bad_row="dead_letter",
)


@app.operator
def history(changes: DataFrame) -> DataFrame:
    return changes.select("number", "op", "id", "row.*")


@app.operator
def customers(changes: DataFrame) -> DataFrame:
    newest = changes.groupBy("id").agg(F.max_by(F.struct("op", "row"), "number").alias("last"))
    return newest.where("last.op != 'd'").select("id", "last.row.*")


app.store("history", Delta(f"{LAKE}/history"))
app.store("customers", Delta(f"{LAKE}/customers"), output_mode="complete")
