"""A log and a replica's node that tests steer, for senders and what stands on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from headrace.config.datanode import DataNodeSettings
from headrace.datanode.replication.commitment import Outgoing, ReplicaFeed
from headrace.datanode.replication.sender import Sender
from headrace.errors import HeadraceError, UnavailableError
from headrace.net.sbp_channel import Channel
from headrace.net.sbp_routes import Payload, Reply
from headrace.runtime.interfaces import Buffer, Runtime
from headrace.storage.layout import RangeKey
from headrace.storage.range.log import RangeLog
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import AppendGapError, status_of
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import decode_header
from tests.log_cluster import batch
from tests.simulator.runtime import Simulation

SETTINGS = DataNodeSettings(replica_timeout_ms=400, commit_notice_ms=50)


def simulate(test: Callable[[Runtime], Coroutine[Any, Any, None]]) -> None:
    simulation = Simulation(3)
    simulation.run(test(simulation.runtime("host")))


class FakeLog:
    """Batches of one record each; durable as far as the test says."""

    def __init__(self, stream_id: int = 1, *, quorum: int = 2) -> None:
        self.key = RangeKey(stream_id, 0)
        self.ack_quorum = quorum
        self.next_offset = 0
        self.durable_offset = 0
        self.committed_offset = 0
        self.reads: list[int] = []
        self.damage: HeadraceError | None = None
        self.slow: asyncio.Event | None = None
        self._batches: list[bytes] = []
        self._waiting: list[asyncio.Future[None]] = []

    def append(
        self, header: bytearray, body: Sequence[Buffer], *, verified: bool
    ) -> asyncio.Future[None]:
        self._batches.append(bytes(header) + b"".join(body))
        self.next_offset += 1
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        return done

    def sync(self, count: int = 1 << 30) -> None:
        """The disk has done its work."""
        for done in self._waiting[:count]:
            self.durable_offset += 1
            done.set_result(None)
        del self._waiting[:count]

    def fail(self, error: HeadraceError) -> None:
        for done in self._waiting:
            done.set_exception(error)
        self._waiting.clear()

    def set_committed(self, offset: int) -> None:
        self.committed_offset = offset

    async def read_durable(self, offset: int, max_bytes: int) -> Sequence[memoryview]:
        self.reads.append(offset)
        if self.slow is not None:
            await self.slow.wait()
        if self.damage is not None:
            raise self.damage
        found: list[memoryview] = []
        for data in self._batches[offset : self.durable_offset]:
            if found and sum(map(len, found)) + len(data) > max_bytes:
                break
            found.append(memoryview(data))
        return found

    @property
    def real(self) -> RangeLog:
        return cast(RangeLog, self)


def batch_at(offset: int, size: int = 100) -> tuple[bytearray, list[Buffer]]:
    header, body = batch(b"x" * size, base_offset=offset)
    assert isinstance(header, bytearray)
    return header, [body]


@dataclass
class FakeNode:
    """Answers replica appends by the window rules, or as the test says."""

    next_offsets: dict[RangeKey, int] = field(default_factory=dict)
    committed: dict[RangeKey, int] = field(default_factory=dict)
    frames: list[list[tuple[RangeKey, int]]] = field(default_factory=list)
    """Per frame: range and base offset, -1 for a committed offset alone."""
    refusal: Callable[[RangeKey, int], HeadraceError | None] = lambda key, base: None
    heartbeats: int = 0
    connections: int = 0
    reachable: bool = True
    hangs: bool = False
    slow: asyncio.Event | None = None
    channels: list[FakeChannel] = field(default_factory=list)

    async def connect(self) -> Channel:
        if not self.reachable:
            raise UnavailableError("cannot connect")
        self.connections += 1
        self.channels.append(FakeChannel(self))
        return self.channels[-1]

    def cut(self) -> None:
        """All connections break, and nobody can make a new one."""
        self.reachable = False
        for channel in self.channels:
            channel.broken.set()

    def store(self, request: m.AppendRequest, payload: Payload) -> m.AppendResponse:
        data = memoryview(b"".join(payload))
        results: list[m.AppendResult] = []
        frame: list[tuple[RangeKey, int]] = []
        for info in request.append_requests:
            assert info.range is not None
            key = RangeKey(info.range.stream_id, info.range.range_index)
            base = -1
            if info.batch_length:
                base = decode_header(data).base_offset
                data = data[info.batch_length :]
            frame.append((key, base))
            results.append(self._result(key, base, info))
        self.frames.append(frame)
        return m.AppendResponse(append_responses=tuple(results), status=m.OK)

    def _result(self, key: RangeKey, base: int, info: m.AppendInfo) -> m.AppendResult:
        expected = self.next_offsets.setdefault(key, 0)
        error = self.refusal(key, base)
        if error is None and base > expected:
            error = AppendGapError(next=expected)
        if error is not None:
            return m.AppendResult(base_offset=expected, status=status_of(error))
        assert info.range is not None
        self.committed[key] = info.range.next_offset
        if base == expected:
            self.next_offsets[key] = base + 1
        return m.AppendResult(base_offset=base, status=m.OK)


class FakeChannel:
    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self.broken = asyncio.Event()

    async def call(
        self, code: Code, message: m.Message, payload: Payload = (), *, timeout: float = 3.0
    ) -> Reply:
        if self.broken.is_set():
            raise UnavailableError("broken", refused=True)
        node = self._node
        if isinstance(message, m.AppendRequest):
            answer = node.store(message, payload)
            await self._wait(node.slow.wait() if node.slow is not None else asyncio.sleep(0.001))
            return Reply(answer)
        node.heartbeats += 1
        if node.hangs:
            await self._wait(asyncio.sleep(timeout))
            raise UnavailableError("no answer in time")
        return Reply(m.HeartbeatResponse(status=m.OK))

    async def _wait(self, work: Coroutine[Any, Any, object]) -> None:
        """For the answer, unless the connection breaks before."""
        answer = asyncio.ensure_future(work)
        broken = asyncio.ensure_future(self.broken.wait())
        try:
            await asyncio.wait([answer, broken], return_when=asyncio.FIRST_COMPLETED)
        finally:
            answer.cancel()
            broken.cancel()
        if self.broken.is_set():
            raise UnavailableError("connection lost")

    async def close(self) -> None:
        self.broken.set()


class FakeSource:
    """What a led range is to a sender."""

    def __init__(self, log: FakeLog) -> None:
        self.log = log.real
        self.committed = 0
        self.held: list[int] = []
        self.over: list[HeadraceError] = []

    def on_held(self, feed: ReplicaFeed) -> None:
        self.held.append(feed.held)

    def on_over(self, feed: ReplicaFeed, error: HeadraceError) -> None:
        self.over.append(error)


class Sending:
    """A sender that runs, to a node that answers."""

    def __init__(self, runtime: Runtime, settings: DataNodeSettings = SETTINGS) -> None:
        self.runtime = runtime
        self.node = FakeNode()
        self.sender = Sender(
            runtime,
            settings,
            node_id=9,
            connect=self.node.connect,
            introduce=m.HeartbeatRequest,
        )
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Sending:
        self._running = asyncio.ensure_future(self.sender.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._running is not None
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self.sender.close()

    def add(self, stream_id: int = 1) -> Fed:
        fed = Fed(self.sender, FakeLog(stream_id))
        self.sender.add(fed.feed, fed.source)
        return fed


class Fed:
    """A range and its feed to that node."""

    def __init__(self, sender: Sender, log: FakeLog) -> None:
        self.log = log
        self.source = FakeSource(log)
        self.feed = ReplicaFeed(log.key, 9, 0, 0)
        self._sender = sender

    def append(self, *, synced: bool = True, size: int = 100) -> None:
        offset = self.log.next_offset
        header, body = batch_at(offset, size)
        self.log.append(header, body, verified=True)
        pieces = (header, *body)
        outgoing = Outgoing(offset, offset + 1, sum(map(len, pieces)), pieces)
        self._sender.push(self.feed, outgoing)
        if synced:
            self.sync()

    def sync(self) -> None:
        self.log.sync()
        self._sender.on_durable(self.feed)

    def commit(self, offset: int) -> None:
        self.source.committed = offset
        self._sender.on_committed(self.feed)
