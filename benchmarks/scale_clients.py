"""Clients in processes of their own, one connection each, for `broker_scale`.

A client uses a plain blocking socket: what it does besides its system calls is next to nothing, so
that the server is the limit. It sends a frame, waits for the whole answer, sends the next. All
clients of a round begin and end at the same time of the machine's monotonic clock.
"""

from __future__ import annotations

import multiprocessing
import socket
import struct
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

START_SECONDS = 0.05  # until every client has heard of a round
ANSWER_SECONDS = 60.0
TRIES = 2000  # connections until one is at the worker that is wanted
WORKER_BIT = 25  # of a client id: the bits from here on are the worker's number + 1
NO_WORKER = -1
_ANSWER_BYTES_MAX = 4 << 20
_HEAD = struct.Struct("<II")  # status, length
_CLIENT_ID = struct.Struct("<I")
_OFFSET = struct.Struct("<Q")
_OFFSET_FROM_END = 13  # of a POLL: offset u64, count u32, auto-commit u8
_COUNT = struct.Struct("<I")
_COUNT_AT = _HEAD.size + 12  # of its answer: partition u32, offset u64, count u32


@dataclass(frozen=True)
class Work:
    """What one client does in a round."""

    frames: Sequence[bytes]
    """Sent by turns, again and again."""
    count: int
    """Messages of each."""
    follows: bool = False
    """The one frame is a POLL from the first offset; each asks for what comes after the last."""


@dataclass
class Done:
    """What became of it."""

    messages: int = 0
    seconds: float = 0.0
    empty: int = 0
    """Answers without messages."""
    latencies: array[float] = field(default_factory=lambda: array("d"))
    """Of answers with messages."""
    cpu_seconds: float = 0.0


class Caller:
    """A connection that waits for each answer before it sends again."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answer = memoryview(bytearray(_ANSWER_BYTES_MAX))

    def ask(self, frame: bytes | bytearray) -> memoryview:
        """The answer with its head; it is overwritten by the next one."""
        self._socket.sendall(frame)
        answer = self._answer
        got = 0
        wanted = _HEAD.size
        while got < wanted:
            received = self._socket.recv_into(answer[got:])
            if not received:
                raise ConnectionError("the server closed the connection")
            if got < _HEAD.size <= got + received:
                status, length = _HEAD.unpack_from(answer)
                if status:
                    raise RuntimeError(f"refused with {status}")
                wanted += length
                if wanted > len(answer):
                    raise RuntimeError(f"an answer of {wanted} bytes")
            got += received
        return answer[:got]

    def log_in(self, login: bytes, get_me: bytes) -> int:
        """The number of the worker that serves the connection."""
        self.ask(login)
        (client_id,) = _CLIENT_ID.unpack_from(self.ask(get_me), _HEAD.size)
        return (int(client_id) >> WORKER_BIT) - 1

    def close(self) -> None:
        self._socket.close()


class Client:
    """The commands of a client's process; each has a method."""

    def __init__(self) -> None:
        self._caller: Caller | None = None
        self._work = Work((), 0)

    def connect(self, port: int) -> None:
        self._caller = Caller(port)

    def log_in(self, port: int, login: bytes, get_me: bytes, wanted: int) -> int:
        """Connect again and again until the worker is the one that is wanted."""
        for _ in range(TRIES):
            caller = Caller(port)
            worker = caller.log_in(login, get_me)
            if wanted in (NO_WORKER, worker):
                self._caller = caller
                return worker
            caller.close()
        raise RuntimeError(f"{TRIES} connections, and none to worker {wanted}")

    def disconnect(self) -> None:
        if self._caller is not None:
            self._caller.close()
            self._caller = None

    def ask(self, frame: bytes, times: int) -> None:
        assert self._caller is not None
        for _ in range(times):
            self._caller.ask(frame)

    def take(self, work: Work) -> None:
        """The next round's work, before it begins: frames take their time to get here."""
        self._work = work

    def work(self, begin: float, warm: float, seconds: float) -> Done:
        """From `begin`; what is answered in the first `warm` seconds is not counted."""
        assert self._caller is not None
        work = self._work
        ask, clock = self._caller.ask, time.monotonic
        frames = [bytearray(frame) for frame in work.frames]
        done = Done()
        at = offset = 0
        counting = False
        from_ = cpu = 0.0
        time.sleep(max(0.0, begin - clock()))
        now = clock()
        while now < begin + warm + seconds or not counting:
            if not counting and now >= begin + warm:
                counting, from_, cpu = True, now, time.process_time()
            frame = frames[at]
            at = (at + 1) % len(frames)
            if work.follows:
                _OFFSET.pack_into(frame, len(frame) - _OFFSET_FROM_END, offset)
            sent, answer = now, ask(frame)
            now = clock()
            count = work.count
            if work.follows:
                (count,) = _COUNT.unpack_from(answer, _COUNT_AT)
                offset += count
            if not counting:
                continue
            if not count:
                done.empty += 1
                continue
            done.messages += count
            done.latencies.append(now - sent)
        done.seconds, done.cpu_seconds = now - from_, time.process_time() - cpu
        return done


def serve(pipe: Connection) -> None:
    """Do what the pipe says, until it says nothing."""
    client = Client()
    while (told := pipe.recv()) is not None:
        name, arguments = told
        try:
            pipe.send((getattr(client, name)(*arguments), None))
        except Exception as error:
            pipe.send((None, f"{type(error).__name__}: {error}"))


class Clients:
    """As many processes as were ever needed at once; they are kept for the next round."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")  # forks of threads hang, sometimes
        self._pipes: list[Connection] = []
        self._processes: list[multiprocessing.process.BaseProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            if error is None:
                pipe.send(None)
            else:
                process.terminate()
            process.join()

    def ensure(self, count: int) -> None:
        while len(self._processes) < count:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Have the first clients do something at the same time, each with its own arguments."""
        self._tell(name, arguments)
        return self._answers(len(arguments))

    def work(
        self, works: Sequence[Work], seconds: float, on_counting: Callable[[], None]
    ) -> list[Done]:
        """A round. `on_counting` is called when what is answered begins to count."""
        self.each("take", [(work,) for work in works])
        begin, warm = time.monotonic() + START_SECONDS, seconds / 4
        self._tell("work", [(begin, warm, seconds)] * len(works))
        time.sleep(max(0.0, begin + warm - time.monotonic()))
        on_counting()
        return self._answers(len(works))

    def _tell(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        self.ensure(len(arguments))
        for pipe, own in zip(self._pipes, arguments, strict=False):
            pipe.send((name, own))

    def _answers(self, count: int) -> list[Any]:
        answers = [pipe.recv() for pipe in self._pipes[:count]]
        for _, failure in answers:
            if failure:
                raise RuntimeError(f"a client failed: {failure}")
        return [value for value, _ in answers]
