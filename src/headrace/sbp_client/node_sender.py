"""Puts batches of many streams into frames to one data node.

Frames leave in the order they were made and several are in flight. While all of them are, batches
wait here and the next frame is the larger for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from headrace.concurrency.tasks import TaskSet
from headrace.config.client import ClientSettings
from headrace.errors import HeadraceError, UnavailableError
from headrace.net.sbp_channel import Channel
from headrace.runtime.interfaces import Buffer, Runtime
from headrace.sbp_client.answers import milliseconds, typed
from headrace.sbp_client.append import append_info, result_offset
from headrace.sbp_client.channels import Link
from headrace.sbp_client.send_queue import Batch, Lane
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import raise_for_status
from headrace.wire.sbp.opcodes import Code

FRAMES_IN_FLIGHT_MAX = 16
FRAME_BATCHES_MAX = 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch in a frame."""

    lane: Lane
    session: int
    batch: Batch
    range: m.Range


class NodeSender:
    def __init__(
        self,
        runtime: Runtime,
        settings: ClientSettings,
        link: Link,
        tasks: TaskSet,
        *,
        on_stored: Callable[[Lane, int, Batch, int], None],
        on_refused: Callable[[Lane, int, Batch, HeadraceError], None],
        on_unreachable: Callable[[Lane, HeadraceError], None],
    ) -> None:
        """Tells, with the session in which it was sent, what became of each batch."""
        self.link = link
        self._clock = runtime.clock
        self._timeout = settings.request_timeout_ms / 1000
        self._frame_bytes = settings.frame_bytes
        self._tasks = tasks
        self._on_stored = on_stored
        self._on_refused = on_refused
        self._on_unreachable = on_unreachable
        self._lanes: dict[Lane, None] = {}  # with something to send, in turn
        self._running = False
        self._in_flight = 0
        self._answered = asyncio.Event()

    def wake(self, lane: Lane) -> None:
        """The lane has something to send here."""
        self._lanes[lane] = None
        if not self._running:
            self._running = True
            self._tasks.start(self._run(), name="frames")

    async def _run(self) -> None:
        try:
            while self._lanes:
                while self._in_flight >= FRAMES_IN_FLIGHT_MAX:
                    self._answered.clear()
                    await self._answered.wait()
                try:
                    channel = await self.link.channel(timeout=self._timeout)
                except HeadraceError as error:
                    lanes, self._lanes = self._lanes, {}
                    for lane in lanes:
                        self._on_unreachable(lane, error)
                    continue
                frame = self._collect()
                if frame:
                    # Tasks start in the order they were made and nothing is awaited before the
                    # call, so frames leave in order.
                    self._in_flight += 1
                    self._tasks.start(self._send(frame, channel), name="append")
        finally:
            self._running = False

    def _collect(self) -> list[Entry]:
        """Batches of as many lanes as fit, one after the other; who has more goes to the end."""
        now_ms = self._clock.now_ms()
        frame: list[Entry] = []
        size = 0
        for lane in list(self._lanes):
            del self._lanes[lane]
            while lane.can_send:
                if frame and (size >= self._frame_bytes or len(frame) >= FRAME_BATCHES_MAX):
                    self._lanes[lane] = None
                    return frame
                batch = lane.take(now_ms)
                assert lane.range is not None, "it can send"
                frame.append(Entry(lane, lane.session, batch, lane.range))
                size += batch.bytes
        return frame

    async def _send(self, frame: list[Entry], channel: Channel) -> None:
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
            reply = await self.link.call_on(
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
                self._on_refused(entry.lane, entry.session, entry.batch, outcome)
            else:
                self._on_stored(entry.lane, entry.session, entry.batch, outcome)


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
