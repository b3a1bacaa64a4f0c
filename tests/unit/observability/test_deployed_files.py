"""Dashboard and alert rules ask only for metrics that exist, with labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # a dependency of mkdocs; no stubs
from click.testing import CliRunner

from headrace.cli.main import app
from headrace.observability.alerts import ALERTS, alerts_yaml, scrape_yaml
from headrace.observability.grafana import dashboard, dashboard_json
from headrace.observability.metrics import TABLE

METRIC = re.compile(r"headrace_[a-z_]+")
SELECTOR = re.compile(r"(headrace_[a-z_]+)\{([^}]*)\}")
GROUPED = re.compile(r"sum by \(([a-z_, ]+)\) ?\((?:rate\()?(headrace_[a-z_]+)")
TARGET = {"instance", "job", "le"}  # labels that Prometheus and histograms add


def expressions() -> Iterator[tuple[str, str]]:
    for alert in ALERTS:
        yield alert.name, alert.expression
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def base(name: str) -> str:
    for suffix in ("_bucket", "_sum", "_count"):
        if TABLE.get(name.removesuffix(suffix), TABLE["headrace_node_id"]).kind == "histogram":
            name = name.removesuffix(suffix)
    return name


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_expressions_use_what_exists(where: str, expression: str) -> None:
    for name in METRIC.findall(expression):
        assert base(name) in TABLE, (where, name)
        metric = TABLE[base(name)]
        if metric.kind == "histogram":
            assert name.endswith(("_bucket", "_sum", "_count")), (where, name)
    for name, selector in SELECTOR.findall(expression):
        for label in re.findall(r"([a-z_]+)\s*[=!]", selector):
            assert label in {*TABLE[base(name)].labels, *TARGET}, (where, name, label)
    for labels, name in GROUPED.findall(expression):
        for label in labels.split(", "):
            assert label in {*TABLE[base(name)].labels, *TARGET}, (where, name, label)
    assert expression.count("(") == expression.count(")")
    if "rate(" in expression or "increase(" in expression:
        for name in re.findall(r"(?:rate|increase)\((headrace_[a-z_]+)", expression):
            assert TABLE[base(name)].kind in ("counter", "histogram"), (where, name)


def test_the_rule_file_is_yaml_that_says_what_the_rules_say() -> None:
    (group,) = yaml.safe_load(alerts_yaml())["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [alert.name for alert in ALERTS]
    for rule, alert in zip(group["rules"], ALERTS, strict=True):
        assert rule["expr"] == alert.expression
        assert rule["for"] == f"{alert.minutes}m"
        assert rule["labels"] == {"severity": alert.severity}
        assert rule["annotations"] == {"summary": alert.summary, "action": alert.action}
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
    scrape = yaml.safe_load(scrape_yaml())
    assert scrape["rule_files"] == ["headrace-alerts.yml"]


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    ids = set()
    for panel in json.loads(dashboard_json())["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        ids.add(panel["id"])
    assert len(ids) == len(dashboard()["panels"])


def test_export_writes_the_files_and_replaces_nothing_unasked(tmp_path: Path) -> None:
    runner = CliRunner()
    target = tmp_path / "monitoring"
    answer = runner.invoke(app, ["observability", "export", str(target), "--json"])
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["files"] == [
        str(target / name)
        for name in ("headrace-dashboard.json", "headrace-alerts.yml", "prometheus.yml")
    ]
    assert (target / "headrace-alerts.yml").read_text() == alerts_yaml()
    (target / "prometheus.yml").write_text("mine\n")
    refused = runner.invoke(app, ["observability", "export", str(target)])
    assert refused.exit_code != 0
    assert "--force" in str(refused.exception)
    assert (target / "prometheus.yml").read_text() == "mine\n"
    forced = runner.invoke(app, ["observability", "export", str(target), "--force"])
    assert forced.exit_code == 0
    assert (target / "prometheus.yml").read_text() == scrape_yaml()


def test_the_metrics_can_be_listed() -> None:
    answer = CliRunner().invoke(app, ["observability", "metrics", "--json"])
    rows = json.loads(answer.stdout)
    assert [row["name"] for row in rows] == list(TABLE)
    assert all(row["meaning"] and row["role"] for row in rows)
