"""A process that serves until it is asked to stop: its signals, and what it says when it is ready.

It is ready on its terminal, with its addresses, and in its ready file for whoever waits for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from headrace.observability.escaping import note

if TYPE_CHECKING:
    from headrace.broker.term.root_user import RootCredentials

# A busy event loop delays the thread that waits in fdatasync by up to this long each time.
SWITCH_INTERVAL_SECONDS = 0.0005


def stop_on_signals() -> asyncio.Event:
    """Prepare the running loop for serving. The event is set by SIGINT and SIGTERM."""
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


async def unless_stopped(stop: asyncio.Event, starting: Coroutine[Any, Any, None]) -> bool:
    """Whether `starting` came to its end; False when somebody asked to stop before."""
    started = asyncio.create_task(starting)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([started, stopped], return_when=asyncio.FIRST_COMPLETED)
        if started.done():
            await started
        return started.done()
    finally:
        for task in (started, stopped):
            task.cancel()
        await asyncio.gather(started, stopped, return_exceptions=True)


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
        label = LABELS.get(key, key.replace("_", " "))
        gap = "" if label.endswith("//") else "  "
        note(f"  {label:<12}{gap}{address}")
    if ready_file:
        write_ready_file(ready_file, addresses)
