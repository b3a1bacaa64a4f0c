"""Metrics: Prometheus' text, with labels that cannot grow without bound."""

from __future__ import annotations

import re

import pytest

from headrace.observability import exposition
from headrace.observability.exposition import Family, format_families
from headrace.observability.metrics import Metric
from headrace.web.metrics.pipelines import METRICS_MAX, format_metrics
from tests.unit.web.stage import READER, Pipelines, ask, make

LINE = re.compile(r'[a-z_]+(\{([a-z_]+="(\\.|[^"\\\n])*",?)*\})? (-?[0-9.e+-]+|NaN|[+-]Inf)')


async def test_operators_and_containers_are_told() -> None:
    app, _ = make()
    answer = await ask(app, "/metrics", user=READER)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    labels = 'application="shop",instance="0",{}operator="revenue"'
    of_operator = labels.format("")
    of_ratio = labels.format('metric="ratio",')
    for line in (
        f"headrace_pipeline_operator_rows_in_total{{{of_operator}}} 200.0",
        f"headrace_pipeline_operator_cpu_seconds_total{{{of_operator}}} 2.0",
        f"headrace_pipeline_operator_latency_seconds{{{of_operator}}} 0.01",
        f"headrace_pipeline_operator_metric{{{of_ratio}}} 0.5",
        'headrace_pipeline_state{application="shop",state="RUNNING"} 1.0',
        'headrace_pipeline_container_restarts_total{application="shop",container="1"} 0.0',
        "headrace_umbilical_calls_served_total 3.0",
        "headrace_umbilical_connections 1.0",
    ):
        assert line in lines, line
    for line in lines:
        assert line.startswith("# ") or LINE.fullmatch(line), line


def test_a_family_stands_together_and_says_what_it_is() -> None:
    text = format_metrics(Pipelines())
    names = [line.split("{")[0].split(" ")[0] for line in text.splitlines() if line[0] != "#"]
    assert len(set(names)) == sum(a != b for a, b in zip(names, [*names[1:], ""], strict=True))
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")} == set(
        names
    )


def test_labels_name_nothing_that_grows() -> None:
    pipelines = Pipelines()
    text = format_metrics(pipelines)
    for grows in ("shop.1.1", "run_id", "batch"):
        assert grows not in text


def test_an_operators_metrics_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    pipelines = Pipelines()
    operator = pipelines.driver.application.operators
    for one in operator.values():
        one.statistics.metrics = {f"m{number:04}": number for number in range(1_000)}
    text = format_metrics(pipelines)
    assert text.count("\nheadrace_pipeline_operator_metric{") == 2 * METRICS_MAX
    monkeypatch.setattr(exposition, "SAMPLES_MAX", 3)
    text = format_metrics(pipelines)
    dropped = 2 * METRICS_MAX - 3
    family = "headrace_pipeline_operator_metric"
    assert f'headrace_metrics_dropped{{family="{family}"}} {dropped:.1f}' in text


def test_numbers_and_labels_are_written_as_prometheus_reads_them() -> None:
    family = Family(Metric("x", "gauge", "help", ("label",)))
    for value in (1, True, 0.5, float("nan"), float("inf"), float("-inf")):
        family.add(value, label='a"b\\c\nd')
    text = format_families([family])
    assert text.splitlines()[2:] == [
        f'x{{label="a\\"b\\\\c\\nd"}} {value}'
        for value in ("1.0", "1.0", "0.5", "NaN", "+Inf", "-Inf")
    ]
    assert format_families([Family(Metric("empty", "gauge", "help"))]) == ""


def test_a_finished_application_is_only_counted() -> None:
    pipelines = Pipelines()
    pipelines.driver.stop()
    pipelines.driver.exit("shop.1.1", 0)
    text = format_metrics(pipelines)
    assert 'headrace_pipeline_state{application="shop",state="STOPPED"} 1' in text
    assert "operator_rows" not in text
