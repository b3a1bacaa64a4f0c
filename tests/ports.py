"""Ports for servers that are told where to listen and do so only later."""

from __future__ import annotations

import random
import socket

# Below what Linux gives to outgoing connections: one of those could take it meanwhile.
_FIRST, _LAST = 20_000, 32_000


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """All open at the same moment, so that they differ."""
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            probe = socket.socket()
            try:
                probe.bind(("127.0.0.1", random.randrange(_FIRST, _LAST)))
            except OSError:
                probe.close()
            else:
                held.append(probe)
        return [probe.getsockname()[1] for probe in held]
    finally:
        for probe in held:
            probe.close()
