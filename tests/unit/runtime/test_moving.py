"""A connection changes its owner, and its peer notices nothing."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from headrace.errors import UnavailableError
from headrace.runtime import Connection, MovableConnection, Transport
from headrace.runtime.interfaces import DirectConnection
from tests.unit.runtime.test_transport import HOST, close_all, echo, receive_exactly
from tests.unit.runtime.worlds import SimulatedWorld, World

TOKEN = b"t" * 16
Moving = Callable[[Connection], Coroutine[Any, Any, None]]


def moved(
    world: World, owner: Moving, client: Callable[[Connection], Coroutine[Any, Any, None]]
) -> None:
    """`owner` gets one end of a connection, `client` the other."""

    async def main() -> None:
        failed: list[BaseException] = []

        async def handler(connection: Connection) -> None:
            try:
                await owner(connection)
            except BaseException as error:
                failed.append(error)
                raise

        transport = world.runtime.transport
        listener = await transport.listen(HOST, 0, handler)
        connection = await transport.connect(HOST, listener.port)
        await client(connection)
        await close_all(listener, connection)
        assert not failed

    world.run(main())


async def move(transport: Transport, connection: Connection, path: str) -> Connection:
    """The whole way: into an inbox and out of it."""
    assert isinstance(connection, MovableConnection)
    detached = await connection.detach()
    inbox = transport.open_inbox(path)
    assert transport.post(path, TOKEN, detached)
    found = inbox.take(TOKEN)
    assert found is not None
    assert inbox.take(TOKEN) is None
    adopted = await transport.adopt(found, detached.received)
    detached.release()
    inbox.close()
    return adopted


def test_what_arrived_before_and_what_comes_later_is_received_once(world: World) -> None:
    transport = world.runtime.transport

    async def owner(connection: Connection) -> None:
        peer = connection.peer
        for _ in range(10):
            connection.write([await connection.receive()])
            await asyncio.sleep(0)  # more arrives that nobody takes
            connection = await move(transport, connection, f"{world.folder}/inbox")
            assert connection.peer == peer
        await echo(connection)
        connection.close()
        await connection.wait_closed()

    async def client(connection: Connection) -> None:
        sent = b"".join(b"%06d" % number for number in range(1000))
        for begin in range(0, len(sent), 999):
            connection.write([sent[begin : begin + 999]])
            await asyncio.sleep(0)
        assert await receive_exactly(connection, len(sent)) == sent

    moved(world, owner, client)


def test_letting_go_waits_for_what_was_written(world: World) -> None:
    transport = world.runtime.transport
    answer = bytes(range(256)) * 40_000  # 10 MB: the kernel does not take it at once

    async def owner(connection: Connection) -> None:
        connection.write([answer])
        connection = await move(transport, connection, f"{world.folder}/inbox")
        connection.write([b"end"])
        connection.close()
        await connection.wait_closed()

    async def client(connection: Connection) -> None:
        assert await receive_exactly(connection, len(answer) + 3) == answer + b"end"

    moved(world, owner, client)


def test_an_end_of_the_peer_is_seen_by_the_next_owner(world: World) -> None:
    transport = world.runtime.transport
    done = asyncio.Event()

    async def owner(connection: Connection) -> None:
        await world.runtime.clock.sleep(0.05)
        connection = await move(transport, connection, f"{world.folder}/inbox")
        assert await receive_exactly(connection, 4) == b"last"
        assert await connection.receive() == b""
        connection.close()
        await connection.wait_closed()
        done.set()

    async def client(connection: Connection) -> None:
        connection.write([b"last"])
        connection.close()
        await done.wait()

    moved(world, owner, client)


def test_the_old_owner_goes_on_when_nobody_takes_it(world: World) -> None:
    transport = world.runtime.transport

    async def owner(connection: Connection) -> None:
        assert isinstance(connection, MovableConnection)
        detached = await connection.detach()
        assert await connection.receive() == b""
        with pytest.raises(UnavailableError):
            transport.post(f"{world.folder}/nobody", TOKEN, detached)
        inbox = transport.open_inbox(f"{world.folder}/inbox")
        assert transport.post(f"{world.folder}/inbox", TOKEN, detached)
        inbox.close()  # its copy is released, and the peer notices nothing
        again = await transport.adopt(detached, detached.received)
        await echo(again)
        again.close()
        await again.wait_closed()
        with pytest.raises(UnavailableError):
            await transport.adopt(detached)

    async def client(connection: Connection) -> None:
        connection.write([b"still here"])
        assert await receive_exactly(connection, 10) == b"still here"

    moved(world, owner, client)


def test_an_abort_ends_it_for_everybody_who_has_it(world: World) -> None:
    transport = world.runtime.transport

    async def owner(connection: Connection) -> None:
        assert isinstance(connection, MovableConnection)
        detached = await connection.detach()
        path = f"{world.folder}/inbox"
        inbox = transport.open_inbox(path)
        assert transport.post(path, TOKEN, detached)
        found = inbox.take(TOKEN)
        assert found is not None
        adopted = await transport.adopt(found)
        detached.abort()
        with suppress(UnavailableError):  # as some see it
            assert await adopted.receive() == b""
        adopted.close()
        inbox.close()

    async def client(connection: Connection) -> None:
        with suppress(UnavailableError):
            assert await connection.receive() == b""

    moved(world, owner, client)


def test_a_full_inbox_holds_a_bounded_number(world: World) -> None:
    transport = world.runtime.transport

    async def owner(connection: Connection) -> None:
        assert isinstance(connection, MovableConnection)
        detached = await connection.detach()
        path = f"{world.folder}/inbox"
        inbox = transport.open_inbox(path)
        for number in range(200):
            if not transport.post(path, b"%016d" % number, detached):
                assert transport.post(path, b"%016d" % number, detached)
            inbox.take(b"nothing of that".ljust(16))
        assert inbox.take(b"%016d" % 0) is None, "the oldest had to go"
        last = inbox.take(b"%016d" % 199)
        assert last is not None
        last.release()
        inbox.close()
        detached.release()  # the last one who had it

    async def client(connection: Connection) -> None:
        assert await connection.receive() == b""

    moved(world, owner, client)


def test_a_moved_connection_keeps_its_abilities(world: World) -> None:
    if isinstance(world, SimulatedWorld):
        pytest.skip("simulated connections have no direct way")
    transport = world.runtime.transport

    async def owner(connection: Connection) -> None:
        adopted = await move(transport, connection, f"{world.folder}/inbox")
        assert isinstance(adopted, DirectConnection)
        target = memoryview(bytearray(100_000))
        assert await adopted.receive_into(target) == len(target)
        looked: list[bytes] = []
        enough = asyncio.Event()

        def look(data: memoryview) -> bool:
            looked.append(bytes(data))
            enough.set()
            return True

        adopted.look_first(look)
        waiting = asyncio.ensure_future(adopted.receive())
        adopted.write([target[:10]])
        await enough.wait()
        assert looked == [b"seen"]
        adopted.close()
        assert await waiting == b""

    async def client(connection: Connection) -> None:
        connection.write([b"x" * 100_000])
        assert await receive_exactly(connection, 10) == b"x" * 10
        connection.write([b"seen"])
        assert await connection.receive() == b""

    moved(world, owner, client)


def test_a_broken_connection_cannot_be_let_go(world: World) -> None:
    async def owner(connection: Connection) -> None:
        connection.abort()
        await connection.wait_closed()
        assert isinstance(connection, MovableConnection)
        with pytest.raises(UnavailableError):
            await connection.detach()

    async def client(connection: Connection) -> None:
        with suppress(UnavailableError):
            assert await connection.receive() == b""

    moved(world, owner, client)
