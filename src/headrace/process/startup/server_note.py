"""Which process serves a data directory, and why another one could not start on it.

A server notes in `up.json` that it serves the directory. The note is for people and for `headrace
down`; what keeps two servers off one directory is the lock of the log. A process that was killed
leaves its note behind, so a note counts while the process that it names lives.

A server that cannot start says so in the words of who started it: the options and the folder that
were given, instead of the file or the port on which it failed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from headrace.errors import (
    ConfigError,
    DiskFullError,
    FormatError,
    LockedError,
    NotFoundError,
    StorageError,
)

if TYPE_CHECKING:
    from headrace.config.settings import Settings

NOTE = "up.json"
LOG = "up.log"
"""Of a server in the background."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    pid: int
    started: str
    """When the process with that id started, by the system: ids are used again."""
    addresses: dict[str, str] = field(default_factory=dict)
    log: str = ""
    """Empty when it runs in somebody's terminal."""

    def is_alive(self) -> bool:
        return bool(self.started) and started(self.pid) == self.started


def started(pid: int) -> str:
    """When a process started, by the system; empty when there is none.

    Linux counts clock ticks since boot, which stay the same when the clock is set. What psutil
    says there does not.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] == "Z" else fields[19]
    except (OSError, IndexError):
        if os.path.isdir("/proc/self"):
            return ""
    try:
        return str(psutil.Process(pid).create_time())
    except psutil.Error:
        return ""


def write_note(data_dir: str, addresses: dict[str, str], log: str) -> None:
    """Note that this process serves the directory."""
    running = RunningServer(os.getpid(), started(os.getpid()), addresses, log)
    path = Path(data_dir, NOTE)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(asdict(running), indent=2))
    temporary.replace(path)


def remove_note(data_dir: str) -> None:
    with suppress(OSError):
        Path(data_dir, NOTE).unlink()


def read_note(data_dir: str) -> RunningServer | None:
    """Read the note of the process that serves the directory now; None when there is none."""
    try:
        found = RunningServer(**json.loads(Path(data_dir, NOTE).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return found if found.is_alive() else None


def describe_running(data_dir: str, there: RunningServer) -> str:
    """Say in the words of an error that a server already runs on the directory."""
    where = f", Iggy clients on {there.addresses['iggy']}" if "iggy" in there.addresses else ""
    return (
        f"headrace already runs on {data_dir} (process {there.pid}{where}); "
        f"stop it with `headrace down --data-dir {data_dir}`, or choose another --data-dir"
    )


_TAKEN = re.compile(r"cannot listen on (?P<address>\S+):(?P<port>\d+)(?:: (?P<reason>.*))?")
_PORTS = ("iggy_port", "quic_port", "placement_port", "node_port", "http_port", "metrics_port")


@contextmanager
def explaining_start(settings: Settings) -> Iterator[None]:
    try:
        yield
    except LockedError as error:
        raise LockedError(_describe_lock(settings.data_dir)) from error
    except FormatError:
        raise  # says which version it is, and what to do
    except DiskFullError as error:
        raise DiskFullError(f"the disk of {settings.data_dir} is full") from error
    except (StorageError, NotFoundError) as error:
        path = error.data.get("path")
        if not isinstance(path, str):
            raise
        reason = error.message[:1].lower() + error.message[1:]
        raise ConfigError(
            f"{settings.data_dir} cannot be the data directory: {path}: {reason}; choose another "
            "--data-dir, or make this one writable for this user"
        ) from error
    except ConfigError as error:
        taken = _TAKEN.match(error.message)
        if taken is None:
            raise
        raise ConfigError(_describe_port(settings, taken)) from error


def _describe_lock(data_dir: str) -> str:
    there = read_note(data_dir)
    if there is not None:
        return describe_running(data_dir, there)
    return f"another headrace uses {data_dir}; stop it, or choose another --data-dir"


def _describe_port(settings: Settings, taken: re.Match[str]) -> str:
    address, port, reason = taken["address"], int(taken["port"]), taken["reason"] or ""
    named = next((name for name in _PORTS if getattr(settings, name) == port), "")
    option = f"--{named.replace('_', '-')}" if named else "another port"
    if "assign" in reason or "not known" in reason:
        return f"cannot listen on {address}:{port}: {reason}; --host is an address of this machine"
    if "permission" in reason:
        return f"cannot listen on {address}:{port}: {reason}; choose {option} above 1023"
    return (
        f"port {port} of {address} is taken by another program, perhaps by another headrace; "
        f"choose {option}, where 0 means any that is free"
    )
