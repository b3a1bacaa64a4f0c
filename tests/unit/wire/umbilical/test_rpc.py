"""Hadoop RPC framing by example; Hadoop's own classes are asked in tests/integration."""

from __future__ import annotations

import tracemalloc

import pytest

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.umbilical import frames, rpc
from headrace.wire.umbilical._generated import hadoop_rpc_pb2 as pb

CLIENT_ID = b"0123456789abcdef"


def client() -> rpc.ClientConnection:
    return rpc.ClientConnection("a.Protocol", 3, CLIENT_ID)


def frame(*parts: bytes) -> bytes:
    body = b"".join(bytes([len(part)]) + part for part in parts)
    return len(body).to_bytes(4, "big") + body


def refusal(data: bytes) -> rpc.RpcError:
    (event,) = rpc.ServerConnection().feed(data)
    assert isinstance(event, rpc.Refusal)
    (response,) = client().feed(event.reply)
    assert response.error is not None
    assert response.error.fatal
    return response.error


def test_golden_bytes_of_a_whole_call() -> None:
    greeting = bytes.fromhex("68727063 09 00 00")
    header = bytes.fromhex("0802 1000 1805 2210") + CLIENT_ID + bytes.fromhex("2801")
    context = bytes.fromhex("1205 0a03 616461 1a0a") + b"a.Protocol"
    assert client().greet("ada") == greeting + frame(header, context)
    call = bytes.fromhex("0802 1000 180e 2210") + CLIENT_ID + bytes.fromhex("2802")
    named = b"\x0a\x03log\x12\x0aa.Protocol\x18\x03"
    assert client().call(7, "log", b"body", retry_count=1) == frame(call, named, b"body")


def test_another_protocol_ends_the_connection() -> None:
    with pytest.raises(RemoteProtocolError, match="not a Hadoop RPC client"):
        rpc.ServerConnection().feed(b"GET / HTTP/1.1\r\n")


def test_another_version_is_told_ours() -> None:
    error = refusal(b"hrpc\x08\x00\x00")
    assert error.exception_class == rpc.VERSION_MISMATCH
    assert error.code == 14


@pytest.mark.parametrize("auth", [0xDF, 0x51])
def test_other_authentication_is_refused_clearly(auth: int) -> None:
    error = refusal(b"hrpc\x09\x00" + bytes([auth]))
    assert error.exception_class == rpc.ACCESS_CONTROL
    assert error.code == 15


def test_a_sasl_message_on_a_plain_connection_is_refused() -> None:
    header = pb.RpcRequestHeaderProto(callId=-33, clientId=b"").SerializeToString()
    assert refusal(rpc.PREAMBLE + frame(header)).code == 15


@pytest.mark.parametrize(
    "fields",
    [{"rpcKind": 1}, {"rpcKind": 2, "rpcOp": 1}, {"rpcKind": 2, "callId": -2}],
    ids=["writable", "continuation", "reserved id"],
)
def test_calls_that_are_not_whole_protobuf_calls_are_refused(fields: dict[str, int]) -> None:
    header = pb.RpcRequestHeaderProto(callId=1, clientId=CLIENT_ID)
    for name, value in fields.items():
        setattr(header, name, value)
    assert refusal(rpc.PREAMBLE + frame(header.SerializeToString())).code == 12


def test_nothing_is_read_after_a_refusal() -> None:
    server = rpc.ServerConnection()
    assert len(server.feed(b"hrpc\x09\x00\xdf" + b"garbage")) == 1
    assert server.feed(client().call(1, "log", b"")) == []


@pytest.mark.parametrize("length", [-1, -(2**31), 1025])
def test_lengths_outside_the_limit_end_the_connection(length: int) -> None:
    server = rpc.ServerConnection(frame_bytes_max=1024)
    with pytest.raises(RemoteProtocolError, match="frame length"):
        server.feed(rpc.PREAMBLE + length.to_bytes(4, "big", signed=True))


def test_a_promised_frame_takes_no_memory_before_it_arrives() -> None:
    server = rpc.ServerConnection()
    tracemalloc.start()
    try:
        assert server.feed(rpc.PREAMBLE + frames.FRAME_BYTES_MAX.to_bytes(4, "big") + b"x") == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xff\xff\xff\xff\x01",
        b"\x80",
        b"\x05ab",
        b"\x02\x08\x02",  # a header without its required fields
    ],
)
def test_frames_that_are_no_request(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        rpc.ServerConnection().feed(rpc.PREAMBLE + len(body).to_bytes(4, "big") + body)


def test_bytes_after_the_message_are_refused() -> None:
    call = client().call(1, "log", b"")
    longer = (len(call) - 3).to_bytes(4, "big") + call[4:] + b"x"
    with pytest.raises(RemoteProtocolError, match="after the end"):
        rpc.ServerConnection().feed(rpc.PREAMBLE + longer)


def test_an_error_text_is_cut() -> None:
    request = rpc.Request(1, CLIENT_ID, 0, "m", "p", 1, b"")
    error = rpc.RpcError(rpc.IO_EXCEPTION, "x" * 100_000, rpc.ErrorCode.ERROR_APPLICATION)
    (response,) = client().feed(rpc.encode_error(request, error))
    assert response.error is not None
    assert len(response.error.text) == rpc.TEXT_CHARACTERS_MAX


def test_our_own_frame_above_the_limit_is_our_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "FRAME_BYTES_MAX", 100)
    with pytest.raises(LocalProtocolError):
        client().call(1, "log", bytes(101))


def test_a_client_id_has_sixteen_bytes() -> None:
    with pytest.raises(LocalProtocolError):
        rpc.ClientConnection("p", 1, b"short")
