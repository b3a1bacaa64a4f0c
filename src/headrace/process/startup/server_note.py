"""Which process serves a data directory, as it noted there itself: `up.json`.

The note is for people and for `headrace down`; what keeps two servers off one directory is the
lock of the log. A process that was killed leaves its note behind, so a note counts while the
process that it names lives.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

NOTE = "up.json"
LOG = "up.log"
"""Of a server in the background."""


@dataclass(frozen=True, slots=True)
class Running:
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
    """That this process serves the directory."""
    running = Running(os.getpid(), started(os.getpid()), addresses, log)
    path = Path(data_dir, NOTE)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(asdict(running), indent=2))
    temporary.replace(path)


def remove_note(data_dir: str) -> None:
    with suppress(OSError):
        Path(data_dir, NOTE).unlink()


def read_note(data_dir: str) -> Running | None:
    """Of the process that serves the directory now; None when nobody noted that."""
    try:
        found = Running(**json.loads(Path(data_dir, NOTE).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return found if found.is_alive() else None


def told_running(data_dir: str, there: Running) -> str:
    """In the words of an error."""
    where = f", Iggy clients on {there.addresses['iggy']}" if "iggy" in there.addresses else ""
    return (
        f"headrace already runs on {data_dir} (process {there.pid}{where}); "
        f"stop it with `headrace down --data-dir {data_dir}`, or choose another --data-dir"
    )
