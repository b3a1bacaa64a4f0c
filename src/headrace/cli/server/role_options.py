"""Options of the commands that run a part of headrace until they are stopped."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

DataDir = Annotated[str | None, typer.Option("--data-dir", help="Everything durable is kept here.")]
Host = Annotated[str | None, typer.Option("--host", help="Address to listen on.")]
IggyPort = Annotated[int | None, typer.Option("--iggy-port", help="Iggy clients; 0 = any.")]
IggyHost = Annotated[
    str | None, typer.Option("--iggy-host", help="Address of the Iggy ports, if another.")
]
QuicPort = Annotated[
    int | None, typer.Option("--quic-port", help="Iggy over QUIC; 0 = any, -1 = off.")
]
PlacementPort = Annotated[
    int | None, typer.Option("--placement-port", help="Placement manager; 0 = any.")
]
NodePort = Annotated[int | None, typer.Option("--node-port", help="Data node; 0 = any.")]
HttpPort = Annotated[
    int | None, typer.Option("--http-port", help="JSON API and dashboard; 0 = any.")
]
Dev = Annotated[bool, typer.Option("--dev", help="Root user iggy/iggy, loopback only.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow another address than loopback without TLS.")
]
ReadyFile = Annotated[
    str, typer.Option("--ready-file", help="Write the addresses here once all accept.")
]
Config = Annotated[str, typer.Option("--config", help="A TOML file with settings.")]
MetricsPort = Annotated[
    int | None,
    typer.Option("--metrics-port", help="/metrics, /health, /ready; 0 = any, -1 = off."),
]
LogFormat = Annotated[
    Literal["text", "json"], typer.Option("--log-format", help="Log lines as text or JSON.")
]
Detach = Annotated[
    bool,
    typer.Option("--detach", help="Return once it accepts clients; `headrace down` stops it."),
]
BackgroundLog = Annotated[
    str,
    # Of the process that --detach starts: where its log goes, and that standard output waits.
    typer.Option("--background-log", hidden=True),
]
Secret = Annotated[
    str | None,
    typer.Option(
        "--secret",
        help="The cluster's secret, env:NAME or file:PATH: 64 hex digits, the same for all roles.",
    ),
]
PlacementManagers = Annotated[
    str | None,
    typer.Option(
        "--placement-managers",
        envvar="HEADRACE_PLACEMENT_MANAGERS",
        help="All of them: host:port,host:port,...",
    ),
]
Metadata = Annotated[
    str | None,
    typer.Option("--metadata", help="sqlite, or etcd://host:port,... for several managers."),
]
EtcdUser = Annotated[str | None, typer.Option("--etcd-user", help="User at etcd.")]
EtcdPassword = Annotated[
    str | None, typer.Option("--etcd-password", help="Its password: env:NAME or file:PATH.")
]
Advertise = Annotated[
    str | None,
    typer.Option("--advertise", help="Where others reach it, if not where it listens."),
]


def split_addresses(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(part.strip() for part in text.split(",") if part.strip())
