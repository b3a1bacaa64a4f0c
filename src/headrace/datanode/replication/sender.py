"""Sends what this node leads to one other data node: one connection, all ranges.

One frame carries batches of many ranges; several frames are in flight. While they are, what is
appended gathers for the next one, so the number of frames follows the peer and not the number of
appends. A connection that broke is made again with growing pauses; every feed then starts where
the replica last confirmed, and the replica's refusals tell where to go on.

A peer that answers heartbeats is reachable, however slow its disk; one that does not is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from headrace.concurrency.tasks import TaskSet
from headrace.config.datanode import DataNodeSettings
from headrace.datanode.replication.commitment import Outgoing, ReplicaFeed, outgoing_of
from headrace.errors import (
    HeadraceError,
    RangeNotFoundError,
    RemoteProtocolError,
    ThrottledError,
    UnavailableError,
)
from headrace.net.sbp_channel import Channel
from headrace.net.sbp_routes import Reply
from headrace.observability import tracing
from headrace.runtime.interfaces import Buffer, Runtime
from headrace.sbp_client.channels import Connect
from headrace.storage.range.log import RangeLog
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import (
    AlreadyDurableError,
    AppendGapError,
    AppendPendingError,
    NotPrimaryError,
    error_of,
    is_success,
    raise_for_status,
)
from headrace.wire.sbp.opcodes import Code

_BACKOFF_MIN = 0.05
_BACKOFF_MAX = 0.5
_PENDING_SECONDS = 0.02  # until a batch that the replica is writing is asked about again
_ENTRIES_MAX = 512  # of one frame
_READS_MAX = 4  # of feeds that are behind, at a time
_IDLE_SECONDS = 2.0
_CALL_SECONDS = 30.0
"""A peer whose disk hangs for so long while it answers heartbeats is given up all the same."""
_FOR_NOW = (ThrottledError, RangeNotFoundError, UnavailableError)
"""Too busy, not told of the range yet, closing: tried again. Other refusals are for ever."""

_log = logging.getLogger(__name__)


class Source(Protocol):
    """The range behind a feed."""

    log: RangeLog

    @property
    def committed(self) -> int: ...

    def on_held(self, feed: ReplicaFeed) -> None:
        """The replica has said how far it holds the range."""

    def on_over(self, feed: ReplicaFeed, error: HeadraceError) -> None:
        """The replica takes no more of it, ever."""


@dataclass(slots=True, eq=False)
class _FrameItem:
    """What a frame carries of one range."""

    feed: ReplicaFeed
    session: int
    batch: Outgoing | None  # None: only the committed offset


@dataclass(slots=True, eq=False)
class _Frame:
    entries: list[_FrameItem]
    size: int
    sent_at: float
    answer: asyncio.Future[Reply] | None = None
    span: tracing.Span | None = None


class Sender:
    """To one node. `run` it as a task; everything else is called from the event loop."""

    def __init__(
        self,
        runtime: Runtime,
        settings: DataNodeSettings,
        *,
        node_id: int,
        connect: Connect,
        introduce: Callable[[], m.HeartbeatRequest],
    ) -> None:
        """`introduce` makes the HEARTBEAT that says who we are."""
        self.node_id = node_id
        self.connect = connect
        self.unreachable_since: float | None = runtime.clock.monotonic()
        self.queued_bytes = 0
        self._clock = runtime.clock
        self._random = runtime.random
        self._settings = settings
        self._introduce = introduce
        self._sources: dict[ReplicaFeed, Source] = {}
        self._ready: dict[ReplicaFeed, None] = {}
        self._quiet: dict[ReplicaFeed, None] = {}  # with a committed offset that is to be told
        self._reading: dict[ReplicaFeed, None] = {}
        self._starved: dict[ReplicaFeed, None] = {}  # would read, but too many do
        self._channel: Channel | None = None
        self._frames: dict[_Frame, None] = {}  # in flight, oldest first
        self._frames_bytes = 0
        self._wake = asyncio.Event()
        self._pump_handle: asyncio.Handle | None = None
        self._notice_handle: asyncio.TimerHandle | None = None
        self._probing = False
        self._heard_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskSet(f"sender to node {node_id}")

    # Feeds

    def add(self, feed: ReplicaFeed, source: Source) -> None:
        self._sources[feed] = source
        self._wake.set()

    def remove(self, feed: ReplicaFeed) -> None:
        self._sources.pop(feed, None)
        for group in (self._ready, self._quiet, self._starved):
            group.pop(feed, None)
        self.queued_bytes += feed.end(UnavailableError("the range is over"))

    def push(self, feed: ReplicaFeed, batch: Outgoing) -> None:
        """The range's newest batch; goes out with the next frame."""
        if feed.over is not None:
            return
        room = self._settings.replica_queue_bytes_max - self.queued_bytes
        self.queued_bytes += feed.push(batch, room=room)
        self._ready[feed] = None
        self._schedule()

    def on_durable(self, feed: ReplicaFeed) -> None:
        """More of the range is on our disk: a feed that is behind may read it."""
        source = self._sources.get(feed)
        if source is not None and feed.wants_log(
            log_next=source.log.next_offset, log_durable=source.log.durable_offset
        ):
            self._ready[feed] = None
            self._schedule()

    def on_committed(self, feed: ReplicaFeed) -> None:
        """Tell the replica, unless a batch does it within the notice's delay."""
        if feed.over is not None:
            return
        self._quiet[feed] = None
        if self._notice_handle is None:
            delay = self._settings.commit_notice_ms / 1000
            self._notice_handle = self._loop.call_later(delay, self._on_notices_due)

    def _on_notices_due(self) -> None:
        self._notice_handle = None
        delay = self._settings.commit_notice_ms / 1000
        now = self._clock.monotonic()
        entries: list[_FrameItem] = []
        busy: dict[ReplicaFeed, None] = {}
        for feed in self._quiet:
            source = self._sources.get(feed)
            if source is None or feed.told >= source.committed:
                continue
            if self._channel is None or now - feed.sent_at < delay or now < feed.resume_at:
                busy[feed] = None  # a batch may tell it, or the next connection
                continue
            entries.append(_FrameItem(feed, feed.session, None))
        self._quiet = busy
        for start in range(0, len(entries), _ENTRIES_MAX):
            self._send(entries[start : start + _ENTRIES_MAX], 0)
        if busy and self._channel is not None:
            self._notice_handle = self._loop.call_later(delay, self._on_notices_due)

    # Connection

    async def run(self) -> None:
        """Keep a connection while there are feeds."""
        pause = _BACKOFF_MIN
        while True:
            if not self._sources:
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                channel = await self._open()
            except HeadraceError as error:
                _log.info("replica node %d not reached: %s", self.node_id, error)
                await self._clock.sleep(pause * (0.5 + self._random.uniform() / 2))
                pause = min(2 * pause, _BACKOFF_MAX)
                continue
            pause = _BACKOFF_MIN
            try:
                self._on_connected(channel)
                while self._channel is channel:
                    self._wake.clear()
                    await self._wake.wait()
            finally:
                self._on_broken(channel, self._clock.monotonic())
                await channel.close()

    async def _open(self) -> Channel:
        channel = await self.connect()
        try:
            await self._heartbeat(channel)
        except BaseException:
            await channel.close()
            raise
        return channel

    async def _heartbeat(self, channel: Channel) -> None:
        timeout = self._settings.replica_timeout_ms / 1000
        reply = await channel.call(Code.HEARTBEAT, self._introduce(), timeout=timeout)
        if not isinstance(reply.message, m.HeartbeatResponse):
            raise RemoteProtocolError("unexpected answer to a heartbeat")
        raise_for_status(reply.message.status)

    def _on_connected(self, channel: Channel) -> None:
        self._channel = channel
        self._heard_at = self._clock.monotonic()
        self.unreachable_since = None
        for feed in self._sources:
            self._ready[feed] = None
            self.on_committed(feed)  # a replica that restarted has forgotten it
        self._pump()

    def _on_broken(self, channel: Channel, since: float) -> None:
        if self._channel is not channel:
            return
        self._channel = None
        self.unreachable_since = since
        for feed in self._sources:
            self.queued_bytes += feed.restart()
        self._wake.set()

    def probe(self, now: float) -> None:
        """Called now and then: a peer that is silent must show that it lives. An idle connection
        too may be one to a node that has restarted since, and forgotten what is committed."""
        channel = self._channel
        if channel is None or self._probing:
            return
        frame = next(iter(self._frames), None)
        since = self._heard_at if frame is None else frame.sent_at
        patience = _IDLE_SECONDS if frame is None else self._settings.replica_timeout_ms / 2000
        if now - since >= patience:
            self._probing = True
            self._tasks.start(self._probe(channel, since), name="probe")

    async def _probe(self, channel: Channel, since: float) -> None:
        try:
            await self._heartbeat(channel)
            self._heard_at = self._clock.monotonic()
        except HeadraceError as error:
            _log.warning("replica node %d does not answer: %s", self.node_id, error)
            self._on_broken(channel, since)
        finally:
            self._probing = False

    async def close(self) -> None:
        if self._notice_handle is not None:
            self._notice_handle.cancel()
        if self._pump_handle is not None:
            self._pump_handle.cancel()
        for frame in self._frames:
            if frame.answer is not None:
                frame.answer.cancel()
        await self._tasks.close()

    # Sending

    def _schedule(self) -> None:
        """Pump once this turn of the loop is over, so that its appends share a frame."""
        if self._pump_handle is None and self._channel is not None:
            self._pump_handle = self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_handle = None
        settings = self._settings
        while (
            self._channel is not None
            and self._ready
            and len(self._frames) < settings.replica_frames_max
            and self._frames_bytes < settings.replica_queue_bytes_max
        ):
            entries, size = self._take_entries()
            if not entries:
                return
            self._send(entries, size)

    def _take_entries(self) -> tuple[list[_FrameItem], int]:
        """Round robin over the feeds, until the frame is full."""
        bytes_max = self._settings.replica_frame_bytes_max
        entries: list[_FrameItem] = []
        size = 0
        now = self._clock.monotonic()
        for feed in list(self._ready):
            if size >= bytes_max or len(entries) >= _ENTRIES_MAX:
                break
            del self._ready[feed]
            if now < feed.resume_at:
                continue  # its timer puts it back
            if feed.ready():
                before = feed.queued_bytes
                batches = feed.take(bytes_max - size)
                self.queued_bytes += feed.queued_bytes - before
                for batch in batches:
                    entries.append(_FrameItem(feed, feed.session, batch))
                    size += batch.size
            if feed.ready():
                self._ready[feed] = None
            else:
                self._read_log(feed)
        return entries, size

    def _send(self, entries: list[_FrameItem], size: int) -> None:
        """Nothing is awaited before the call: frames leave in the order of this method."""
        channel = self._channel
        assert channel is not None
        now = self._clock.monotonic()
        infos: list[m.AppendInfo] = []
        payload: list[Buffer] = []
        for index, entry in enumerate(entries):
            feed, batch = entry.feed, entry.batch
            source = self._sources[feed]
            feed.told = source.committed
            feed.sent_at = now
            range_ = m.Range(
                stream_id=feed.key.stream_id,
                range_index=feed.key.range_index,
                next_offset=feed.told,
            )
            length = 0 if batch is None else batch.size
            infos.append(m.AppendInfo(range=range_, request_index=index, batch_length=length))
            if batch is not None:
                payload.extend(batch.pieces)
        frame = _Frame(entries, size, now)
        self._frames[frame] = None
        self._frames_bytes += size
        if tracing.active:
            frame.span = self._trace(frame)
        request = m.AppendRequest(append_requests=tuple(infos))
        answer = asyncio.ensure_future(
            channel.call(Code.APPEND, request, payload, timeout=_CALL_SECONDS)
        )
        frame.answer = answer
        answer.add_done_callback(partial(self._on_answer, channel, frame))

    def _trace(self, frame: _Frame) -> tracing.Span:
        return tracing.begin_aside(
            "headrace.log.replicate",
            kind=tracing.Kind.CLIENT,
            node=self.node_id,
            stream_id=[entry.feed.key.stream_id for entry in frame.entries],
            bytes=frame.size,
        )

    def _on_answer(self, channel: Channel, frame: _Frame, answer: asyncio.Future[Reply]) -> None:
        del self._frames[frame]
        self._frames_bytes -= frame.size
        if frame.span is not None:
            frame.span.end()
        if answer.cancelled():
            return  # we close
        try:
            results = _results(answer.result(), len(frame.entries))
        except HeadraceError as error:
            _log.info("replica node %d: %s", self.node_id, error)
            self._on_broken(channel, self._clock.monotonic())
        else:
            self._heard_at = self._clock.monotonic()
            for entry, result in zip(frame.entries, results, strict=True):
                self._on_result(entry, result)
        self._pump()

    def _on_result(self, entry: _FrameItem, result: m.AppendResult) -> None:
        feed = entry.feed
        source = self._sources.get(feed)
        if source is None or feed.over is not None:
            return
        status = result.status
        error = None if is_success(status) else error_of(status or m.OK)
        if error is None or isinstance(error, AlreadyDurableError):
            if error is not None:  # a repetition tells the replica nothing
                feed.told = -1
                self.on_committed(feed)
            if entry.batch is not None:
                feed.refusals = 0
                feed.absent_since = None
                if entry.batch.end > feed.held:
                    feed.held = entry.batch.end
                    source.on_held(feed)
        elif entry.session == feed.session:
            self._on_refused(entry, source, error, replica_next=result.base_offset)

    def _on_refused(
        self, entry: _FrameItem, source: Source, error: HeadraceError, *, replica_next: int
    ) -> None:
        feed, batch = entry.feed, entry.batch
        again = feed.held if batch is None else max(feed.held, batch.base)
        if isinstance(error, AppendGapError):
            self._on_gap(feed, source, replica_next)
        elif isinstance(error, AppendPendingError):
            self._resume_later(feed, again, _PENDING_SECONDS)
        elif isinstance(error, _FOR_NOW) and not isinstance(error, NotPrimaryError):
            if not isinstance(error, ThrottledError) and feed.absent_since is None:
                feed.absent_since = self._clock.monotonic()
            delay = min(_BACKOFF_MIN * 2**feed.refusals, _BACKOFF_MAX)
            feed.refusals += 1
            self._resume_later(feed, again, delay)
        else:
            self.queued_bytes += feed.end(error)
            source.on_over(feed, error)

    def _on_gap(self, feed: ReplicaFeed, source: Source, replica_next: int) -> None:
        """The replica has less than we thought: it came back, or missed what a throttle refused."""
        fell = replica_next < feed.held
        self.queued_bytes += feed.rewind(replica_next)
        if fell:
            source.on_held(feed)
        self._ready[feed] = None

    def _resume_later(self, feed: ReplicaFeed, offset: int, delay: float) -> None:
        self.queued_bytes += feed.rewind(offset)
        feed.told = -1
        feed.resume_at = self._clock.monotonic() + delay
        self._loop.call_later(delay, self._on_resume, feed)

    def _on_resume(self, feed: ReplicaFeed) -> None:
        if feed not in self._sources or feed.over is not None:
            return
        feed.resume_at = 0.0
        self._ready[feed] = None
        self.on_committed(feed)
        self._schedule()

    # Catching up

    def _read_log(self, feed: ReplicaFeed) -> None:
        """Fill a feed that has given up its queue, or was sent back, from the log."""
        source = self._sources[feed]
        log = source.log
        if feed in self._reading or not feed.wants_log(
            log_next=log.next_offset, log_durable=log.durable_offset
        ):
            return
        if len(self._reading) >= _READS_MAX:
            self._starved[feed] = None
            return
        self._reading[feed] = None
        self._tasks.start(self._read(feed, source), name="read")

    async def _read(self, feed: ReplicaFeed, source: Source) -> None:
        session = feed.session
        try:
            views = await source.log.read_durable(
                feed.next_offset, self._settings.replica_read_bytes
            )
        except UnavailableError:
            return  # the node closes
        except HeadraceError as error:
            if feed.over is None and feed.session == session:
                self.queued_bytes += feed.end(error)
                source.on_over(feed, error)
            return
        finally:
            del self._reading[feed]
            self._ready |= self._starved
            self._starved.clear()
            self._schedule()
        if feed in self._sources:
            self.queued_bytes += feed.refill(session, outgoing_of(views))
            self._ready[feed] = None


def _results(reply: Reply, count: int) -> tuple[m.AppendResult, ...]:
    response = reply.message
    if not isinstance(response, m.AppendResponse):
        raise RemoteProtocolError("unexpected answer to a replica append")
    raise_for_status(response.status)
    if len(response.append_responses) != count:
        raise RemoteProtocolError("one result per batch expected")
    return response.append_responses
