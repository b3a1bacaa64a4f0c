"""Settings that processes of every role have: TLS, what others are told, the SBP client.

TLS covers QUIC and all TCP ports but the umbilical. What others are told is metrics, traces and
lineage. SBP clients are brokers, the controller, Spark tasks and producers of plain streams.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mode: Annotated[
        str,
        Meta(
            pattern="^(off|optional|required)$",
            description="TLS on the Iggy and SBP ports: `off`, `optional` (plain and TLS clients"
            " on one port, told by their first bytes) or `required` (also from this machine, and"
            " the HTTP port speaks HTTPS). QUIC is encrypted in every mode.",
        ),
    ] = "optional"
    certificate: Annotated[
        str,
        Meta(
            description="File with the server's certificate and its chain, PEM; empty = a"
            " development certificate for localhost, made once under `secrets/tls`."
        ),
    ] = ""
    key: Annotated[
        str, Meta(description="File with the certificate's private key, PEM, no passphrase.")
    ] = ""
    ca: Annotated[
        str,
        Meta(
            description="File with the authorities by which this process trusts the other servers"
            " of the cluster, PEM; empty = they have the same certificate as this one."
        ),
    ] = ""
    handshake_ms: Annotated[
        int, Meta(ge=100, description="How long a TLS or QUIC handshake may take.")
    ] = 10_000
    handshake_bytes_max: Annotated[
        int, Meta(ge=16 * 1024, description="What a TLS client may send before it is complete.")
    ] = 64 * 1024

    @property
    def has_files(self) -> bool:
        return bool(self.certificate and self.key)


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


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    request_timeout_ms: Annotated[
        int,
        Meta(
            ge=10,
            description="How long a data node may take to answer; one that hangs is noticed then.",
        ),
    ] = 3_000
    metadata_timeout_ms: Annotated[
        int,
        Meta(ge=10, description="How long a call to the placement managers is tried."),
    ] = 5_000
    recovery_timeout_ms: Annotated[
        int,
        Meta(ge=10, description="How long a writer tries to go on in a new range."),
    ] = 30_000
    window: Annotated[int, Meta(ge=1, le=64, description="Batches in flight per range.")] = 64
    pending_bytes_max: Annotated[
        int, Meta(ge=1, description="Bytes a writer holds that are not acknowledged.")
    ] = 64 << 20
    hedge_after_ms: Annotated[
        int,
        Meta(ge=0, description="A fetch that takes longer asks another replica too; 0 = never."),
    ] = 500
    suspect_ms: Annotated[
        int,
        Meta(ge=0, description="How long a data node that failed us is asked last."),
    ] = 5_000
    ranges_age_ms_max: Annotated[
        int,
        Meta(
            ge=0,
            description="An empty answer at the end of a replicated stream is believed only if the "
            "stream's ranges were looked up this recently.",
        ),
    ] = 5_000
    linger_ms: Annotated[
        int, Meta(ge=0, le=1000, description="How long a producer waits to fill a batch.")
    ] = 2
    batch_bytes: Annotated[
        int, Meta(ge=1, le=8 << 20, description="A producer's batch of this size waits no longer.")
    ] = 64 << 10
    frame_bytes: Annotated[
        int,
        Meta(ge=1, le=8 << 20, description="Batches sent together to one data node, about."),
    ] = 1 << 20
    delivery_timeout_ms: Annotated[
        int, Meta(ge=10, description="How long a producer tries to deliver a batch.")
    ] = 30_000
