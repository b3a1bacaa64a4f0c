"""The umbilical against Hadoop's own RPC client and server, which PySpark's jars contain."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from py4j.protocol import Py4JJavaError
from pyspark.java_gateway import launch_gateway

from headrace.errors import NotFoundError, UnauthenticatedError
from headrace.net.hadoop_rpc import HadoopRpcServer, RpcRemoteError
from headrace.pipeline.container.umbilical import (
    BlockingUmbilicalClient,
    HeartbeatUri,
    UmbilicalClient,
    format_heartbeat_uri,
    heartbeat_uri_path,
)
from headrace.pipeline.controller.container_credentials import ContainerTokens
from headrace.runtime.system import system_runtime
from headrace.spark.session.java import java_home
from headrace.wire.umbilical import codec, rpc
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical._generated import umbilical_pb2
from headrace.wire.umbilical.tokens import (
    Token,
    TokenIdentifier,
    decode_identifier,
    format_token,
    parse_token,
)
from tests.conformance.umbilical import samples

PEER = Path(__file__).parents[1] / "peers" / "java" / "UmbilicalPeer.java"


@pytest.fixture(scope="module")
def peer_class() -> Iterator[Any]:
    """`peer_class()` makes an UmbilicalPeer in a JVM with Spark's jars."""
    before = dict(os.environ)
    os.environ.update(JAVA_HOME=java_home(), SPARK_LOCAL_IP="127.0.0.1")
    try:
        gateway = launch_gateway()
    finally:
        os.environ.clear()
        os.environ.update(before)
    compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(PEER.read_text())
    loaded = compiler.getClassLoader().loadClass("com.datatorrent.stram.api.UmbilicalPeer")
    descriptor = umbilical_pb2.DESCRIPTOR.serialized_pb
    constructor = loaded.getConstructors()[0]
    arguments = gateway.new_array(gateway.jvm.Object, 1)
    arguments[0] = descriptor
    yield lambda: constructor.newInstance(arguments)
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(10)


ALIVE = {"c1"}
NOW_MS = 1_700_000_000_000
ISSUED = ContainerTokens(b"secret", lambda: NOW_MS, ALIVE.__contains__, lifetime_ms=60_000)


class Recorder:
    """A service that remembers what it was asked and answers with the samples."""

    def __init__(self) -> None:
        self.requests: list[m.Message] = []
        self.callers: list[str] = []
        self.fail = False

    def handlers(self) -> dict[str, Any]:
        return {name: self._handler(call) for name, call in codec.TABLE.items()}

    def _handler(self, call: codec.Call[Any, Any]) -> Any:
        async def handle(body: bytes, caller: str) -> bytes:
            if self.fail:
                raise NotFoundError("no such container", container_id="c1")
            self.requests.append(codec.decode(call.request, body))
            self.callers.append(caller)
            return codec.encode(samples.RESPONSES[call.name])

        return handle


@pytest.fixture
async def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def server(recorder: Recorder) -> AsyncIterator[HadoopRpcServer]:
    server = HadoopRpcServer(
        system_runtime(), codec.PROTOCOL_NAME, codec.PROTOCOL_VERSION, recorder.handlers()
    )
    await server.start("127.0.0.1", 0)
    yield server
    await server.close()


@pytest.fixture
async def guarded(recorder: Recorder) -> AsyncIterator[HadoopRpcServer]:
    """A server that asks for a token."""
    server = HadoopRpcServer(
        system_runtime(),
        codec.PROTOCOL_NAME,
        codec.PROTOCOL_VERSION,
        recorder.handlers(),
        look_up=ISSUED.look_up,
    )
    await server.start("127.0.0.1", 0)
    yield server
    await server.close()


def publish(path: Path, port: int) -> str:
    (path / "recovery").mkdir()
    Path(heartbeat_uri_path(str(path))).write_text(
        format_heartbeat_uri(HeartbeatUri("127.0.0.1", port))
    )
    return str(path)


