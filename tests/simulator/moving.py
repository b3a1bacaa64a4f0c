"""Connections on their way from one simulated process to another on its machine.

As with descriptors of a kernel, a connection stays open while somebody holds it: it ends when the
last one lets go without having gone on with it, or when one of them aborts it for all.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from headrace.errors import UnavailableError
from tests.simulator.host import Boot

UNCLAIMED_SECONDS = 5.0
INBOX_MAX = 4  # as few as a kernel queues datagrams, so that senders meet a full one


class End(Protocol):
    def close(self) -> None: ...

    def abort(self) -> None: ...


class _Shared:
    """What all who hold one connection have in common."""

    def __init__(self, end: End) -> None:
        self.end = end
        self.holders = 0
        self.adopted = False


class SimulatedDetached:
    def __init__(self, end: End, received: bytes = b"", shared: _Shared | None = None) -> None:
        self.received = received
        self._shared: _Shared | None = shared or _Shared(end)
        self._shared.holders += 1

    def copy(self) -> SimulatedDetached:
        assert self._shared is not None, "released"
        return SimulatedDetached(self._shared.end, b"", self._shared)

    def take(self) -> End:
        shared = self._let_go()
        if shared is None or shared.adopted:
            raise UnavailableError("the connection was given away")
        shared.adopted = True
        return shared.end

    def release(self) -> None:
        shared = self._let_go()
        if shared is not None and not shared.holders and not shared.adopted:
            shared.end.close()

    def abort(self) -> None:
        shared = self._let_go()
        if shared is not None:
            shared.end.abort()

    def _let_go(self) -> _Shared | None:
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.holders -= 1
        return shared


class SimulatedInbox:
    def __init__(self, boot: Boot) -> None:
        self.boot = boot
        self.closed = False
        self._unclaimed: dict[bytes, SimulatedDetached] = {}

    def put(self, token: bytes, detached: SimulatedDetached) -> bool:
        if len(self._unclaimed) >= INBOX_MAX:
            self._unclaimed.pop(next(iter(self._unclaimed))).release()
            return False
        self._unclaimed[token] = detached.copy()
        asyncio.get_running_loop().call_later(UNCLAIMED_SECONDS, self._expire, token)
        return True

    def _expire(self, token: bytes) -> None:
        detached = self._unclaimed.pop(token, None)
        if detached is not None:
            detached.release()

    def take(self, token: bytes) -> SimulatedDetached | None:
        return self._unclaimed.pop(token, None)

    def close(self) -> None:
        self.closed = True
        for detached in self._unclaimed.values():
            detached.release()
        self._unclaimed.clear()
