"""Every example on a real Spark: its own sample in, and what a person expects out."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import deltalake
import pytest
from pyspark.sql import SparkSession

from headrace import Batch

EXAMPLES = Path(__file__).parents[2] / "examples"
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def load(name: str) -> ModuleType:
        return importlib.reload(importlib.import_module(name))

    return load


def test_word_count(spark: SparkSession, load: Load) -> None:
    example = load("word_count")
    first, second = example.SAMPLE["lines"]
    rows = example.app.test(spark, lines=[[first], [second, "Water!"]])["counts"]
    last = {row["word"]: row["count"] for row in rows}
    assert last == {
        "the": 4, "mill": 1, "turns": 1, "because": 2, "water": 3, "comes": 2, "of": 1,
        "headrace": 1,
    }  # fmt: skip
    # A word is published again when, and only when, its count has changed.
    assert [row["count"] for row in rows if row["word"] == "the"] == [2, 4]
    assert [row["count"] for row in rows if row["word"] == "mill"] == [1]


def test_clickstream(spark: SparkSession, load: Load) -> None:
    example = load("clickstream")
    rows = example.app.test(spark, views=[*example.SAMPLE["views"], {"page": "/"}], close=True)
    found = sorted((row.visitor, row.pages, row.seconds, row.last_page) for row in rows["sessions"])
    assert found == [
        ("ann", 1, 0, "/"),
        ("ann", 3, 1200, "/checkout"),
        ("bob", 1, 0, "/"),
        ("bob", 1, 0, "/mugs"),
    ]


def test_changes_to_delta(
    spark: SparkSession, load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE", str(tmp_path))
    example = load("changes")
    changes = example.SAMPLE["changes"]
    results = example.app.test(spark, changes=[changes[:3], [*changes[3:], "no change"]])
    assert len(results["history_delta"]) == 5
    expected = [(1, "Ann", "Bergen"), (3, "Cid", "Paris")]
    assert sorted(tuple(row) for row in results["customers_delta"][-2:]) == expected
    # A test leaves stores alone, so the rows go to the real table by hand; twice, as after a crash.
    stage = example.app.stages["customers_delta"]
    frame = spark.createDataFrame(results["customers_delta"][-2:])
    batch = Batch(window_id=7, batch_id=1, replay=False, query="customers", output_mode="complete")
    stage.function(frame, batch)
    version = deltalake.DeltaTable(str(tmp_path / "customers")).version()
    stage.function(frame, batch)
    table = deltalake.DeltaTable(str(tmp_path / "customers"))
    assert table.version() == version
    assert sorted(map(tuple, table.to_pandas().values.tolist())) == expected


def test_join_of_two_topics(spark: SparkSession, load: Load) -> None:
    example = load("payments")
    rows = example.app.test(spark, close=True, **example.SAMPLE)["settled"]
    found = {row.order_id: (row.customer, row.card, row.paid_at is not None) for row in rows}
    assert found == {
        "o-1": ("ann", "…4242", True),
        "o-2": ("bob", None, False),  # paid too late
        "o-3": ("cid", "…4242", True),
    }
    assert len(rows) == 3


def test_scoring(spark: SparkSession, load: Load) -> None:
    example = load("scoring")
    results = example.app.test(spark, **example.SAMPLE)
    risks = {row.card: row.risk for row in results["scored"]}
    assert 0 <= risks["…4242"] < risks["…0005"] < 0.2 < 0.5 < risks["…1881"] <= 1
    assert [row.card for row in results["suspicious"]] == ["…1881"]
    strict = example.app.test(
        spark, properties={"suspicious": {"threshold": 0.999}}, **example.SAMPLE
    )
    assert strict["suspicious"] == []


def test_each_example_says_how_to_run_it() -> None:
    page = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.glob("*.py"):
        if path.name == "send.py":
            continue
        assert f"[{path.name}]({path.name})" in page
        assert f"headrace pipeline run examples/{path.name}" in path.read_text()
    assert len(re.findall(r"^## ", page, re.MULTILINE)) == 5
