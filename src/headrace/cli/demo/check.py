"""Holds what the pipeline published against a plain computation of the same input.

The computation reads the orders back from the log and knows nothing of Spark, window ids,
checkpoints or restarts, so it shares no mistake with the pipeline.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

Key = tuple[float, str]

# Facts of the shop, stated here once more on purpose: the pipeline's own words prove nothing.
CATEGORIES = {
    "tea": "drinks",
    "coffee": "drinks",
    "mug": "kitchen",
    "kettle": "kitchen",
    "notebook": "paper",
    "pen": "paper",
}
WINDOW_SECONDS = 10.0
CENT = 0.01


@dataclass(frozen=True, slots=True)
class Verdict:
    windows: int
    """Results that must be there."""
    lost: int
    """Results missing or wrong."""
    duplicated: int
    """Results published again, the same to the last digit."""
    late: int
    """Orders that came too late for their window."""

    @property
    def holds(self) -> bool:
        return self.windows > 0 and self.lost == 0 and self.duplicated == 0


def _seconds(text: str) -> float:
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def expected(orders: Iterable[bytes]) -> dict[Key, tuple[int, float]]:
    """Orders and revenue per (window start, category); the closing events stay out."""
    totals: dict[Key, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for payload in orders:
        order = json.loads(payload)
        if order["order_id"] == "closing":
            continue
        start = _seconds(order["at"]) // WINDOW_SECONDS * WINDOW_SECONDS
        key = (start, CATEGORIES.get(order["sku"], "other"))
        count, revenue = totals[key]
        totals[key] = (count + 1, revenue + order["qty"] * order["price"])
    return dict(totals)


def check(orders: Iterable[bytes], results: Iterable[bytes], late: int) -> Verdict:
    wanted = expected(orders)
    found: dict[Key, list[tuple[int, float]]] = defaultdict(list)
    for payload in results:
        row = json.loads(payload)
        found[_seconds(row["window"]["start"]), row["category"]].append(
            (row["orders"], row["revenue"])
        )
    lost = sum(
        1
        for key, (count, revenue) in wanted.items()
        if not found.get(key) or any(c != count or abs(r - revenue) > CENT for c, r in found[key])
    )
    invented = sum(1 for key in found if key not in wanted)
    duplicated = sum(len(rows) - 1 for rows in found.values())
    return Verdict(len(wanted), lost + invented, duplicated, late)
