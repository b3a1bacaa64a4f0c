"""A dashboard for Grafana, made of rows of panels. A test holds every metric against the table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24
_HEIGHT = 7


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    queries: Sequence[tuple[str, str]]
    """Expression and legend."""
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    help: str = ""


def _quantiles(metric: str, by: str = "") -> list[tuple[str, str]]:
    labels = f"le, {by}" if by else "le"
    legend = f"{{{{{by}}}}} " if by else ""
    return [
        (
            f"histogram_quantile({share}, sum by ({labels}) "
            f'(rate({metric}_bucket{{instance=~"$instance"}}[$__rate_interval])))',
            f"{legend}p{share * 100:g}",
        )
        for share in (0.5, 0.99)
    ]


def _rate(metric: str, by: str = "", selector: str = "") -> str:
    chosen = f'instance=~"$instance"{"," if selector else ""}{selector}'
    inner = f"rate({metric}{{{chosen}}}[$__rate_interval])"
    return f"sum by ({by}) ({inner})" if by else f"sum({inner})"


def _top(count: int, expression: str) -> str:
    return f"topk({count}, {expression})"


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "What is wrong",
        (
            Panel(
                "Not ready",
                [("count(headrace_process_ready == 0) or vector(0)", "roles")],
                kind="stat",
                width=4,
                help="GET /ready of the instance says why.",
            ),
            Panel(
                "Ranges under-replicated",
                [("sum(headrace_placement_ranges_under_replicated)", "ranges")],
                kind="stat",
                width=4,
            ),
            Panel(
                "Ranges unavailable",
                [("sum(headrace_placement_ranges_unavailable)", "ranges")],
                kind="stat",
                width=4,
            ),
            Panel(
                "Data nodes lost",
                [('sum(headrace_placement_nodes{state="lost"})', "nodes")],
                kind="stat",
                width=4,
            ),
            Panel(
                "Damaged stretches",
                [("sum(headrace_node_corrupt_spans)", "spans")],
                kind="stat",
                width=4,
            ),
            Panel(
                "Pipelines failed",
                [('sum(headrace_pipeline_state{state="FAILED"}) or vector(0)', "pipelines")],
                kind="stat",
                width=4,
            ),
        ),
    ),
    (
        "Broker",
        (
            Panel(
                "Messages per second",
                [
                    (_rate("headrace_broker_messages_received_total"), "received"),
                    (_rate("headrace_broker_messages_delivered_total"), "delivered"),
                ],
                unit="cps",
            ),
            Panel(
                "Bytes per second",
                [
                    (_rate("headrace_broker_received_bytes_total"), "in"),
                    (_rate("headrace_broker_sent_bytes_total"), "out"),
                ],
                unit="Bps",
            ),
            Panel(
                "Latency of SEND and POLL",
                [
                    (
                        "histogram_quantile(0.99, sum by (le, command) (rate("
                        'headrace_broker_request_duration_seconds_bucket{instance=~"$instance",'
                        'command=~"send_messages|poll_messages"}[$__rate_interval])))',
                        "{{command}} p99",
                    )
                ],
                unit="s",
            ),
            Panel(
                "Requests by command",
                [(_top(10, _rate("headrace_broker_requests_total", "command")), "{{command}}")],
                unit="reqps",
            ),
            Panel(
                "Refused by code",
                [
                    (
                        _top(10, _rate("headrace_broker_request_errors_total", "command, code")),
                        "{{command}} {{code}}",
                    )
                ],
                unit="reqps",
            ),
            Panel(
                "Connections",
                [
                    (
                        'sum by (transport) (headrace_broker_connections{instance=~"$instance"})',
                        "{{transport}}",
                    ),
                    (
                        'sum(headrace_broker_relayed_connections{instance=~"$instance"})',
                        "passed to the leader",
                    ),
                ],
            ),
            Panel(
                "Shards led",
                [('headrace_broker_shards_led{instance=~"$instance"}', "{{instance}}")],
            ),
            Panel(
                "Passed on to other workers",
                [(_rate("headrace_broker_requests_passed_on_total", "instance"), "{{instance}}")],
                unit="reqps",
            ),
            Panel(
                "Loop delay of workers",
                _quantiles("headrace_broker_loop_delay_seconds", "instance"),
                unit="s",
            ),
        ),
    ),
    (
        "Topics and consumer groups",
        (
            Panel(
                "Messages written per second",
                [
                    (
                        _top(10, _rate("headrace_broker_topic_messages_total", "stream, topic")),
                        "{{stream}}/{{topic}}",
                    )
                ],
                unit="cps",
            ),
            Panel(
                "Size",
                [
                    (
                        _top(10, "sum by (stream, topic) (headrace_broker_topic_stored_bytes)"),
                        "{{stream}}/{{topic}}",
                    )
                ],
                unit="bytes",
            ),
            Panel(
                "Lag of consumer groups",
                [
                    (
                        _top(10, "headrace_broker_group_lag_messages"),
                        "{{group}} {{stream}}/{{topic}}",
                    )
                ],
            ),
        ),
    ),
    (
        "Data nodes",
        (
            Panel("Append latency", _quantiles("headrace_node_append_duration_seconds"), unit="s"),
            Panel("Fetch latency", _quantiles("headrace_node_fetch_duration_seconds"), unit="s"),
            Panel(
                "Written and fetched",
                [
                    (_rate("headrace_node_written_bytes_total", "instance"), "{{instance}} in"),
                    (_rate("headrace_node_fetched_bytes_total", "instance"), "{{instance}} out"),
                ],
                unit="Bps",
            ),
            Panel(
                "Disk free",
                [
                    (
                        "headrace_node_disk_free_bytes / headrace_node_disk_total_bytes",
                        "{{instance}}",
                    )
                ],
                unit="percentunit",
            ),
            Panel(
                "Blocking calls waiting for a thread",
                [("headrace_node_io_tasks_pending", "{{instance}}")],
            ),
            Panel(
                "Slowest replica, records behind",
                [("headrace_node_replication_lag_records", "{{instance}}")],
            ),
        ),
    ),
    (
        "Pipelines",
        (
            Panel(
                "Rows per second",
                [(_rate("headrace_pipeline_rows_total", "application"), "{{application}}")],
                unit="cps",
            ),
            Panel("Rows waiting", [("headrace_pipeline_lag_rows", "{{application}}")]),
            Panel(
                "Age of the committed window",
                [("headrace_pipeline_committed_window_age_seconds", "{{application}}")],
                unit="s",
            ),
            Panel(
                "Late and dead rows per second",
                [
                    (
                        _rate("headrace_pipeline_rows_late_total", "application"),
                        "{{application}} late",
                    ),
                    (
                        _rate("headrace_pipeline_rows_dead_total", "application"),
                        "{{application}} dead",
                    ),
                ],
                unit="cps",
            ),
            Panel(
                "Latency by operator",
                [
                    (
                        _top(10, "headrace_pipeline_operator_latency_seconds"),
                        "{{application}} {{operator}}",
                    )
                ],
                unit="s",
            ),
            Panel(
                "Restarts",
                [
                    (
                        "increase(headrace_pipeline_restarts_total[1h])",
                        "{{application}} in an hour",
                    )
                ],
            ),
        ),
    ),
    (
        "Processes",
        (
            Panel(
                "Processor",
                [
                    (
                        'rate(headrace_process_cpu_seconds_total{instance=~"$instance"}'
                        "[$__rate_interval])",
                        "{{instance}}",
                    )
                ],
                unit="percentunit",
            ),
            Panel(
                "Memory",
                [('headrace_process_memory_bytes{instance=~"$instance"}', "{{instance}}")],
                unit="bytes",
            ),
            Panel(
                "Event loop held, longest in a minute",
                [
                    (
                        'headrace_process_loop_delay_max_seconds{instance=~"$instance"}',
                        "{{instance}}",
                    )
                ],
                unit="s",
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """What Grafana imports."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append(
            {
                "type": "row",
                "title": title,
                "id": len(panels) + 1,
                "collapsed": False,
                "panels": [],
                "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": top},
            }
        )
        top += 1
        left = 0
        for panel in row:
            if left + panel.width > _COLUMNS:
                left, top = 0, top + _HEIGHT
            panels.append(_panel(panel, len(panels) + 1, left, top))
            left += panel.width
        top += _HEIGHT
    return {
        "title": "Headrace",
        "uid": "headrace",
        "tags": ["headrace"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "templating": {"list": [_source_variable(), _instance_variable()]},
        "annotations": {"list": []},
        "panels": panels,
    }


def _panel(panel: Panel, id_: int, left: int, top: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.kind == "stat":
        steps = [{"color": "green", "value": None}, {"color": "red", "value": 1}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "id": id_,
        "datasource": _SOURCE,
        "gridPos": {"h": _HEIGHT, "w": panel.width, "x": left, "y": top},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}}
        if panel.kind == "timeseries"
        else {"colorMode": "background", "reduceOptions": {"calcs": ["lastNotNull"]}},
        "targets": [
            {"refId": chr(ord("A") + n), "datasource": _SOURCE, "expr": expr, "legendFormat": text}
            for n, (expr, text) in enumerate(panel.queries)
        ],
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}


def _instance_variable() -> dict[str, Any]:
    query = "label_values(headrace_process_info, instance)"
    return {
        "name": "instance",
        "type": "query",
        "label": "Instance",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "instances"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard_json() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"
