"""Clickstream sessions: page views in, one row per visit out.

    headrace pipeline run examples/clickstream.py

A visit ends when its visitor does nothing for half an hour. It is published once, when the
watermark says that nothing more can belong to it: 5 minutes of event time after its end.
"""

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from headrace import Application

SAMPLE = {
    "views": [
        {"visitor": "ann", "page": "/", "at": "2026-01-01T12:00:00Z"},
        {"visitor": "ann", "page": "/tea", "at": "2026-01-01T12:02:00Z"},
        {"visitor": "bob", "page": "/", "at": "2026-01-01T12:05:00Z"},
        {"visitor": "ann", "page": "/checkout", "at": "2026-01-01T12:20:00Z"},
        {"visitor": "ann", "page": "/", "at": "2026-01-01T14:00:00Z"},
        {"visitor": "bob", "page": "/mugs", "at": "2026-01-01T15:00:00Z"},
    ]
}

app = Application("clickstream", trigger="1 second")
app.topic("views", "web/views", schema="visitor string, page string, at timestamp")


@app.operator(expect={"visitor is not null and at is not null": "drop"})
def timely(views: DataFrame, *, lateness: str = "5 minutes") -> DataFrame:
    return views.withWatermark("at", lateness)


@app.operator(to="web/sessions", key="visitor", output_mode="append")
def sessions(timely: DataFrame, *, pause: str = "30 minutes") -> DataFrame:
    visits = timely.groupBy("visitor", F.session_window("at", pause).alias("visit")).agg(
        F.count("*").alias("pages"),
        F.min("at").alias("began"),
        F.max("at").alias("ended"),
        F.max_by("page", "at").alias("last_page"),
    )
    return visits.drop("visit").withColumn(
        "seconds", F.unix_timestamp("ended") - F.unix_timestamp("began")
    )
