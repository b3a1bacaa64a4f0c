"""Secrets from where references say they are, the cluster's own above all."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import ConfigError

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
