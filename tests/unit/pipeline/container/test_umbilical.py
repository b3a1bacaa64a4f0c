"""Server and client of the umbilical on a simulated network and clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.errors import (
    DeadlineError,
    NotFoundError,
    RemoteProtocolError,
    UnavailableError,
)
from headrace.net import hadoop_rpc
from headrace.net.hadoop_rpc import HadoopRpcConnection, HadoopRpcServer, RpcRemoteError
from headrace.pipeline.container.umbilical import (
    HeartbeatUri,
    UmbilicalClient,
    format_heartbeat_uri,
    heartbeat_uri_path,
    parse_heartbeat_uri,
)
from headrace.runtime.interfaces import Runtime
from headrace.wire.umbilical import codec, rpc
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.sasl import Credential
from headrace.wire.umbilical.tokens import Token
from tests.simulator.runtime import Simulation

PATH = "/data/applications/shop"
CLIENT_ID = b"0123456789abcdef"
Handler = hadoop_rpc.Handler


async def echo(body: bytes, caller: str) -> bytes:
    return body


def simulate(main: Callable[[Simulation], Coroutine[Any, Any, None]]) -> None:
    simulation = Simulation(1)
    simulation.run(main(simulation))


async def start(runtime: Runtime, _port: int = 0, /, **handlers: Handler) -> HadoopRpcServer:
    server = HadoopRpcServer(runtime, codec.PROTOCOL_NAME, codec.PROTOCOL_VERSION, handlers)
    await server.start("c", _port)
    return server


async def connect(runtime: Runtime, server: HadoopRpcServer, **more: Any) -> HadoopRpcConnection:
    arguments: dict[str, Any] = {
        "protocol": codec.PROTOCOL_NAME,
        "version": codec.PROTOCOL_VERSION,
        "client_id": CLIENT_ID,
        "user": "ada",
    }
    return await HadoopRpcConnection.connect(runtime, "c", server.port, **(arguments | more))


def publish(runtime: Runtime, server: HadoopRpcServer, **more: int) -> None:
    more = {"retry_timeout_ms": 30_000} | more
    uri = format_heartbeat_uri(HeartbeatUri("c", server.port, **more))
    runtime.disk.make_folder(f"{PATH}/recovery")
    runtime.disk.write_atomic(heartbeat_uri_path(PATH), uri.encode())


def test_answers_come_back_to_their_calls_in_any_order() -> None:
    async def main(simulation: Simulation) -> None:
        runtime = simulation.runtime("c")

        async def slow(body: bytes, caller: str) -> bytes:
            await runtime.clock.sleep(1)
            return body

        server = await start(runtime, slow=slow, fast=echo)
        connection = await connect(simulation.runtime("k"), server)
        first = asyncio.ensure_future(connection.call(1, "slow", b"one"))
        assert await connection.call(2, "fast", b"two") == b"two"
        assert not first.done()
        assert await first == b"one"
        await connection.close()
        await server.close()

    simulate(main)


@pytest.mark.parametrize(
    ("method", "more", "exception_class", "code"),
    [
        ("nonsense", {}, rpc.NO_SUCH_METHOD, 2),
        ("log", {"protocol": "other"}, rpc.NO_SUCH_PROTOCOL, 3),
        ("log", {"version": 1}, rpc.VERSION_MISMATCH, 6),
        ("fails", {}, rpc.IO_EXCEPTION, 1),
        ("breaks", {}, rpc.IO_EXCEPTION, 1),
    ],
)
def test_errors_have_hadoops_names(
    method: str, more: dict[str, Any], exception_class: str, code: int
) -> None:
    async def fails(body: bytes, caller: str) -> bytes:
        raise NotFoundError("no such container")

    async def breaks(body: bytes, caller: str) -> bytes:
        raise ZeroDivisionError("a detail nobody else should see")

    async def main(simulation: Simulation) -> None:
        server = await start(simulation.runtime("c"), log=echo, fails=fails, breaks=breaks)
        connection = await connect(simulation.runtime("k"), server, **more)
        with pytest.raises(RpcRemoteError) as caught:
            await connection.call(1, method, b"")
        assert caught.value.error.exception_class == exception_class
        assert caught.value.error.code == code
        assert "a detail" not in caught.value.error.text
        assert connection.usable
        await connection.close()
        await server.close()

    simulate(main)


def test_a_repeated_call_gets_the_first_answer() -> None:
    async def main(simulation: Simulation) -> None:
        runtime = simulation.runtime("c")
        runs: list[bytes] = []

        async def count(body: bytes, caller: str) -> bytes:
            runs.append(body)
            await runtime.clock.sleep(0.5)
            return b"%d" % len(runs)

        server = await start(runtime, count=count)
        first = await connect(simulation.runtime("k"), server)
        second = await connect(simulation.runtime("k"), server)
        other = await connect(simulation.runtime("k"), server, client_id=bytes(16))
        # While the first is being worked on, and again after it.
        answers = await asyncio.gather(
            first.call(1, "count", b""), second.call(1, "count", b"", retry_count=1)
        )
        assert list(answers) == [b"1", b"1"]
        assert await second.call(1, "count", b"", retry_count=2) == b"1"
        assert await second.call(2, "count", b"") == b"2"
        assert await other.call(1, "count", b"") == b"3"
        assert server.statistics()["calls_repeated"] == 2
        for connection in (first, second, other):
            await connection.close()
        await server.close()

    simulate(main)


def test_nobody_gets_the_answer_that_was_made_for_another() -> None:
    def look_up(identifier: bytes) -> Credential:
        return Credential(identifier.decode(), b"password")

    async def whoami(body: bytes, caller: str) -> bytes:
        return caller.encode()

    async def main(simulation: Simulation) -> None:
        server = HadoopRpcServer(
            simulation.runtime("c"),
            codec.PROTOCOL_NAME,
            codec.PROTOCOL_VERSION,
            {"whoami": whoami},
            look_up=look_up,
        )
        await server.start("c", 0)
        for name in (b"one", b"two"):  # with the same client id and call id
            token = Token(name, b"password")
            connection = await connect(simulation.runtime("k"), server, token=token)
            assert await connection.call(1, "whoami", b"") == name
            await connection.close()
        assert server.statistics()["calls_repeated"] == 0
        await server.close()

    simulate(main)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hadoop_rpc, "REMEMBERED_CALLS_MAX", 3)
    monkeypatch.setattr(hadoop_rpc, "REMEMBERED_BYTES_MAX", 1000)

    async def main(simulation: Simulation) -> None:
        runs = 0

        async def count(body: bytes, caller: str) -> bytes:
            nonlocal runs
            runs += 1
            return body

        server = await start(simulation.runtime("c"), count=count)
        connection = await connect(simulation.runtime("k"), server)
        for call_id in range(5):
            await connection.call(call_id, "count", b"")
        await connection.call(4, "count", b"")
        assert runs == 5
        await connection.call(0, "count", b"")  # forgotten: it runs again
        assert runs == 6
        await connection.call(7, "count", bytes(900))
        await connection.call(8, "count", bytes(900))
        await connection.call(7, "count", bytes(900))
        assert runs == 9
        await connection.close()
        await server.close()

    simulate(main)


def test_a_broken_connection_fails_the_calls_on_it() -> None:
    async def main(simulation: Simulation) -> None:
        never = asyncio.Event()

        async def hang(body: bytes, caller: str) -> bytes:
            await never.wait()
            return body

        server = await simulation.on("c", start(simulation.runtime("c"), hang=hang))
        connection = await connect(simulation.runtime("k"), server)
        call = asyncio.ensure_future(connection.call(1, "hang", b"", timeout=60))
        await simulation.runtime("k").clock.sleep(1)
        simulation.crash("c")
        with pytest.raises(UnavailableError):
            await call
        assert not connection.usable
        with pytest.raises(UnavailableError):
            await connection.call(2, "hang", b"")
        await connection.close()

    simulate(main)


def test_garbage_costs_only_its_own_connection() -> None:
    async def main(simulation: Simulation) -> None:
        server = await start(simulation.runtime("c"), log=echo)
        good = await connect(simulation.runtime("k"), server)
        runtime = simulation.runtime("x")
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", rpc.PREAMBLE + b"\xff" * 8):
            bad = await runtime.transport.connect("c", server.port)
            bad.write([garbage])
            assert await bad.receive() == b""
            bad.close()
        assert await good.call(1, "log", b"still here") == b"still here"
        await good.close()
        await server.close()

    simulate(main)


def test_a_refused_client_is_told_why() -> None:
    async def main(simulation: Simulation) -> None:
        server = await start(simulation.runtime("c"), log=echo)
        connection = await simulation.runtime("x").transport.connect("c", server.port)
        connection.write([b"hrpc\x09\x00\xdf"])
        codec_ = rpc.ClientConnection("p", 1, CLIENT_ID)
        responses: list[rpc.Response] = []
        while data := await connection.receive():
            responses += codec_.feed(data)
        assert responses[0].error is not None
        assert "SASL" in responses[0].error.text
        connection.close()
        await server.close()

    simulate(main)


def test_the_four_calls_through_the_client() -> None:
    seen: list[m.Message] = []
    context = m.StreamingContainerContext(1_000, True, {"APPLICATION_NAME": "shop"})
    response = m.ContainerHeartbeatResponse(committed_window_id=7)
    answers = {
        "getInitContext": m.GetInitContextResponse(context),
        "log": m.LogResponse(),
        "reportError": m.ReportErrorResponse(),
        "processHeartbeat": response,
    }

    def handler(call: codec.Call[Any, Any]) -> Handler:
        async def handle(body: bytes, caller: str) -> bytes:
            seen.append(codec.decode(call.request, body))
            return codec.encode(answers[call.name])

        return handle

    async def main(simulation: Simulation) -> None:
        runtime = simulation.runtime("c")
        handlers = {name: handler(call) for name, call in codec.TABLE.items()}
        server = await start(runtime, **handlers)
        publish(runtime, server)
        client = UmbilicalClient(runtime, PATH)
        heartbeat = m.ContainerHeartbeat(jvm_name="1@c", stats=m.ContainerStats("c1"))
        assert await client.get_init_context("c1") == context
        await client.log("c1", "hello")
        await client.report_error("c1", (3,), "boom", m.LogFileInfo("c1.log", 9))
        assert await client.process_heartbeat(heartbeat) == response
        await client.close()
        await server.close()

    simulate(main)
    assert seen == [
        m.GetInitContextRequest("c1"),
        m.LogRequest("c1", "hello"),
        m.ReportErrorRequest("c1", (3,), "boom", m.LogFileInfo("c1.log", 9)),
        m.ContainerHeartbeat(jvm_name="1@c", stats=m.ContainerStats("c1")),
    ]


def test_the_client_follows_a_restarted_controller() -> None:
    async def main(simulation: Simulation) -> None:
        runtime = simulation.runtime("k")
        first = await simulation.on("c", start(simulation.runtime("c"), log=echo))
        publish(runtime, first)
        client = UmbilicalClient(runtime, PATH)
        await client.log("c1", "")
        simulation.crash("c")
        call = asyncio.ensure_future(client.log("c1", ""))
        await runtime.clock.sleep(12)  # one attempt failed, it waits for the second
        assert not call.done()
        second = await simulation.on("c", start(simulation.runtime("c"), first.port + 1, log=echo))
        publish(runtime, second)
        await call
        assert second.statistics()["calls_served"] == 1
        await client.close()
        await simulation.on("c", second.close())

    simulate(main)


def test_a_new_address_starts_the_budget_anew() -> None:
    async def main(simulation: Simulation) -> None:
        runtime = simulation.runtime("k")
        server = await simulation.on("c", start(simulation.runtime("c"), log=echo))
        publish(runtime, server)
        client = UmbilicalClient(runtime, PATH)
        await client.log("c1", "")
        simulation.crash("c")
        call = asyncio.ensure_future(client.log("c1", ""))
        await runtime.clock.sleep(25)
        dead = format_heartbeat_uri(HeartbeatUri("c", server.port + 5, retry_timeout_ms=30_000))
        runtime.disk.write_atomic(heartbeat_uri_path(PATH), dead.encode())
        await runtime.clock.sleep(25)  # 50 s in all, more than one budget
        assert not call.done()
        with pytest.raises(DeadlineError):
            await call
        await client.close()

    simulate(main)


def test_the_budget_ends() -> None:
    async def main(simulation: Simulation) -> None:
        runtime = simulation.runtime("k")
        client = UmbilicalClient(runtime, PATH)  # no file at all
        started = runtime.clock.monotonic()
        with pytest.raises(DeadlineError):
            await client.log("c1", "")
        assert 300 <= runtime.clock.monotonic() - started <= 301
        await client.close()

    simulate(main)


def test_an_unanswered_call_is_repeated_under_its_own_id() -> None:
    async def main(simulation: Simulation) -> None:
        runtime = simulation.runtime("k")
        runs = 0

        async def slow_once(body: bytes, caller: str) -> bytes:
            nonlocal runs
            runs += 1
            await simulation.runtime("c").clock.sleep(7)
            return body

        server = await start(simulation.runtime("c"), log=slow_once)
        publish(runtime, server, rpc_timeout_ms=5_000, retry_delay_ms=1_000)
        client = UmbilicalClient(runtime, PATH)
        await client.log("c1", "")
        assert runs == 1
        assert server.statistics()["calls_repeated"] == 1
        await client.close()
        await server.close()

    simulate(main)


@pytest.mark.parametrize(
    "uri",
    [
        HeartbeatUri("127.0.0.1", 4711),
        HeartbeatUri("::1", 1, 2, 3, 4),
        HeartbeatUri("controller.example", 65535, 10_000, 0, 0),
    ],
)
def test_uri_round_trip(uri: HeartbeatUri) -> None:
    assert parse_heartbeat_uri(format_heartbeat_uri(uri)) == uri


def test_uri_text_is_the_origins() -> None:
    text = "stram://host:4711?rpcTimeout=5000&retryDelayMillis=10000&retryTimeoutMillis=300000"
    assert format_heartbeat_uri(HeartbeatUri("host", 4711)) == text
    assert parse_heartbeat_uri("stram://host:4711\n") == HeartbeatUri("host", 4711)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://host:1",
        "stram://host",
        "stram://:1",
        "stram://host:99999",
        "stram://host:1?rpcTimeout=soon",
        "stram://host:1?rpcTimeout=0",
        "stram://[::1:1",
    ],
)
def test_not_a_uri(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_heartbeat_uri(text)
