"""What others are told about a running process: metrics, traces, lineage."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class ObservabilitySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    metrics_host: Annotated[
        str,
        Meta(
            description="Address of `metrics_port`. Beyond loopback it needs `metrics_token`,"
            " or --insecure."
        ),
    ] = "127.0.0.1"
    metrics_token: Annotated[
        str,
        Meta(
            description="What scrapers send as `Authorization: Bearer`, as `env:NAME` or"
            " `file:PATH`; empty = nothing is asked for."
        ),
    ] = ""
    labels_max: Annotated[
        int,
        Meta(
            ge=1,
            le=5_000,
            description="Topics, groups, nodes and applications with samples of their own; the"
            " others are added up as `other`.",
        ),
    ] = 200
    traces_endpoint: Annotated[
        str,
        Meta(
            description="An OpenTelemetry collector, OTLP over HTTP, for example"
            " `http://127.0.0.1:4318`; needs the extra `otel`; empty = no traces."
        ),
    ] = ""
    traces_ratio: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Share of traces that begin here and are recorded; who sends a"
            " `traceparent` decides for its own.",
        ),
    ] = 1.0
    lineage_url: Annotated[
        str,
        Meta(
            description="Where the controller sends OpenLineage events, for example"
            " `http://127.0.0.1:5000`; needs the extra `lineage`; empty = nowhere."
        ),
    ] = ""
    lineage_namespace: Annotated[
        str, Meta(description="Namespace of the jobs in those events.")
    ] = "headrace"
    lineage_interval_ms: Annotated[
        int, Meta(ge=1_000, description="Between two RUNNING events of an application.")
    ] = 60_000
