"""StreamProducer of plain streams: pipelined, batched, in order, exactly once per record.

    producer = StreamProducer(client)
    stored = await producer.send(stream_id, [b"one", b"two"])   # queued; waits only for memory
    offset = await stored                                       # of b"one", when it is durable
    await producer.flush()

Records of one stream are stored in the order of the calls. They wait `linger_ms` for company or
until `batch_bytes` are there; batches of many streams go to the same data node in one frame. When a
range fails, it is sealed through the placement manager and *all* unacknowledged batches are sent to
the next one, in order and unchanged. The sequence in each batch lets data nodes recognize what they
have: it travels with the seal, so a batch that was stored before its answer got lost is not stored
again by another primary either.

A batch that is not delivered within `delivery_timeout_ms` fails, and with it all that wait behind
it: the order would break otherwise. `flush` raises the first such error, once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from headrace.concurrency.retry import BACKOFF_MAX, BACKOFF_MIN, Backoff
from headrace.concurrency.tasks import TaskSet
from headrace.errors import (
    DeadlineError,
    FencedError,
    HeadraceError,
    InvalidArgumentError,
    RangeNotFoundError,
    RequestError,
    ThrottledError,
    TooLargeError,
    UnavailableError,
)
from headrace.runtime.interfaces import Buffer
from headrace.sbp_client.append import BATCH_BYTES_MAX
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.next_range import connect, succeed
from headrace.sbp_client.ranges import primary_address
from headrace.sbp_client.send_queue import Batch, Lane, NodeSender
from headrace.wire.sbp.messages import Range
from headrace.wire.sbp.records import HEADER_BYTES

_INDEX_BYTES = 4  # per record, in the batch's index


class StreamProducer:
    """All calls from one event loop. Settings come from the client's."""

    def __init__(self, client: SbpClient) -> None:
        settings = client.settings
        self._client = client
        self._clock = client.runtime.clock
        self._settings = settings
        self._linger = settings.linger_ms / 1000
        self._delivery_timeout = settings.delivery_timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[int, Lane] = {}
        self._lingering: dict[Lane, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._senders: dict[str, NodeSender] = {}
        self._listening: list[Callable[[], object]] = []
        self._pending_bytes = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._failure: HeadraceError | None = None
        self._closed = False
        self._tasks = TaskSet("producer")

    # Calls

    async def send(
        self, stream_id: int, records: Sequence[Buffer], *, timeout: float | None = None
    ) -> asyncio.Future[int]:
        """Queue records, which must not change any more; resolves with the first one's offset.

        They are stored one after the other in one batch. Past `pending_bytes_max` it waits for
        room, ThrottledError after `timeout` seconds (`delivery_timeout_ms` unless given).
        """
        limit = self._delivery_timeout if timeout is None else timeout
        size = _bytes_of(records)
        if self._waiters or not self._has_room(size):
            try:
                async with asyncio.timeout(limit):
                    await self._wait_for_room(size)
            except TimeoutError:
                raise ThrottledError("too many bytes pending", stream_id=stream_id) from None
        answer = self._enqueue(stream_id, records)
        self._admit()
        return answer

    def send_nowait(self, stream_id: int, records: Sequence[Buffer]) -> asyncio.Future[int]:
        """Like `send`; ThrottledError at once when there is no room."""
        if self._waiters or not self._has_room(_bytes_of(records)):
            raise ThrottledError("too many bytes pending", stream_id=stream_id)
        return self._enqueue(stream_id, records)

    async def flush(self) -> None:
        """Wait until everything sent so far is stored or has failed; raises the first failure
        since the last flush."""
        waiting: list[asyncio.Future[None]] = []
        for lane in self._lanes.values():
            lane.due = lane.open is not None
            self._pump(lane)
            waiting.extend(batch.wait_ended() for batch in lane.batches())
        if waiting:
            await asyncio.wait(waiting)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Stop at once. What is not acknowledged fails with UnavailableError: `flush` first."""
        self._closed = True
        for lane in self._lanes.values():
            self._fail(lane, UnavailableError("producer closed", stream_id=lane.stream_id))
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        for stop in self._listening:
            stop()
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()

    def statistics(self) -> dict[str, int]:
        lanes = self._lanes.values()
        return {
            "streams": len(self._lanes),
            "pending_bytes": self._pending_bytes,
            "batches_in_flight": sum(len(lane.sent) for lane in lanes),
            "batches_waiting": sum(len(lane.ready) + len(lane.returned) for lane in lanes),
            "streams_recovering": sum(lane.recovering for lane in lanes),
        }

    # Gathering

    def _has_room(self, size: int) -> bool:
        room = self._settings.pending_bytes_max - self._pending_bytes
        return self._closed or not self._pending_bytes or size <= room

    async def _wait_for_room(self, size: int) -> None:
        """In turn: who has waited longest is woken first, and keeps its place if that is early."""
        place = len(self._waiters)
        while True:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.insert(place, waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                else:
                    self._admit()  # woken in the same moment: somebody else may go instead
                raise
            if self._has_room(size):
                return
            place = 0

    def _admit(self) -> None:
        """Wake the first that waits; it looks for itself whether the room is enough."""
        while self._waiters and self._has_room(1):
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _enqueue(self, stream_id: int, records: Sequence[Buffer]) -> asyncio.Future[int]:
        if self._closed:
            raise UnavailableError("producer closed")
        size = _bytes_of(records)
        if not records:
            raise InvalidArgumentError("nothing to send", stream_id=stream_id)
        if HEADER_BYTES + size > BATCH_BYTES_MAX:
            raise TooLargeError("records too large", bytes=size, limit=BATCH_BYTES_MAX)
        lane = self._lanes.get(stream_id)
        if lane is None:
            lane = Lane(stream_id, self._new_producer_id(), self._settings.window)
            self._lanes[stream_id] = lane
        if lane.open is not None and lane.open.record_bytes + size > self._settings.batch_bytes:
            lane.close_open(self._clock.now_ms())
        if lane.open is None:
            lane.open = Batch(self._clock.monotonic() + self._delivery_timeout)
        answer: asyncio.Future[int] = self._loop.create_future()
        lane.open.add(records, size, answer)
        self._pending_bytes += size
        if lane.open.record_bytes >= self._settings.batch_bytes:
            lane.close_open(self._clock.now_ms())
        if lane.ready:
            self._pump(lane)
        if lane.open is not None and not lane.due:
            self._let_linger(lane)
        return answer

    def _new_producer_id(self) -> int:
        return self._client.runtime.random.below(1 << 63)

    def _let_linger(self, lane: Lane) -> None:
        self._lingering[lane] = None
        if self._timer is None:
            self._timer = self._loop.call_later(self._linger, self._on_lingered)

    def _on_lingered(self) -> None:
        self._timer = None
        lanes, self._lingering = self._lingering, {}
        for lane in lanes:
            lane.due = True  # a full window lets the batch go on growing
            self._pump(lane)

    # Sending

    def _pump(self, lane: Lane) -> None:
        if lane.range is None:
            if not lane.recovering and lane.has_batches:
                self._recover(lane, None)
        elif lane.can_send:
            self._sender(primary_address(lane.range)).wake(lane)

    def _sender(self, address: str) -> NodeSender:
        sender = self._senders.get(address)
        if sender is None:
            link = self._client.nodes.to(address)
            sender = self._senders[address] = NodeSender(
                self._client.runtime,
                self._settings,
                link,
                self._tasks,
                on_stored=self._on_stored,
                on_refused=self._on_refused,
                on_unreachable=self._on_unreachable,
            )
            self._listening.append(link.on_goaway(lambda _: self._on_goaway(address)))
        return sender

    def _on_stored(self, lane: Lane, session: int, batch: Batch, base_offset: int) -> None:
        if session != lane.session:
            return
        lane.on_stored(batch)
        self._let_go(batch)
        batch.settle(base_offset)
        if not lane.sent and lane.returned:
            self._send_again(lane)
        self._pump(lane)

    def _let_go(self, batch: Batch) -> None:
        self._pending_bytes -= batch.record_bytes
        self._admit()

    def _on_refused(self, lane: Lane, session: int, batch: Batch, error: HeadraceError) -> None:
        if session != lane.session:
            return
        unseen = isinstance(error, UnavailableError) and bool(error.data.get("refused"))
        # Behind a batch that was not taken all others are out of order.
        behind = isinstance(error, InvalidArgumentError) and "producer_id" in error.data
        behind = behind and (bool(lane.returned) or batch is not lane.sent[0])
        if isinstance(error, ThrottledError) or unseen or behind:
            if lane.on_returned(batch):
                self._send_again(lane)
            return
        if isinstance(error, RequestError | FencedError):
            self._fail(lane, error)  # sending the same bytes again cannot help
            return
        lane.stop()
        self._recover(lane, error)

    def _on_unreachable(self, lane: Lane, error: HeadraceError) -> None:
        if not lane.recovering:
            lane.stop()
            self._recover(lane, error)

    def _send_again(self, lane: Lane) -> None:
        """All that were refused for now have come back: once more, in order, a bit later."""
        self._tasks.start(self._wait_and_send(lane, lane.session), name="again")

    async def _wait_and_send(self, lane: Lane, session: int) -> None:
        await self._pause(lane)
        if session != lane.session:
            return
        lane.line_up()
        oldest = lane.oldest()
        if oldest is not None and oldest.deadline <= self._clock.monotonic():
            self._fail(lane, DeadlineError("not delivered in time", stream_id=lane.stream_id))
        self._pump(lane)

    async def _pause(self, lane: Lane) -> None:
        """Longer with each time in vain; the first time not at all."""
        lane.fruitless += 1
        if lane.fruitless > 1:
            delay = min(BACKOFF_MIN * 2 ** (lane.fruitless - 2), BACKOFF_MAX)
            jitter = 0.5 + self._client.runtime.random.uniform() / 2
            await self._clock.sleep(delay * jitter)

    def _on_goaway(self, address: str) -> None:
        """Lanes with batches notice by themselves; the others move early."""
        self._tasks.start(self._leave(address), name="leave")

    async def _leave(self, address: str) -> None:
        sender = self._senders[address]
        try:
            await sender.link.channel(timeout=self._settings.request_timeout_ms / 1000)
        except HeadraceError as error:
            self._client.replicas.suspect(address)
            for lane in list(self._lanes.values()):
                on_it = lane.range is not None and primary_address(lane.range) == address
                if on_it and not lane.has_batches and not lane.recovering:
                    self._recover(lane, error)

    # Finding the next range

    def _recover(self, lane: Lane, cause: HeadraceError | None) -> None:
        lane.recovering = True
        if isinstance(cause, UnavailableError | DeadlineError) and lane.range is not None:
            self._client.replicas.suspect(primary_address(lane.range))
        self._tasks.start(self._find_range(lane, lane.session, cause), name="recover")

    async def _find_range(self, lane: Lane, session: int, cause: HeadraceError | None) -> None:
        oldest = lane.oldest()
        now = self._clock.monotonic()
        deadline = oldest.deadline if oldest is not None else now + self._delivery_timeout
        backoff = Backoff(self._client.runtime, deadline)
        try:
            if cause is not None:
                await self._pause(lane)
            if backoff.left <= 0:
                raise cause or DeadlineError("not delivered in time", stream_id=lane.stream_id)
            range_ = await self._next_range(lane, cause, backoff)
        except HeadraceError as error:
            if session == lane.session:
                lane.recovering = False
                if lane.has_batches:
                    self._fail(lane, error)
            return
        if session == lane.session:
            lane.range, lane.recovering = range_, False
            self._pump(lane)

    async def _next_range(self, lane: Lane, cause: HeadraceError | None, backoff: Backoff) -> Range:
        if lane.range is not None and not isinstance(cause, RangeNotFoundError):
            range_, _ = await succeed(self._client, lane.range, epoch=-1, backoff=backoff)
            return range_
        if cause is not None:
            self._client.invalidate(lane.stream_id)  # what we knew of the stream no longer holds
        try:
            async with asyncio.timeout(backoff.left):
                range_ = await self._client.writable(lane.stream_id)
                if lane.range is None or lane.range.range_index != range_.range_index:
                    with suppress(UnavailableError):  # its primary is away
                        await connect(self._client, range_)
                        return range_
        except TimeoutError:
            raise DeadlineError("no range to write to", stream_id=lane.stream_id) from None
        # It is the newest, and its node does not take our batches.
        range_, _ = await succeed(self._client, range_, epoch=-1, backoff=backoff)
        return range_

    def _fail(self, lane: Lane, error: HeadraceError) -> None:
        dropped = lane.start_over(self._new_producer_id())
        if dropped:
            self._failure = self._failure or error
        for batch in dropped:
            self._let_go(batch)
            batch.fail(error)


def _bytes_of(records: Sequence[Buffer]) -> int:
    return sum(map(len, records)) + _INDEX_BYTES * len(records)
