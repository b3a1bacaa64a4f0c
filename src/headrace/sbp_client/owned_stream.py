"""The one writer of a stream, fenced by its epoch.

Appends are pipelined and keep their order: each carries the offset it must get, so a data node
refuses whatever would land elsewhere. When anything goes wrong (range sealed, node gone, answer
lost), the writer seals the range through the placement manager. Where the new range starts tells
which batches in flight were stored: those that end at or below it. They are acknowledged when as
many disks hold them as promised, which is nearly always at once; the writer fails where that takes
too long. The rest are sent again unchanged, at the same offsets. A higher epoch ends the writer for
ever.

A node that is only busy (ThrottledError) gets the same batches again a bit later, without a seal.
One that says GOAWAY finishes what it took; the rest goes to it over a new connection if it still
listens, else to a new range, early: also when nothing is to be sent.

A writer may have a *home*: the data node, in its own process say, that should lead its ranges.
The placement manager is asked for it whenever a range is opened, unless the home is what failed.

Past `window` batches in flight, batches wait here; past `pending_bytes_max` bytes `append` refuses
with ThrottledError.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.concurrency.retry import BACKOFF_MAX, BACKOFF_MIN, Backoff
from headrace.concurrency.tasks import TaskSet
from headrace.errors import (
    DeadlineError,
    FencedError,
    HeadraceError,
    LocalProtocolError,
    RequestError,
    SealedError,
    StateError,
    StorageError,
    ThrottledError,
    TooLargeError,
    UnavailableError,
    UnexpectedOffsetError,
)
from headrace.net.sbp_channel import Channel, InProcessChannel, as_over_tcp
from headrace.net.sbp_routes import LocalNode
from headrace.runtime.interfaces import Buffer
from headrace.sbp_client.client import SbpClient, connect, succeed, wait_held
from headrace.sbp_client.ranges import (
    BATCH_BYTES_MAX,
    append_request,
    appended_offset,
    primary_address,
    primary_node,
)
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import QuorumError
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import decode_offsets

FRUITLESS_RECOVERIES_MAX = 5
"""After so many new ranges that took nothing, a disk's refusal is believed."""


@dataclass(slots=True)
class _Pending:
    base_offset: int
    end_offset: int
    header: bytearray
    body: Sequence[Buffer]
    bytes: int
    answer: asyncio.Future[int] = field(repr=False)
    sent_at: float = 0.0
    """Loop time, of an append inside this process."""


