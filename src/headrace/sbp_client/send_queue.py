"""What a producer has to send: batches in order for each stream, frames for each data node.

Records gather in the open batch of a `StreamQueue`. A closed batch carries the queue's producer id
and the sequence of its first record, so that a data node stores it once however often it is sent.
Batches in flight are answered in order; those that come back stand in line again before the others.

Until a range has acknowledged its first batch, only one is in flight: a data node that does not
know the producer yet takes whatever sequence comes first, and that must be the oldest.

A `NodeSender` puts batches of many streams into frames to one data node. Frames leave in the order
they were made and several are in flight. While all of them are, batches wait here and the next
frame is the larger for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from headrace.concurrency.tasks import TaskSet
from headrace.config.process import ClientSettings
from headrace.errors import HeadraceError, UnavailableError
from headrace.net.sbp_channel import Channel
from headrace.runtime.interfaces import Buffer, Runtime
from headrace.sbp_client.channels import ReconnectingChannel
from headrace.sbp_client.ranges import append_info, milliseconds, result_offset, typed
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import raise_for_status
from headrace.wire.sbp.messages import Range
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import HEADER_BYTES, INDEXED, PRODUCER, encode_header, encode_index


@dataclass(slots=True, eq=False)
class Batch:
    """Records that are stored together, and who waits for which of them."""

    deadline: float
    records: list[Buffer] = field(default_factory=list)
    record_bytes: int = 0
    waiting: list[tuple[asyncio.Future[int], int]] = field(default_factory=list)
    sequence: int = -1
    header: bytearray = field(default_factory=bytearray)
    body: bytes = b""
    ended: asyncio.Future[None] | None = None
    """Made for who waits for the whole batch, whatever its outcome."""

    @property
    def bytes(self) -> int:
        return HEADER_BYTES + len(self.body)

    @property
    def count(self) -> int:
        return len(self.records)

    def add(self, records: Sequence[Buffer], size: int, answer: asyncio.Future[int]) -> None:
        self.waiting.append((answer, len(self.records)))
        self.records.extend(records)
        self.record_bytes += size

    def close(self, producer_id: int, sequence: int, now_ms: int) -> None:
        """Give it its place in the producer's order; it takes no more records."""
        self.sequence = sequence
        positions = [0, *accumulate(map(len, self.records[:-1]))]
        self.body = b"".join((*self.records, encode_index(positions)))
        self.header = encode_header(
            base_offset=0,
            body=[self.body],
            record_count=len(self.records),
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            attributes=PRODUCER | INDEXED,
            producer_id=producer_id,
            sequence=sequence,
        )

    def wait_ended(self) -> asyncio.Future[None]:
        if self.ended is None:
            self.ended = asyncio.get_running_loop().create_future()
        return self.ended

    def acknowledge(self, base_offset: int) -> None:
        self._end()
        for answer, position in self.waiting:
            if not answer.done():
                answer.set_result(base_offset + position)

    def fail(self, error: HeadraceError) -> None:
        self._end()
        for answer, _ in self.waiting:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # seen: `flush` tells it too

    def _end(self) -> None:
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)


@dataclass(slots=True, eq=False)
class StreamQueue:
    """The batches of one stream of a producer, from open to acknowledged."""

    stream_id: int
    producer_id: int
    window: int
    range: Range | None = None
    """Where it writes; None before the first batch and while another range is looked for."""
    session: int = 0
    """Rises when what is in flight is given up: answers to older ones are not ours."""
    next_sequence: int = 0
    open: Batch | None = None
    due: bool = False
    """The open batch has waited long enough for more records."""
    ready: deque[Batch] = field(default_factory=deque)
    sent: deque[Batch] = field(default_factory=deque)
    returned: list[Batch] = field(default_factory=list)
    acknowledged: bool = False
    """The range has stored a batch of ours."""
    recovering: bool = False
    fruitless: int = 0
    """Times in a row that batches were sent in vain."""

    @property
    def has_batches(self) -> bool:
        return bool(self.sent or self.returned or self.ready or self.open)

    @property
    def room(self) -> int:
        """Batches that may be sent now."""
        if self.range is None or self.recovering or self.returned:
            return 0
        return (self.window if self.acknowledged else 1) - len(self.sent)

    @property
    def can_send(self) -> bool:
        return self.room > 0 and bool(self.ready or (self.due and self.open))

    def close_open(self, now_ms: int) -> None:
        batch, self.open, self.due = self.open, None, False
        if batch is not None:
            batch.close(self.producer_id, self.next_sequence, now_ms)
            self.next_sequence += batch.count
            self.ready.append(batch)

    def take(self, now_ms: int) -> Batch:
        """The next batch to send; only when `can_send`."""
        if not self.ready:
            self.close_open(now_ms)
        batch = self.ready.popleft()
        self.sent.append(batch)
        return batch

    def on_stored(self, batch: Batch) -> None:
        self.sent.remove(batch)  # the first one, nearly always
        self.acknowledged = True
        self.fruitless = 0

    def on_returned(self, batch: Batch) -> bool:
        """Not taken for now. True when all of them have come back."""
        self.sent.remove(batch)
        self.returned.append(batch)
        return not self.sent

    def stop(self) -> None:
        """Give up what is in flight; everything stands in line again."""
        self.session += 1
        self.acknowledged = False
        self.returned.extend(self.sent)
        self.sent.clear()
        self.line_up()

    def line_up(self) -> None:
        """What came back goes before what was never sent; only while nothing is in flight."""
        self.returned.sort(key=lambda batch: batch.sequence)
        self.ready.extendleft(reversed(self.returned))
        self.returned.clear()

    def oldest(self) -> Batch | None:
        return next(self.batches(), None)

    def start_over(self, producer_id: int) -> list[Batch]:
        """Drop everything. What became of it is unknown, so the sequence cannot go on: a new
        producer id starts at 0."""
        dropped = list(self.batches())
        self.session += 1
        self.range = None
        self.sent.clear()
        self.returned.clear()
        self.ready.clear()
        self.open = None
        self.due = self.acknowledged = self.recovering = False
        self.fruitless = 0
        self.producer_id, self.next_sequence = producer_id, 0
        return dropped

    def batches(self) -> Iterator[Batch]:
        yield from sorted((*self.sent, *self.returned), key=lambda batch: batch.sequence)
        yield from self.ready
        if self.open is not None:
            yield self.open


