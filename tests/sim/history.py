"""What happened in a simulated cluster, as its participants saw it: the input of the checker.

Every call over SBP is noted with who asked whom, when, and what came back; every transaction of the
placement store with its author. Nothing here looks into a service: the history is what an observer
with a tap on every cable and on the store would have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import HeadraceError
from headrace.net.sbp_channel import Channel
from headrace.net.sbp_routes import Payload, Reply
from headrace.placement.metadata.records import Record, Table
from headrace.sbp_client.channels import Connect
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import SUCCESS
from headrace.wire.sbp.messages import ClientRole, Message
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import BatchHeader, patch_base_offset, split

NEVER = float("inf")
RangeId = tuple[int, int]
"""Stream id and range index."""


@dataclass(slots=True, eq=False)
class Call:
    """One request and what came of it."""

    number: int
    host: str
    role: ClientRole
    peer: str
    channel: int
    code: Code
    request: Message
    payload: bytes
    invoked: float
    answered: float = NEVER
    reply: Message | None = None
    data: bytes = b""
    error: BaseException | None = None

    def __str__(self) -> str:
        outcome: object = "no answer"
        if self.error is not None:
            outcome = self.error
        elif self.reply is not None:
            outcome = "answered"
        return (
            f"call {self.number} {self.code.name} {self.host} -> {self.peer}"
            f" at {self.invoked:.6f}..{self.answered:.6f}: {outcome}"
        )


@dataclass(slots=True, eq=False)
class Transaction:
    """A commit of the placement store that took effect."""

    time: float
    author: str
    leader: str
    """Who held the leader key when it took effect; the author itself without an election."""
    puts: tuple[Record, ...]
    removes: tuple[tuple[Table, str], ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """A batch at its offset, with the bytes it must have there."""

    stream_id: int
    base: int
    end: int
    batch: bytes
    header: BatchHeader


@dataclass(frozen=True, slots=True)
class Ack:
    """An acknowledged append."""

    stored: Stored
    range_index: int
    writer_epoch: int
    call: Call


@dataclass(frozen=True, slots=True)
class Read:
    """One stream's part of an answered FETCH, or of one that was refused (then no batches)."""

    stream_id: int
    offset: int
    batches: tuple[Stored, ...]
    status: int
    call: Call


@dataclass(slots=True)
class History:
    time: Callable[[], float]
    calls: list[Call] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """What a client of the workload saw that may not be; each names its invariant."""
    promises: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(stream, offset, record) of what a client library said is stored there."""
    hosts: dict[str, int] = field(default_factory=dict)
    """Host of a data node -> its node id, once it has one."""
    quiet: float = NEVER
    """Since when nothing is wrong any more."""
    lost: dict[str, list[float]] = field(default_factory=dict)
    """Hosts whose disk was replaced by an empty one, and when."""
    holders: Callable[[int, int], tuple[int, int]] = lambda stream_id, end: (0, 0)
    """(stream, offset) -> on how many disks the record below it was, and how many it takes."""
    duplicate: Callable[[], float] | None = None
    """Asked after each call: in how many seconds the request arrives once more; 0 is never."""
    _repetitions: list[asyncio.Task[None]] = field(default_factory=list)
    _channels: int = 0

    def complain(self, text: str) -> None:
        self.complaints.append(f"{self.time():.6f} {text}")

    def recorded(
        self, connect: Connect, *, host: str, peer: str, role: ClientRole
    ) -> Callable[[], Any]:
        """The same connections, with every call on them noted, and some of them made twice."""

        async def make() -> Channel:
            channel = await connect()
            self._channels += 1
            recording = RecordingChannel(self, channel, self._channels, host, peer, role)
            if self.duplicate is None:
                return recording
            return DuplicatingChannel(self, recording, make)

        return make

    def repeat(self, work: Coroutine[Any, Any, None]) -> None:
        """Let a request arrive once more; whatever comes of it is nobody's concern."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._repetitions.append(task)

    async def wait_repeated(self) -> None:
        """Until everything that arrives twice has arrived; nothing does from now on."""
        self.duplicate = None
        await asyncio.gather(*self._repetitions, return_exceptions=True)

    def check_held(self, stream_id: int, end: int) -> None:
        """Asked at once, when somebody is told that all below `end` is stored."""
        found, wanted = self.holders(stream_id, end)
        if found < wanted:
            self.complain(
                f"I6: stream {stream_id} is acknowledged up to {end}, which is on {found} of"
                f" {wanted} disks"
            )

    # What the checker asks

    def of(self, *codes: Code) -> Iterator[Call]:
        return (call for call in self.calls if call.code in codes)

    def acks(self) -> Iterator[Ack]:
        """Appends of clients that were acknowledged, in the order of their invocations."""
        for call in self.of(Code.APPEND):
            if call.role is not ClientRole.DATA_NODE and isinstance(call.reply, m.AppendResponse):
                yield from _acks(call, call.reply)

    def reads(self) -> Iterator[Read]:
        for call in self.of(Code.FETCH):
            if isinstance(call.reply, m.FetchResponse):
                yield from _reads(call, call.reply)

    def sent(self) -> Iterator[tuple[int, bytes]]:
        """(stream, batch without its offset) of everything clients ever sent."""
        for call in self.of(Code.APPEND):
            if call.role is ClientRole.DATA_NODE:
                continue
            assert isinstance(call.request, m.AppendRequest)
            position = 0
            for info in call.request.append_requests:
                batch = call.payload[position : position + info.batch_length]
                position += info.batch_length
                if info.range is not None:
                    yield info.range.stream_id, without_offset(batch)


