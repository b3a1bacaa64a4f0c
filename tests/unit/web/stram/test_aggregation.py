"""Metrics of several instances become one value, as they were declared."""

from __future__ import annotations

from typing import Any

from headrace.web.stram.views import aggregate
from tests.unit.pipeline.declare.test_dag import decorated

DECLARED = [
    ["units", "sum(n)", "output", "sum"],
    ["most", "max(n)", "ok", "max"],
    ["mean", "avg(n)", "output", "avg"],
    ["least", "min(n)", "output", "min"],
    ["newest", "max(n)", "output", "last"],
]


def test_each_metric_is_aggregated_in_its_own_way() -> None:
    instances: list[dict[str, Any]] = [
        {"units": 1, "ok.most": 5, "mean": 1.0, "least": 3, "newest": 9, "batch_duration_ms": 70},
        {"units": 2, "ok.most": 4, "mean": 2.0, "least": 2, "newest": 8, "batch_duration_ms": 90},
        {"units": 4, "state": "warm", "good": True, "rows": 6},
    ]
    assert aggregate(instances, DECLARED) == {
        "units": 7,
        "ok.most": 5,
        "mean": 1.5,
        "least": 2,
        "newest": 8,
        "batch_duration_ms": 90,
        "state": "warm",
        "good": True,
        "rows": 6,
    }
    assert aggregate([]) == {}


def test_the_plan_says_how() -> None:
    split = next(one for one in decorated().plan()["operators"] if one["name"] == "split")
    declared = split["attributes"]["METRICS"]
    instances = [{"ok.units": 1, "ok.most": 3}, {"ok.units": 2, "ok.most": 2}]
    assert aggregate(instances, declared) == {"ok.units": 3, "ok.most": 3}
