"""Log files of an application's containers: `<application path>/logs/<container id>.log`."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import NotFoundError
from headrace.runtime.interfaces import Disk

LOGS_MAX = 10  # log files kept per application and container


def make_room(disk: Disk, folder: str, containers: int) -> None:
    """Before one more is written. Blocks."""
    disk.make_folder(folder)
    for old in log_files(disk, folder)[: -LOGS_MAX * containers + 1]:
        disk.remove(f"{folder}/{old}")


def last_lines(disk: Disk, folder: str, lines: int, *, bytes_max: int) -> str:
    """The newest container's last. Blocks."""
    text = ""
    for file in reversed(log_files(disk, folder)):
        text = _tail(disk, f"{folder}/{file}", bytes_max) + text
        if text.count("\n") >= lines:
            break
    return "".join(text.splitlines(keepends=True)[-lines:])


def log_files(disk: Disk, folder: str) -> Sequence[str]:
    """Oldest first: a container's id ends with its run."""
    return sorted(
        (name for name in disk.list(folder) if name.endswith(".log")),
        key=lambda name: int(name.removesuffix(".log").rpartition(".")[2]),
    )


def _tail(disk: Disk, path: str, bytes_max: int) -> str:
    try:
        file = disk.open(path)
    except NotFoundError:
        return ""
    try:
        data = file.pread(bytes_max, max(0, file.size() - bytes_max))
    finally:
        file.close()
    return data.decode("utf-8", "replace")
