"""The cluster's secret from where `--secret` says it is."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import ConfigError

_MAKE_ONE = "make one with `openssl rand -hex 32`, and give the same to every role"
_BYTES = 32


def read_secret(reference: str, data_dir: str) -> bytes:
    """`env:NAME`, `file:PATH`, or what an earlier start left in the data directory."""
    kind, _, where = reference.partition(":")
    if kind == "env" and where:
        text = os.environ.get(where, "")
        if not text:
            raise ConfigError(f"secret: the environment has no {where}; {_MAKE_ONE}")
    elif kind == "file" and where:
        text = _read(Path(where))
    elif reference:
        raise ConfigError("secret: say where it is, as env:NAME or file:PATH, not what it is")
    else:
        path = Path(data_dir, "secrets", "cluster")
        if not path.exists():
            raise ConfigError(
                f"a role of a cluster needs the cluster's secret: --secret env:NAME or --secret "
                f"file:PATH; {_MAKE_ONE}"
            )
        text = _read(path)
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        secret = b""
    if len(secret) != _BYTES:
        raise ConfigError(f"secret: {reference or 'secrets/cluster'} is not 64 hex digits; "
                          f"{_MAKE_ONE}")  # fmt: skip
    return secret


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace")
    except OSError as error:
        raise ConfigError(f"secret: cannot read {path}: {error.strerror}; {_MAKE_ONE}") from error
