"""The umbilical against Hadoop's own RPC client and server, which PySpark's jars contain."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from py4j.protocol import Py4JJavaError
from pyspark.java_gateway import launch_gateway

from headrace.client.umbilical import (
    BlockingUmbilicalClient,
    HeartbeatUri,
    UmbilicalClient,
    format_heartbeat_uri,
    heartbeat_uri_path,
)
from headrace.errors import NotFoundError
from headrace.net.hadoop_rpc import HadoopRpcServer, RpcRemoteError
from headrace.runtime.system import system_runtime
from headrace.spark.java import java_home
from headrace.wire.umbilical import calls, codec, rpc
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical._generated import umbilical_pb2
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


class Recorder:
    """A service that remembers what it was asked and answers with the samples."""

    def __init__(self) -> None:
        self.requests: list[m.Message] = []
        self.fail = False

    def handlers(self) -> dict[str, Any]:
        return {name: self._handler(call) for name, call in calls.TABLE.items()}

    def _handler(self, call: calls.Call[Any, Any]) -> Any:
        async def handle(body: bytes) -> bytes:
            if self.fail:
                raise NotFoundError("no such container", container_id="c1")
            self.requests.append(codec.decode(call.request, body))
            return codec.encode(samples.RESPONSES[call.name])

        return handle


@pytest.fixture
async def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def server(recorder: Recorder) -> AsyncIterator[HadoopRpcServer]:
    server = HadoopRpcServer(
        system_runtime(), calls.PROTOCOL_NAME, calls.PROTOCOL_VERSION, recorder.handlers()
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


@pytest.mark.parametrize("name", calls.TABLE)
async def test_hadoops_client_calls_our_server(
    name: str, peer_class: Any, server: HadoopRpcServer, recorder: Recorder
) -> None:
    peer = peer_class()
    peer.connect("127.0.0.1", server.port, False)
    request, response = samples.REQUESTS[name], samples.RESPONSES[name]
    reply = await asyncio.to_thread(peer.call, name, codec.encode(request))
    assert recorder.requests == [request]
    assert codec.decode(calls.TABLE[name].response, bytes(reply)) == response
    await asyncio.to_thread(peer.disconnect)


async def test_hadoops_client_sees_our_errors(
    peer_class: Any, server: HadoopRpcServer, recorder: Recorder
) -> None:
    peer = peer_class()
    peer.connect("127.0.0.1", server.port, False)
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
    peer.connect("127.0.0.1", server.port, True)
    with pytest.raises(Py4JJavaError) as caught:
        await asyncio.to_thread(peer.call, "log", b"")
    assert "this server offers no SASL" in str(caught.value)
    await asyncio.to_thread(peer.disconnect)


async def test_a_thousand_calls_on_one_connection(
    peer_class: Any, server: HadoopRpcServer, recorder: Recorder
) -> None:
    peer = peer_class()
    peer.connect("127.0.0.1", server.port, False)
    heartbeat = codec.encode(samples.REQUESTS["processHeartbeat"])
    nanoseconds = await asyncio.to_thread(peer.callMany, "processHeartbeat", heartbeat, 1000)
    assert len(recorder.requests) == 1000
    print(f"mean {nanoseconds / 1e9:.3f} ms per heartbeat")
    await asyncio.to_thread(peer.disconnect)


@pytest.mark.parametrize("name", calls.TABLE)
async def test_our_client_calls_hadoops_server(name: str, peer_class: Any, tmp_path: Path) -> None:
    peer = peer_class()
    port = peer.serve()
    client = UmbilicalClient(system_runtime(), publish(tmp_path, port))
    call = calls.TABLE[name]
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
    port = peer.serve()
    client = UmbilicalClient(system_runtime(), publish(tmp_path, port))
    peer.answer("log", None)
    with pytest.raises(RpcRemoteError, match="refused on purpose") as caught:
        await client.log("c1", "hello")
    assert caught.value.error.exception_class == rpc.IO_EXCEPTION
    unknown: calls.Call[Any, Any] = calls.Call("nonsense", m.LogRequest, m.LogResponse)
    with pytest.raises(RpcRemoteError) as caught:
        await client._call(unknown, m.LogRequest())
    assert caught.value.error.exception_class == rpc.NO_SUCH_METHOD
    await client.close()
    peer.stop()


def test_the_blocking_client_calls_hadoops_server(peer_class: Any, tmp_path: Path) -> None:
    peer = peer_class()
    port = peer.serve()
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
