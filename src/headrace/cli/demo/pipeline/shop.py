"""A small web shop: orders come in as JSON, revenue per category and minute goes out.

    headrace pipeline run examples/shop.py

Produce to `shop/orders`, read `shop/revenue`:

    {"order_id": "o-1", "sku": "tea", "qty": 2, "price": 4.5, "at": "2026-01-01T12:00:00Z"}
    {"window": {"start": ..., "end": ...}, "category": "drinks", "orders": 1, "revenue": 9.0}
"""

import pyspark.sql.functions as F
from pyspark.sql import DataFrame, SparkSession

from headrace import Application

CATALOGUE = [
    ("tea", "drinks", 4.5),
    ("coffee", "drinks", 6.0),
    ("mug", "kitchen", 12.0),
    ("kettle", "kitchen", 39.0),
    ("notebook", "paper", 3.0),
    ("pen", "paper", 1.5),
]

app = Application("shop", trigger="1 second")
app.topic(
    "orders",
    "shop/orders",
    schema="order_id string, sku string, qty int, price double, at timestamp, customer string",
)


@app.operator(expect={"qty > 0 and order_id is not null and at is not null": "drop"})
def valid(orders: DataFrame, *, lateness: str = "10 seconds") -> DataFrame:
    """Orders that make sense; later than this and an order misses its minute."""
    return orders.withWatermark("at", lateness)


@app.operator
def enriched(valid: DataFrame, spark: SparkSession) -> DataFrame:
    """The category of each article, and the list price where the order names none."""
    catalogue = spark.createDataFrame(CATALOGUE, "sku string, category string, list_price double")
    known = valid.join(F.broadcast(catalogue), "sku", "left")
    return known.select(
        "order_id",
        "at",
        F.coalesce("category", F.lit("other")).alias("category"),
        (F.col("qty") * F.coalesce("price", "list_price", F.lit(0.0))).alias("amount"),
    )


@app.operator(to="shop/revenue", key="category", output_mode="append")
def revenue(enriched: DataFrame, *, width: str = "10 seconds") -> DataFrame:
    """Orders and money per category and window, published once, when the window is over."""
    return enriched.groupBy(F.window("at", width), "category").agg(
        F.count(F.lit(1)).alias("orders"), F.round(F.sum("amount"), 2).alias("revenue")
    )
