"""Machine-learning scoring with a pandas UDF: card payments in, each with its risk out.

    headrace pipeline run examples/scoring.py

The model is a logistic regression, trained with numpy on made-up payments when the pipeline starts;
yours would be loaded from a file of the package. A pandas UDF gets a whole Arrow batch at a time,
so scoring costs a few array operations and not a call per row. `threshold` is a live property:

    headrace pipeline set scoring suspicious threshold=0.9
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from headrace import Application

SAMPLE = {
    "payments": [
        {"card": "…4242", "amount": 12.5, "hour": 14, "abroad": False},
        {"card": "…1881", "amount": 950.0, "hour": 3, "abroad": True},
        {"card": "…0005", "amount": 80.0, "hour": 9, "abroad": False},
    ]
}

app = Application("scoring", trigger="1 second")
app.topic(
    "payments",
    "bank/payments",
    schema="card string, amount double, hour int, abroad boolean",
)


def train(rows: int = 4000, steps: int = 500) -> Callable[..., np.ndarray]:
    """A model: a function of arrays, with the weights that gradient descent found."""

    def features(amount: np.ndarray, hour: np.ndarray, abroad: np.ndarray) -> np.ndarray:
        return np.column_stack([np.ones(len(hour)), np.log1p(amount) / 3, hour < 6, abroad])

    def risk(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-(x @ weights)))

    random = np.random.default_rng(7)
    x = features(
        random.exponential(120, rows), random.integers(0, 24, rows), random.random(rows) < 0.2
    )
    fraud = random.random(rows) < risk(np.array([-9.0, 3.3, 1.5, 2.0]), x)
    weights = np.zeros(4)
    for _ in range(steps):
        weights -= 2.0 * x.T @ (risk(weights, x) - fraud) / rows
    return lambda amount, hour, abroad: risk(weights, features(amount, hour, abroad))


@app.operator(to="bank/scored", key="card")
def scored(payments: DataFrame) -> DataFrame:
    model = train()

    @F.pandas_udf("double")
    def risk(amount: pd.Series, hour: pd.Series, abroad: pd.Series) -> pd.Series:
        return pd.Series(model(amount.to_numpy(), hour.to_numpy(), abroad.to_numpy()))

    return payments.withColumn("risk", F.round(risk("amount", "hour", "abroad"), 3))


@app.operator(to="bank/suspicious", key="card", live=True)
def suspicious(scored: DataFrame, *, threshold: float = 0.2) -> DataFrame:
    return scored.where(F.col("risk") > threshold)
