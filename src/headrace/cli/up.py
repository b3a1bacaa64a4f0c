"""headrace up: the data plane in this process, the control plane in a child of it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.output import note

if TYPE_CHECKING:
    from headrace.config.settings import Settings

READY_SECONDS = 60.0


def up(
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", help="Everything durable is kept here.")
    ] = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on.")] = None,
    iggy_port: Annotated[
        int | None, typer.Option("--iggy-port", help="Iggy clients; 0 = any.")
    ] = None,
    iggy_host: Annotated[
        str | None, typer.Option("--iggy-host", help="Address of the Iggy ports, if another.")
    ] = None,
    quic_port: Annotated[
        int | None, typer.Option("--quic-port", help="Iggy over QUIC; 0 = any, -1 = off.")
    ] = None,
    placement_port: Annotated[
        int | None, typer.Option("--placement-port", help="Placement manager; 0 = any.")
    ] = None,
    node_port: Annotated[
        int | None, typer.Option("--node-port", help="Data node; 0 = any.")
    ] = None,
    http_port: Annotated[
        int | None, typer.Option("--http-port", help="JSON API and dashboard; 0 = any.")
    ] = None,
    dev: Annotated[bool, typer.Option("--dev", help="Root user iggy/iggy, loopback only.")] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow another address than loopback without TLS.")
    ] = False,
    ready_file: Annotated[
        str, typer.Option("--ready-file", help="Write the addresses here once all accept.")
    ] = "",
    config: Annotated[str, typer.Option("--config", help="A TOML file with settings.")] = "",
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines as JSON.")] = False,
) -> None:
    """Run everything on this machine: log, broker, controller, dashboard. Ctrl-C stops it."""
    from headrace.observability.logging import configure_logging
    from headrace.runtime.system import run

    overrides = {
        "data_dir": data_dir,
        "host": host,
        "iggy_port": iggy_port,
        "iggy_host": iggy_host,
        "quic_port": quic_port,
        "placement_port": placement_port,
        "node_port": node_port,
        "http_port": http_port,
        "dev": dev or None,
        "insecure": insecure or None,
    }
    settings = load_settings(config, overrides)
    configure_logging(format="json" if log_json else "console")
    from headrace.cli.serving import serve

    run(serve(settings, ready_file=ready_file, log_json=log_json))


def load_settings(file: str, overrides: dict[str, Any]) -> Settings:
    """Defaults, file, environment, flags, in that order."""
    from headrace.config.settings import parse_settings
    from headrace.errors import ConfigError

    try:
        content = Path(file).read_bytes() if file else b""
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    settings = parse_settings(content, overrides)
    return with_root(settings, os.environ)


def with_root(settings: Settings, environment: os._Environ[str] | dict[str, str]) -> Settings:
    """Root credentials: --dev, else the environment (Iggy's own names are understood too)."""
    import msgspec

    if settings.dev:
        username = password = "iggy"
    else:
        username, password = (
            environment.get(f"HEADRACE_ROOT_{part}", environment.get(f"IGGY_ROOT_{part}", ""))
            for part in ("USERNAME", "PASSWORD")
        )
    if not password:
        return settings
    broker = msgspec.structs.replace(
        settings.broker, root_username=username, root_password=password
    )
    return msgspec.structs.replace(settings, broker=broker)


def print_ready(addresses: dict[str, str], authority_path: str, *, https: bool = False) -> None:
    note("headrace is up; Ctrl-C stops it")
    labels = {
        "iggy": "Iggy clients",
        "quic": "over QUIC",
        "http": "dashboard   https://" if https else "dashboard   http://",
        "placement_manager": "placement",
        "data_node": "data node",
        "umbilical": "umbilical",
    }
    for name, label in labels.items():
        if addresses.get(name):
            gap = "" if label.endswith("//") else "  "
            note(f"  {label:<12}{gap}{addresses[name]}")
    if authority_path:
        note(f"  TLS clients trust {authority_path} (a development certificate for localhost)")


def write_ready_file(path: str, addresses: dict[str, str]) -> None:
    """Atomically, so that whoever waits for it never reads half of it."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w") as file:
        json.dump(addresses, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def child_arguments() -> list[str]:
    return [sys.executable, "-m", "headrace.cli.control"]
