"""The one writer of a stream, fenced by its epoch.

Appends are pipelined and keep their order: each carries the offset it must get, so a data node
refuses whatever would land elsewhere. When anything goes wrong (range sealed, node gone, answer
lost), the writer seals the range through the placement manager. Where the new range starts tells
which batches in flight were stored: those that end at or below it. The rest are sent again
unchanged, at the same offsets. A higher epoch ends the writer for ever.

A node that is only busy (ThrottledError) gets the same batches again a bit later, without a seal.

Past `window` batches in flight, batches wait here; past `pending_bytes_max` bytes `append` refuses
with ThrottledError.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.client.appending import BATCH_BYTES_MAX, append_request, appended_offset
from headrace.client.channels import payload_bytes
from headrace.client.retry import BACKOFF_MAX, BACKOFF_MIN, Backoff
from headrace.client.sbp import SbpClient
from headrace.client.tasks import TaskSet
from headrace.errors import (
    DeadlineError,
    FencedError,
    HeadraceError,
    LocalProtocolError,
    RequestError,
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
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import decode_offsets

FRUITLESS_RECOVERIES_MAX = 5


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
    ) -> None:
        self.stream_id = range_.stream_id
        self.epoch = epoch
        self.next_offset = range_.next_offset
        """The offset the next batch must carry."""
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
        self._fruitless = 0
        self._throttled: list[_Pending] = []  # refused for now, sent again when none is in flight
        self._throttle_delay = 0.0
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
    ) -> OwnedStream:
        """Take the stream over under `epoch`: from now on every lower epoch is refused.

        `clean` says that the previous writer stopped in order; the open range then goes on if its
        data node agrees. Otherwise it is sealed. FencedError when a higher epoch has it.
        """
        if clean:
            range_ = await client.seal(stream_id, -1, epoch)
        else:
            newest = max((r.range_index for r in await client.list_ranges(stream_id)), default=0)
            range_ = await client.seal(stream_id, newest, epoch)
        stream = cls(
            client,
            range_,
            epoch,
            window=window,
            pending_bytes_max=pending_bytes_max,
            recovery_timeout=recovery_timeout,
            request_timeout=request_timeout,
        )
        stream._channel = await client.node(range_).channel()
        return stream

    @property
    def failure(self) -> HeadraceError | None:
        """Why this writer is over, if it is. Only FencedError forbids opening the stream again."""
        return self._failure

    @property
    def pending_batches(self) -> int:
        return len(self._sent) + len(self._throttled) + len(self._queued)

    def append(self, header: bytearray, body: Sequence[Buffer]) -> asyncio.Future[int]:
        """Queue one batch whose header carries `next_offset`; resolves when it is durable.

        The pieces belong to the log from now on. Raises at once, without taking the offset, when
        the writer is over, the offset is wrong or too much is pending.
        """
        self._check()
        base_offset, end_offset = decode_offsets(header)
        if base_offset != self.next_offset:
            raise UnexpectedOffsetError(
                stream_id=self.stream_id, expected=self.next_offset, found=base_offset
            )
        length = len(header) + payload_bytes(body)
        if length > BATCH_BYTES_MAX:
            raise TooLargeError("record batch too large", bytes=length, limit=BATCH_BYTES_MAX)
        if self._pending_bytes and self._pending_bytes + length > self._pending_bytes_max:
            raise ThrottledError("too many bytes pending", stream_id=self.stream_id)
        answer: asyncio.Future[int] = self._loop.create_future()
        entry = _Pending(base_offset, end_offset, header, body, length, answer)
        self.next_offset = end_offset
        self._queued.append(entry)
        self._pending_bytes += length
        self._pump()
        return answer

    def read_cached(self, offset: int, max_bytes: int) -> Sequence[memoryview]:
        """Whole batches from the memory of a data node in this process; none for any reason."""
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
        for entry in (*reversed(self._queued), *self._throttled, *reversed(self._sent)):
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
            and not self._throttled
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
        self._throttle_delay = 0.0
        self._take_back(entry)
        self._settle(entry)
        if self._throttled:
            self._wait_out_throttle()
        self._pump()

    def _take_back(self, entry: _Pending) -> None:
        if self._sent[0] is entry:  # nearly always: a data node answers in offset order
            self._sent.popleft()
        else:
            self._sent.remove(entry)

    def _settle(self, entry: _Pending) -> None:
        self._pending_bytes -= entry.bytes
        if not entry.answer.done():
            entry.answer.set_result(entry.base_offset)

    def _on_refused(self, entry: _Pending, error: HeadraceError) -> None:
        """One refusal stops the pipeline: whatever follows it would leave a hole."""
        behind_throttled = isinstance(error, UnexpectedOffsetError) and self._throttled
        if isinstance(error, ThrottledError) or behind_throttled:
            self._take_back(entry)
            self._throttled.append(entry)
            self._wait_out_throttle()
            return
        self._session += 1
        self._channel = None
        pending = [*self._sent, *self._throttled, *self._queued]
        self._queued = deque(sorted(pending, key=lambda each: each.base_offset))
        self._throttled.clear()
        self._sent.clear()
        if isinstance(error, FencedError | RequestError):
            self._fail(error)  # sending the same bytes again cannot help
        else:
            self._tasks.start(self._recover(error), name="recover")

    def _wait_out_throttle(self) -> None:
        """The range is fine, its node is busy: no seal, the same batches in order a bit later."""
        if not self._sent:  # every batch behind the refused one has come back
            self._tasks.start(self._send_throttled(self._session), name="throttle")

    async def _send_throttled(self, session: int) -> None:
        self._throttle_delay = min(max(2 * self._throttle_delay, BACKOFF_MIN), BACKOFF_MAX)
        await self._client.runtime.clock.sleep(self._throttle_delay)
        if session == self._session:
            self._throttled.sort(key=lambda pending: pending.base_offset)
            self._queued.extendleft(reversed(self._throttled))
            self._throttled.clear()
            self._pump()

    async def _recover(self, cause: HeadraceError) -> None:
        """Seal, learn what was stored, send the rest again."""
        runtime = self._client.runtime
        backoff = Backoff(runtime, runtime.clock.monotonic() + self._recovery_timeout)
        self._fruitless += 1
        if self._fruitless > FRUITLESS_RECOVERIES_MAX:
            self._fail(cause)
            return
        if self._fruitless > 1:
            await backoff.pause()
        while True:
            try:
                range_ = await self._client.seal(
                    self.stream_id, self._range.range_index, self.epoch
                )
                channel = await self._client.node(range_).channel()
                break
            except StateError as error:
                if not error.retryable or not await backoff.pause():
                    self._fail(error)
                    return
            except HeadraceError as error:
                self._fail(error)
                return
        self._resume(range_, channel)

    def _resume(self, range_: m.Range, channel: Channel) -> None:
        start = range_.start_offset
        while self._queued and self._queued[0].end_offset <= start:
            self._settle(self._queued.popleft())
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
        self._range = range_
        self._channel = channel
        self._pump()

    def _fail(self, error: HeadraceError) -> None:
        if self._failure is None:
            self._failure = error
        self._session += 1
        self._channel = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._pending_bytes = 0
        for entry in (*self._sent, *self._throttled, *self._queued):
            if not entry.answer.done():
                entry.answer.set_exception(error)
                entry.answer.exception()  # seen: a caller may have given up on it
        self._sent.clear()
        self._throttled.clear()
        self._queued.clear()
