"""Every recorded request decodes to what it means and encodes to the same bytes, in its dialect."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.wire.iggy.classic_frames import RequestDecoder, RequestFrame, encode_request
from headrace.wire.iggy.commands import TABLE
from headrace.wire.iggy.detection import candidates
from headrace.wire.iggy.dialects import CLASSIC, Dialect, of_version
from headrace.wire.iggy.messages.messages import SendMessages, decode_messages, decode_send
from headrace.wire.iggy.messages.users import LoginUser
from headrace.wire.iggy.primitives import Partitioning
from headrace.wire.iggy.user_headers import UserHeader
from tests.conformance.iggy.expected import EXPECTED

FOLDER = Path(__file__).parent / "frames"
FRAMES = sorted(path.stem for path in FOLDER.glob("*.hex"))
DIALECTS = {
    "0.5.0": Dialect.A,
    "0.6.0": Dialect.B1,
    "0.7.0": Dialect.B2,
    "0.8.0": Dialect.B2,
}
# Node's DELETE_TOPIC appends a u32 that no server reads; we neither keep nor write it.
TRAILING = {f"node-{version}-delete-topic": 4 for version in ("0.5.0", "0.6.0", "0.8.0")}
SENDS = [name for name in FRAMES if name.endswith("send-messages")]
BODIES = [name for name in FRAMES if name not in SENDS]


def frame_bytes(name: str) -> bytes:
    return bytes.fromhex((FOLDER / f"{name}.hex").read_text())


def frame_of(name: str) -> RequestFrame:
    (frame,) = RequestDecoder().feed(frame_bytes(name))
    assert isinstance(frame, RequestFrame)
    return frame


def dialect_of(name: str) -> Dialect:
    return DIALECTS[name.removeprefix("node-")[:5]]


def test_all_recordings_are_here() -> None:
    assert len(FRAMES) == 186
    assert set(BODIES) <= EXPECTED.keys()


@pytest.mark.parametrize("name", BODIES)
def test_body(name: str) -> None:
    frame, dialect = frame_of(name), dialect_of(name)
    command = TABLE[frame.code]
    assert command.name.lower().replace("_", "-") in name
    request = command.decode_request(frame.payload, dialect)
    assert request == EXPECTED[name]
    kept = len(frame.payload) - TRAILING.get(name, 0)
    encoded = b"".join(command.encode_request(request, dialect))
    assert encoded == frame.payload[:kept]
    if name not in TRAILING:
        whole = b"".join(encode_request(frame.code, command.encode_request(request, dialect)))
        assert whole == frame_bytes(name)


@pytest.mark.parametrize("name", FRAMES)
def test_shapes_that_differ_are_told_apart(name: str) -> None:
    frame = frame_of(name)
    found = candidates(frame.code, frame.payload)
    by_ids = {Dialect.A}, {Dialect.B1, Dialect.B2}
    by_header = {Dialect.A, Dialect.B1}, {Dialect.B2}
    if frame.code in (100, 120, 121, 122, 202, 302, 602):
        assert found in by_ids
        assert dialect_of(name) in found
    elif frame.code == 101:
        assert found in by_header
        assert dialect_of(name) in found
    else:
        assert found == CLASSIC


@pytest.mark.parametrize("version", ["0.5.0", "0.6.0", "0.7.0", "0.8.0"])
def test_the_login_tells_the_dialect(version: str) -> None:
    login = LoginUser.decode(frame_of(f"{version}-login-user").payload)
    stated = of_version(login.version)
    assert stated is not None
    assert stated.crate is DIALECTS[version]


@pytest.mark.parametrize("version", ["0.5.0", "0.6.0", "0.7.0", "0.8.0"])
def test_send_from_python(version: str) -> None:
    name = f"{version}-send-messages"
    request = decode_send(frame_of(name).payload, DIALECTS[version])
    partition = 0 if version == "0.5.0" else 1
    assert (request.stream, request.topic) == ("s1", "t1")
    assert request.partitioning == Partitioning.to_partition(partition)
    first, second = decode_messages(request.area)
    assert (first.payload, second.payload) == (b"hello", b"world!!")
    assert (first.id, first.headers, first.offset, first.timestamp_us) == (0, b"", 0, 0)
    assert 0 < second.origin_timestamp_us - first.origin_timestamp_us < 1000
    assert request.starts.tolist() == [0, 64 + 5]
    _assert_same_bytes(name, request)


@pytest.mark.parametrize("version", ["0.5.0", "0.6.0", "0.8.0"])
def test_send_from_node(version: str) -> None:
    name = f"node-{version}-send-messages"
    request = decode_send(frame_of(name).payload, DIALECTS[version])
    assert request.partitioning == Partitioning.by_key(b"key-0")
    messages = decode_messages(request.area)
    assert len(messages) == request.count == 200
    assert all(message.id for message in messages)
    headers = {header for message in messages for header in message.user_headers}
    assert UserHeader.of("x-header-string-1", "incredible") in headers
    values = {(header.key, header.python_value()) for header in headers}
    assert {(b"foo", 42), (b"bar", 123)} <= values
    _assert_same_bytes(name, request)


def _assert_same_bytes(name: str, request: SendMessages) -> None:
    pieces = encode_request(101, request.pieces(dialect_of(name)))
    assert b"".join(pieces) == frame_bytes(name)
