"""The modules that one request passes on its way through a server, from its receipt to its answer.

A server with all its parts runs in a thread of this process, and a profiler notes which modules
have a function that is called while one request is answered. What the server does besides, such as
heartbeats, falls into few of the repetitions; a module counts that most of them pass. This is no
measure of speed, but of how many files a person opens who follows a request.

A micro-batch is measured on the connector's side: the driver's questions and plan, a task's read
and write, and the commit, as plain Python without Spark around it.

Run alone: `python -m benchmarks.walks`.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
from collections import Counter
from types import FrameType
from typing import Any

from headrace.testing.broker import LocalBroker
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.classic_frames import encode_request
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.messages.messages import Message, PollMessages, encode_send
from headrace.wire.iggy.messages.topics import Compression, CreateStream, CreateTopic
from headrace.wire.iggy.messages.users import LoginUser
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy

REPETITIONS = 15
SENT = 10
_QUIET_SECONDS = 0.05  # until what a request leaves to do is done
_RESPONSE = struct.Struct("<II")
_PACKAGE = "/headrace/"


class Walk:
    """Notes the modules of ours whose functions are called in other threads while it is `on`."""

    def __init__(self) -> None:
        self.on = False
        self.passed: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if self.on and event == "call":
            path = frame.f_code.co_filename
            if _PACKAGE in path:
                self.passed.add(path.rpartition(_PACKAGE)[2].removesuffix(".py"))

    def of(self, caller: Caller, frame: bytes) -> set[str]:
        time.sleep(_QUIET_SECONDS)
        self.passed = set()
        self.on = True
        caller.ask(frame)
        self.on = False
        return self.passed


class Caller:
    """A client that knows nothing but frames: its own walk must not count."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))

    def ask(self, frame: bytes) -> None:
        self._socket.sendall(frame)
        status, length = _RESPONSE.unpack(self._take(_RESPONSE.size))
        assert status == 0, status
        self._take(length)

    def _take(self, length: int) -> bytes:
        taken = b""
        while len(taken) < length:
            taken += self._socket.recv(length - len(taken))
        return taken

    def close(self) -> None:
        self._socket.close()


def _frame(command: c.AnyCommand, request: Any) -> bytes:
    pieces = command.encode_request(request, Dialect.B2)
    return b"".join(encode_request(command.code, pieces))


def _send_frame() -> bytes:
    messages = [Message(b"walks" * 20) for _ in range(SENT)]
    request = encode_send("s", "t", Partitioning.to_partition(0), messages)
    return _frame(c.SEND_MESSAGES, request)


def _poll_frame(offset: int) -> bytes:
    request = PollMessages(Consumer.single(1), "s", "t", 0, Strategy.offset(offset), SENT)
    return _frame(c.POLL_MESSAGES, request)


def measure() -> dict[str, list[str]]:
    """By request, the modules it passes, in the order of their names."""
    walk = Walk()
    threading.setprofile(walk)
    login, send = _frame(c.LOGIN_USER, LoginUser("iggy", "iggy")), _send_frame()
    found: dict[str, Counter[str]] = {"SEND": Counter(), "first POLL": Counter()}
    with LocalBroker() as server:
        port = int(server.address.rpartition(":")[2])
        caller = Caller(port)
        caller.ask(login)
        caller.ask(_frame(c.CREATE_STREAM, CreateStream("s")))
        caller.ask(_frame(c.CREATE_TOPIC, CreateTopic("s", 1, Compression.NONE, 0, 0, 1, "t")))
        caller.ask(send)  # opens the partition
        for number in range(1, REPETITIONS + 1):
            reader = Caller(port)
            reader.ask(login)
            found["SEND"].update(walk.of(caller, send))
            found["first POLL"].update(walk.of(reader, _poll_frame(number * SENT)))
            reader.close()
        caller.close()
    threading.setprofile(None)
    return {
        name: sorted(module for module, times in counts.items() if times > REPETITIONS // 2)
        for name, counts in found.items()
    }


def measure_micro_batch() -> dict[str, list[str]]:
    """The modules of the connector's side; the server's own threads do not count."""
    import os

    from pyspark.sql.streaming.datasource import ReadAllAvailable
    from pyspark.sql.types import BinaryType, StructField, StructType

    from headrace.client import connect_sync
    from headrace.spark import server as spark_server
    from headrace.spark.sink import sink
    from headrace.spark.source.source import TopicStreamReader

    walk, found = Walk(), Counter[str]()
    threads: set[int] = {threading.get_ident()}

    def note(frame: FrameType, event: str, argument: object) -> None:
        if threading.get_ident() in threads:
            walk(frame, event, argument)

    threading.setprofile(note)
    sys.setprofile(note)
    os.environ |= {"HEADRACE_USERNAME": "iggy", "HEADRACE_PASSWORD": "iggy"}
    with LocalBroker() as server, connect_sync(server.url) as client:
        for topic in ("s/in", "s/out"):
            client.create_topic(topic, partitions=2)
        options = {"address": server.address, "startingOffsets": "earliest", "topic": "s/in"}
        reader = TopicStreamReader(options, StructType())
        written = {"address": server.address, "topic": "s/out"}
        writer = sink.TopicStreamWriter(written, StructType([StructField("payload", BinaryType())]))
        start = reader.initialOffset()
        threads |= {each._thread.ident or 0 for each in spark_server._loops.values()}
        for batch in range(REPETITIONS + 1):
            client.send_many("s/in", [b"walks"] * SENT)
            time.sleep(_QUIET_SECONDS)
            properties = {
                "sql.streaming.queryId": "walks",
                "spark.jobGroup.id": "1",
                "streaming.sql.batchId": str(batch),
            }
            walk.passed, walk.on = set(), True
            end = reader.latestOffset(start, ReadAllAvailable())
            reader.commit(start)
            done: list[Any | None] = []
            for partition in reader.partitions(start, end):
                window = sink.window_of(writer._options.target, properties.get)
                rows = (each.select(["payload"]) for each in reader.read(partition))
                done.append(sink.Sent(sink.write(writer._lent, rows, window)))
            writer.commit(done, batch)
            walk.on, start = False, end
            if batch:  # the first one connects
                found.update(walk.passed)
    sys.setprofile(None)
    threading.setprofile(None)
    modules = sorted(module for module, times in found.items() if times > REPETITIONS // 2)
    return {"micro-batch": modules}


def main() -> int:
    for name, modules in (measure() | measure_micro_batch()).items():
        print(f"{name}: {len(modules)} modules")
        for module in modules:
            print(f"    {module}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
