"""Answers that wait for something to happen, and answers that give way to other requests."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from headrace.net.admission import Later, Pace
from headrace.net.iggy_server import Answer, AtOnce, IggyServer
from headrace.runtime.interfaces import Buffer
from headrace.runtime.system import system_runtime
from headrace.wire.iggy.classic_frames import encode_request
from headrace.wire.iggy.errors import Status
from headrace.wire.iggy.vsr.frames import Head
from tests.unit.net.sbp_fixtures import until

ECHO, WAIT, SLOW, BIG = 1, 2, 3, 4


class Waiting(Later):
    def __init__(self, answer: bytes | None) -> None:
        super().__init__()
        self.is_over = False
        self._answer = answer

    def answer(self) -> Sequence[Buffer] | None:
        self.is_over = True
        return None if self._answer is None else [self._answer]

    def drop(self) -> None:
        self.is_over = True


@dataclass(eq=False)
class Broker:
    """Lets WAIT wait until a test says so, or something comes behind it."""

    answer: bytes | None = b"waited"
    waiting: list[Waiting] = field(default_factory=list)
    behind: int = 0
    is_writing: bool = False
    long_way: list[bytes] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    def answer_at_once(self, session: object, code: int, payload: memoryview) -> AtOnce:
        if code == BIG:
            return [bytes(payload) * 1000]
        if code != WAIT:
            return None
        self.waiting.append(Waiting(self.answer))
        return self.waiting[-1]

    async def on_request(
        self, session: object, code: int, payload: memoryview, head: Head | None
    ) -> Answer:
        self.long_way.append(bytes(payload))
        if code == SLOW:
            await self.go_on.wait()
        return Status.OK, [b"long " + bytes(payload)]

    def on_behind(self, session: object) -> None:
        self.behind += 1
        self.go_on.set()


@dataclass(eq=False)
class Peer:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def ask(self, code: int, payload: bytes) -> None:
        self.writer.write(b"".join(encode_request(code, [payload])))

    async def answer(self) -> bytes:
        async with asyncio.timeout(10):
            status, length = struct.unpack("<II", await self.reader.readexactly(8))
            assert status == 0
            return await self.reader.readexactly(length)


@asynccontextmanager
async def serving(broker: Broker) -> AsyncIterator[tuple[IggyServer[object], Peer]]:
    server: IggyServer[object] = IggyServer(
        system_runtime(),
        open_session=lambda _: object(),
        on_request=broker.on_request,
        answer_at_once=broker.answer_at_once,
        on_behind=broker.on_behind,
        is_writing=lambda: broker.is_writing,
        close_session=lambda _: None,
    )
    await server.start("127.0.0.1", 0)
    peer = Peer(*await asyncio.open_connection("127.0.0.1", server.listener.port))
    try:
        yield server, peer
    finally:
        peer.writer.close()
        await server.close()
        assert server.statistics()["held_bytes"] == 0
        assert server.statistics()["connections"] == 0


async def test_an_answer_is_sent_when_it_is_due() -> None:
    broker = Broker()
    async with serving(broker) as (_, peer):
        for _ in range(3):
            peer.ask(WAIT, b"x")
            await until(lambda: bool(broker.waiting))
            await asyncio.sleep(0.01)
            broker.waiting.pop().on_due()
            assert await peer.answer() == b"waited"
        assert broker.long_way == []


async def test_a_request_behind_it_ends_the_wait_and_order_is_kept() -> None:
    broker = Broker()
    async with serving(broker) as (_, peer):
        peer.ask(WAIT, b"x")
        await until(lambda: bool(broker.waiting))
        peer.ask(ECHO, b"behind")
        assert [await peer.answer() for _ in range(2)] == [b"waited", b"long behind"]
        assert broker.waiting[0].is_over


async def test_half_a_request_behind_it_ends_the_wait_too() -> None:
    broker = Broker()
    async with serving(broker) as (_, peer):
        peer.ask(WAIT, b"x")
        await until(lambda: bool(broker.waiting))
        frame = b"".join(encode_request(ECHO, [b"behind"]))
        peer.writer.write(frame[:7])
        assert await peer.answer() == b"waited"
        peer.writer.write(frame[7:])
        assert await peer.answer() == b"long behind"


@pytest.mark.parametrize("behind", [False, True])
async def test_a_wait_may_end_the_long_way(behind: bool) -> None:
    broker = Broker(answer=None)
    async with serving(broker) as (_, peer):
        peer.ask(WAIT, b"asked again")
        await until(lambda: bool(broker.waiting))
        if behind:
            peer.ask(ECHO, b"behind")
        else:
            broker.waiting[0].on_due()
        assert await peer.answer() == b"long asked again"
        if behind:
            assert await peer.answer() == b"long behind"


@pytest.mark.parametrize("answer", [b"waited", None])
async def test_who_sends_no_more_is_answered(answer: bytes | None) -> None:
    broker = Broker(answer=answer)
    async with serving(broker) as (_, peer):
        peer.ask(WAIT, b"last")
        await until(lambda: bool(broker.waiting))
        peer.writer.write_eof()
        assert await peer.answer() == (answer or b"long last")
        assert await peer.reader.read() == b""


async def test_a_wait_ends_with_its_connection() -> None:
    broker = Broker()
    async with serving(broker) as (server, peer):
        peer.ask(WAIT, b"x")
        await until(lambda: bool(broker.waiting))
        peer.writer.transport.abort()
        await until(lambda: not server.statistics()["connections"])
        assert broker.waiting[0].is_over


async def test_a_server_that_closes_answers_first() -> None:
    broker = Broker()
    async with serving(broker) as (server, peer):
        peer.ask(WAIT, b"x")
        await until(lambda: bool(broker.waiting))
        slow = Peer(*await asyncio.open_connection("127.0.0.1", server.listener.port))
        slow.ask(SLOW, b"y")
        await until(lambda: bool(broker.long_way))
        async with asyncio.timeout(4):
            await server.close()
        assert await peer.answer() == b"waited"
        assert await slow.answer() == b"long y"
        slow.writer.close()


async def test_the_broker_is_told_what_waits_behind_a_request_in_progress() -> None:
    broker = Broker()
    async with serving(broker) as (_, peer):
        peer.ask(SLOW, b"x")
        await until(lambda: bool(broker.long_way))
        await asyncio.sleep(0.01)
        assert broker.behind == 0
        peer.ask(ECHO, b"later")  # arrives meanwhile
        assert [await peer.answer() for _ in range(2)] == [b"long x", b"long later"]
        broker.behind = 0
        broker.go_on.clear()
        peer.writer.write(
            b"".join((*encode_request(SLOW, [b"x"]), *encode_request(ECHO, [b"with it"])))
        )
        assert [await peer.answer() for _ in range(2)] == [b"long x", b"long with it"]
        assert broker.behind == 1


async def test_answers_at_once_give_way_to_who_writes_and_keep_their_order() -> None:
    broker = Broker(is_writing=True)
    async with serving(broker) as (server, peer):
        others = [
            Peer(*await asyncio.open_connection("127.0.0.1", server.listener.port))
            for _ in range(4)
        ]
        for number in range(20):
            for other in others:
                other.ask(BIG, b"%02d" % number)
            for other in others:
                assert await other.answer() == b"%02d" % number * 1000
        for other in others:  # what follows an answer that gives way does not wait for its turn
            for number in range(20):
                other.ask(BIG, b"%02d" % number)
                await asyncio.sleep(0)
        for other in others:
            for number in range(20):
                answer = await other.answer()
                assert answer.removeprefix(b"long ")[:2] == b"%02d" % number
            other.ask(BIG, b"zz")
            other.writer.write_eof()
            assert await other.answer() == b"zz" * 1000
            other.writer.close()
        peer.ask(ECHO, b"x")
        assert await peer.answer() == b"long x"


async def test_a_pace_leaves_the_loop_to_others_while_they_need_it() -> None:
    now, done, needed = [0.0], list[str](), [True]
    pace = Pace(lambda: now[0], lambda: needed[0])

    def work(name: str) -> None:
        done.append(name)
        now[0] += 0.0001

    async def turns(number: int) -> None:
        for _ in range(number):
            now[0] += 0.00005  # what others do in this turn
            await asyncio.sleep(0)

    assert pace.is_free()
    pace.run(lambda: work("a"))
    assert not pace.is_free()
    for name in ("b", "c", "d"):
        pace.run_later(lambda name=name: work(name))  # type: ignore[misc]  # defaults bind the loop's values
    await turns(7)
    assert done == ["a"], "four times as long as it took"
    await turns(4)
    assert done == ["a", "b"], "who waits longest first"
    needed[0] = False
    await turns(3)
    assert done == ["a", "b", "c", "d"]
    assert pace.is_free()


async def test_a_long_pause_is_a_timer() -> None:
    loop, done = asyncio.get_running_loop(), list[str]()
    pace = Pace(loop.time, lambda: True)
    pace.run(lambda: time.sleep(0.005))
    pace.run_later(lambda: done.append("a"))
    await asyncio.sleep(0)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert done == []
    await until(lambda: bool(done))
