"""A connection that sends without end is served in small parts; the loop goes round meanwhile."""

from __future__ import annotations

import asyncio
import gc
import struct
import weakref
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.net.admission import Fairness
from headrace.net.iggy_server import Answer, IggyServer
from headrace.net.sbp_server import SbpServer, build_routes
from headrace.runtime.interfaces import Buffer, Connection, Listener, OnConnection, Runtime
from headrace.runtime.system import system_runtime
from headrace.wire.iggy.classic_frames import encode_request
from headrace.wire.iggy.errors import Status
from headrace.wire.iggy.vsr.frames import Head
from headrace.wire.sbp.frames import Frame, encode_frame
from headrace.wire.sbp.opcodes import Code, Role
from tests.unit.net.sbp_fixtures import ToyNode, until

IN_A_TURN_MAX = 300
CHUNK_BYTES = 256 << 10
CHUNKS = 2


class Flood:
    """A peer that has always sent more already, and takes all answers at once."""

    peer, local = "127.0.0.1:1", "127.0.0.1:2"

    def __init__(self, frame: bytes) -> None:
        self.chunk = frame * (CHUNK_BYTES // len(frame))
        self.requests = CHUNKS * (CHUNK_BYTES // len(frame))
        self.left = CHUNKS
        self.answers = 0

    async def receive(self) -> bytes:
        self.left -= 1
        return self.chunk if self.left >= 0 else b""

    def write(self, pieces: Sequence[Buffer]) -> None:
        self.answers += 1

    async def drain(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...

    async def wait_closed(self) -> None: ...


class _Listener:
    host, port = "127.0.0.1", 1

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


class Transport:
    """Hands over connections that a test made."""

    on_connection: OnConnection

    async def listen(
        self, host: str, port: int, on_connection: OnConnection, *, reuse_port: bool = False
    ) -> Listener:
        self.on_connection = on_connection
        return _Listener()


def with_transport() -> tuple[Runtime, Transport]:
    transport = Transport()
    return replace(system_runtime(), transport=transport), transport  # type: ignore[arg-type]


async def most_in_a_turn(transport: Transport, floods: Sequence[Flood]) -> int:
    """Answers between two turns of the loop, at most."""
    served = [asyncio.ensure_future(transport.on_connection(flood)) for flood in floods]
    most = before = 0
    while not all(each.done() for each in served):
        await asyncio.sleep(0)
        answers = sum(flood.answers for flood in floods)
        most, before = max(most, answers - before), answers
    assert [flood.answers for flood in floods] == [flood.requests for flood in floods]
    return most


async def on_ping(session: object, code: int, payload: memoryview, head: Head | None) -> Answer:
    return Status.OK, ()


@pytest.mark.parametrize("connections", [1, 20])
async def test_pings_on_an_iggy_port_leave_the_loop_time_for_others(connections: int) -> None:
    runtime, transport = with_transport()
    server = IggyServer[object](
        runtime, open_session=lambda _: object(), on_request=on_ping, close_session=lambda _: None
    )
    await server.start("127.0.0.1", 0)
    floods = [Flood(b"".join(encode_request(1))) for _ in range(connections)]
    for flood in floods:
        flood.left, flood.requests = 1, flood.requests // CHUNKS
    # Each of them begins with a first part, before anybody has to wait.
    assert await most_in_a_turn(transport, floods) <= IN_A_TURN_MAX + connections * 32
    await server.close()


@pytest.mark.parametrize("connections", [1, 5])
async def test_pings_on_an_sbp_port_leave_the_loop_time_for_others(connections: int) -> None:
    runtime, transport = with_transport()
    routes = build_routes(Role.DATA_NODE, ToyNode().handlers())
    server = SbpServer(runtime, routes, authorize=lambda *_: None)
    await server.start("127.0.0.1", 0)
    floods = [Flood(b"".join(encode_frame(Frame(Code.PING, 0, 1)))) for _ in range(connections)]
    assert await most_in_a_turn(transport, floods) <= IN_A_TURN_MAX + connections * 32
    await server.close()


async def test_who_waits_longest_goes_on_first() -> None:
    fairness, order = Fairness(), list[int]()

    async def connection(number: int) -> None:
        for _ in range(3):
            await fairness.give_way()
            order.append(number)

    tasks = [asyncio.create_task(connection(number)) for number in range(20)]
    tasks.append(cancelled := asyncio.create_task(connection(99)))
    await asyncio.sleep(0)
    assert fairness.waiting == 21
    cancelled.cancel()
    await asyncio.wait(tasks)
    assert order == [*range(20)] * 3
    assert fairness.waiting == 0


class Session:
    pass


async def test_what_a_connection_held_is_free_when_it_ends() -> None:
    """Without the garbage collector, which comes by late in a process that is busy."""
    sessions: list[weakref.ref[Session]] = []

    def opened(_: Connection) -> Session:
        session = Session()
        sessions.append(weakref.ref(session))
        return session

    runtime = system_runtime()
    server = IggyServer[Session](
        runtime, open_session=opened, on_request=on_ping, close_session=lambda _: None
    )
    await server.start("127.0.0.1", 0)
    listener = server.listener
    gc.collect()
    gc.disable()
    try:
        peer = await runtime.transport.connect(listener.host, listener.port, timeout=20)
        peer.write([struct.pack("<II", 8 << 20, 101), bytes(1 << 20)])
        await until(lambda: server.statistics()["held_bytes"] > 1 << 20)
        peer.abort()
        await until(lambda: not server.statistics()["connections"])
        await until(lambda: sessions[0]() is None)
    finally:
        gc.enable()
    await server.close()
