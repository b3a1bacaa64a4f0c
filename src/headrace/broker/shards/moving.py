"""Whether a connection should be with another worker. Pure.

A connection moves when its last `REQUESTS` requests about partitions all were for one other worker.
One whose requests go to several workers stays where it is, and they are passed on. After a move, or
a try that failed, it stays for `PAUSE_SECONDS` at least, and each time twice as long as the time
before: who changes its ways all the time is soon left alone. That is forgotten after
`FORGET_SECONDS` without a move.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.broker.shards.assignment import NOBODY

REQUESTS = 16
PAUSE_SECONDS = 1.0
PAUSE_SECONDS_MAX = 256.0
FORGET_SECONDS = 1024.0


@dataclass(slots=True)
class Trail:
    """Where the requests of one connection went. Mutate only through the on_* methods."""

    tried: float = float("-inf")
    """When it last moved, or could not."""
    pause: float = 0.0
    """How long it stays since then."""
    worker: str = NOBODY
    """Who all of the last `count` requests were for; NOBODY: whom the connection is with."""
    count: int = 0

    def on_request(self, worker: str) -> None:
        """About a partition; `worker` is NOBODY when it is answered here, or nobody leads it."""
        if worker == self.worker:
            self.count += 1
        else:
            self.worker, self.count = worker, 1

    def on_here(self) -> None:
        self.worker = NOBODY

    def destination(self, now: float) -> str:
        """Where the connection should be; NOBODY: here."""
        if self.worker == NOBODY or self.count < REQUESTS or now < self.tried + self.pause:
            return NOBODY
        return self.worker

    def on_try(self, now: float) -> None:
        """It moves now, or tries to."""
        again = now - self.tried <= FORGET_SECONDS
        self.pause = min(2 * self.pause, PAUSE_SECONDS_MAX) if again else PAUSE_SECONDS
        self.tried = now
        self.worker, self.count = NOBODY, 0
