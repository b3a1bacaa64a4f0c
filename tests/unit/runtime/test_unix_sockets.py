"""What every Transport does between processes of one machine."""

import asyncio

import pytest

from headrace.errors import ConfigError, UnavailableError
from headrace.runtime import Connection, OnConnection
from tests.unit.runtime.test_transport import HOST, close_all, echo, receive_exactly
from tests.unit.runtime.worlds import SimulatedWorld, World


def test_bytes_pass_both_ways(world: World) -> None:
    async def main() -> None:
        transport, path = world.runtime.transport, f"{world.folder}/socket"
        listener = await transport.listen_unix(path, echo)
        assert (listener.host, listener.port) == (path, 0)
        connection = await transport.connect_unix(path)
        assert connection.peer == f"unix:{path}"
        sent = bytes(range(256)) * 20_000
        connection.write([sent[:1000], memoryview(sent)[1000:]])
        assert await receive_exactly(connection, len(sent)) == sent
        await close_all(listener, connection)
        with pytest.raises(UnavailableError):
            await transport.connect_unix(path)

    world.run(main())


def test_a_path_may_be_longer_than_an_address(world: World) -> None:
    async def main() -> None:
        folder = f"{world.folder}/{'deep' * 20}/{'deeper' * 20}"
        world.runtime.disk.make_folder(folder)
        transport, path = world.runtime.transport, f"{folder}/socket"
        listener = await transport.listen_unix(path, echo)
        connection = await transport.connect_unix(path)
        connection.write([b"far down"])
        assert await receive_exactly(connection, 8) == b"far down"
        assert connection.peer == f"unix:{path}"
        await close_all(listener, connection)
        transport.open_inbox(f"{folder}/inbox").close()

    world.run(main())


def test_what_an_earlier_process_left_at_a_path_is_replaced(world: World) -> None:
    async def main() -> None:
        transport, path = world.runtime.transport, f"{world.folder}/socket"

        async def second(connection: Connection) -> None:
            connection.write([b"second"])
            await connection.drain()

        first = await transport.listen_unix(path, echo)
        again = await transport.listen_unix(path, second)
        await close_all(first)  # which leaves the path to its successor
        connection = await transport.connect_unix(path)
        assert await receive_exactly(connection, 6) == b"second"
        await close_all(again, connection)

    world.run(main())


def test_a_folder_that_is_missing_is_an_error_of_the_configuration(world: World) -> None:
    if isinstance(world, SimulatedWorld):
        pytest.skip("simulated paths of sockets are not on the simulated disk")

    async def main() -> None:
        with pytest.raises(ConfigError, match="no such file"):
            await world.runtime.transport.listen_unix(f"{world.folder}/missing/socket", echo)

    world.run(main())


def test_listeners_share_a_port_if_all_of_them_say_so(world: World) -> None:
    async def main() -> None:
        transport = world.runtime.transport
        served: list[int] = []

        def handler(number: int) -> OnConnection:
            async def serve(connection: Connection) -> None:
                served.append(number)
                await echo(connection)

            return serve

        first = await transport.listen(HOST, 0, handler(1), reuse_port=True)
        second = await transport.listen(HOST, first.port, handler(2), reuse_port=True)
        assert second.port == first.port
        with pytest.raises(ConfigError):
            await transport.listen(HOST, first.port, echo)
        connections = []
        for _ in range(64):
            connection = await transport.connect(HOST, first.port)
            connection.write([b"x"])
            assert await receive_exactly(connection, 1) == b"x"
            connections.append(connection)
        assert set(served) == {1, 2}
        first.close()
        await asyncio.sleep(0.01)
        served.clear()
        for _ in range(8):
            connection = await transport.connect(HOST, first.port)
            connection.write([b"x"])
            assert await receive_exactly(connection, 1) == b"x"
            connections.append(connection)
        assert set(served) == {2}
        await close_all(second, *connections)
        await first.wait_closed()

    world.run(main())


def test_datagram_listeners_share_a_port(world: World) -> None:
    async def main() -> None:
        transport = world.runtime.transport
        first = await transport.listen_datagrams(HOST, 0, lambda *_: None, reuse_port=True)
        second = await transport.listen_datagrams(
            HOST, first.port, lambda *_: None, reuse_port=True
        )
        assert second.port == first.port
        with pytest.raises(ConfigError):
            await transport.listen_datagrams(HOST, first.port, lambda *_: None)
        for listener in (first, second):
            listener.close()
            await listener.wait_closed()

    world.run(main())
