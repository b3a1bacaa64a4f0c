"""Alert rules for Prometheus, and the part of its configuration that finds our processes.

Only what a person should act on: each rule says what is the matter and what to do next. A test
holds every metric in them against the table.
"""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Alert:
    name: str
    expression: str
    minutes: int
    """For how long it must be so."""
    severity: str
    """`page`: somebody should look now; `ticket`: today."""
    summary: str
    action: str


ALERTS = (
    Alert(
        "HeadraceProcessDown",
        'up{job="headrace"} == 0',
        2,
        "page",
        "{{ $labels.instance }} does not answer.",
        "See whether the process runs and what it logged last.",
    ),
    Alert(
        "HeadraceNotReady",
        "headrace_process_ready == 0",
        5,
        "page",
        "{{ $labels.role }} on {{ $labels.instance }} cannot serve.",
        "GET /ready of that instance says why.",
    ),
    Alert(
        "HeadraceNoBrokerLeads",
        "sum(headrace_broker_leading) < 1 or absent(headrace_broker_leading)",
        1,
        "page",
        "No broker leads: nothing is taken or given.",
        "Look at the brokers' logs, and whether a placement manager leads.",
    ),
    Alert(
        "HeadraceNoPlacementManagerLeads",
        "sum(headrace_placement_leading) < 1 or absent(headrace_placement_leading)",
        1,
        "page",
        "No placement manager leads: leases run out and ranges cannot be sealed.",
        "Look at etcd, then at the placement managers' logs.",
    ),
    Alert(
        "HeadraceDataNodeLost",
        'headrace_placement_nodes{state="lost"} > 0',
        2,
        "page",
        "{{ $value }} data nodes are lost.",
        "Start them again, or take them out with `headrace cluster`.",
    ),
    Alert(
        "HeadraceMetadataOutdated",
        "headrace_placement_metadata_outdated > 0",
        1,
        "page",
        "Data nodes have seen newer placement metadata than there is: it was put back.",
        "Bring the newer metadata back, or run `headrace cluster accept-metadata`.",
    ),
    Alert(
        "HeadraceRangesQuarantined",
        "headrace_node_ranges_quarantined > 0",
        1,
        "page",
        "A data node keeps {{ $value }} ranges aside that the placement manager does not know.",
        "See `headrace range quarantined`; they are removed after"
        " advanced.data_node.quarantine_ms.",
    ),
    Alert(
        "HeadraceRangesUnavailable",
        "headrace_placement_ranges_unavailable > 0",
        1,
        "page",
        "{{ $value }} ranges have no whole replica on a live node.",
        "Bring back the nodes that hold them: `headrace cluster status` names them.",
    ),
    Alert(
        "HeadraceRangesUnderReplicated",
        "headrace_placement_ranges_under_replicated > 0",
        15,
        "ticket",
        "{{ $value }} ranges have fewer replicas than asked for.",
        "Add a data node, or see why copying does not get on.",
    ),
    Alert(
        "HeadraceDiskAlmostFull",
        "headrace_node_disk_free_bytes / headrace_node_disk_total_bytes < 0.1",
        10,
        "ticket",
        "Less than a tenth of the disk of {{ $labels.instance }} is free.",
        "Lower retention, delete topics or add a data node.",
    ),
    Alert(
        "HeadraceDiskFullSoon",
        "predict_linear(headrace_node_disk_free_bytes[6h], 86400) < 0",
        30,
        "ticket",
        "The disk of {{ $labels.instance }} will be full within a day.",
        "Lower retention, delete topics or add a data node.",
    ),
    Alert(
        "HeadraceLogDamaged",
        "headrace_node_corrupt_spans > 0",
        10,
        "page",
        "{{ $value }} stretches of the log of {{ $labels.instance }} are damaged.",
        "With replicas they are made good; without, restore from a backup. Check the disk.",
    ),
    Alert(
        "HeadraceAppendsFail",
        "rate(headrace_node_append_failures_total[5m]) > 0.1",
        5,
        "page",
        "Appends fail on {{ $labels.instance }}.",
        "Its log says why: disk full, too few replicas, or damaged files.",
    ),
    Alert(
        "HeadraceAppendsSlow",
        "histogram_quantile(0.99, sum by (le, instance) "
        "(rate(headrace_node_append_duration_seconds_bucket[5m]))) > 1",
        10,
        "ticket",
        "One append in a hundred takes over a second on {{ $labels.instance }}.",
        "See the disk's sync times and headrace_node_io_tasks_pending.",
    ),
    Alert(
        "HeadraceEventLoopHeld",
        "headrace_process_loop_delay_max_seconds > 0.5",
        5,
        "ticket",
        "The event loop of {{ $labels.instance }} was held for {{ $value }} s.",
        "Look for what else takes the processor on that machine.",
    ),
    Alert(
        "HeadraceRequestsRefused",
        "sum by (instance) (rate(headrace_broker_request_errors_total[5m])) > 0.05 * "
        "sum by (instance) (rate(headrace_broker_requests_total[5m]))",
        10,
        "ticket",
        "More than one request in twenty is refused.",
        "headrace_broker_request_errors_total tells the command and the number.",
    ),
    Alert(
        "HeadraceConsumerGroupBehind",
        "headrace_broker_group_lag_messages > 100000 and "
        "deriv(headrace_broker_group_lag_messages[10m]) > 0",
        15,
        "ticket",
        "Group {{ $labels.group }} is {{ $value }} messages behind and falls back.",
        "See `headrace group show`; start more members or look at what slows them.",
    ),
    Alert(
        "HeadracePipelineFailed",
        'headrace_pipeline_state{state="FAILED"} == 1',
        1,
        "page",
        "Pipeline {{ $labels.application }} has failed.",
        "`headrace pipeline show` has the error, `headrace pipeline logs` the rest.",
    ),
    Alert(
        "HeadracePipelineStandsStill",
        "headrace_pipeline_committed_window_age_seconds > 600 and headrace_pipeline_lag_rows > 0",
        5,
        "page",
        "Pipeline {{ $labels.application }} has committed nothing for ten minutes.",
        "`headrace pipeline show` names the operator that holds it up.",
    ),
    Alert(
        "HeadracePipelineBehind",
        "headrace_pipeline_lag_seconds > 300",
        10,
        "ticket",
        "A row has waited for {{ $labels.application }} for {{ $value }} s.",
        "`headrace pipeline show` says which operator's rows wait; give it more cores, or mend it.",
    ),
    Alert(
        "HeadracePipelineRestarts",
        "increase(headrace_pipeline_restarts_total[30m]) > 3",
        1,
        "ticket",
        "Containers of {{ $labels.application }} were started again {{ $value }} times.",
        "`headrace pipeline logs` says what ended them.",
    ),
    Alert(
        "HeadracePipelineDeadRows",
        "increase(headrace_pipeline_rows_dead_total[15m]) > 0",
        1,
        "ticket",
        "Pipeline {{ $labels.application }} has set rows aside.",
        "Look at its dead letters, mend them and send them again.",
    ),
)


def alerts_yaml() -> str:
    """A rule file; strings in JSON's quotes, which YAML reads too."""
    lines = [
        "# Alert rules for Prometheus, made by `headrace observability export`.",
        "groups:",
        "  - name: headrace",
        "    rules:",
    ]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expression)}",
            f"        for: {alert.minutes}m",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          action: {json.dumps(alert.action)}",
        ]
    return "\n".join(lines) + "\n"


def scrape_yaml() -> str:
    """A configuration for Prometheus that scrapes one machine and loads the rules."""
    return """\
# For Prometheus, made by `headrace observability export`. Start the processes with
# --metrics-port; list each of them here. With observability.metrics_token set, take the comment
# signs from `authorization` away.
global:
  scrape_interval: 15s
rule_files:
  - headrace-alerts.yml
scrape_configs:
  - job_name: headrace
    # authorization:
    #   credentials_file: /etc/prometheus/headrace-token
    static_configs:
      - targets: ["127.0.0.1:9464", "127.0.0.1:9465"]
"""
