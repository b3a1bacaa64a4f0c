"""What a process that serves says when it is ready: on its terminal, and in its ready file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from headrace.broker.term.term import RootCredentials
from headrace.observability.escaping import note

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


def tell_root(root: RootCredentials) -> None:
    """Show root's password to the person who starts a broker for the first time."""
    if root.generated:
        note("first start: the root user was made. This password is shown only now:")
        note(f"  username {root.username}\n  password {root.password}")


def report_role(name: str, addresses: dict[str, str], ready_file: str) -> None:
    note(f"headrace {name} is up; Ctrl-C stops it")
    for key, address in addresses.items():
        gap = "" if LABELS[key].endswith("//") else "  "
        note(f"  {LABELS[key]:<12}{gap}{address}")
    if ready_file:
        write_ready_file(ready_file, addresses)
