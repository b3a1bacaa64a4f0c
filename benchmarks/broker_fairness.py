"""What producers keep while consumers poll without a pause, and how soon a message gets to one.

The broker and the consumers run in processes of their own; this one has the producers. Rounds with
and without consumers alternate, and the figure is the median over rounds of the producers' rate
beside consumers, divided by that of the round without: 0.8 at least is the goal. Each producer
sends 100 messages of 1000 B and waits for the answer; each consumer has a partition of its own,
asks for what follows, and asks again as soon as it has an answer, with messages or without. A round
counts only if every message was delivered. Consumers of old messages read the same batch again and
again, so that they always find something; as many connections on either side, half of the rate is
the producers' share. On a machine of two cores the clients compete for them
as well: what consumers cost producers there is more than what the broker spends.

Then a consumer that waits on a machine with nothing else to do: from a SEND's acknowledgement until
its message is there (2 ms at most, the median), against a poll that finds one; and how often it has
to ask (300 times a second at most).

Run alone: `python -m benchmarks broker_fairness`. With PROFILE=path the brokers write a cProfile;
with ONLY=text only the figures whose name contains it are taken; ROUNDS= changes how many.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any, cast

import psutil

from benchmarks.bare_server import RESPONSE
from benchmarks.broker_send_poll import (
    STREAM,
    TOPIC,
    Caller,
    Round,
    Server,
    close_callers,
    load,
    log_in,
    make_frame,
    prepare,
)
from headrace.runtime.system import run as run_loop
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.messages.messages import (
    POLL_HEAD,
    POLL_TAIL_BYTES,
    Message,
    PollMessages,
    encode_send,
)
from headrace.wire.iggy.messages.topics import Compression, CreateTopic, DeleteTopic
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from headrace.wire.iggy.vsr import frames as vsr

ROUNDS = int(os.environ.get("ROUNDS", "15"))
SECONDS = 0.4
CONNECTIONS = 4
COUNT, SIZE = 100, 1000
NEW, OLD = "new", "old"
RATE_MIN = 0.8
SHARE_MIN = 0.5  # as many connections on either side, and consumers that always find something
WAIT_MS_MAX = 2.0
POLLS_MAX = 300  # a second
LATENCY_SENDS = 200
LATENCY_PAUSE_SECONDS = 0.02
DRAIN_SECONDS = 20.0
_OFFSET = struct.Struct("<Q")


@dataclass(frozen=True)
class Load:
    level: str
    dialect: Dialect
    readers: str = NEW

    @property
    def ratio_min(self) -> float:
        return RATE_MIN if self.readers == NEW else SHARE_MIN

    @property
    def name(self) -> str:
        told = " in dialect C" if self.dialect is Dialect.C else ""
        what = f"send {COUNT} x {SIZE} B{told} {self.level}, {CONNECTIONS} conn."
        return f"{what}, as many consumers of {self.readers} messages"


LEVELS = ("synced", "written")


# --- consumers ------------------------------------------------------------------------------------


class Poller(Caller):
    """A consumer of one partition, which asks again as soon as it is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.polls = 0
        self.messages = 0
        self.on_messages: Callable[[], None] = _nothing
        self._frame = b""
        self._goes_on = True
        self._count = 0
        self._stopped = True

    def begin(self, partition: int, at: int = 0, *, goes_on: bool = True) -> None:
        """Read from there on, or the same again and again."""
        self._own.clear()
        self._goes_on = goes_on
        self._frame = _poll_frame(partition, self.dialect)
        self.polls, self.messages, self._stopped = 0, at, False
        self._poll()

    def stop(self) -> None:
        self._stopped = True

    def _poll(self) -> None:
        own = self._own.get(id(self._frame)) or self._make_own(self._frame)
        _OFFSET.pack_into(own, len(own) - POLL_TAIL_BYTES + 1, self.messages)
        self.polls += 1
        self.ask(self._frame, self._on_polled, self._on_refused)

    def data_received(self, data: bytes) -> None:
        if not self._head:
            at = vsr.HEADER_BYTES if self.dialect is Dialect.C else RESPONSE.size
            if len(data) >= at + POLL_HEAD.size:  # else it is no poll's answer
                self._count = POLL_HEAD.unpack_from(data, at)[2]
        super().data_received(data)

    def _on_polled(self) -> None:
        self.messages += self._count * self._goes_on
        if self._count:
            self.on_messages()
        if not self._stopped:
            self._poll()

    def _on_refused(self, error: Exception) -> None:
        if not self._stopped:
            raise error


