"""What a process is given from outside: its settings, and secrets where references say they are.

Settings come from a file, the environment and the command line. A reference to a secret is
`env:NAME` or `file:PATH`, so that no secret stands among the settings themselves.
"""

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


_MAKE_ONE = "make one with `openssl rand -hex 32`, and give the same to every role"
_BYTES = 32


def read_secret(reference: str, data_dir: str) -> bytes:
    """`env:NAME`, `file:PATH`, or what an earlier start left in the data directory."""
    path = Path(data_dir, "secrets", "cluster")
    if not reference and not path.exists():
        raise ConfigError(
            "a role of a cluster needs the cluster's secret: --secret env:NAME or --secret "
            f"file:PATH; {_MAKE_ONE}"
        )
    text = read_reference(reference or f"file:{path}", "secret", hint=_MAKE_ONE)
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != _BYTES:
        raise ConfigError(f"secret: {reference or path} is not 64 hex digits; {_MAKE_ONE}")
    return secret


def read_reference(reference: str, what: str, *, hint: str = "") -> str:
    """What `env:NAME` or `file:PATH` stands for; nothing for nothing."""
    hint = f"; {hint}" if hint else ""
    kind, _, where = reference.partition(":")
    if not reference:
        return ""
    if kind == "env" and where:
        text = os.environ.get(where, "")
        if not text:
            raise ConfigError(f"{what}: the environment has no {where}{hint}")
        return text.strip()
    if kind != "file" or not where:
        raise ConfigError(f"{what}: say where it is, as env:NAME or file:PATH, not what it is")
    try:
        return Path(where).read_text("utf-8", "replace").strip()
    except OSError as error:
        raise ConfigError(f"{what}: cannot read {where}: {error.strerror}{hint}") from error
