"""Send and poll through TCP, against bare servers that do the same I/O and nothing else.

The broker and the bare servers (`bare_server.py`) run in processes of their own; this one loads
them over several connections with frames encoded beforehand, each connection waiting for its answer
before it sends again. Rounds of all alternate and the best of each counts, so that a machine with
other work to do disturbs all alike. Each figure is taken in the classic framing (B2) and in dialect
C, against one limit: the bare servers do not look at frames. A third row divides the two, round by
round, and tells the median: newer clients are to be served as well as older ones. Each round of
sends begins with an empty log. Polls read the same batches again and again, in both framings, as
many consumers do: what is converted for one is kept for the next. First polls read each of a set of
new batches once, each connection some that follow each other, as a consumer reads; of long SENDs,
and of short ones, of which a poll takes many. Latencies are the
broker's, of its best round. The bare counterpart of a broker that may never stop its loop also
writes off the loop; what that alone costs shows in the row that compares with writes on the loop.

Run alone: `python -m benchmarks broker_send_poll`. With PROFILE=path the brokers write a cProfile;
with ONLY=text only the figures whose name contains it are taken.
"""

from __future__ import annotations

import asyncio
import gc
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, cast

import msgspec

from benchmarks.bare_server import NAMES, RESPONSE
from benchmarks.bare_server import serve as serve_bare
from headrace.process.startup.serving import SWITCH_INTERVAL_SECONDS
from headrace.runtime.system import run as run_loop
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.classic_frames import encode_request
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.messages.messages import Message, PollMessages, encode_send
from headrace.wire.iggy.messages.topics import Compression, CreateStream, CreateTopic, DeleteTopic
from headrace.wire.iggy.messages.users import LoginRegister, LoginUser
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from headrace.wire.iggy.vsr import frames as vsr

SECONDS = 0.25
ROUNDS = 24  # of ours; the bare servers take part in every other one
CLOSE_MIN = 0.9
POLLED_BATCHES = 32
STREAM, TOPIC = "bench", "bench"
_NUMBER = struct.Struct("<Q")


@dataclass(frozen=True)
class Shape:
    kind: str
    level: str
    count: int
    size: int
    connections: int
    against: str
    sent: int = 0  # messages of a SEND, where polls are of several
    each: int = 0  # polls of a connection, each of messages that nobody has read
    dialect: Dialect = Dialect.B2

    @property
    def batches(self) -> int:
        """That are polled."""
        return self.connections * self.each or POLLED_BATCHES

    @property
    def seconds(self) -> float:
        """Of a round, unless each connection asks so often."""
        return 0.0 if self.each else SECONDS

    @property
    def name(self) -> str:
        what = f"{self.kind} {self.count} x {self.size} B"
        if self.sent:
            what += f" sent by {self.sent}"
        if self.dialect is Dialect.C:
            what += " in dialect C"
        if self.kind == "send":
            what += f" {self.level}"
        if self.against == "inline":
            what += " (limit: on the loop)"
        return f"{what}, {self.connections} conn."


SHAPES = (
    Shape("send", "written", 1000, 1000, 8, "written"),
    Shape("send", "written", 1000, 1000, 8, "inline"),
    Shape("send", "synced", 1000, 1000, 8, "synced"),
    Shape("send", "written", 1000, 100, 8, "written"),
    Shape("send", "synced", 1000, 100, 8, "synced"),
    Shape("send", "written", 1, 1000, 16, "written"),
    Shape("send", "synced", 1, 1000, 16, "synced"),
    Shape("poll", "written", 1000, 1000, 8, "polled"),
    Shape("poll", "written", 1000, 100, 8, "polled"),
    Shape("first poll", "written", 1000, 1000, 8, "polled", each=4),
    Shape("first poll", "written", 1000, 100, 8, "polled", each=8),
    Shape("first poll", "written", 1000, 100, 8, "polled", sent=100, each=8),
    Shape("first poll", "written", 1000, 100, 4, "polled", sent=10, each=4),
    Shape("first poll", "written", 1000, 1000, 2, "polled", sent=1, each=2),
)


# --- the servers ----------------------------------------------------------------------------------