def without_offset(batch: bytes) -> bytes:
    """What a batch's checksum covers, and its length: the same wherever it is stored."""
    return batch[9:]


def _acks(call: Call, reply: m.AppendResponse) -> Iterator[Ack]:
    assert isinstance(call.request, m.AppendRequest)
    if not succeeded(reply.status):
        return
    results = {result.request_index: result for result in reply.append_responses}
    position = 0
    for info in call.request.append_requests:
        batch = bytearray(call.payload[position : position + info.batch_length])
        position += info.batch_length
        result = results.get(info.request_index)
        if result is None or info.range is None or not succeeded(result.status):
            continue
        patch_base_offset(batch, result.base_offset)
        stored = stored_batches(info.range.stream_id, batch)[0]
        yield Ack(stored, info.range.range_index, info.writer_epoch, call)


def _reads(call: Call, reply: m.FetchResponse) -> Iterator[Read]:
    assert isinstance(call.request, m.FetchRequest)
    infos = {info.request_index: info for info in call.request.fetch_requests}
    position = 0
    for result in reply.fetch_responses:
        info = infos[result.request_index]
        data = call.data[position : position + result.batch_length]
        position += result.batch_length
        code = result.status.code if result.status is not None else 0
        batches = tuple(stored_batches(info.stream_id, data)) if succeeded(result.status) else ()
        yield Read(info.stream_id, info.fetch_offset, batches, code, call)


def stored_batches(stream_id: int, data: bytes | bytearray | memoryview) -> list[Stored]:
    return [
        Stored(stream_id, header.base_offset, header.next_offset, bytes(batch), header)
        for header, batch in split(data)
    ]


def succeeded(status: m.Status | None) -> bool:
    return status is None or status.code in SUCCESS


class RecordingChannel:
    """A channel with a tap. Everything but calls goes to the channel itself."""

    def __init__(
        self,
        history: History,
        inner: Channel,
        number: int,
        host: str,
        peer: str,
        role: ClientRole,
    ) -> None:
        self._history = history
        self._inner = inner
        self._number = number
        self._host = host
        self._peer = peer
        self._role = role

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def call(
        self, code: Code, message: Message, payload: Payload = (), *, timeout: float = 3.0
    ) -> Reply:
        history = self._history
        # Nothing is awaited before the inner call: requests leave in the order they are noted.
        noted = Call(
            number=len(history.calls),
            host=self._host,
            role=self._role,
            peer=self._peer,
            channel=self._number,
            code=code,
            request=message,
            payload=b"".join(payload),
            invoked=history.time(),
        )
        history.calls.append(noted)
        try:
            reply = await self._inner.call(code, message, payload, timeout=timeout)
        except (HeadraceError, asyncio.CancelledError) as error:
            noted.answered = history.time()
            noted.error = error
            raise
        noted.answered = history.time()
        noted.reply = reply.message
        noted.data = b"".join(reply.payload)
        if code is Code.FETCH and noted.data and self._role is ClientRole.CUSTOMER:
            self._check_committed(noted)
        if isinstance(reply.message, m.AppendResponse) and self._role is ClientRole.CUSTOMER:
            for ack in _acks(noted, reply.message):
                history.check_held(ack.stored.stream_id, ack.stored.end)
        return reply

    def _check_committed(self, call: Call) -> None:
        """Asked at once: later the answer may be another one."""
        assert isinstance(call.reply, m.FetchResponse)
        for read in _reads(call, call.reply):
            if read.batches:
                end = read.batches[-1].end
                found, wanted = self._history.holders(read.stream_id, end)
                if found < wanted:
                    self._history.complain(
                        f"I8: read up to {end}, which is on {found} of {wanted} disks: {call}"
                    )

    async def close(self) -> None:
        await self._inner.close()


DUPLICATED = frozenset(
    {
        Code.APPEND,
        Code.SEAL_RANGES,
        Code.SYNC_RANGES,
        Code.CREATE_STREAMS,
        Code.DELETE_STREAMS,
        Code.TRIM_STREAMS,
    }
)
"""Requests that change something."""


class DuplicatingChannel:
    """Sends a request once more over another connection, later, as if its sender had retried."""

    def __init__(
        self,
        history: History,
        inner: RecordingChannel,
        connect: Callable[[], Awaitable[Channel]],
    ) -> None:
        self._history = history
        self._inner = inner
        self._connect = connect

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def call(
        self, code: Code, message: Message, payload: Payload = (), *, timeout: float = 3.0
    ) -> Reply:
        copied = [bytes(piece) for piece in payload] if code in DUPLICATED else []
        try:
            return await self._inner.call(code, message, payload, timeout=timeout)
        finally:
            later = self._history.duplicate
            if code in DUPLICATED and later is not None and (seconds := later()) > 0:
                self._history.repeat(self._again(seconds, code, message, copied))

    async def _again(
        self, seconds: float, code: Code, message: Message, payload: list[bytes]
    ) -> None:
        await asyncio.sleep(seconds)
        channel = await self._connect()
        inner = channel._inner if isinstance(channel, DuplicatingChannel) else channel
        try:
            await inner.call(code, message, payload)
        finally:
            await channel.close()

    async def close(self) -> None:
        await self._inner.close()
