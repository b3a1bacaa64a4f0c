"""headrace up: the data plane in this process, the control plane in a child of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headrace.cli.declare import command
from headrace.cli.output import note
from headrace.cli.server import role_options as o

if TYPE_CHECKING:
    from headrace.config.settings import Settings

READY_SECONDS = 60.0
# A busy event loop delays the thread that waits in fdatasync by up to this long each time.
SWITCH_INTERVAL_SECONDS = 0.0005


@command("up")
@o.data_dir_option
@o.host_option
@o.iggy_port_option
@o.iggy_host_option
@o.quic_port_option
@o.placement_port_option
@o.node_port_option
@o.http_port_option
@o.dev_option
@o.insecure_option
@o.ready_file_option
@o.config_option
@o.metrics_port_option
@o.log_format_option
@o.detach_option
@o.background_log_option
def up(
    data_dir: str | None,
    host: str | None,
    iggy_port: int | None,
    iggy_host: str | None,
    quic_port: int | None,
    placement_port: int | None,
    node_port: int | None,
    http_port: int | None,
    dev: bool,
    insecure: bool,
    ready_file: str,
    config: str,
    metrics_port: int | None,
    log_format: Literal["text", "json"],
    detach: bool,
    background_log: str,
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
        "metrics_port": metrics_port,
    }
    settings = load_settings(config, overrides)
    if detach:
        from headrace.cli.server.detaching import run_detached

        given = {**overrides, "config": config, "ready_file": ready_file, "log_format": log_format}
        run_detached(settings, _as_options(given))
        return
    from headrace.cli.server.detaching import Background

    background = Background(background_log) if background_log else None
    output = background.log if background is not None else None
    configure_logging(format=log_format, role="data-plane", output=output)
    from headrace.cli.server.observing import observing
    from headrace.cli.server.serving import serve
    from headrace.cli.server.starting import explaining_start

    with observing(settings, "data-plane", log_format), explaining_start(settings):
        run(serve(settings, ready_file=ready_file, log_format=log_format, background=background))


def _as_options(given: Mapping[str, Any]) -> list[str]:
    """As they would be typed."""
    options: list[str] = []
    for name, value in given.items():
        if value is True:
            options.append(f"--{name.replace('_', '-')}")
        elif value is not None and value != "":
            options.append(f"--{name.replace('_', '-')}={value}")
    return options


def load_settings(file: str, overrides: dict[str, Any]) -> Settings:
    """Defaults, file, environment, flags, in that order."""
    from headrace.config.settings import parse_settings
    from headrace.errors import ConfigError

    try:
        content = Path(file).read_bytes() if file else b""
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    settings = parse_settings(content, overrides, note)
    return with_root(with_whole_paths(settings), os.environ)


def with_whole_paths(settings: Settings) -> Settings:
    """Folders as they are meant here: containers, and whoever reads a plan, start in others."""
    import msgspec

    shared = settings.controller.shared_path
    if shared and "://" not in shared:
        controller = msgspec.structs.replace(
            settings.controller, shared_path=os.path.abspath(shared)
        )
        settings = msgspec.structs.replace(settings, controller=controller)
    return msgspec.structs.replace(settings, data_dir=os.path.abspath(settings.data_dir))


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


LABELS = {
    "iggy": "Iggy clients",
    "quic": "over QUIC",
    "http": "dashboard   http://",
    "placement_manager": "placement",
    "data_node": "data node",
    "umbilical": "umbilical",
    "metrics": "metrics     http://",
    "control_metrics": "  control   http://",
}


def print_ready(
    addresses: dict[str, str],
    authority_path: str,
    *,
    https: bool = False,
    attached: bool = True,
    token: str = "",
) -> None:
    """`token`: what submitting a pipeline over HTTP takes beside iggy/iggy."""
    note("headrace is up; Ctrl-C stops it" if attached else "headrace is up")
    for name, label in LABELS.items():
        if https and name == "http":
            label = label.replace("http:", "https:")
        if addresses.get(name):
            gap = "" if label.endswith("//") else "  "
            note(f"  {label:<12}{gap}{addresses[name]}")
    if token:
        note(f"  HTTP token  {token}")
        note("    (for programs that submit pipelines as iggy/iggy; `headrace` finds it by itself)")
    if authority_path:
        note(f"  TLS clients trust {authority_path} (a development certificate for localhost)")


def write_ready_file(path: str, addresses: Mapping[str, object]) -> None:
    """Atomically, so that whoever waits for it never reads half of it."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w") as file:
        json.dump(dict(addresses), file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def child_arguments() -> list[str]:
    return [sys.executable, "-m", "headrace.cli.server.control"]