async def serve_broker(folder: str, level: str) -> None:
    from tests.integration.broker_stack import DEVELOPMENT, Stack

    settings = msgspec.structs.replace(DEVELOPMENT, durability=level)
    stack = await Stack(folder, settings).start()
    gc.freeze()  # as `process/startup/control_plane_process.py`
    print(stack.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await stack.stop()


class Server:
    """A child that serves until its standard input is closed."""

    def __init__(self, *arguments: str) -> None:
        self._folder = tempfile.TemporaryDirectory(
            prefix="headrace-bench-", dir=os.environ.get("HEADRACE_BENCH_DIR")
        )
        command = [sys.executable, "-m", "benchmarks.broker_send_poll", self._folder.name]
        self._process = subprocess.Popen(
            [*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> list[int]:
        """The ports it serves."""
        assert self._process.stdout is not None
        return [int(port) for port in self._process.stdout.readline().split()]

    def __exit__(self, *_: object) -> None:
        self._process.communicate("")
        self._folder.cleanup()


# --- the load -------------------------------------------------------------------------------------


@dataclass
class Round:
    begin: float
    end: float
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return len(self.latencies) / (self.end - self.begin)

    def quantile(self, share: float) -> float:
        return sorted(self.latencies)[int(share * (len(self.latencies) - 1))]


class Caller(asyncio.Protocol):
    """Sends a frame, counts the bytes of its answer, sends the next. Answers are not kept.

    From memory of its own, as separate clients would. In dialect C it writes its session and the
    next number into each frame before it is sent.
    """

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.dialect = Dialect.B2
        self.client = os.urandom(16)
        self._session = self._number = 0
        self._own: dict[int, bytearray] = {}
        self._head = b""
        self._missing = 0
        self._on_answer: Callable[[], None] = lambda: None
        self._on_failure: Callable[[Exception], None] = lambda _: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def ask(
        self,
        frame: bytes,
        on_answer: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._head = b""
        self._missing = RESPONSE.size if self.dialect is not Dialect.C else 0
        self._on_answer, self._on_failure = on_answer, on_failure
        own = self._own.get(id(frame)) or self._make_own(frame)
        if self.dialect is Dialect.C:
            self._number += 1
            _NUMBER.pack_into(own, 168, self._number)
        self.transport.write(own)  # the last request was answered: nothing holds its bytes

    def _make_own(self, frame: bytes) -> bytearray:
        own = self._own[id(frame)] = bytearray(frame)
        if self.dialect is Dialect.C:
            own[128:144] = self.client
            _NUMBER.pack_into(own, 184, 0 if own[176] == vsr.REGISTER else self._session)
        return own

    async def call(self, frame: bytes) -> None:
        self._own.clear()  # by address, and other frames may get the same
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ask(frame, lambda: done.set_result(None), done.set_exception)
        try:
            await done
        finally:
            self._on_failure = lambda _: None

    def data_received(self, data: bytes) -> None:
        if self.dialect is Dialect.C:
            if not self._head:
                self._head = data[: vsr.HEADER_BYTES]  # it does not come in two pieces
                self._missing = vsr.frame_bytes(data)
                if data[60] != vsr.REPLY or any(data[216:220]):
                    self._on_failure(RuntimeError(f"refused with {data[216:220].hex()}"))
                    return
                if data[208] == vsr.REGISTER:
                    (self._session,) = _NUMBER.unpack_from(data, vsr.HEADER_BYTES + 8)
        elif len(self._head) < RESPONSE.size:
            self._head += data[: RESPONSE.size]
            status, length = RESPONSE.unpack(self._head)  # eight bytes do not come in two pieces
            if status:
                self._on_failure(RuntimeError(f"refused with {status}"))
                return
            self._missing += length
        self._missing -= len(data)
        if not self._missing:
            self._on_answer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_failure(exc or ConnectionError("the server closed the connection"))


async def load(callers: list[Caller], frames: list[bytes], seconds: float, each: int = 0) -> Round:
    """For so long, or until each caller has asked so often."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    clock = time.perf_counter
    measured = Round(clock(), 0.0)
    deadline = measured.begin + seconds
    busy = len(callers)

    def fail(error: Exception) -> None:
        if not over.done():
            over.set_exception(error)

    def start(number: int, caller: Caller) -> None:
        at = number * len(frames) // len(callers)  # each reads forwards from a place of its own
        sent = 0.0
        left = each

        def send() -> None:
            nonlocal at, left, sent
            sent = clock()
            left -= 1
            at = (at + 1) % len(frames)
            caller.ask(frames[at], on_answer, fail)

        def on_answer() -> None:
            nonlocal busy
            now = clock()
            measured.latencies.append(now - sent)
            if left > 0 or now < deadline:
                send()
                return
            busy -= 1
            if not busy:
                over.set_result(None)

        send()

    for number, caller in enumerate(callers):
        start(number, caller)
    await asyncio.wait_for(over, seconds + 30)
    measured.end = clock()
    return measured


async def connect(
    port: int, count: int, dialect: Dialect = Dialect.B2, kind: type[Caller] = Caller
) -> list[Caller]:
    loop = asyncio.get_running_loop()
    callers = [(await loop.create_connection(kind, "127.0.0.1", port))[1] for _ in range(count)]
    for caller in callers:
        caller.dialect = dialect
    return callers


async def log_in(
    port: int, count: int, dialect: Dialect = Dialect.B2, kind: type[Caller] = Caller
) -> list[Caller]:
    callers = await connect(port, count, dialect, kind)
    for caller in callers:
        if dialect is Dialect.C:
            login = LoginRegister(vsr.VERSION, "benchmark", "1", "iggy", "iggy")
            await caller.call(make_frame(c.LOGIN_REGISTER, login, dialect))
        else:
            await caller.call(make_frame(c.LOGIN_USER, LoginUser("iggy", "iggy")))
    return callers


async def broker_round(callers: list[Caller], shape: Shape, frames: list[bytes]) -> Round:
    if shape.kind == "send":
        await _empty(callers[0])
        await callers[0].call(frames[0])  # opens the partition
    elif shape.kind == "first poll":
        await _fill(callers[0], shape)
    return await load(callers, frames, shape.seconds, shape.each)


async def bare_round(port: int, shape: Shape, frames: list[bytes]) -> Round:
    callers = await connect(port, shape.connections, shape.dialect)
    measured = await load(callers, frames, shape.seconds, shape.each)
    close_callers(callers)
    await asyncio.sleep(0.05)  # it truncates its file
    return measured


def close_callers(callers: list[Caller]) -> None:
    for caller in callers:
        caller.transport.abort()


async def _empty(caller: Caller) -> None:
    """A topic of one partition without messages."""
    await caller.call(make_frame(c.DELETE_TOPIC, DeleteTopic(STREAM, TOPIC), caller.dialect))
    await caller.call(make_frame(c.CREATE_TOPIC, _TOPIC, caller.dialect))


_TOPIC = CreateTopic(STREAM, 1, Compression.NONE, 0, 0, 1, TOPIC)


def make_frame(command: c.AnyCommand, request: Any, dialect: Dialect = Dialect.B2) -> bytes:
    body = command.encode_request(request, dialect)
    if dialect is not Dialect.C:
        return b"".join(encode_request(command.code, body))
    operation = vsr.OPERATION_OF.get(command.code, vsr.READ)
    if command is c.LOGIN_REGISTER:
        operation = vsr.REGISTER
    head = vsr.Head(operation, 0, 0, b"c" * 16)
    return b"".join(vsr.encode_request(head, command.code, body))


def _send_frame(shape: Shape) -> bytes:
    in_c = shape.dialect is Dialect.C  # where producers give ids
    messages = [
        Message(bytes([65 + n % 26]) * shape.size, id=in_c * (n + (1 << 100)))
        for n in range(shape.count)
    ]
    request = encode_send(STREAM, TOPIC, Partitioning.to_partition(0), messages)
    return make_frame(c.SEND_MESSAGES, request, shape.dialect)


def _poll_frames(shape: Shape) -> list[bytes]:
    consumer = Consumer.single()
    return [
        make_frame(
            c.POLL_MESSAGES,
            PollMessages(
                consumer, STREAM, TOPIC, 0, Strategy.offset(n * shape.count), shape.count, False
            ),
            shape.dialect,
        )
        for n in range(shape.batches)
    ]


async def prepare(port: int) -> None:
    (caller,) = await log_in(port, 1)
    await caller.call(make_frame(c.CREATE_STREAM, CreateStream(STREAM)))
    await caller.call(make_frame(c.CREATE_TOPIC, _TOPIC))
    close_callers([caller])


async def _fill(caller: Caller, shape: Shape) -> None:
    await _empty(caller)
    per_send = shape.sent or shape.count
    frame = _send_frame(replace(shape, count=per_send))
    for _ in range(shape.batches * shape.count // per_send):
        await caller.call(frame)


async def _fill_bare(port: int, shape: Shape) -> None:
    (caller,) = await connect(port, 1)
    reply_bytes, code = 16 + shape.count * (64 + shape.size), 0
    if shape.dialect is Dialect.C:
        headers = shape.count // (shape.sent or shape.count)
        reply_bytes, code = 16 + 256 * headers + shape.count * (48 + shape.size), 256
    request = RESPONSE.pack(12, code) + RESPONSE.pack(reply_bytes, shape.batches)
    await caller.call(request)
    close_callers([caller])


class Contest:
    """One shape of load: rounds at the broker and at the bare server, by turns."""

    def __init__(self, shape: Shape, broker: int, bare: int) -> None:
        self.shape = shape
        self._broker, self._bare = broker, bare
        self._callers: list[Caller] = []
        self._frames: list[bytes] = []
        self.ours: list[Round] = []
        self.limits: list[Round] = []

    async def open(self) -> None:
        shape = self.shape
        self._callers = await log_in(self._broker, shape.connections, shape.dialect)
        self._frames = [_send_frame(shape)] if shape.kind == "send" else _poll_frames(shape)

    async def fill(self) -> None:
        await _fill(self._callers[0], self.shape)

    async def round(self) -> None:
        self.ours.append(await broker_round(self._callers, self.shape, self._frames))

    async def bare_round(self) -> None:
        if self.shape.kind != "send":
            await _fill_bare(self._bare, self.shape)
        self.limits.append(await bare_round(self._bare, self.shape, self._frames))

    def close(self) -> tuple[Round, Round]:
        """The best of ours and of the limit's; the first rounds warmed up and do not count."""
        close_callers(self._callers)
        ours, limit = (max(r[1:], key=lambda one: one.rate) for r in (self.ours, self.limits))
        return ours, limit


async def measure(
    brokers: dict[str, int], bare: dict[str, int], shape: Shape
) -> list[dict[str, Any]]:
    contests = [
        Contest(replace(shape, dialect=dialect), brokers[shape.level], bare[shape.against])
        for dialect in (Dialect.B2, Dialect.C)
    ]
    for one in contests:
        await one.open()
    if shape.kind == "poll":
        await contests[0].fill()
    for number in range(ROUNDS + 1):
        # Each goes first equally often, also after a bare round, which leaves the disk work to do.
        for one in contests if number % 4 < 2 else reversed(contests):
            await one.round()
        for one in contests if number % 2 else ():
            await one.bare_round()
    results = [one.close() for one in contests]
    limit = max((limit for _, limit in results), key=lambda one: one.rate)
    classic, newest = [
        _row(one.shape, ours, limit) for one, (ours, _) in zip(contests, results, strict=True)
    ]
    return [classic, newest, _compared(*contests)]


def _row(shape: Shape, best: Round, limit: Round) -> dict[str, Any]:
    return {
        "name": shape.name,
        "value": best.rate * shape.count,
        "unit": "messages/s",
        "limit": limit.rate * shape.count,
        "ratio": best.rate / limit.rate,
        "p50_ms": 1000 * best.quantile(0.5),
        "p99_ms": 1000 * best.quantile(0.99),
        "limit_p50_ms": 1000 * limit.quantile(0.5),
        "limit_p99_ms": 1000 * limit.quantile(0.99),
    }


def _compared(classic: Contest, newest: Contest) -> dict[str, Any]:
    """The median over rounds of the one beside the other: what disturbs one disturbs its neighbour,
    and the best round of each is luck."""
    rates = [(old.rate, new.rate) for old, new in zip(classic.ours, newest.ours, strict=True)][1:]
    ratio = median(new / old for old, new in rates)
    middle = median(old for old, _ in rates) * classic.shape.count
    return {
        "name": f"{classic.shape.name}: C to B2 (>= {CLOSE_MIN})",
        "value": ratio * middle,
        "unit": "messages/s",
        "limit": middle,
        "ratio": ratio,
    }


def run() -> list[dict[str, Any]]:
    only = os.environ.get("ONLY", "")
    with (
        Server("broker", "written") as (written,),
        Server("broker", "synced") as (synced,),
        Server("bare") as ports,
    ):
        brokers = {"written": written, "synced": synced}
        bare = dict(zip(NAMES, ports, strict=True))
        for port in brokers.values():
            run_loop(prepare(port))
        return [
            row
            for shape in SHAPES
            if only in shape.name
            for row in run_loop(measure(brokers, bare, shape))
        ]


def _main(folder: str, kind: str, level: str = "") -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    if kind == "bare":
        run_loop(serve_bare(folder, sys.stdin.read))
        return
    profile = os.environ.get("PROFILE")
    if profile is None:
        run_loop(serve_broker(folder, level))
        return
    import cProfile

    profiler = cProfile.Profile()
    profiler.enable()
    run_loop(serve_broker(folder, level))
    profiler.disable()
    profiler.dump_stats(f"{profile}.{level}.{os.getpid()}")


if __name__ == "__main__":
    _main(*sys.argv[1:])
