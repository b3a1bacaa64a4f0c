"""The settings of a process that serves: from its file, its environment and its command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from headrace.config.settings import Settings, parse_settings
from headrace.errors import ConfigError
from headrace.observability.escaping import note


def load_settings(file: str, overrides: dict[str, Any]) -> Settings:
    """Defaults, file, environment, flags, in that order."""
    try:
        content = Path(file).read_bytes() if file else b""
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    settings = parse_settings(content, overrides, note)
    return with_root(with_whole_paths(settings), os.environ)


def with_whole_paths(settings: Settings) -> Settings:
    """Folders as they are meant here: containers, and whoever reads a plan, start in others."""
    shared = settings.controller.shared_path
    if shared and "://" not in shared:
        controller = msgspec.structs.replace(
            settings.controller, shared_path=os.path.abspath(shared)
        )
        settings = msgspec.structs.replace(settings, controller=controller)
    return msgspec.structs.replace(settings, data_dir=os.path.abspath(settings.data_dir))


def with_root(settings: Settings, environment: os._Environ[str] | dict[str, str]) -> Settings:
    """Root credentials: --dev, else the environment (Iggy's own names are understood too)."""
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
