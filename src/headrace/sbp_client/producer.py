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
from headrace.sbp_client.client import SbpClient, connect, succeed
from headrace.sbp_client.ranges import BATCH_BYTES_MAX, primary_address
from headrace.sbp_client.send_queue import Batch, NodeSender, StreamQueue
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
        self._queues: dict[int, StreamQueue] = {}
        self._lingering: dict[StreamQueue, None] = {}
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
        for queue in self._queues.values():
            queue.due = queue.open is not None
            self._pump(queue)
            waiting.extend(batch.wait_ended() for batch in queue.batches())
        if waiting:
            await asyncio.wait(waiting)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Stop at once. What is not acknowledged fails with UnavailableError: `flush` first."""
        self._closed = True
        for queue in self._queues.values():
            self._fail(queue, UnavailableError("producer closed", stream_id=queue.stream_id))
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        for stop in self._listening:
            stop()
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()

    def statistics(self) -> dict[str, int]:
        queues = self._queues.values()
        return {
            "streams": len(self._queues),
            "pending_bytes": self._pending_bytes,
            "batches_in_flight": sum(len(queue.sent) for queue in queues),
            "batches_waiting": sum(len(queue.ready) + len(queue.returned) for queue in queues),
            "streams_recovering": sum(queue.recovering for queue in queues),
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
        queue = self._queues.get(stream_id)
        if queue is None:
            queue = StreamQueue(stream_id, self._new_producer_id(), self._settings.window)
            self._queues[stream_id] = queue
        if queue.open is not None and queue.open.record_bytes + size > self._settings.batch_bytes:
            queue.close_open(self._clock.now_ms())
        if queue.open is None:
            queue.open = Batch(self._clock.monotonic() + self._delivery_timeout)
        answer: asyncio.Future[int] = self._loop.create_future()
        queue.open.add(records, size, answer)
        self._pending_bytes += size
        if queue.open.record_bytes >= self._settings.batch_bytes:
            queue.close_open(self._clock.now_ms())
        if queue.ready:
            self._pump(queue)
        if queue.open is not None and not queue.due:
            self._let_linger(queue)
        return answer

    def _new_producer_id(self) -> int:
        return self._client.runtime.random.below(1 << 63)

    def _let_linger(self, queue: StreamQueue) -> None:
        self._lingering[queue] = None
        if self._timer is None:
            self._timer = self._loop.call_later(self._linger, self._on_lingered)

    def _on_lingered(self) -> None:
        self._timer = None
        queues, self._lingering = self._lingering, {}
        for queue in queues:
            queue.due = True  # a full window lets the batch go on growing
            self._pump(queue)

    # Sending

    def _pump(self, queue: StreamQueue) -> None:
        if queue.range is None:
            if not queue.recovering and queue.has_batches:
                self._recover(queue, None)
        elif queue.can_send:
            self._sender(primary_address(queue.range)).wake(queue)

    def _sender(self, address: str) -> NodeSender:
        sender = self._senders.get(address)
        if sender is None:
            node = self._client.nodes.to(address)
            sender = self._senders[address] = NodeSender(
                self._client.runtime,
                self._settings,
                node,
                self._tasks,
                on_stored=self._on_stored,
                on_refused=self._on_refused,
                on_unreachable=self._on_unreachable,
            )
            self._listening.append(node.on_goaway(lambda _: self._on_goaway(address)))
        return sender

    def _on_stored(self, queue: StreamQueue, session: int, batch: Batch, base_offset: int) -> None:
        if session != queue.session:
            return
        queue.on_stored(batch)
        self._let_go(batch)
        batch.acknowledge(base_offset)
        if not queue.sent and queue.returned:
            self._send_again(queue)
        self._pump(queue)

    def _let_go(self, batch: Batch) -> None:
        self._pending_bytes -= batch.record_bytes
        self._admit()

    def _on_refused(
        self, queue: StreamQueue, session: int, batch: Batch, error: HeadraceError
    ) -> None:
        if session != queue.session:
            return
        unseen = isinstance(error, UnavailableError) and bool(error.data.get("refused"))
        # Behind a batch that was not taken all others are out of order.
        behind = isinstance(error, InvalidArgumentError) and "producer_id" in error.data
        behind = behind and (bool(queue.returned) or batch is not queue.sent[0])
        if isinstance(error, ThrottledError) or unseen or behind:
            if queue.on_returned(batch):
                self._send_again(queue)
            return
        if isinstance(error, RequestError | FencedError):
            self._fail(queue, error)  # sending the same bytes again cannot help
            return
        queue.stop()
        self._recover(queue, error)

    def _on_unreachable(self, queue: StreamQueue, error: HeadraceError) -> None:
        if not queue.recovering:
            queue.stop()
            self._recover(queue, error)

    def _send_again(self, queue: StreamQueue) -> None:
        """All that were refused for now have come back: once more, in order, a bit later."""
        self._tasks.start(self._wait_and_send(queue, queue.session), name="again")

    async def _wait_and_send(self, queue: StreamQueue, session: int) -> None:
        await self._pause(queue)
        if session != queue.session:
            return
        queue.line_up()
        oldest = queue.oldest()
        if oldest is not None and oldest.deadline <= self._clock.monotonic():
            self._fail(queue, DeadlineError("not delivered in time", stream_id=queue.stream_id))
        self._pump(queue)

    async def _pause(self, queue: StreamQueue) -> None:
        """Longer with each time in vain; the first time not at all."""
        queue.fruitless += 1
        if queue.fruitless > 1:
            delay = min(BACKOFF_MIN * 2 ** (queue.fruitless - 2), BACKOFF_MAX)
            jitter = 0.5 + self._client.runtime.random.uniform() / 2
            await self._clock.sleep(delay * jitter)

    def _on_goaway(self, address: str) -> None:
        """Lanes with batches notice by themselves; the others move early."""
        self._tasks.start(self._leave(address), name="leave")

    async def _leave(self, address: str) -> None:
        sender = self._senders[address]
        try:
            await sender.node.channel(timeout=self._settings.request_timeout_ms / 1000)
        except HeadraceError as error:
            self._client.replicas.suspect(address)
            for queue in list(self._queues.values()):
                on_it = queue.range is not None and primary_address(queue.range) == address
                if on_it and not queue.has_batches and not queue.recovering:
                    self._recover(queue, error)

    # Finding the next range

    def _recover(self, queue: StreamQueue, cause: HeadraceError | None) -> None:
        queue.recovering = True
        if isinstance(cause, UnavailableError | DeadlineError) and queue.range is not None:
            self._client.replicas.suspect(primary_address(queue.range))
        self._tasks.start(self._find_range(queue, queue.session, cause), name="recover")

    async def _find_range(
        self, queue: StreamQueue, session: int, cause: HeadraceError | None
    ) -> None:
        oldest = queue.oldest()
        now = self._clock.monotonic()
        deadline = oldest.deadline if oldest is not None else now + self._delivery_timeout
        backoff = Backoff(self._client.runtime, deadline)
        try:
            if cause is not None:
                await self._pause(queue)
            if backoff.left <= 0:
                raise cause or DeadlineError("not delivered in time", stream_id=queue.stream_id)
            range_ = await self._next_range(queue, cause, backoff)
        except HeadraceError as error:
            if session == queue.session:
                queue.recovering = False
                if queue.has_batches:
                    self._fail(queue, error)
            return
        if session == queue.session:
            queue.range, queue.recovering = range_, False
            self._pump(queue)

    async def _next_range(
        self, queue: StreamQueue, cause: HeadraceError | None, backoff: Backoff
    ) -> Range:
        if queue.range is not None and not isinstance(cause, RangeNotFoundError):
            range_, _ = await succeed(self._client, queue.range, epoch=-1, backoff=backoff)
            return range_
        if cause is not None:
            self._client.invalidate(queue.stream_id)  # what we knew of the stream no longer holds
        try:
            async with asyncio.timeout(backoff.left):
                range_ = await self._client.writable(queue.stream_id)
                if queue.range is None or queue.range.range_index != range_.range_index:
                    with suppress(UnavailableError):  # its primary is away
                        await connect(self._client, range_)
                        return range_
        except TimeoutError:
            raise DeadlineError("no range to write to", stream_id=queue.stream_id) from None
        # It is the newest, and its node does not take our batches.
        range_, _ = await succeed(self._client, range_, epoch=-1, backoff=backoff)
        return range_

    def _fail(self, queue: StreamQueue, error: HeadraceError) -> None:
        dropped = queue.start_over(self._new_producer_id())
        if dropped:
            self._failure = self._failure or error
        for batch in dropped:
            self._let_go(batch)
            batch.fail(error)


def _bytes_of(records: Sequence[Buffer]) -> int:
    return sum(map(len, records)) + _INDEX_BYTES * len(records)
