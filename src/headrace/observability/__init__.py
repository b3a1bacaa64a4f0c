"""What a process tells of itself: logs, metrics, traces and lineage.

Counters and events of every layer come in; lines of JSON or text (`logging`), families for
Prometheus (`exposition`), spans (`tracing`) and OpenLineage events (`lineage`) go out. The counters
belong to who counts; `metrics` has the one table of their names, from which the reference page,
the alert rules (`alerts`) and the dashboard (`grafana`) are made or checked. `escaping` makes text
of others safe to show. Begin with `metrics`.
"""
