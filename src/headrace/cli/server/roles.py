"""headrace placement-manager, data-node, broker, controller: one role of a cluster per process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from headrace.cli.declare import command
from headrace.cli.server import role_options as o


@command("placement-manager")
@o.data_dir_option
@o.host_option
@o.placement_port_option
@o.metadata_option
@o.etcd_user_option
@o.etcd_password_option
@o.secret_option
@o.advertise_option
@o.insecure_option
@o.ready_file_option
@o.config_option
@o.metrics_port_option
@o.log_format_option
def placement_manager(
    data_dir: str | None,
    host: str | None,
    placement_port: int | None,
    metadata: str | None,
    etcd_user: str | None,
    etcd_password: str | None,
    secret: str | None,
    advertise: str | None,
    insecure: bool,
    ready_file: str,
    config: str,
    metrics_port: int | None,
    log_format: Literal["text", "json"],
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


@command("data-node")
@o.data_dir_option
@o.placement_managers_option
@o.host_option
@o.node_port_option
@o.secret_option
@o.advertise_option
@o.insecure_option
@o.ready_file_option
@o.config_option
@o.metrics_port_option
@o.log_format_option
def data_node(
    data_dir: str | None,
    placement_managers: str | None,
    host: str | None,
    node_port: int | None,
    secret: str | None,
    advertise: str | None,
    insecure: bool,
    ready_file: str,
    config: str,
    metrics_port: int | None,
    log_format: Literal["text", "json"],
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


@command("broker")
@o.data_dir_option
@o.placement_managers_option
@o.host_option
@o.iggy_host_option
@o.iggy_port_option
@o.quic_port_option
@o.broker_workers_option
@o.secret_option
@o.advertise_option
@o.dev_option
@o.insecure_option
@o.ready_file_option
@o.config_option
@o.metrics_port_option
@o.log_format_option
def broker(
    data_dir: str | None,
    placement_managers: str | None,
    host: str | None,
    iggy_host: str | None,
    iggy_port: int | None,
    quic_port: int | None,
    workers: int | None,
    secret: str | None,
    advertise: str | None,
    dev: bool,
    insecure: bool,
    ready_file: str,
    config: str,
    metrics_port: int | None,
    log_format: Literal["text", "json"],
) -> None:
    """Run a broker: Iggy clients talk to it. With --workers every broker of the cluster leads a
    part of the partitions; without, one leads and the others stand by."""
    overrides = {
        "data_dir": data_dir,
        "placement_managers": o.split_addresses(placement_managers),
        "host": host,
        "iggy_host": iggy_host,
        "iggy_port": iggy_port,
        "quic_port": quic_port,
        "broker.workers": workers,
        "secret": secret,
        "advertise": advertise,
        "dev": dev or None,
        "insecure": insecure or None,
        "metrics_port": metrics_port,
    }
    _run("broker", overrides, config=config, ready_file=ready_file, log_format=log_format)


@command("controller")
@o.data_dir_option
@o.placement_managers_option
@o.host_option
@o.http_port_option
@o.secret_option
@o.insecure_option
@o.ready_file_option
@o.config_option
@o.metrics_port_option
@o.log_format_option
def controller(
    data_dir: str | None,
    placement_managers: str | None,
    host: str | None,
    http_port: int | None,
    secret: str | None,
    insecure: bool,
    ready_file: str,
    config: str,
    metrics_port: int | None,
    log_format: Literal["text", "json"],
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
    from headrace.observability.logging import configure_logging
    from headrace.process.startup.settings import load_settings

    settings = load_settings(config, dict(overrides))
    configure_logging(format=log_format, role=name)
    from headrace.process.startup.observing import observing
    from headrace.process.startup.role_process import serve_role
    from headrace.process.startup.server_note import explaining_start
    from headrace.process.startup.settings import read_secret
    from headrace.runtime.system import run

    secret = read_secret(settings.secret, settings.data_dir)
    with observing(settings, name, log_format), explaining_start(settings):
        run(serve_role(name, settings, secret, ready_file=ready_file, log_format=log_format))
