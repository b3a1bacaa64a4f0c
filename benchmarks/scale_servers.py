"""What `broker_scale` loads: `headrace up` with so many workers, and bare servers; their frames."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import psutil

from benchmarks.bare_server import NAMES, RESPONSE
from benchmarks.broker_send_poll import Server as ServerUntilEof
from benchmarks.scale_clients import NO_WORKER, Caller
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.classic_frames import encode_request
from headrace.wire.iggy.messages.messages import Message, PollMessages, encode_send
from headrace.wire.iggy.messages.system import Empty
from headrace.wire.iggy.messages.topics import (
    Compression,
    CreateStream,
    CreateTopic,
    DeleteTopic,
    PurgeTopic,
)
from headrace.wire.iggy.messages.users import LoginUser
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy

READY_SECONDS, STOP_SECONDS, SETTLE_SECONDS = 60.0, 60.0, 30.0
TRIES = 10
STREAM, TOPIC, PROBE = "bench", "bench", "probe"
SHARDS = 64
_PARTITIONS_OPEN = "headrace_broker_partitions_open "


# --- frames ---------------------------------------------------------------------------------------


def encode(command: c.AnyCommand, request: Any) -> bytes:
    return b"".join(encode_request(command.code, command.encode_request(request)))


def send_frame(partition: int, count: int, size: int, topic: str = TOPIC) -> bytes:
    messages = [Message(bytes([65 + n % 26]) * size) for n in range(count)]
    to = Partitioning.to_partition(partition)
    return encode(c.SEND_MESSAGES, encode_send(STREAM, topic, to, messages))


def poll_frame(partition: int, offset: int, count: int) -> bytes:
    at = Strategy.offset(offset)
    request = PollMessages(Consumer.single(), STREAM, TOPIC, partition, at, count, False)
    return encode(c.POLL_MESSAGES, request)


def create_frame(topic: str, partitions: int) -> bytes:
    return encode(c.CREATE_TOPIC, CreateTopic(STREAM, partitions, Compression.NONE, 0, 0, 1, topic))


LOGIN = encode(c.LOGIN_USER, LoginUser("iggy", "iggy"))
GET_ME = encode(c.GET_ME, Empty())


# --- the broker -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    partition: int
    leader: int
    """The number of a worker, or NO_WORKER where there is one process."""


class Broker:
    """`headrace up` with so many workers, and what is to be known of them."""

    def __init__(
        self, process: psutil.Process, addresses: dict[str, str], workers: int, *, even: bool
    ) -> None:
        """`even`: loads use partitions of all workers alike, however those of a topic lie."""
        self.port = int(addresses["iggy"].rpartition(":")[2])
        self.workers = workers
        self._even = even
        self._places: list[Place] = []
        self._metrics = [
            addresses[f"worker_{n}_metrics"] for n in range(workers if workers > 1 else 0)
        ]
        self.processes = [process] if workers == 1 else _workers_below(process)
        assert len(self.processes) == workers, f"{len(self.processes)} workers of {workers}"
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        self.caller = Caller(self.port)
        self.caller.log_in(LOGIN, GET_ME)
        self.caller.ask(encode(c.CREATE_STREAM, CreateStream(STREAM)))

    def settle(self) -> None:
        """Wait until shards no longer move: partitions are open where they were a moment ago."""
        if self.workers == 1:
            return
        self.caller.ask(create_frame(PROBE, SHARDS))
        frames = [send_frame(partition, 1, 8, PROBE) for partition in range(SHARDS)]
        seen: list[list[int]] = []
        deadline = time.monotonic() + SETTLE_SECONDS
        while len(seen) < 4 or any(each != seen[-1] for each in seen[-4:]) or not all(seen[-1]):
            if time.monotonic() > deadline:
                raise RuntimeError(f"shards still move, or a worker has none: {seen[-4:]}")
            for frame in frames:
                self.caller.ask(frame)
            seen.append(self._partitions_open())
            time.sleep(0.5)
        self.caller.ask(encode(c.DELETE_TOPIC, DeleteTopic(STREAM, PROBE)))

    def _partitions_open(self) -> list[int]:
        counts = []
        for address in self._metrics:
            with self._open(f"http://{address}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
            (line,) = (line for line in lines if line.startswith(_PARTITIONS_OPEN))
            counts.append(int(float(line.split()[1])))
        return counts

    def create(self, partitions: int) -> list[Place]:
        """An empty topic, or of one that stays as many partitions as are wanted, evenly led."""
        if not self._even:
            return self._create(partitions)
        if not self._places:
            self._places = self._create(SHARDS)
        by_turns: dict[int, list[Place]] = {}
        for place in self._places:
            by_turns.setdefault(place.leader, []).append(place)
        rows = zip_longest(*by_turns.values())
        return [place for row in rows for place in row if place is not None][:partitions]

    def _create(self, partitions: int) -> list[Place]:
        """All partitions are open afterwards."""
        for _ in range(TRIES):
            self.caller.ask(create_frame(TOPIC, partitions))
            leaders = self._open_each(partitions)
            if leaders is not None:
                return [Place(partition, leader) for partition, leader in enumerate(leaders)]
            self._delete()
        raise RuntimeError("who leads a partition could not be told")

    def _open_each(self, partitions: int) -> list[int] | None:
        """The leaders, or None when other partitions were opened or closed meanwhile."""
        leaders = []
        before = self._partitions_open_at_rest()
        for partition in range(partitions):
            self.caller.ask(send_frame(partition, 1, 8))
            if self.workers == 1:
                leaders.append(NO_WORKER)
                continue
            now = self._partitions_open()
            more = [new - old for old, new in zip(before, now, strict=True)]
            if sorted(more) != [0] * (self.workers - 1) + [1]:
                return None
            leaders.append(more.index(1))
            before = now
        return leaders

    def _partitions_open_at_rest(self) -> list[int]:
        """Partitions of a deleted topic are closed a while after the answer."""
        seen = [self._partitions_open()]
        while len(seen) < 4 or any(each != seen[-1] for each in seen[-4:]):
            time.sleep(0.1 if self.workers > 1 else 0.0)
            seen.append(self._partitions_open())
        return seen[-1]

    def empty(self) -> None:
        self.caller.ask(encode(c.PURGE_TOPIC, PurgeTopic(STREAM, TOPIC)))

    def delete(self) -> None:
        if self._even:
            self.empty()
        else:
            self._delete()

    def _delete(self) -> None:
        self.caller.ask(encode(c.DELETE_TOPIC, DeleteTopic(STREAM, TOPIC)))


def _workers_below(process: psutil.Process) -> list[psutil.Process]:
    name = "headrace.process.startup.worker_process"
    found = {}
    for child in process.children():
        command = child.cmdline()
        if name in command:
            found[int(command[-1])] = child
    return [found[number] for number in sorted(found)]


@contextmanager
def running_broker(workers: int, *, even: bool = False) -> Iterator[Broker]:
    base = os.environ.get("HEADRACE_BENCH_DIR")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=base) as name:
        folder = Path(name)
        ready, log = folder / "ready.json", folder / "up.log"
        command = [sys.executable, "-m", "headrace.cli.main", "up", "--dev"]
        command += ["--workers", str(workers), "--data-dir", str(folder / "data")]
        command += ["--ready-file", str(ready), "--quic-port", "-1"]
        for port in ("iggy", "placement", "node", "http", "metrics"):
            command += [f"--{port}-port", "0"]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + READY_SECONDS
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the server did not start:\n{log.read_text()}")
                time.sleep(0.02)
            try:
                broker = Broker(
                    psutil.Process(process.pid), json.loads(ready.read_text()), workers, even=even
                )
                broker.settle()
                yield broker
            except Exception as error:
                error.add_note(f"the end of the server's log:\n{log.read_text()[-4000:]}")
                raise
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class BareServer:
    def __init__(self, server: ServerUntilEof, ports: Sequence[int]) -> None:
        self.process = psutil.Process(server.pid)
        self.ports = dict(zip(NAMES, ports, strict=True))

    def fill(self, count: int, size: int, answers: int) -> None:
        """Have it make answers to polls, as many bytes as the broker reads from."""
        caller = Caller(self.ports["polled"])
        answer_bytes = 16 + count * (64 + size)
        caller.ask(RESPONSE.pack(12, 0) + RESPONSE.pack(answer_bytes, answers))
        caller.close()


@contextmanager
def running_bare(count: int) -> Iterator[list[BareServer]]:
    with ExitStack() as stack:
        started = [ServerUntilEof("bare") for _ in range(count)]
        yield [BareServer(server, stack.enter_context(server)) for server in started]
