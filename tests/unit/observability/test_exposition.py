"""Prometheus' text, read back by Prometheus' own parser."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.observability.exposition import Family, bounded, family, format_families
from headrace.observability.metrics import LATENCY_SECONDS, TABLE, Histogram


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = Histogram()
    for seconds in (0.0001, 0.0002, 0.3, 60.0):
        histogram.observe(seconds)
    histogram.observe_many(0.02, 3)
    made = family("broker_request_duration_seconds")
    made.add(histogram, command="send_messages")
    (parsed,) = text_string_to_metric_families(format_families([made]))
    assert parsed.type == "histogram"
    buckets = {s.labels["le"]: s.value for s in parsed.samples if s.name.endswith("_bucket")}
    assert len(buckets) == len(LATENCY_SECONDS) + 1
    assert buckets["0.0001"] == 1, "a bound is part of its bucket"
    assert buckets["0.00025"] == 2
    assert buckets["0.025"] == 5
    assert buckets["10"] == 6
    assert buckets["+Inf"] == 7 == histogram.count
    rest = {s.name.rpartition("_")[2]: s.value for s in parsed.samples if "le" not in s.labels}
    assert rest == {"sum": pytest.approx(60.3603), "count": 7}
    assert all(s.labels["command"] == "send_messages" for s in parsed.samples)


def test_histograms_add_up() -> None:
    one, other = Histogram(), Histogram()
    one.observe(0.001)
    other.observe(0.001)
    other.observe(3.0)
    one.add([other])
    assert one.count == 3
    assert one.seconds == pytest.approx(3.002)


def test_what_is_beyond_the_limit_is_added_up() -> None:
    rows = [((f"s{n}", f"t{n}"), n) for n in range(5)]
    assert bounded(rows, 3) == [*rows[:3], (("other", "other"), 7)]
    assert bounded(rows, 5) == rows
    assert bounded([], 3) == []


def test_a_sample_names_the_labels_of_the_table() -> None:
    made = family("broker_requests_total")
    with pytest.raises(AssertionError):
        made.add(1, command="ping")
    with pytest.raises(AssertionError):
        made.add(Histogram(), command="ping", dialect="B2")
    with pytest.raises(KeyError):
        family("broker_requests")


def test_every_metric_of_the_table_can_be_told() -> None:
    families = []
    for metric in TABLE.values():
        made = Family(metric)
        value = Histogram() if metric.kind == "histogram" else 1
        made.add(value, **dict.fromkeys(metric.labels, 'a"\\\n'))
        families.append(made)
    parsed = {one.name: one for one in text_string_to_metric_families(format_families(families))}
    for metric in TABLE.values():
        found = parsed[metric.name.removesuffix("_total")]
        assert found.type == metric.kind, metric.name
        assert found.documentation == metric.help
        assert set(metric.labels) <= set(found.samples[0].labels)


def test_no_two_metrics_are_one_to_open_metrics() -> None:
    """There a counter's family is named without `_total`."""
    names = [name.removesuffix("_total") for name in TABLE]
    assert len(set(names)) == len(names)
