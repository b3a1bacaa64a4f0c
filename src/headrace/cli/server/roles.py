"""headrace placement-manager, data-node, broker, controller: one role of a cluster per process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from headrace.cli.server import role_options as o


def placement_manager(
    data_dir: o.DataDir = None,
    host: o.Host = None,
    placement_port: o.PlacementPort = None,
    metadata: o.Metadata = None,
    etcd_user: o.EtcdUser = None,
    etcd_password: o.EtcdPassword = None,
    secret: o.Secret = None,
    advertise: o.Advertise = None,
    insecure: o.Insecure = False,
    ready_file: o.ReadyFile = "",
    config: o.Config = "",
    metrics_port: o.MetricsPort = None,
    log_format: o.LogFormat = "text",
) -> None:
    """Run a placement manager: it knows streams, ranges and data nodes. Ctrl-C stops it."""
    overrides = {
        "data_dir": data_dir,
        "host": host,
        "placement_port": placement_port,
        "metadata": metadata,
        "placement.etcd.username": etcd_user,
        "placement.etcd.password": etcd_password,
        "secret": secret,
        "advertise": advertise,
        "insecure": insecure or None,
        "metrics_port": metrics_port,
    }
    _run(
        "placement-manager", overrides, config=config, ready_file=ready_file, log_format=log_format
    )


def data_node(
    data_dir: o.DataDir = None,
    placement_managers: o.PlacementManagers = None,
    host: o.Host = None,
    node_port: o.NodePort = None,
    secret: o.Secret = None,
    advertise: o.Advertise = None,
    insecure: o.Insecure = False,
    ready_file: o.ReadyFile = "",
    config: o.Config = "",
    metrics_port: o.MetricsPort = None,
    log_format: o.LogFormat = "text",
) -> None:
    """Run a data node: it keeps replicas of the log. Start one more at any time. Ctrl-C stops."""
    overrides = {
        "data_dir": data_dir,
        "placement_managers": o.split_addresses(placement_managers),
        "host": host,
        "node_port": node_port,
        "secret": secret,
        "advertise": advertise,
        "insecure": insecure or None,
        "metrics_port": metrics_port,
    }
    _run("data-node", overrides, config=config, ready_file=ready_file, log_format=log_format)


def broker(
    data_dir: o.DataDir = None,
    placement_managers: o.PlacementManagers = None,
    host: o.Host = None,
    iggy_host: o.IggyHost = None,
    iggy_port: o.IggyPort = None,
    quic_port: o.QuicPort = None,
    secret: o.Secret = None,
    advertise: o.Advertise = None,
    dev: o.Dev = False,
    insecure: o.Insecure = False,
    ready_file: o.ReadyFile = "",
    config: o.Config = "",
    metrics_port: o.MetricsPort = None,
    log_format: o.LogFormat = "text",
) -> None:
    """Run a broker: Iggy clients talk to it. Of several one leads, the others stand by."""
    overrides = {
        "data_dir": data_dir,
        "placement_managers": o.split_addresses(placement_managers),
        "host": host,
        "iggy_host": iggy_host,
        "iggy_port": iggy_port,
        "quic_port": quic_port,
        "secret": secret,
        "advertise": advertise,
        "dev": dev or None,
        "insecure": insecure or None,
        "metrics_port": metrics_port,
    }
    _run("broker", overrides, config=config, ready_file=ready_file, log_format=log_format)


def controller(
    data_dir: o.DataDir = None,
    placement_managers: o.PlacementManagers = None,
    host: o.Host = None,
    http_port: o.HttpPort = None,
    secret: o.Secret = None,
    insecure: o.Insecure = False,
    ready_file: o.ReadyFile = "",
    config: o.Config = "",
    metrics_port: o.MetricsPort = None,
    log_format: o.LogFormat = "text",
) -> None:
    """Run the pipeline controller and its dashboard. Of several one works, the others wait."""
    overrides = {
        "data_dir": data_dir,
        "placement_managers": o.split_addresses(placement_managers),
        "host": host,
        "http_port": http_port,
        "secret": secret,
        "insecure": insecure or None,
        "metrics_port": metrics_port,
    }
    _run("controller", overrides, config=config, ready_file=ready_file, log_format=log_format)


def _run(
    name: str,
    overrides: Mapping[str, object],
    *,
    config: str,
    ready_file: str,
    log_format: Literal["text", "json"],
) -> None:
    from headrace.cli.server.up import load_settings
    from headrace.observability.logging import configure_logging

    settings = load_settings(config, dict(overrides))
    configure_logging(format=log_format, role=name)
    from headrace.cli.server.observing import observing
    from headrace.cli.server.role_serving import serve_role
    from headrace.cli.server.secrets import read_secret
    from headrace.cli.server.starting import explaining_start
    from headrace.runtime.system import run

    secret = read_secret(settings.secret, settings.data_dir)
    with observing(settings, name, log_format), explaining_start(settings):
        run(serve_role(name, settings, secret, ready_file=ready_file))