class OwnedStream:
    """Made by `open`. All calls from one event loop."""

    def __init__(
        self,
        client: SbpClient,
        range_: m.Range,
        epoch: int,
        *,
        window: int | None = None,
        pending_bytes_max: int | None = None,
        recovery_timeout: float | None = None,
        request_timeout: float | None = None,
        home_node: int | None = None,
    ) -> None:
        self.stream_id = range_.stream_id
        self.epoch = epoch
        self.next_offset = range_.next_offset
        """The offset the next batch must carry."""
        self.home_node = client.home_node if home_node is None else home_node
        self._client = client
        self._range = range_
        settings = client.settings
        self._window = window or settings.window
        self._pending_bytes_max = pending_bytes_max or settings.pending_bytes_max
        self._recovery_timeout = recovery_timeout or settings.recovery_timeout_ms / 1000
        self._request_timeout = request_timeout or settings.request_timeout_ms / 1000
        self._sent: deque[_Pending] = deque()  # in flight, in offset order
        self._queued: deque[_Pending] = deque()  # behind them
        self._pending_bytes = 0
        self._session = 0  # rises with every recovery: answers of older ones are not ours
        self._channel: Channel | None = None  # None while recovering
        self._failure: HeadraceError | None = None
        self._fruitless = 0  # recoveries since something was stored
        self._fruitless_since = 0.0
        self._returned: list[_Pending] = []  # refused for now, sent again when none is in flight
        self._throttle_delay = 0.0
        self._moving = False  # off a channel that takes no more, once none is in flight
        self._moves = 0
        self._recovering = False
        self._stop_listening: Callable[[], object] = _nothing
        self._loop = asyncio.get_running_loop()
        self._watch: asyncio.TimerHandle | None = None
        self._tasks = TaskSet(f"owned stream {self.stream_id}")

    @classmethod
    async def open(
        cls,
        client: SbpClient,
        stream_id: int,
        epoch: int,
        *,
        clean: bool = False,
        window: int | None = None,
        pending_bytes_max: int | None = None,
        recovery_timeout: float | None = None,
        request_timeout: float | None = None,
        home_node: int | None = None,
    ) -> OwnedStream:
        """Take the stream over under `epoch`: from now on every lower epoch is refused.

        `clean` says that the previous writer stopped in order; the open range then goes on if its
        data node agrees. Otherwise it is sealed. FencedError when a higher epoch has it.
        `home_node`: which data node should lead ranges that are opened for this writer, -1 for
        any; the client's unless given.
        """
        home_node = client.home_node if home_node is None else home_node
        newest = -1
        if not clean:
            newest = max((r.range_index for r in await client.list_ranges(stream_id)), default=0)
        range_ = await client.seal(stream_id, newest, epoch, preferred_node=home_node)
        stream = cls(
            client,
            range_,
            epoch,
            window=window,
            pending_bytes_max=pending_bytes_max,
            recovery_timeout=recovery_timeout,
            request_timeout=request_timeout,
            home_node=home_node,
        )
        stream._use(range_, await connect(client, range_))
        return stream

    @property
    def failure(self) -> HeadraceError | None:
        """Why this writer is over, if it is. Only FencedError forbids opening the stream again."""
        return self._failure

    @property
    def is_home(self) -> bool:
        """Whether the home node leads the open range, or the writer has no home."""
        return self.home_node < 0 or primary_node(self._range) == self.home_node

    def go_home(self) -> None:
        """Seal the open range in the background and go on in one that the home node leads, unless
        that leads already. Appends go on: those in flight are finished as after any seal."""
        if self.is_home or self._recovering or self._failure is not None:
            return
        self._stop_sending()
        self._start_recovery(SealedError("going home", stream_id=self.stream_id))

    @property
    def pending_batches(self) -> int:
        return len(self._sent) + len(self._returned) + len(self._queued)

    def append(
        self, header: bytearray, body: Sequence[Buffer], *, bounded: bool = True
    ) -> asyncio.Future[int]:
        """Queue one batch whose header carries `next_offset`; resolves when it is durable.

        The pieces belong to the log from now on. Raises at once, without taking the offset, when
        the writer is over, the offset is wrong or (where it is `bounded`) too much is pending.
        """
        self._check()
        base_offset, end_offset = decode_offsets(header)
        if base_offset != self.next_offset:
            raise UnexpectedOffsetError(
                stream_id=self.stream_id, expected=self.next_offset, found=base_offset
            )
        length = len(header) + sum(map(len, body))
        if length > BATCH_BYTES_MAX:
            raise TooLargeError("record batch too large", bytes=length, limit=BATCH_BYTES_MAX)
        most = self._pending_bytes_max
        if bounded and self._pending_bytes and self._pending_bytes + length > most:
            raise ThrottledError("too many bytes pending", stream_id=self.stream_id)
        answer: asyncio.Future[int] = self._loop.create_future()
        entry = _Pending(base_offset, end_offset, header, body, length, answer)
        self.next_offset = end_offset
        self._queued.append(entry)
        self._pending_bytes += length
        self._pump()
        if self._channel is None and not self._recovering:
            self._start_recovery(UnavailableError("no data node"))
        return answer

    def read_cached(self, offset: int, max_bytes: int) -> Sequence[Sequence[memoryview]]:
        """Whole batches from the memory of a data node in this process, each in one or more pieces;
        none for any reason."""
        channel = self._channel
        local = channel.local if isinstance(channel, InProcessChannel) else None
        return () if local is None else local.read_cached(self.stream_id, offset, max_bytes)

    async def flush(self) -> None:
        """Wait until everything appended so far is durable; raises if the writer is over."""
        target = self.next_offset
        while (last := self._last_before(target)) is not None:
            await asyncio.wait([last.answer])
        self._check()

    def _last_before(self, offset: int) -> _Pending | None:
        for entry in (*reversed(self._queued), *self._returned, *reversed(self._sent)):
            if entry.base_offset < offset and not entry.answer.done():
                return entry
        return None

    def _check(self) -> None:
        if self._failure is not None:
            # A fresh instance: raising one object again and again would grow its traceback.
            raise type(self._failure)(self._failure.message, **self._failure.data)

    async def close(self) -> None:
        """Stop. What is not acknowledged fails with UnavailableError: its outcome is unknown."""
        self._fail(UnavailableError("writer closed", stream_id=self.stream_id))
        await self._tasks.close()

    def _pump(self) -> None:
        """Send in order while the window has room."""
        while (
            self._channel is not None
            and self._queued
            and not self._returned
            and not self._moving
            and len(self._sent) < self._window
        ):
            entry = self._queued.popleft()
            self._sent.append(entry)
            channel = self._channel
            local = channel.local if isinstance(channel, InProcessChannel) else None
            if local is not None:
                self._append_locally(entry, channel, local)
            else:
                self._tasks.start(self._send(entry, channel, self._session), name="append")

    def _append_locally(self, entry: _Pending, channel: Channel, local: LocalNode) -> None:
        """Like `_send`, without a task and a timer for each batch."""
        session = self._session
        try:
            stored = local.append(
                self.stream_id,
                self._range.range_index,
                writer_epoch=self.epoch,
                expected_offset=entry.base_offset,
                header=entry.header,
                body=entry.body,
            )
        except HeadraceError as error:
            self._on_local_error(entry, channel, error)
            return
        entry.sent_at = self._loop.time()
        if self._watch is None:
            self._watch = self._loop.call_later(self._request_timeout, self._on_watch)

        def on_done(done: asyncio.Future[None]) -> None:
            error = UnavailableError("cut off") if done.cancelled() else done.exception()
            if session != self._session:
                return
            if error is None:
                self._on_stored(entry)
            elif isinstance(error, HeadraceError):
                self._on_local_error(entry, channel, error)
            else:
                self._fail(LocalProtocolError("the node broke", stream_id=self.stream_id))

        stored.add_done_callback(on_done)

    def _on_local_error(self, entry: _Pending, channel: Channel, error: HeadraceError) -> None:
        error = as_over_tcp(error)
        if isinstance(error, UnavailableError):
            self._client.node(self._range).forget(channel)
        self._on_refused(entry, error)

    def _on_watch(self) -> None:
        """One timer for all local appends in flight, looked at when the oldest may be overdue."""
        self._watch = None
        if not self._sent or not self._sent[0].sent_at:  # over TCP each has a timer of its own
            return
        left = self._sent[0].sent_at + self._request_timeout - self._loop.time()
        if left > 0:
            self._watch = self._loop.call_later(left, self._on_watch)
        else:
            self._on_refused(self._sent[0], DeadlineError("no answer in time"))

    async def _send(self, entry: _Pending, channel: Channel, session: int) -> None:
        # Tasks start in the order they were made and nothing is awaited before the call, so the
        # batches leave in offset order.
        range_ = self._range
        pieces = [entry.header, *entry.body]
        request = append_request(
            range_,
            entry.bytes,
            writer_epoch=self.epoch,
            expected_offset=entry.base_offset,
            timeout=self._request_timeout,
        )
        try:
            reply = await self._client.node(range_).call_on(
                channel, Code.APPEND, request, pieces, timeout=self._request_timeout
            )
            base_offset = appended_offset(reply.message)
            if base_offset != entry.base_offset:
                raise StorageError(
                    "stored at another offset", expected=entry.base_offset, found=base_offset
                )
        except HeadraceError as error:
            if session == self._session:
                self._on_refused(entry, error)
        except Exception:
            self._fail(LocalProtocolError("the writer broke", stream_id=self.stream_id))
            raise
        else:
            if session == self._session:
                self._on_stored(entry)

    def _on_stored(self, entry: _Pending) -> None:
        self._fruitless = 0
        self._moves = 0
        self._throttle_delay = 0.0
        self._take_back(entry)
        self._acknowledge(entry)
        self._when_answered()
        self._pump()

    def _take_back(self, entry: _Pending) -> None:
        if self._sent[0] is entry:  # nearly always: a data node answers in offset order
            self._sent.popleft()
        else:
            self._sent.remove(entry)

    def _acknowledge(self, entry: _Pending) -> None:
        self._pending_bytes -= entry.bytes
        if not entry.answer.done():
            entry.answer.set_result(entry.base_offset)

    def _on_refused(self, entry: _Pending, error: HeadraceError) -> None:
        """One refusal stops the pipeline: whatever follows it would leave a hole."""
        unseen = isinstance(error, UnavailableError) and bool(error.data.get("refused"))
        behind = isinstance(error, UnexpectedOffsetError) and bool(self._returned)
        if isinstance(error, ThrottledError) or behind or unseen:
            self._moving = self._moving or unseen
            self._take_back(entry)
            self._returned.append(entry)
            self._when_answered()
            return
        self._stop_sending()
        if isinstance(error, UnavailableError | DeadlineError):
            self._client.replicas.suspect(primary_address(self._range))
        if isinstance(error, FencedError | RequestError):
            self._fail(error)  # sending the same bytes again cannot help
        else:
            self._start_recovery(error)

    def _stop_sending(self) -> None:
        """Nothing in flight is ours any more; all of it stands in line again."""
        self._session += 1
        self._channel = None
        self._moving = False
        pending = [*self._sent, *self._returned, *self._queued]
        self._queued = deque(sorted(pending, key=lambda each: each.base_offset))
        self._returned.clear()
        self._sent.clear()

    def _when_answered(self) -> None:
        """Once every batch behind a refused one has come back, they are sent again in order."""
        if self._sent:
            return
        if self._moving:
            self._tasks.start(self._move(self._session), name="move")
        elif self._returned:
            # The range is fine, its node is busy: no seal, the same batches a bit later.
            self._tasks.start(self._send_throttled(self._session), name="throttle")

    async def _send_throttled(self, session: int) -> None:
        self._throttle_delay = min(max(2 * self._throttle_delay, BACKOFF_MIN), BACKOFF_MAX)
        await self._client.runtime.clock.sleep(self._throttle_delay)
        if session == self._session:
            self._requeue()
            self._pump()

    def _requeue(self) -> None:
        self._returned.sort(key=lambda pending: pending.base_offset)
        self._queued.extendleft(reversed(self._returned))
        self._returned.clear()

    def _on_goaway(self, channel: Channel) -> None:
        if channel is self._channel and not self._moving:
            self._moving = True
            self._when_answered()

    async def _move(self, session: int) -> None:
        """A connection ended and may be replaced; a node that is gone cannot."""
        self._moves += 1
        try:
            if self._moves > 1:
                raise UnavailableError("refused twice", stream_id=self.stream_id)
            channel = await connect(self._client, self._range)
        except HeadraceError as error:
            if session == self._session:
                self._client.replicas.suspect(primary_address(self._range))
                self._stop_sending()
                self._start_recovery(error)
            return
        if session == self._session:
            self._moving = False
            self._requeue()
            self._use(self._range, channel)
            self._pump()

    def _start_recovery(self, cause: HeadraceError) -> None:
        self._recovering = True
        self._tasks.start(self._recover(cause), name="recover")

    async def _recover(self, cause: HeadraceError) -> None:
        """Seal, learn what was stored, send the rest again."""
        runtime = self._client.runtime
        now = runtime.clock.monotonic()
        backoff = Backoff(runtime, now + self._recovery_timeout)
        if not self._fruitless:
            self._fruitless_since = now
        self._fruitless += 1
        if self._gives_up(cause, now):
            self._fail(cause)
            return
        if self._fruitless > 1:
            delay = min(BACKOFF_MIN * 2 ** (self._fruitless - 2), BACKOFF_MAX)
            await runtime.clock.sleep(delay * (0.5 + runtime.random.uniform() / 2))
        try:
            range_, channel = await succeed(
                self._client,
                self._range,
                epoch=self.epoch,
                backoff=backoff,
                preferred_node=self._preferred_after(cause),
            )
            await self._wait_held(range_.start_offset, backoff)
        except StateError as error:
            self._recovering = False
            self._fruitless = 0
            if self.pending_batches or not error.retryable:
                self._fail(error)
            return  # nobody waits: the next append tries again
        except HeadraceError as error:
            self._fail(error)
            return
        self._recovering = False
        self._resume(range_, channel)

    def _preferred_after(self, cause: HeadraceError) -> int:
        """Home, unless it is the home's disk or connection that failed, or the range before took
        nothing either."""
        failed = not isinstance(cause, SealedError | QuorumError)
        if self._fruitless > 1 or (failed and self.is_home):
            return -1
        return self.home_node

    async def _wait_held(self, start: int, backoff: Backoff) -> None:
        """Batches that were in flight and lie below `start` are on enough disks."""
        stored = [entry for entry in self._queued if entry.end_offset <= start]
        if stored:
            await wait_held(
                self._client,
                self.stream_id,
                start=stored[0].base_offset,
                end=stored[-1].end_offset,
                backoff=backoff,
            )

    def _gives_up(self, cause: HeadraceError, now: float) -> bool:
        """A disk's refusal is believed after some tries; what passes, after the recovery time."""
        if isinstance(cause, StateError):
            return now - self._fruitless_since > self._recovery_timeout
        return self._fruitless > FRUITLESS_RECOVERIES_MAX

    def _resume(self, range_: m.Range, channel: Channel) -> None:
        start = range_.start_offset
        while self._queued and self._queued[0].end_offset <= start:
            self._acknowledge(self._queued.popleft())
            self._fruitless = 0
        expected = self._queued[0].base_offset if self._queued else self.next_offset
        if expected != start:
            # Below: acknowledged batches are gone, as a power cut does to `written` streams.
            # Above: somebody wrote under our epoch. Neither can be mended by writing on.
            error = StorageError(
                "the log does not continue where this writer left it",
                stream_id=self.stream_id,
                expected=expected,
                found=start,
            )
            self._fail(error)
            return
        if not self._queued:
            self._fruitless = 0
        self._use(range_, channel)
        self._pump()

    def _use(self, range_: m.Range, channel: Channel) -> None:
        self._stop_listening()
        self._range = range_
        self._channel = channel
        self._stop_listening = self._client.node(range_).on_goaway(self._on_goaway)

    def _fail(self, error: HeadraceError) -> None:
        if self._failure is None:
            self._failure = error
        self._session += 1
        self._channel = None
        self._stop_listening()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._pending_bytes = 0
        for entry in (*self._sent, *self._returned, *self._queued):
            if not entry.answer.done():
                entry.answer.set_exception(error)
                entry.answer.exception()  # seen: a caller may have given up on it
        self._sent.clear()
        self._returned.clear()
        self._queued.clear()


def _nothing() -> None:
    pass