FRAMES_IN_FLIGHT_MAX = 16
FRAME_BATCHES_MAX = 1024


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """One batch in a frame."""

    queue: StreamQueue
    session: int
    batch: Batch
    range: m.Range


class NodeSender:
    def __init__(
        self,
        runtime: Runtime,
        settings: ClientSettings,
        node: ReconnectingChannel,
        tasks: TaskSet,
        *,
        on_stored: Callable[[StreamQueue, int, Batch, int], None],
        on_refused: Callable[[StreamQueue, int, Batch, HeadraceError], None],
        on_unreachable: Callable[[StreamQueue, HeadraceError], None],
    ) -> None:
        """Tells, with the session in which it was sent, what became of each batch."""
        self.node = node
        self._clock = runtime.clock
        self._timeout = settings.request_timeout_ms / 1000
        self._frame_bytes = settings.frame_bytes
        self._tasks = tasks
        self._on_stored = on_stored
        self._on_refused = on_refused
        self._on_unreachable = on_unreachable
        self._queues: dict[StreamQueue, None] = {}  # with something to send, in turn
        self._running = False
        self._in_flight = 0
        self._answered = asyncio.Event()

    def wake(self, queue: StreamQueue) -> None:
        """The queue has something to send here."""
        self._queues[queue] = None
        if not self._running:
            self._running = True
            self._tasks.start(self._run(), name="frames")

    async def _run(self) -> None:
        try:
            while self._queues:
                while self._in_flight >= FRAMES_IN_FLIGHT_MAX:
                    self._answered.clear()
                    await self._answered.wait()
                try:
                    channel = await self.node.channel(timeout=self._timeout)
                except HeadraceError as error:
                    queues, self._queues = self._queues, {}
                    for queue in queues:
                        self._on_unreachable(queue, error)
                    continue
                frame = self._collect()
                if frame:
                    # Tasks start in the order they were made and nothing is awaited before the
                    # call, so frames leave in order.
                    self._in_flight += 1
                    self._tasks.start(self._send(frame, channel), name="append")
        finally:
            self._running = False

    def _collect(self) -> list[FrameBatch]:
        """Batches of as many queues as fit, one after the other; who has more goes to the end."""
        now_ms = self._clock.now_ms()
        frame: list[FrameBatch] = []
        size = 0
        for queue in list(self._queues):
            del self._queues[queue]
            while queue.can_send:
                if frame and (size >= self._frame_bytes or len(frame) >= FRAME_BATCHES_MAX):
                    self._queues[queue] = None
                    return frame
                batch = queue.take(now_ms)
                assert queue.range is not None, "it can send"
                frame.append(FrameBatch(queue, queue.session, batch, queue.range))
                size += batch.bytes
        return frame

    async def _send(self, frame: list[FrameBatch], channel: Channel) -> None:
        infos = tuple(
            append_info(entry.range, entry.batch.bytes, request_index=index)
            for index, entry in enumerate(frame)
        )
        pieces: list[Buffer] = []
        for entry in frame:
            # The receiver writes the offset into the header it is given: each try has its own.
            pieces += (bytearray(entry.batch.header), entry.batch.body)
        request = m.AppendRequest(timeout_ms=milliseconds(self._timeout), append_requests=infos)
        outcomes: list[int | HeadraceError]
        try:
            reply = await self.node.call_on(
                channel, Code.APPEND, request, pieces, timeout=self._timeout
            )
            outcomes = _outcomes(reply.message, len(frame))
        except HeadraceError as error:
            outcomes = [error] * len(frame)
        finally:
            self._in_flight -= 1
            self._answered.set()
        for entry, outcome in zip(frame, outcomes, strict=True):
            if isinstance(outcome, HeadraceError):
                self._on_refused(entry.queue, entry.session, entry.batch, outcome)
            else:
                self._on_stored(entry.queue, entry.session, entry.batch, outcome)


def _outcomes(message: m.Message, count: int) -> list[int | HeadraceError]:
    """Base offset or error by request_index."""
    response = typed(message, m.AppendResponse)
    raise_for_status(response.status)
    outcomes: list[int | HeadraceError] = [UnavailableError("no result")] * count
    for result in response.append_responses:
        if 0 <= result.request_index < count:
            try:
                outcomes[result.request_index] = result_offset(result)
            except HeadraceError as error:
                outcomes[result.request_index] = error
    return outcomes