def _poll_frame(partition: int, dialect: Dialect) -> bytes:
    poll = PollMessages(
        Consumer.single(), STREAM, TOPIC, partition, Strategy.offset(0), COUNT, False
    )
    return make_frame(c.POLL_MESSAGES, poll, dialect)


async def consume(port: int, dialect: Dialect) -> None:
    """Poll from one line of standard input to the next; tell polls and messages after each second
    one."""
    loop = asyncio.get_running_loop()
    pollers = cast(list[Poller], await log_in(port, CONNECTIONS, dialect, Poller))
    print("ready", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        for partition, poller in enumerate(pollers):
            poller.begin(partition, goes_on=line.strip() == NEW)
        expected = int(await loop.run_in_executor(None, sys.stdin.readline) or 0)
        await _wait_for(pollers, expected)
        for poller in pollers:
            poller.stop()
        await asyncio.sleep(0.05)  # for the last answers
        told = {
            "polls": sum(each.polls for each in pollers),
            "messages": sum(each.messages for each in pollers),
        }
        print(json.dumps(told), flush=True)


async def _wait_for(pollers: list[Poller], expected: int) -> None:
    arrived = asyncio.Event()

    def look() -> None:
        if sum(each.messages for each in pollers) >= expected:
            arrived.set()

    for poller in pollers:
        poller.on_messages = look
    look()
    with suppress(TimeoutError):  # whoever asked sees how many there are
        await asyncio.wait_for(arrived.wait(), DRAIN_SECONDS)
    for poller in pollers:
        poller.on_messages = _nothing


def _nothing() -> None: ...


class Consumers:
    """Those of one process."""

    def __init__(self, port: int, dialect: Dialect) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.broker_fairness", str(port), dialect.value],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        assert self._stdout.readline() == "ready\n"

    def begin(self, readers: str) -> None:
        print(readers, file=self._stdin, flush=True)

    def end(self, messages: int) -> int:
        """How often they polled; waits until they have all messages."""
        print(messages, file=self._stdin, flush=True)
        told = json.loads(self._stdout.readline())
        if told["messages"] != messages:
            raise RuntimeError(f"{told['messages']} of {messages} messages came")
        return int(told["polls"])

    def close(self) -> None:
        self._process.communicate("")


# --- the load -------------------------------------------------------------------------------------


async def _empty(caller: Caller) -> None:
    """A topic with a partition for each of both sides, and no messages."""
    topic = CreateTopic(STREAM, CONNECTIONS, Compression.NONE, 0, 0, 1, TOPIC)
    await caller.call(make_frame(c.DELETE_TOPIC, DeleteTopic(STREAM, TOPIC), caller.dialect))
    await caller.call(make_frame(c.CREATE_TOPIC, topic, caller.dialect))


def _send_frames(dialect: Dialect, count: int = COUNT) -> list[bytes]:
    """One for each partition."""
    in_c = dialect is Dialect.C  # where producers give ids
    messages = [Message(bytes([65 + n % 26]) * SIZE, id=in_c * (n + 1)) for n in range(count)]
    return [
        make_frame(
            c.SEND_MESSAGES,
            encode_send(STREAM, TOPIC, Partitioning.to_partition(partition), messages),
            dialect,
        )
        for partition in range(CONNECTIONS)
    ]


async def _round(
    callers: list[Caller], frames: list[bytes], consumers: Consumers | None, readers: str
) -> Round:
    await _empty(callers[0])
    for frame in frames:
        await callers[0].call(frame)  # opens the partition
    if consumers is not None:
        consumers.begin(readers)
        await asyncio.sleep(0.05)
    return await load(callers, frames, SECONDS)


def _cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def measure(port: int, pid: int, one: Load) -> dict[str, Any]:
    callers = await log_in(port, CONNECTIONS, one.dialect)
    frames = _send_frames(one.dialect)
    consumers = Consumers(port, one.dialect)
    alone: list[Round] = []
    beside: list[Round] = []
    polls = 0
    sends, cpu = [0, 0], [0.0, 0.0]  # without consumers, and beside them
    for number in range(ROUNDS + 1):
        for with_consumers in (False, True) if number % 2 else (True, False):
            before = _cpu_seconds(pid)
            measured = await _round(
                callers, frames, consumers if with_consumers else None, one.readers
            )
            (beside if with_consumers else alone).append(measured)
            sent = len(measured.latencies) + len(frames)
            if with_consumers:
                polls += consumers.end(sent * COUNT if one.readers == NEW else 0)
            sends[with_consumers] += sent
            cpu[with_consumers] += _cpu_seconds(pid) - before
    consumers.close()
    close_callers(callers)
    pairs = [(free.rate, held.rate) for free, held in zip(alone, beside, strict=True)][1:]
    ratio = median(held / free for free, held in pairs)
    limit = median(free for free, _ in pairs) * COUNT
    middle = sorted(beside[1:], key=lambda each: each.rate)[len(pairs) // 2]
    return {
        "name": f"{one.name} (>= {one.ratio_min})",
        "value": ratio * limit,
        "unit": "messages/s",
        "limit": limit,
        "ratio": ratio,
        "p50_ms": 1000 * middle.quantile(0.5),
        "p99_ms": 1000 * middle.quantile(0.99),
        "polls_per_send": polls / sends[True],
        "send_cpu_us": 1e6 * cpu[False] / sends[False],
        "send_and_poll_cpu_us": 1e6 * cpu[True] / sends[True],
    }


# --- a consumer that waits ------------------------------------------------------------------------


async def wait_for_messages(port: int) -> list[dict[str, Any]]:
    (producer,) = await log_in(port, 1)
    (consumer,) = cast(list[Poller], await log_in(port, 1, Dialect.B2, Poller))
    await _empty(producer)
    frame = _send_frames(Dialect.B2, count=1)[0]
    await producer.call(frame)
    clock = time.perf_counter
    found = []
    for _ in range(LATENCY_SENDS):
        asked = clock()
        await consumer.call(_poll_frame(0, Dialect.B2))
        found.append(clock() - asked)
    arrived = asyncio.Event()
    got = 0.0

    def on_messages() -> None:
        nonlocal got
        got = clock()
        arrived.set()

    consumer.on_messages = on_messages
    consumer.begin(0, at=1)
    begun, waited = clock(), []
    for _ in range(LATENCY_SENDS):
        await asyncio.sleep(LATENCY_PAUSE_SECONDS)
        arrived.clear()
        await producer.call(frame)
        acknowledged = clock()
        await asyncio.wait_for(arrived.wait(), 10)
        waited.append(max(0.0, got - acknowledged))
    polls = consumer.polls / (clock() - begun)
    consumer.stop()
    close_callers([producer, consumer])
    waited.sort()
    value, limit = 1000 * median(waited), 1000 * median(found)
    return [
        {
            "name": f"message to a waiting consumer, limit: a poll (<= {WAIT_MS_MAX:g} ms)",
            "value": value,
            "unit": "ms",
            "limit": limit,
            "ratio": value / limit,
            "p50_ms": value,
            "p99_ms": 1000 * waited[int(0.99 * (len(waited) - 1))],
        },
        {
            "name": f"polls of a waiting consumer (<= {POLLS_MAX})",
            "value": polls,
            "unit": "polls/s",
            "limit": float(POLLS_MAX),
            "ratio": polls / POLLS_MAX,
        },
    ]


def run() -> list[dict[str, Any]]:
    only = os.environ.get("ONLY", "")
    rows: list[dict[str, Any]] = []
    for level in LEVELS:
        server = Server("broker", level)
        with server as (port,):
            run_loop(prepare(port))
            loads = [Load(level, dialect) for dialect in (Dialect.B2, Dialect.C)]
            for one in (*loads, Load(level, Dialect.B2, OLD)):
                if only in one.name:
                    rows.append(run_loop(measure(port, server.pid, one)))
            if level == "synced" and only in "message to a waiting consumer":
                rows += run_loop(wait_for_messages(port))
    return rows


if __name__ == "__main__":
    run_loop(consume(int(sys.argv[1]), Dialect(sys.argv[2])))
