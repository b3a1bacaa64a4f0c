"""SBP over TLS on the same port: who gets in, who is told what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.client.url import TlsOptions, tls_from
from headrace.errors import (
    ConfigError,
    RemoteProtocolError,
    UnauthenticatedError,
    UnavailableError,
)
from headrace.net.sbp_server import SbpServer, ServerLimits
from headrace.net.tls import ClientTls, TlsAcceptor, TlsLimits, secure
from headrace.runtime.interfaces import Connection
from headrace.runtime.system import system_runtime
from headrace.runtime.system.tls import client_context
from headrace.sbp_client.channels import ReconnectingChannel, tcp_connect
from headrace.wire.sbp.opcodes import Code
from tests.unit.net.certificates import contexts, development
from tests.unit.net.sbp_fixtures import (
    ToyNode,
    append_request,
    connect,
    fetch_request,
    raised,
    serving,
    until,
)
from tests.unit.net.test_sbp_server import Raw

MIB = 1 << 20


@asynccontextmanager
async def tls_server(
    mode: str,
    node: ToyNode | None = None,
    limits: ServerLimits | None = None,
    handshake_seconds: float = 20.0,
) -> AsyncIterator[SbpServer]:
    acceptor = TlsAcceptor(
        contexts()[0],
        required=mode == "required",
        limits=TlsLimits(handshake_seconds=handshake_seconds),
    )
    tls = None if mode == "off" else acceptor
    async with serving((node or ToyNode()).handlers(), tls=tls, limits=limits) as server:
        yield server


def trusting(**changes: str) -> ClientTls:
    return ClientTls(context=client_context(development()[1]), **changes)


@pytest.mark.parametrize("mode", ["optional", "required"])
async def test_calls_over_tls(mode: str) -> None:
    node = ToyNode()
    async with tls_server(mode, node) as server:
        channel = await connect(server, tls=trusting())
        body = bytes(range(256)) * 4096 * 5
        await channel.call(Code.APPEND, append_request(0), [body[:100], body[100:]], timeout=60)
        assert node.batches == [body]
        reply = await channel.call(Code.FETCH, fetch_request(9 * MIB, 3), timeout=60)
        assert sum(map(len, reply.payload)) == 9 * MIB + 3
        calls = [channel.call(Code.APPEND, append_request(n), [b"12345"]) for n in range(50)]
        await asyncio.gather(*calls)
        assert node.started == [0, *range(50)]
        await channel.leave()
        await channel.close()


async def test_plain_and_tls_side_by_side_when_it_is_optional() -> None:
    async with tls_server("optional") as server:
        channels = [await connect(server), await connect(server, tls=trusting())]
        for channel in channels:
            await channel.call(Code.APPEND, append_request(0), [b"12345"])
            await channel.close()


async def test_a_plain_client_is_told_that_tls_is_required() -> None:
    node = ToyNode()
    async with tls_server("required", node) as server:
        error = await raised(connect(server))
        assert isinstance(error, UnauthenticatedError)
        assert "TLS" in str(error)
        assert node.peers == [], "nothing plain reaches a handler"
        link = ReconnectingChannel(
            tcp_connect(server.runtime, server.address, client_id="c", tls=trusting())
        )
        await link.call(Code.APPEND, append_request(0), [b"12345"])
        await link.close()


async def test_a_tls_client_of_a_plain_server_is_told_so() -> None:
    async with tls_server("off") as server:
        error = await raised(connect(server, tls=trusting()))
        assert isinstance(error, RemoteProtocolError)
        assert "TLS handshake failed" in str(error)


async def test_whom_a_client_trusts() -> None:
    async with tls_server("required") as server:
        stranger = ClientTls(context=client_context())  # the machine's authorities
        error = await raised(connect(server, tls=stranger))
        assert isinstance(error, RemoteProtocolError)
        assert "CERTIFICATE_VERIFY_FAILED" in str(error)
        error = await raised(connect(server, tls=trusting(server_name="elsewhere.example")))
        assert isinstance(error, RemoteProtocolError)
        assert "elsewhere.example" in str(error)
        anybody = ClientTls(context=client_context(insecure=True))
        own = ClientTls(context=client_context(development()[0].chain))  # the leaf itself
        for tls in (trusting(server_name="localhost"), anybody, own):
            channel = await connect(server, tls=tls)
            await channel.ping()
            await channel.close()


async def test_half_a_handshake_costs_nobody_else_anything() -> None:
    limits = ServerLimits(linger=0.1, idle_timeout=4.0, grace=1.0)
    async with tls_server("required", limits=limits, handshake_seconds=4.0) as server:
        half = [await Raw.connect(server) for _ in range(20)]
        for raw in half[:10]:
            raw.connection.write([bytes.fromhex("160301020001")])  # and nothing more; ten say none
        channel = await connect(server, tls=trusting())
        await channel.call(Code.APPEND, append_request(0), [b"12345"])
        await channel.close()
        await until(lambda: server.statistics()["connections"] == 0, seconds=60)
        for raw in half:
            raw.connection.abort()
            await raw.connection.wait_closed()


async def test_a_server_that_never_answers_the_hello() -> None:
    runtime = system_runtime()
    done = asyncio.Event()

    async def on_connection(connection: Connection) -> None:
        await done.wait()

    listener = await runtime.transport.listen("127.0.0.1", 0, on_connection)
    connection = await runtime.transport.connect("127.0.0.1", listener.port)
    with pytest.raises(UnavailableError, match="TLS"):
        await secure(connection, trusting(), "127.0.0.1", timeout=0.05)
    done.set()
    listener.close()
    await listener.wait_closed()


# Options


def test_options_come_from_the_environment() -> None:
    assert tls_from({}) == TlsOptions()
    assert tls_from({"HEADRACE_TLS_CA": "/ca.pem"}) == TlsOptions(True, "/ca.pem")
    assert tls_from({"HEADRACE_TLS": "1", "HEADRACE_TLS_SERVER_NAME": "a"}) == TlsOptions(
        True, "", "a"
    )
    assert not tls_from({"HEADRACE_TLS": "false", "HEADRACE_TLS_CA": "/ca.pem"}).enabled
    with pytest.raises(ConfigError, match="HEADRACE_TLS"):
        tls_from({"HEADRACE_TLS": "perhaps"})


def test_files_that_cannot_be_used_are_refused_by_name(tmp_path: Path) -> None:
    assert TlsOptions().client() is None
    for content in (None, b"", b"not pem", b"\xff\xfe"):
        path = tmp_path / "ca.pem"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError):
            TlsOptions(True, str(path)).client()
    path.write_bytes(development()[1])
    tls = TlsOptions(True, str(path), "localhost").client()
    assert tls is not None
    assert tls.server_name == "localhost"
