"""What every Transport does."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.errors import ConfigError, UnavailableError
from headrace.runtime import Buffer, Connection, Listener
from tests.unit.runtime.worlds import World

HOST = "127.0.0.1"


async def receive_all(connection: Connection) -> bytes:
    received = bytearray()
    while data := await connection.receive():
        received += data
    return bytes(received)


async def receive_exactly(connection: Connection, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        data = await connection.receive()
        assert data, "the connection ended early"
        received += data
    assert len(received) == length
    return bytes(received)


async def echo(connection: Connection) -> None:
    while data := await connection.receive():
        connection.write([data])
        await connection.drain()


async def close_all(listener: Listener, *connections: Connection) -> None:
    listener.close()
    for connection in connections:
        connection.close()
        await connection.wait_closed()
    await listener.wait_closed()


def served(
    world: World,
    handler: Callable[[Connection], Coroutine[Any, Any, None]],
    client: Callable[[Connection], Coroutine[Any, Any, None]],
) -> None:
    """One connection between `client` and `handler`; nothing is left running."""

    async def main() -> None:
        transport = world.runtime.transport
        listener = await transport.listen(HOST, 0, handler)
        connection = await transport.connect(HOST, listener.port)
        await client(connection)
        await close_all(listener, connection)

    world.run(main())


def test_bytes_arrive_whole_and_in_order(world: World) -> None:
    async def client(connection: Connection) -> None:
        sent = bytearray()
        for number in range(200):
            pieces: list[Buffer] = [b"%d" % number, memoryview(b"-" * number), bytearray(b"\n")]
            connection.write(pieces)
            sent += b"".join(pieces)
            await connection.drain()
        assert await receive_exactly(connection, len(sent)) == sent

    served(world, echo, client)


def test_addresses_name_both_sides(world: World) -> None:
    seen: list[tuple[str, str]] = []

    async def handler(connection: Connection) -> None:
        seen.append((connection.peer, connection.local))
        # All of it: whoever closes with bytes on their way to him breaks the connection.
        await receive_exactly(connection, 5)

    async def client(connection: Connection) -> None:
        connection.write([b"hello"])
        assert await connection.receive() == b""
        assert seen == [(connection.local, connection.peer)]
        assert connection.peer.rpartition(":")[2].isdigit()

    served(world, handler, client)


def test_writing_nothing_is_fine(world: World) -> None:
    async def client(connection: Connection) -> None:
        connection.write([])
        connection.write([b""])
        connection.write([b"", b"x", b""])
        assert await connection.receive() == b"x"

    served(world, echo, client)


def test_more_pieces_than_one_system_call_takes(world: World) -> None:
    pieces = [b"%d," % number for number in range(5000)]

    async def client(connection: Connection) -> None:
        connection.write(pieces)
        expected = b"".join(pieces)
        assert await receive_exactly(connection, len(expected)) == expected

    served(world, echo, client)


def test_close_sends_what_is_queued(world: World) -> None:
    payload = bytes(range(256)) * 20_000  # 5 MB: more than any buffer on the way

    async def handler(connection: Connection) -> None:
        connection.write([payload])

    async def client(connection: Connection) -> None:
        assert await receive_all(connection) == payload

    served(world, handler, client)


def test_the_end_is_an_empty_receive_for_ever(world: World) -> None:
    async def handler(connection: Connection) -> None:
        connection.write([b"bye"])
        await connection.drain()

    async def client(connection: Connection) -> None:
        assert await connection.receive() == b"bye"
        assert await connection.receive() == b""
        assert await connection.receive() == b""

    served(world, handler, client)


def test_abort_breaks_the_other_side(world: World) -> None:
    async def handler(connection: Connection) -> None:
        await connection.receive()
        connection.write([b"x" * 1000])
        connection.abort()

    async def client(connection: Connection) -> None:
        connection.write([b"first"])

        async def write_on() -> None:
            while True:
                connection.write([b"more"])
                await connection.drain()
                await world.runtime.clock.sleep(0.01)

        with pytest.raises(UnavailableError):
            await write_on()

    served(world, handler, client)


def test_own_close_ends_a_waiting_receive(world: World) -> None:
    async def handler(connection: Connection) -> None:
        await connection.receive()

    async def client(connection: Connection) -> None:
        waiting = asyncio.ensure_future(connection.receive())
        await world.runtime.clock.sleep(0.01)
        connection.close()
        assert await waiting == b""
        with pytest.raises(UnavailableError):
            await connection.drain()
        connection.write([b"ignored"])
        connection.close()
        connection.abort()

    served(world, handler, client)


def test_own_abort_ends_a_waiting_receive(world: World) -> None:
    async def client(connection: Connection) -> None:
        waiting = asyncio.ensure_future(connection.receive())
        await world.runtime.clock.sleep(0.01)
        connection.abort()
        assert await waiting == b""
        await connection.wait_closed()

    served(world, echo, client)


def test_a_cancelled_receive_loses_nothing(world: World) -> None:
    async def client(connection: Connection) -> None:
        for _ in range(20):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await connection.receive()
        connection.write([b"after"])
        assert await receive_exactly(connection, 5) == b"after"

    served(world, echo, client)


def test_drain_waits_for_a_slow_reader_and_reading_pauses(world: World) -> None:
    """Neither side takes more than a few MiB, and everything arrives once the reader goes on."""
    total = 32 << 20
    chunk = bytes(1 << 16)
    go_on = asyncio.Event()
    received = 0

    async def handler(connection: Connection) -> None:
        nonlocal received
        await go_on.wait()
        while data := await connection.receive():
            received += len(data)
        connection.write([b"done"])
        await connection.drain()

    async def main() -> None:
        transport = world.runtime.transport
        listener = await transport.listen(HOST, 0, handler)
        connection = await transport.connect(HOST, listener.port)
        written = 0

        async def write() -> None:
            nonlocal written
            while written < total:
                connection.write([chunk])
                written += len(chunk)
                await connection.drain()

        writer = asyncio.ensure_future(write())
        await world.runtime.clock.sleep(0.2)
        assert not writer.done()
        # Our two buffers and the two of a real kernel, which may hold several MiB.
        assert written < total // 2
        go_on.set()
        await writer
        await close_all(listener, connection)
        assert received == total

    world.run(main())


def test_nobody_listens(world: World) -> None:
    async def main() -> None:
        transport = world.runtime.transport
        listener = await transport.listen(HOST, 0, echo)
        await close_all(listener)
        with pytest.raises(UnavailableError):
            await transport.connect(HOST, listener.port)

    world.run(main())


def test_an_unknown_host_is_unavailable(world: World) -> None:
    async def main() -> None:
        with pytest.raises(UnavailableError):
            await world.runtime.transport.connect("no-such-host.invalid", 1)

    world.run(main())


def test_a_port_is_taken_once(world: World) -> None:
    async def main() -> None:
        transport = world.runtime.transport
        listener = await transport.listen(HOST, 0, echo)
        with pytest.raises(ConfigError):
            await transport.listen(HOST, listener.port, echo)
        await close_all(listener)
        again = await transport.listen(HOST, listener.port, echo)
        assert again.port == listener.port
        await close_all(again)

    world.run(main())


def test_listeners_that_all_say_so_share_a_port(world: World) -> None:
    async def main() -> None:
        transport = world.runtime.transport
        served = [0, 0]

        async def first(connection: Connection) -> None:
            served[0] += 1

        async def second(connection: Connection) -> None:
            served[1] += 1

        one = await transport.listen(HOST, 0, first, reuse_port=True)
        with pytest.raises(ConfigError):
            await transport.listen(HOST, one.port, second)
        two = await transport.listen(HOST, one.port, second, reuse_port=True)
        for _ in range(40):
            connection = await transport.connect(HOST, one.port)
            assert await connection.receive() == b""
            connection.close()
        assert sum(served) == 40
        assert all(served), "each is given some"
        await close_all(one)
        connection = await transport.connect(HOST, two.port)
        assert await connection.receive() == b""
        await close_all(two, connection)
        assert sum(served) == 41

    world.run(main())


def test_a_foreign_address_cannot_be_listened_on(world: World) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError):
            await world.runtime.transport.listen("192.0.2.1", 0, echo)

    world.run(main())


def test_localhost_is_one_address_with_one_port(world: World) -> None:
    async def main() -> None:
        transport = world.runtime.transport
        listener = await transport.listen("localhost", 0, echo)
        assert listener.host == HOST
        for host in ("localhost", HOST):
            connection = await transport.connect(host, listener.port)
            connection.write([b"x"])
            assert await connection.receive() == b"x"
            connection.close()
        await close_all(listener)

    world.run(main())


def test_open_connections_outlive_the_listener(world: World) -> None:
    async def main() -> None:
        transport = world.runtime.transport
        listener = await transport.listen(HOST, 0, echo)
        connection = await transport.connect(HOST, listener.port)
        connection.write([b"1"])
        assert await connection.receive() == b"1"
        listener.close()
        connection.write([b"2"])
        assert await connection.receive() == b"2"
        closed = asyncio.ensure_future(listener.wait_closed())
        await world.runtime.clock.sleep(0.01)
        assert not closed.done(), "a handler still runs"
        connection.close()
        await closed

    world.run(main())


def test_a_failing_handler_closes_its_connection_and_no_other(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(connection: Connection) -> None:
        while data := await connection.receive():
            if data == b"!":
                raise ValueError("planned")
            connection.write([data])

    async def main() -> None:
        transport = world.runtime.transport
        listener = await transport.listen(HOST, 0, handler)
        bad = await transport.connect(HOST, listener.port)
        good = await transport.connect(HOST, listener.port)
        bad.write([b"!"])
        assert await bad.receive() == b""
        good.write([b"g"])
        assert await good.receive() == b"g"
        await close_all(listener, bad, good)

    world.run(main())
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "planned" in caplog.text


def test_many_connections_at_once(world: World) -> None:
    async def one(number: int, port: int) -> None:
        connection = await world.runtime.transport.connect(HOST, port, timeout=5.0)
        message = b"%d" % number * 100
        connection.write([message])
        assert await receive_exactly(connection, len(message)) == message
        connection.close()
        await connection.wait_closed()

    async def main() -> None:
        listener = await world.runtime.transport.listen(HOST, 0, echo)
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(one(number, listener.port))
        await close_all(listener)

    world.run(main())
