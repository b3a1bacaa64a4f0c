"""headrace observability: files for Grafana and Prometheus, and the list of metrics."""

from __future__ import annotations

from pathlib import Path

from headrace.cli.declare import Group, argument, json_option, option
from headrace.cli.output import print_json, print_rows
from headrace.observability.escaping import note

app = Group("observability", help="Files for Grafana and Prometheus.")

DASHBOARD, ALERTS, SCRAPE = "headrace-dashboard.json", "headrace-alerts.yml", "prometheus.yml"


def contents() -> dict[str, str]:
    """File name to text."""
    from headrace.observability.alerts import alerts_yaml, scrape_yaml
    from headrace.observability.grafana import dashboard_json

    return {DASHBOARD: dashboard_json(), ALERTS: alerts_yaml(), SCRAPE: scrape_yaml()}


@app.command("export")
@argument("folder", default=".", metavar="FOLDER")
@option("--force", is_flag=True, help="Replace files that are there.")
@json_option
def export(folder: str, force: bool, as_json: bool) -> None:
    """Write a Grafana dashboard, Prometheus alert rules and a scrape configuration."""
    from headrace.errors import ConfigError

    target = Path(folder)
    written = []
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, text in contents().items():
            path = target / name
            if path.exists() and not force and path.read_text() != text:
                raise ConfigError(f"{path} is there and differs; use --force to replace it")
            path.write_text(text)
            written.append(str(path))
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}") from error
    if as_json:
        print_json({"files": written})
    for path_ in () if as_json else written:
        note(f"wrote {path_}")


@app.command("metrics")
@json_option
def metrics(as_json: bool) -> None:
    """List every metric: name, type, labels, meaning."""
    from headrace.observability.metrics import TABLE

    rows = [
        {
            "name": metric.name,
            "type": metric.kind,
            "labels": list(metric.labels),
            "role": metric.role,
            "meaning": metric.help,
        }
        for metric in TABLE.values()
    ]
    print_rows(rows, ("name", "type", "labels", "role", "meaning"), as_json=as_json)
