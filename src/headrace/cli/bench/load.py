"""The load itself: connections that send and poll whole batches until the time is over.

A connection has one request on its way at a time; `--connections` makes more of them. With a rate
the clock decides when a batch is due, and its latency counts from then: a server that stalls is
charged for every batch it kept waiting, not for one.

The first message of each batch carries the moment it was due as its origin timestamp, by which
consumers in the same run know how long it took from end to end.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.cli.bench.figures import Latencies, TrafficFigures

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.wire.iggy.messages.messages import PolledMessages, SendMessages

_ORIGIN_AT = 40  # in a message's header
_ORIGIN = struct.Struct("<Q")
_TIMEOUT_SECONDS = 30.0
_EMPTY_SECONDS = 0.002
_DRAIN_SECONDS = 5.0  # for consumers to get what was sent before the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    mode: str
    stream: str
    topic: str
    size: int = 1000
    batch: int = 1000
    connections: int = 4
    partitions: int = 4
    seconds: float = 10.0
    warmup_seconds: float = 1.0
    rate: float = 0.0
    """Messages per second, of all producers together; 0 = as many as go."""

    @property
    def produces(self) -> bool:
        return self.mode in ("produce", "both")

    @property
    def consumes(self) -> bool:
        return self.mode in ("consume", "both")


@dataclass(slots=True)
class LoadOutcome:
    produce: TrafficFigures | None = None
    consume: TrafficFigures | None = None
    end_to_end: Latencies = field(default_factory=Latencies)
    errors: list[str] = field(default_factory=list)


Connect = Callable[[], Awaitable["IggyClient"]]
OnProgress = Callable[[float, int], None]
"""Share of the run that is over, messages so far."""


class LoadRun:
    def __init__(self, load: Load, connect: Connect, on_progress: OnProgress) -> None:
        self._load = load
        self._connect = connect
        self._on_progress = on_progress
        self.outcome = LoadOutcome()
        self._begin = 0.0
        self._end = 0.0
        self._sending = 0
        self._positions: dict[int, int] = {}

    async def run(self) -> LoadOutcome:
        load, outcome = self._load, self.outcome
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(await self._connect())
                for _ in range(load.connections * (load.produces + load.consumes))
            ]
            self._positions = await self._look(clients[0])  # before anything is sent
            self._begin = time.monotonic() + load.warmup_seconds
            self._end = self._begin + load.seconds
            if load.produces:
                outcome.produce = TrafficFigures(started=self._begin, ended=self._begin)
            if load.consumes:
                outcome.consume = TrafficFigures(started=self._begin, ended=self._begin)
            watching = asyncio.create_task(self._watch())
            try:
                await asyncio.gather(*self._workers(clients))
            finally:
                watching.cancel()
                await asyncio.wait([watching])
        return outcome

    def _workers(self, clients: list[IggyClient]) -> list[Awaitable[None]]:
        load, count = self._load, self._load.connections
        workers: list[Awaitable[None]] = []
        if load.produces:
            self._sending = count
            workers += [self._guarded(self._produce(clients.pop(), n)) for n in range(count)]
        if load.consumes:
            workers += [self._guarded(self._consume(clients.pop(), n)) for n in range(count)]
        return workers

    async def _guarded(self, work: Awaitable[None]) -> None:
        """One connection that fails is told, and does not end the others."""
        from headrace.errors import HeadraceError

        try:
            await work
        except HeadraceError as error:
            self.outcome.errors.append(str(error))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            sides = (self.outcome.produce, self.outcome.consume)
            messages = max(side.messages for side in sides if side is not None)
            passed = (time.monotonic() - self._begin) / self._load.seconds
            self._on_progress(min(1.0, max(0.0, passed)), messages)

    # -- producing

    async def _produce(self, client: IggyClient, number: int) -> None:
        load, side = self._load, self.outcome.produce
        assert side is not None
        requests = [self._request(partition) for partition in self._own(number)]
        every = load.batch * load.connections / load.rate if load.rate else 0.0
        due = time.monotonic() + every * number / load.connections
        turn = 0
        try:
            while True:
                if every:
                    ahead = due - time.monotonic()
                    if ahead > 0:
                        await asyncio.sleep(ahead)
                else:
                    due = time.monotonic()
                if max(due, time.monotonic()) >= self._end:
                    return
                request = requests[turn % len(requests)]
                late = time.monotonic() - due
                now_us = time.time_ns() // 1000 - int(late * 1e6)
                _ORIGIN.pack_into(request.area, _ORIGIN_AT, now_us)
                await client.send_batch(request, timeout=_TIMEOUT_SECONDS)
                answered = time.monotonic()
                if due >= self._begin:
                    side.add(answered, answered - due, load.batch, load.batch * load.size)
                due += every
                turn += 1
        finally:
            self._sending -= 1

    def _own(self, number: int) -> list[int]:
        """Partitions of one connection: all of them, from another one on each, or one's own."""
        load = self._load
        if load.connections >= load.partitions:
            return [number % load.partitions]
        return list(range(number, load.partitions, load.connections))

    def _request(self, partition: int) -> SendMessages:
        from headrace.wire.iggy.messages.messages import Message, encode_send
        from headrace.wire.iggy.primitives import Partitioning

        load = self._load
        payload = os.urandom(load.size)  # what a compressing file system cannot make smaller
        return encode_send(
            load.stream,
            load.topic,
            Partitioning.to_partition(partition),
            [Message(payload)] * load.batch,
        )

    # -- consuming

    async def _consume(self, client: IggyClient, number: int) -> None:
        load, side = self._load, self.outcome.consume
        assert side is not None
        positions = {each: self._positions.get(each, 0) for each in self._own(number)}
        last = self._end + (_DRAIN_SECONDS if load.produces else 0)
        while True:
            found = 0
            for partition in positions:
                found += await self._poll(client, side, positions, partition)
            now = time.monotonic()
            if now >= last or (now >= self._end and not (found or self._sending)):
                return
            if not found:
                await asyncio.sleep(_EMPTY_SECONDS)

    async def _look(self, client: IggyClient) -> dict[int, int]:
        """Where to read from: behind what is there when this run produces too."""
        details = await client.get_topic(self._load.stream, self._load.topic)
        if details is None or not self._load.produces:
            return {}
        return {one.id: one.next_offset for one in details.partitions}

    async def _poll(
        self, client: IggyClient, side: TrafficFigures, positions: dict[int, int], partition: int
    ) -> int:
        from headrace.wire.iggy.primitives import Strategy

        load = self._load
        asked = time.monotonic()
        polled = await client.poll(
            load.stream,
            load.topic,
            partition=partition,
            strategy=Strategy.offset(positions[partition]),
            count=load.batch,
            timeout=_TIMEOUT_SECONDS,
        )
        answered = time.monotonic()
        if not polled.count:
            side.empty += 1
            if not load.produces and positions[partition] > polled.current_offset:
                positions[partition] = 0  # read everything: once more from the start
            return 0
        first, origins, size = _looked_at(polled)
        positions[partition] = first + polled.count
        if self._begin <= asked and (asked < self._end or load.produces):
            side.add(answered, answered - asked, polled.count, size)
            if load.produces:
                now_us = time.time_ns() // 1000
                for origin in origins:
                    self.outcome.end_to_end.record(max(0, now_us - origin) / 1e6)
        return polled.count


def _looked_at(polled: PolledMessages) -> tuple[int, list[int], int]:
    """First offset, the origin timestamps that are set, bytes of the payloads; by array
    operations."""
    from headrace.wire.iggy import batch

    first, origins, size = -1, [], 0
    for area in polled.slices:
        headers: Any = batch.gather_headers(area, batch.locate(area))
        if first < 0:
            first = int(headers["offset"][0])
        stamps = headers["origin_timestamp"]
        origins += [int(each) for each in stamps[stamps > 0]]
        size += int(headers["payload_length"].sum())
    return first, origins, size