@pytest.mark.parametrize("name", codec.TABLE)
async def test_hadoops_client_calls_our_server(
    name: str, peer_class: Any, server: HadoopRpcServer, recorder: Recorder
) -> None:
    peer = peer_class()
    peer.connect("127.0.0.1", server.port, None)
    request, response = samples.REQUESTS[name], samples.RESPONSES[name]
    reply = await asyncio.to_thread(peer.call, name, codec.encode(request))
    assert recorder.requests == [request]
    assert codec.decode(codec.TABLE[name].response, bytes(reply)) == response
    await asyncio.to_thread(peer.disconnect)


async def test_hadoops_client_sees_our_errors(
    peer_class: Any, server: HadoopRpcServer, recorder: Recorder
) -> None:
    peer = peer_class()
    peer.connect("127.0.0.1", server.port, None)
    with pytest.raises(Py4JJavaError, match="RpcNoSuchMethodException"):
        await asyncio.to_thread(peer.call, "nonsense", b"")
    recorder.fail = True
    with pytest.raises(Py4JJavaError) as caught:
        await asyncio.to_thread(peer.call, "log", b"")
    assert "RemoteException(java.io.IOException): no such container" in str(caught.value)
    recorder.fail = False
    await asyncio.to_thread(peer.call, "log", b"")  # the connection lives on
    await asyncio.to_thread(peer.disconnect)


async def test_hadoops_client_with_a_token_is_told_that_sasl_is_not_offered(
    peer_class: Any, server: HadoopRpcServer
) -> None:
    peer = peer_class()
    peer.connect("127.0.0.1", server.port, format_token(ISSUED.issue("c1", "")))
    with pytest.raises(Py4JJavaError) as caught:
        await asyncio.to_thread(peer.call, "log", b"")
    assert "this server offers no SASL" in str(caught.value)
    await asyncio.to_thread(peer.disconnect)


@pytest.mark.parametrize("name", codec.TABLE)
async def test_hadoops_client_logs_in_to_our_server(
    name: str, peer_class: Any, guarded: HadoopRpcServer, recorder: Recorder
) -> None:
    peer = peer_class()
    peer.connect("127.0.0.1", guarded.port, format_token(ISSUED.issue("c1", "")))
    request, response = samples.REQUESTS[name], samples.RESPONSES[name]
    reply = await asyncio.to_thread(peer.call, name, codec.encode(request))
    assert recorder.requests == [request]
    assert recorder.callers == ["c1"]
    assert codec.decode(codec.TABLE[name].response, bytes(reply)) == response
    await asyncio.to_thread(peer.disconnect)


def forged() -> Token:
    return Token(ISSUED.issue("c1", "").identifier, b"guessed")


def ended() -> Token:
    return ISSUED.issue("c2", "")


def expired() -> Token:
    earlier = ContainerTokens(b"secret", lambda: NOW_MS - 60_000, ALIVE.__contains__, 60_000)
    return earlier.issue("c1", "")


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (forged, "the token's secret is wrong"),
        (ended, "no such container runs"),
        (expired, "the token has expired"),
        (None, "SIMPLE authentication is not enabled"),
    ],
)
async def test_hadoops_client_is_refused_without_a_good_token(
    token: Callable[[], Token] | None,
    text: str,
    peer_class: Any,
    guarded: HadoopRpcServer,
    recorder: Recorder,
) -> None:
    peer = peer_class()
    peer.connect("127.0.0.1", guarded.port, format_token(token()) if token else None)
    with pytest.raises(Py4JJavaError) as caught:
        await asyncio.to_thread(peer.call, "log", b"")
    assert text in str(caught.value)
    assert recorder.requests == []
    assert guarded.statistics()["connections_refused"] >= 1
    await asyncio.to_thread(peer.disconnect)
    good = peer_class()  # the server lives
    good.connect("127.0.0.1", guarded.port, format_token(ISSUED.issue("c1", "")))
    await asyncio.to_thread(good.call, "log", b"")
    await asyncio.to_thread(good.disconnect)


