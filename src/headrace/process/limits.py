"""How many connections a process takes, by how many files the system lets it have open.

A socket is an open file. If connections could take all of them, the log could open none: so half of
what is allowed, or what the log wants, is the log's, some is for everything else, and the ports
share what is left. The soft limit is raised to the hard one before it is asked for.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.net.sbp_server import ServerLimits
from headrace.observability.logging import get_logger
from headrace.process.http_limits import HttpLimits
from headrace.runtime.interfaces import Disk

log = get_logger(__name__)

_FOR_THE_REST = 128  # links to other roles, databases, pipes, the loop itself
_MIN = 16


def connections_max(
    disk: Disk, port: str, wanted: int, *, files: int = 0, share: float = 1.0
) -> int:
    """Of `wanted` connections on that port, as many as fit beside `files` open files."""
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
