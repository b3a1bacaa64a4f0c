"""A join of two topics: orders and their payments in, each order with its payment out.

    headrace pipeline run examples/payments.py

An order waits for its payment for ten minutes of event time. One that was not paid by then comes
out too, with `paid_at` null: that is what the outer join is for. The bounds on both sides let
Spark forget what can no longer match, so the state stays small for ever.
"""

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from headrace import Application

SAMPLE = {
    "orders": [
        {"order_id": "o-1", "customer": "ann", "total": 9.0, "at": "2026-01-01T12:00:00Z"},
        {"order_id": "o-2", "customer": "bob", "total": 39.0, "at": "2026-01-01T12:01:00Z"},
        {"order_id": "o-3", "customer": "cid", "total": 3.0, "at": "2026-01-01T13:00:00Z"},
    ],
    "payments": [
        {"order_id": "o-1", "card": "…4242", "at": "2026-01-01T12:03:00Z"},
        {"order_id": "o-2", "card": "…1881", "at": "2026-01-01T12:30:00Z"},
        {"order_id": "o-3", "card": "…4242", "at": "2026-01-01T13:00:20Z"},
    ],
}

app = Application("payments", trigger="1 second")
app.topic(
    "orders",
    "shop/orders",
    schema="order_id string, customer string, total double, at timestamp",
)
app.topic("payments", "shop/payments", schema="order_id string, card string, at timestamp")


@app.operator(to="shop/settled", key="order_id", output_mode="append")
def settled(orders: DataFrame, payments: DataFrame, *, patience: str = "10 minutes") -> DataFrame:
    left = orders.withColumnRenamed("at", "ordered_at").withWatermark("ordered_at", "1 minute")
    right = payments.select(
        F.col("order_id").alias("paid_order"), "card", F.col("at").alias("paid_at")
    ).withWatermark("paid_at", "1 minute")
    in_time = F.expr(
        "order_id = paid_order and paid_at >= ordered_at "
        f"and paid_at <= ordered_at + interval {patience}"
    )
    return left.join(right, in_time, "left_outer").drop("paid_order")
