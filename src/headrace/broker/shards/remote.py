"""Partitions that another worker leads, as windows, tickets and retention use them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from headrace.broker.partitions.offsets import Place
from headrace.broker.shards import messages as m
from headrace.broker.shards.peers import Peers
from headrace.errors import NotLeaderError, OutcomeUnknownError, UnavailableError
from headrace.runtime.interfaces import Buffer
from headrace.wire.iggy import batch

if TYPE_CHECKING:
    from headrace.wire.iggy.batch import Positions


_LED_SECONDS = 8.0
"""For somebody to lead it; a client waits longer than that for an answer."""
_WAIT_SECONDS = 0.05
_ANSWER_SECONDS = 60.0


class RemotePartition:
    """Made by `open`; how far it reaches is what its leader said then or since."""

    def __init__(self, peers: Peers, place: Place, shard: int, state: m.PlaceState) -> None:
        self._peers = peers
        self._place = place
        self._shard = shard
        self._state = state

    @classmethod
    async def open(cls, peers: Peers, place: Place, shard: int) -> RemotePartition:
        data = await ask_leader(peers, shard, m.OpenPlace(place))
        return cls(peers, place, shard, msgspec.msgpack.decode(data, type=m.PlaceState))

    @property
    def stream_id(self) -> int:
        return self._state.stream_id

    @property
    def start_offset(self) -> int:
        return self._state.start

    @property
    def committed(self) -> int:
        return self._state.committed

    async def publish(
        self, area: memoryview, starts: Positions, *, publisher: int, window: int, attempt: int
    ) -> tuple[int, list[asyncio.Future[int]]]:
        """Durable on return: what to wait for is empty."""
        message = m.Publish(self._place, publisher, window, attempt, len(starts))
        body: list[Buffer] = [area, batch.build_index(starts)]
        data = await ask_leader(self._peers, self._shard, message, body)
        return msgspec.msgpack.decode(data, type=m.Published).first, []

    async def begin(self, publisher: int, attempt: int) -> None:
        await self._learn(m.BeginPublish(self._place, publisher, attempt))

    async def sync(self) -> None:
        await self._learn(m.SyncPlace(self._place))

    async def _learn(self, message: m.Message) -> None:
        data = await ask_leader(self._peers, self._shard, message)
        self._state = msgspec.msgpack.decode(data, type=m.PlaceState)

    async def trim(self, offset: int) -> None:
        await ask_leader(self._peers, self._shard, m.Trim(self._place, offset))


async def ask_leader(
    peers: Peers, shard: int, message: m.Message, body: Sequence[Buffer] = ()
) -> memoryview:
    """The answer of the shard's leader. A shard that moves is waited for, unless messages may have
    been published: all else may be done twice. NotLeaderError when it came to this worker."""
    clock = asyncio.get_running_loop()
    deadline = clock.time() + _LED_SECONDS
    while clock.time() < deadline:
        leader = peers.leader_of(shard)
        if peers.leads(shard):
            raise NotLeaderError("this worker leads the partition by now", shard=shard)
        try:
            return await peers.ask(leader, message, body, seconds=_ANSWER_SECONDS)
        except (NotLeaderError, UnavailableError, OutcomeUnknownError) as error:
            if isinstance(error, OutcomeUnknownError) and isinstance(message, m.Publish):
                raise
            await peers.wait_changed(_WAIT_SECONDS)
    raise UnavailableError("nobody leads the partition", shard=shard)


async def lowest_offset(peers: Peers, place: Place, shard: int) -> int | None:
    data = await ask_leader(peers, shard, m.Lowest([place]))
    return msgspec.msgpack.decode(data, type=list[int | None])[0]
