"""What `headrace bench` measures and shows, without a broker."""

from __future__ import annotations

import math
import random
from html.parser import HTMLParser
from typing import Any

import pytest

from headrace.cli.bench.figures import PERCENTILES, Latencies, TrafficFigures, compare, differing
from headrace.cli.bench.report import to_html


def test_percentiles_are_right_to_one_percent() -> None:
    chosen = random.Random(1)
    values = sorted(chosen.lognormvariate(-6, 1.5) for _ in range(50_000))
    latencies = Latencies()
    for value in values:
        latencies.record(value)
    for percent in PERCENTILES:
        right = values[math.ceil(round(percent / 100 * len(values), 6)) - 1]
        assert latencies.percentile(percent) == pytest.approx(right, rel=0.01, abs=2e-6)
    assert latencies.max == values[-1]
    assert latencies.percentile(100) == values[-1]
    assert latencies.mean == pytest.approx(sum(values) / len(values))
    curve = latencies.curve()
    assert curve == sorted(curve)
    assert curve[-1][0] > 99.99


def test_latencies_merge() -> None:
    one, other, both = Latencies(), Latencies(), Latencies()
    for n in range(1, 1000):
        (one if n % 3 else other).record(n / 1000)
        both.record(n / 1000)
    one.merge(other)
    assert one.to_json() == both.to_json()
    assert Latencies().to_json()["p50"] == 0
    assert Latencies().curve() == []


def report(factor: float = 1.0) -> dict[str, Any]:
    side = TrafficFigures(started=100.0)
    for n in range(1, 500):
        side.add(100 + n / 100, 0.001 * n * factor, 10, 1000)
    figures = side.to_json()
    return {
        "report": 1,
        "name": "bench <both>",
        "made_at": "2026-01-01T00:00:00+00:00",
        "version": "1",
        "server": "0.10.0",
        "machine": {"cores": 2, "system": "Linux", "python": "3.11"},
        "settings": {"topic": "<script>alert(1)</script>", "size": 100 * factor, "seconds": 4},
        "errors": [],
        "produce": figures,
        "end_to_end": {k: figures[k] for k in ("latency_ms", "latency_curve")},
    }


def test_a_sides_figures() -> None:
    figures = report()["produce"]
    assert (figures["messages"], figures["bytes"]) == (4990, 499_000)
    assert figures["messages_per_second"] == pytest.approx(1000, rel=0.01)
    assert [row[0] for row in figures["per_second"]] == [0, 1, 2, 3, 4]
    assert sum(row[1] for row in figures["per_second"]) == 4990


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_needs_nothing_else_and_escapes() -> None:
    before, now = report(), report(2.0)
    changes = compare(now, before)
    page = Page()
    page.feed(to_html(now, before, changes))
    assert page.tags.count("svg") == 2
    assert page.tags.count("polyline") == 6, "three lines, each with the run before it"
    assert page.loaded == []
    assert "script" not in page.tags
    text = "".join(page.text)
    assert "bench <both>" in text
    assert "<script>alert(1)</script>" in text
    assert "+100.0 % worse" in text
    assert "The runs differ in size." in text
    alone = Page()
    alone.feed(to_html(now))
    assert alone.tags.count("polyline") == 3


def test_a_comparison_says_what_is_better() -> None:
    found = {each.name: each for each in compare(report(0.5), report())}
    assert found["produce p50 ms"].better is True
    assert found["produce p50 ms"].percent == pytest.approx(-50, abs=1)
    assert found["produce messages_per_second"].better is None, "the same"
    assert found["end_to_end p99 ms"].better is True
    assert "consume p50 ms" not in found
    assert differing(report(0.5), report()) == ["size"]
    assert differing(report(), report()) == []


def test_what_came_after_the_end_is_no_second_of_the_plot() -> None:
    page = to_html(report())
    first = page.split("<polyline points=")[1].split('"')[1]
    assert len(first.split()) == 4, "four seconds, though five have figures"
