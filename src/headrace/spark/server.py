"""Blocking access to a server, shared by all that runs in one process.

It only wraps: what is done stands in `remote.py`, `reading.py`, `following.py` and `windows.py`.
Connections live on one event loop in a thread of its own, so that they answer heartbeats between
micro-batches and fetch the next run of messages while Spark chews on the last. A process that was
forked starts over.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from headrace.client.url import TlsOptions
from headrace.concurrency.loop_thread import LoopThread
from headrace.runtime.system import system_runtime
from headrace.runtime.system.memory import keep_freed_memory
from headrace.spark.options import Credentials, Target
from headrace.spark.remote import Remote

if TYPE_CHECKING:
    from headrace.wire.iggy.batch import Positions

T = TypeVar("T")

LENT_KEPT = 8  # a worker has one task at a time, which uses one or two
CALL_SECONDS = 120.0  # nothing here takes longer, retries included


class Server:
    """One server under one identity."""

    def __init__(self, loop: LoopThread, remote: Remote) -> None:
        self._loop = loop
        self.remote = remote

    def run(self, work: Awaitable[T]) -> T:
        """Wait for work on the loop that owns the connections."""
        return self._loop.run(work, CALL_SECONDS)

    def submit(self, work: Awaitable[T]) -> Future[T]:
        return self._loop.submit(work)

    def iterate(self, work: AsyncGenerator[T, None]) -> Iterator[T]:
        """What an asynchronous generator gives, which may work ahead meanwhile."""
        return self._loop.iterate(work, CALL_SECONDS)

    def partition_count(self, target: Target) -> int:
        return self.run(self.remote.partition_count(target))

    def create_topic(self, target: Target, *, partitions: int = 1) -> None:
        """Make the topic, and its stream, unless they are there."""
        self.run(self.remote.create_topic(target, partitions=partitions))

    def publishes_windows(self) -> bool:
        return self.run(self.remote.publishes_windows())

    def send_soon(
        self, target: Target, partition: int | None, area: memoryview, starts: Positions
    ) -> Future[int]:
        return self.submit(self.remote.send(target, partition, area, starts))


_servers: dict[tuple[int, str, Credentials, TlsOptions], Server] = {}
_loops: dict[int, LoopThread] = {}
_lock = threading.Lock()


def connect(target: Target) -> Server:
    """This process's server for an address and identity; nothing is opened before its first use."""
    process = os.getpid()
    key = (process, target.address, target.credentials, target.tls)
    with _lock:
        if process not in _loops:
            keep_freed_memory()  # of frames and columns: the next ones are always on their way
            _loops[process] = LoopThread()
        server = _servers.pop(key, None)
        if server is None:
            remote = Remote(system_runtime(), target.address, target.credentials, target.tls)
            server = Server(_loops[process], remote)
        elif target.credentials.lent is not None:
            server.remote.renew(target.credentials)
        _servers[key] = server  # the last is the one used last
        _let_go()
        return server


def _let_go() -> None:
    """Of the identities that were lent: a worker goes from job to job, each with another one."""
    lent = [key for key in _servers if key[2].lent is not None]
    for key in lent[:-LENT_KEPT]:
        server = _servers.pop(key)
        if key[0] == os.getpid():
            server.submit(server.remote.close())
