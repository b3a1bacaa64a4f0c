"""Options of the commands that run a part of headrace until they are stopped."""

from __future__ import annotations

import click

from headrace.cli.declare import option

data_dir_option = option("--data-dir", help="Everything durable is kept here.")
host_option = option("--host", help="Address to listen on.")
iggy_port_option = option("--iggy-port", type=int, help="Iggy clients; 0 = any.")
iggy_host_option = option("--iggy-host", help="Address of the Iggy ports, if another.")
quic_port_option = option("--quic-port", type=int, help="Iggy over QUIC; 0 = any, -1 = off.")
placement_port_option = option("--placement-port", type=int, help="Placement manager; 0 = any.")
node_port_option = option("--node-port", type=int, help="Data node; 0 = any.")
http_port_option = option("--http-port", type=int, help="JSON API and dashboard; 0 = any.")
dev_option = option("--dev", is_flag=True, help="Root user iggy/iggy, loopback only.")
insecure_option = option(
    "--insecure", is_flag=True, help="Allow another address than loopback without TLS."
)
ready_file_option = option(
    "--ready-file", default="", help="Write the addresses here once all accept."
)
config_option = option("--config", default="", help="A TOML file with settings.")
metrics_port_option = option(
    "--metrics-port", type=int, help="/metrics, /health, /ready; 0 = any, -1 = off."
)
log_format_option = option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Log lines as text or JSON.",
)
workers_option = option(
    "--workers",
    type=int,
    envvar="HEADRACE_WORKERS",
    help="Processes that serve clients; 0 = cores - 1, 16 at most.",
)
broker_workers_option = option(
    "--workers",
    type=int,
    envvar="HEADRACE_BROKER_WORKERS",
    help="Processes that lead a part of the partitions each; 0 = one broker leads, others wait.",
)
detach_option = option(
    "--detach", is_flag=True, help="Return once it accepts clients; `headrace down` stops it."
)
# Of the process that --detach starts: where its log goes, and that standard output waits.
background_log_option = option("--background-log", default="", hidden=True)
secret_option = option(
    "--secret",
    help="The cluster's secret, env:NAME or file:PATH: 64 hex digits, the same for all roles.",
)
placement_managers_option = option(
    "--placement-managers",
    envvar="HEADRACE_PLACEMENT_MANAGERS",
    help="All of them: host:port,host:port,...",
)
metadata_option = option("--metadata", help="sqlite, or etcd://host:port,... for several managers.")
etcd_user_option = option("--etcd-user", help="User at etcd.")
etcd_password_option = option("--etcd-password", help="Its password: env:NAME or file:PATH.")
advertise_option = option("--advertise", help="Where others reach it, if not where it listens.")


def split_addresses(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(part.strip() for part in text.split(",") if part.strip())
