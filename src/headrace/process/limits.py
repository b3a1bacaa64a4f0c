"""What a process takes of its machine: connections by open files, and a reserve of disk space.

A socket is an open file. If connections could take all of them, the log could open none: so half of
what is allowed, or what the log wants, is the log's, some is for everything else, and the ports
share what is left. The soft limit is raised to the hard one before it is asked for.

A data directory keeps some space for its own next start. `storage.min_free_bytes` is left free for
control state, but on a disk that others fill nothing is left free. Then the reserve is given up: a
start can note what it has to, readers are served, and a topic can be deleted. A start that finds
room for the reserve takes it again.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.errors import StorageError
from headrace.net.sbp_server import ServerLimits
from headrace.observability.logging import get_logger
from headrace.process.http_server import HttpLimits
from headrace.runtime import Runtime
from headrace.runtime.interfaces import Disk

log = get_logger(__name__)

_FOR_THE_REST = 128  # links to other roles, databases, pipes, the loop itself
_MIN = 16


def connections_max(
    disk: Disk, port: str, wanted: int, *, files: int = 0, share: float = 1.0
) -> int:
    """How many of the `wanted` connections on that port fit beside `files` open files."""
    limit = disk.open_files_max()
    room = limit - min(files, limit // 2) - min(_FOR_THE_REST, limit // 8)
    allowed = min(wanted, max(_MIN, int(room * share)))
    if allowed < wanted:
        log.warning(
            "fewer connections than set: the process may open too few files; raise the hard limit"
            " (ulimit -Hn, LimitNOFILE=)",
            port=port,
            connections_max=allowed,
            wanted=wanted,
            open_files_max=limit,
        )
    return allowed


def sbp_limits(disk: Disk, port: str, *, files: int, share: float) -> ServerLimits:
    limits = ServerLimits()
    wanted = limits.connections_max
    return replace(
        limits, connections_max=connections_max(disk, port, wanted, files=files, share=share)
    )


def http_limits(disk: Disk) -> HttpLimits:
    """Containers and links to the broker have the other half."""
    wanted = HttpLimits().connections_max
    return HttpLimits(connections_max=connections_max(disk, "http", wanted, share=0.5))


RESERVE = "reserve"
RESERVE_BYTES = 16 * 1024 * 1024
_ROOM_BYTES = 8 * RESERVE_BYTES  # on a disk as small as that nobody wants it


async def keep_reserve(runtime: Runtime, data_dir: str) -> None:
    """Before anything in the data directory is opened."""
    files = runtime.executor("process", 1)
    try:
        await files.run(_keep_reserve, runtime.disk, data_dir)
    finally:
        files.close()


def _keep_reserve(disk: Disk, data_dir: str) -> None:
    path = f"{data_dir}/{RESERVE}"
    try:
        disk.make_folder(data_dir)
        free = disk.free_bytes(data_dir)
        if not disk.exists(path):
            if free >= _ROOM_BYTES:
                _take(disk, path)
        elif free < RESERVE_BYTES:
            disk.remove(path)
            log.warning("the disk is full; started with the reserve", path=path, bytes=free)
    except StorageError as error:  # whoever needs the space says what it is for
        log.warning("no disk space is reserved", path=path, error=str(error))


def _take(disk: Disk, path: str) -> None:
    file = disk.open(path, create=True)
    try:
        file.allocate(0, RESERVE_BYTES)
    finally:
        file.close()
