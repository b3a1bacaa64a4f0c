"""What other workers ask of this one: requests of their clients, and what windows, retention and
the coordinator need."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from headrace.broker.catalogue import events
from headrace.broker.catalogue.resources import UNASSIGNED, Partition, Topic
from headrace.broker.core import Broker
from headrace.broker.dispatch import Dispatcher
from headrace.broker.partitions.offsets import Place
from headrace.broker.partitions.partition import PartitionLog
from headrace.broker.shards import messages as m
from headrace.broker.shards.forwarding import ForwardedSessions
from headrace.errors import HeadraceError, NotFoundError, NotLeaderError
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Buffer
from headrace.wire.iggy import batch
from headrace.wire.iggy.errors import Status

log = get_logger(__name__)

Reply: TypeAlias = tuple[bytes, Sequence[Buffer]]
Answering: TypeAlias = Callable[[str, Any, memoryview], Awaitable[object]]
"""What answers a kind of message: its value is the answer's body, as msgpack."""

_DONE = m.encode(m.Answer())
_NOT_LEADING = m.encode(m.NotLeading())
_FAILED = m.encode(m.Answer(int(Status.ERROR)))


class PeerRequests:
    def __init__(self, broker: Broker, dispatcher: Dispatcher) -> None:
        self._broker = broker
        self._dispatcher = dispatcher
        self._sessions = ForwardedSessions()
        self._monotonic = broker.runtime.clock.monotonic
        self.answers: dict[type[object], Answering] = {
            m.OpenPlace: self._open_place,
            m.Publish: self._publish,
            m.BeginPublish: self._begin_publish,
            m.SyncPlace: self._sync_place,
            m.Trim: self._trim,
            m.Lowest: self._lowest,
            m.ForgetSession: self._forget_session,
            m.TakeLeft: self._take_left,
            m.Assign: self._assign,
            m.Clients: self._clients,
        }
        """By kind of message; whoever has more to answer adds to it."""

    def on_request(self, peer: str, head: bytes, body: memoryview) -> Reply | Awaitable[Reply]:
        message = m.decode(head)
        if isinstance(message, m.Forward):
            return self._on_forward(peer, message, body)
        return self._answer(peer, message, body)

    def _on_forward(
        self, peer: str, message: m.Forward, body: memoryview
    ) -> Reply | Awaitable[Reply]:
        session = self._sessions.get(message.session, self._monotonic())
        session.via = peer
        self._broker.traffic.requests_taken_in += 1
        pieces = self._dispatcher.answer_from_memory(session, message.code, body)
        if pieces is not None:
            return _DONE, pieces
        return self._forwarded(message, session, _writable(body))

    async def _forwarded(self, message: m.Forward, session: Any, body: memoryview) -> Reply:
        answer, pieces = await self._dispatcher.on_forwarded(session, message, body)
        return m.encode(answer), pieces

    async def _answer(self, peer: str, message: m.Message, body: memoryview) -> Reply:
        try:
            answering = self.answers.get(type(message))
            if answering is None:
                return _NOT_LEADING, ()  # this worker is still starting
            value = await answering(peer, message, body)
        except NotLeaderError:
            return _NOT_LEADING, ()
        except HeadraceError as error:
            log.info("another worker's request failed", peer=peer, reason=str(error))
            return _FAILED, ()
        return _DONE, (msgspec.msgpack.encode(value),)

    # -- partitions led here

    def _find(self, place: Place) -> tuple[Topic, Partition]:
        topic = self._broker.catalogue.topic_by_uid(place.topic_uid)
        partition = self._broker.catalogue.find_partition(*place)
        if topic is None or partition is None:
            raise NotFoundError("the partition is gone")
        if not self._broker.shards.leads(partition.shard):
            raise NotLeaderError("another worker leads the partition")
        return topic, partition

    async def _log(self, place: Place) -> PartitionLog:
        return await self._broker.partitions.get(*self._find(place))

    async def _open_place(self, peer: str, message: m.OpenPlace, body: memoryview) -> object:
        return _state(await self._log(message.place))

    async def _publish(self, peer: str, message: m.Publish, body: memoryview) -> object:
        log = await self._log(message.place)
        area, starts = batch.read_starts(_writable(body), message.messages)
        first, stored = await log.publish(
            area,
            starts,
            publisher=message.publisher,
            window=message.window,
            attempt=message.attempt,
        )
        for each in stored:
            await each
        return m.Published(first)

    async def _begin_publish(self, peer: str, message: m.BeginPublish, body: memoryview) -> object:
        log = await self._log(message.place)
        await log.begin(message.publisher, message.attempt)
        return _state(log)

    async def _sync_place(self, peer: str, message: m.SyncPlace, body: memoryview) -> object:
        log = await self._log(message.place)
        await log.sync()
        return _state(log)

    async def _trim(self, peer: str, message: m.Trim, body: memoryview) -> object:
        await (await self._log(message.place)).trim(message.offset)
        return None

    async def _lowest(self, peer: str, message: m.Lowest, body: memoryview) -> object:
        for place in message.places:
            self._find(place)
        return [self._broker.offsets.lowest(place) for place in message.places]

    # -- numbered requests

    async def _forget_session(
        self, peer: str, message: m.ForgetSession, body: memoryview
    ) -> object:
        self._broker.answers.forget_session(message.number)
        return None

    async def _take_left(self, peer: str, message: m.TakeLeft, body: memoryview) -> object:
        left = self._broker.answers.take_left(message.user_uid, message.fingerprint)
        if left is None:
            return None
        if not left.done:
            await left.wait()
        return None if left.failed else left.answer

    # -- the catalogue, where it is changed here

    async def _assign(self, peer: str, message: m.Assign, body: memoryview) -> object:
        if not self._broker.workers.coordinates:
            raise NotLeaderError("another worker coordinates")
        place = message.place
        partition = self._broker.catalogue.find_partition(*place)
        if partition is None or partition.stream_id == UNASSIGNED:
            event = events.PartitionAssigned(*place, message.stream_id)
            await self._broker.record(event)
        return self._broker.catalogue_end

    async def _clients(self, peer: str, message: m.Clients, body: memoryview) -> object:
        return [
            m.ClientState(s.client_id, s.address, s.user_uid, int(s.transport))
            for s in self._broker.sessions
        ]


def _writable(body: memoryview) -> memoryview:
    """Messages are stamped where they lie, and a link lends short bodies only to be read."""
    return memoryview(bytearray(body)) if body.readonly else body


def _state(log: PartitionLog) -> m.PlaceState:
    return m.PlaceState(log.stream_id, log.start_offset, log.committed)