async def test_our_client_logs_in_to_hadoops_server(peer_class: Any, tmp_path: Path) -> None:
    peer = peer_class()
    port = peer.serve(True)
    peer.answer("log", codec.encode(m.LogResponse()))
    path = publish(tmp_path, port)
    token = parse_token(peer.issue("shop.1.1"))
    identifier = decode_identifier(token.identifier)
    assert identifier == TokenIdentifier(
        "shop.1.1", 1_700_000_000_000, (2**63 - 1) // 2, sequence=300, master_key=-1000
    )
    client = UmbilicalClient(system_runtime(), path, token)
    await client.log("shop.1.1", "hello")
    assert peer.lastUser() == "shop.1.1"
    await client.close()
    for wrong, text in (
        (Token(token.identifier, b"guessed"), "digest response format violation|mismatch"),
        (parse_token(peer.issue("gone")), "the token was cancelled"),
    ):
        client = UmbilicalClient(system_runtime(), path, wrong)
        with pytest.raises(UnauthenticatedError, match=text):
            await client.log("shop.1.1", "hello")
        await client.close()
    peer.stop()


def test_hadoop_reads_our_tokens(peer_class: Any) -> None:
    text = format_token(ISSUED.issue("c1", "127.0.0.1:4711"))
    described = peer_class().describe(text).split()
    assert described[0] == "c1"
    assert described[1:3] == [str(NOW_MS), str(NOW_MS + 60_000)]
    assert described[4:] == ["0", "DT_DELEGATION_TOKEN", "127.0.0.1:4711"]


async def test_a_thousand_calls_on_one_connection(
    peer_class: Any, server: HadoopRpcServer, recorder: Recorder
) -> None:
    peer = peer_class()
    peer.connect("127.0.0.1", server.port, None)
    heartbeat = codec.encode(samples.REQUESTS["processHeartbeat"])
    nanoseconds = await asyncio.to_thread(peer.callMany, "processHeartbeat", heartbeat, 1000)
    assert len(recorder.requests) == 1000
    print(f"mean {nanoseconds / 1e9:.3f} ms per heartbeat")
    await asyncio.to_thread(peer.disconnect)


@pytest.mark.parametrize("name", codec.TABLE)
async def test_our_client_calls_hadoops_server(name: str, peer_class: Any, tmp_path: Path) -> None:
    peer = peer_class()
    port = peer.serve(False)
    client = UmbilicalClient(system_runtime(), publish(tmp_path, port))
    call = codec.TABLE[name]
    request, response = samples.REQUESTS[name], samples.RESPONSES[name]
    peer.answer(name, codec.encode(response))
    assert await client._call(call, request) == response
    # Java prints the request; what it prints is what we meant.
    printed = getattr(umbilical_pb2, call.request.__name__)()
    text_format.Parse(peer.lastRequest(), printed)
    assert codec.from_protobuf(call.request, printed) == request
    await client.close()
    peer.stop()


async def test_our_client_sees_hadoops_errors(peer_class: Any, tmp_path: Path) -> None:
    peer = peer_class()
    port = peer.serve(False)
    client = UmbilicalClient(system_runtime(), publish(tmp_path, port))
    peer.answer("log", None)
    with pytest.raises(RpcRemoteError, match="refused on purpose") as caught:
        await client.log("c1", "hello")
    assert caught.value.error.exception_class == rpc.IO_EXCEPTION
    unknown: codec.Call[Any, Any] = codec.Call("nonsense", m.LogRequest, m.LogResponse)
    with pytest.raises(RpcRemoteError) as caught:
        await client._call(unknown, m.LogRequest())
    assert caught.value.error.exception_class == rpc.NO_SUCH_METHOD
    await client.close()
    peer.stop()


def test_the_blocking_client_calls_hadoops_server(peer_class: Any, tmp_path: Path) -> None:
    peer = peer_class()
    port = peer.serve(False)
    for name, response in samples.RESPONSES.items():
        peer.answer(name, codec.encode(response))
    with BlockingUmbilicalClient(system_runtime(), publish(tmp_path, port)) as client:
        expected = samples.RESPONSES["getInitContext"]
        assert isinstance(expected, m.GetInitContextResponse)
        assert client.get_init_context("c1") == expected.context
        client.log("c1", "hello")
        client.report_error("c1", (), "boom")
        heartbeat = samples.REQUESTS["processHeartbeat"]
        assert isinstance(heartbeat, m.ContainerHeartbeat)
        assert client.process_heartbeat(heartbeat) == samples.RESPONSES["processHeartbeat"]
    peer.stop()
