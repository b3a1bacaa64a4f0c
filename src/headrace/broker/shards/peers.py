"""The other workers, as this one knows them: who coordinates, who leads which shard, how to ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from headrace.broker.shards import messages as m
from headrace.broker.shards.assignment import NOBODY
from headrace.errors import (
    NotLeaderError,
    OutcomeUnknownError,
    RemoteProtocolError,
    UnavailableError,
)
from headrace.runtime.interfaces import Buffer, Connection, MovableConnection

ASK_SECONDS = 10.0


class Links(Protocol):
    """Links to other workers, by their names."""

    async def call(
        self, worker: str, head: bytes, body: Sequence[Buffer], timeout: float
    ) -> tuple[bytes, memoryview]:
        """UnavailableError: nothing was asked. OutcomeUnknownError: it was, and no answer came."""

    async def move(
        self, worker: str, connection: MovableConnection, head: bytes, first_bytes: bytes
    ) -> Connection | None:
        """Hand a client's connection to a worker of this machine: see `PeerLink.move`.
        UnavailableError also when the worker is on another one."""

    def notify(self, worker: str, head: bytes) -> None:
        """Tell without an answer; lost when the link is."""

    async def find(self) -> list[str]:
        """The workers that live, as their leases say."""


class Peers:
    """Changed only by `worker.py`, and by what the coordinator tells."""

    def __init__(self, me: str, links: Links, leads: Callable[[int], bool]) -> None:
        """`leads` says of a shard whether this worker leads it."""
        self.me = me
        self.links = links
        self.leads = leads
        self.coordinator = NOBODY
        self.leaders: list[str] = []
        """The leader of each shard."""
        self.version = -1
        """Of `leaders`, as the coordinator counts."""
        self._changed = asyncio.Event()

    @property
    def coordinates(self) -> bool:
        return self.coordinator == self.me

    def leader_of(self, shard: int) -> str:
        return self.leaders[shard] if shard < len(self.leaders) else NOBODY

    def on_leaders(self, told: m.Leaders) -> None:
        if told.version >= self.version:
            self.version, self.leaders = told.version, told.workers
            self.on_changed()

    def on_coordinator(self, worker: str) -> None:
        self.coordinator = worker
        self.version = -1  # another one counts from the beginning
        self.on_changed()

    def on_changed(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_changed(self, seconds: float) -> None:
        """Until something else is known of the others, at most that long."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    async def ask(
        self,
        worker: str,
        message: m.Message,
        body: Sequence[Buffer] = (),
        *,
        seconds: float = ASK_SECONDS,
    ) -> memoryview:
        """The body of the answer. NotLeaderError when another worker leads what it is about, and
        UnavailableError: nothing was done. OutcomeUnknownError: something may have been."""
        answer, data = await self.exchange(worker, message, body, seconds=seconds)
        if isinstance(answer, m.NotLeading):
            raise NotLeaderError("another worker leads it", worker=worker)
        if not isinstance(answer, m.Answer) or answer.status:
            raise OutcomeUnknownError("another worker failed", worker=worker, answer=repr(answer))
        return data

    async def exchange(
        self, worker: str, message: m.Message, body: Sequence[Buffer], *, seconds: float
    ) -> tuple[m.Message, memoryview]:
        if worker == NOBODY:
            raise UnavailableError("nobody leads it at the moment")
        head, data = await self.links.call(worker, m.encode(message), body, seconds)
        try:
            return m.decode(head), data
        except msgspec.MsgspecError as error:
            raise RemoteProtocolError("unknown answer of a worker", worker=worker) from error

    async def ask_coordinator(self, message: m.Message) -> memoryview:
        return await self.ask(self.coordinator, message)
