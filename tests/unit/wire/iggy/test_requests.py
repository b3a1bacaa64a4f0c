"""Requests that no recording covers, against bytes laid out by hand."""

from __future__ import annotations

import struct

import msgspec
import pytest

from headrace.wire.iggy import commands as c
from headrace.wire.iggy.commands import AnyCommand
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import DecodeError, Status
from headrace.wire.iggy.messages import extensions as x
from headrace.wire.iggy.messages.consumers import GetConsumerOffset, StoreConsumerOffset
from headrace.wire.iggy.messages.messages import Message, PollMessages, encode_send
from headrace.wire.iggy.messages.system import (
    Empty,
    GetClient,
    GetSnapshot,
    SnapshotCompression,
    SnapshotType,
)
from headrace.wire.iggy.messages.topics import (
    Compression,
    CreateStream,
    DeleteSegments,
    UpdateTopic,
)
from headrace.wire.iggy.messages.users import LoginRegisterWithToken
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy, StrategyKind
from headrace.wire.iggy.user_headers import UserHeader

STREAM, TOPIC = b"\x02\x02s1", b"\x01\x04\x07\0\0\0"

SPAN = x.StagedSpan(40, 2, 7, 1, 0)

CASES: dict[str, tuple[AnyCommand, object, bytes]] = {
    "GET_SNAPSHOT_FILE": (
        c.GET_SNAPSHOT_FILE,
        GetSnapshot(
            SnapshotCompression.ZSTD, (SnapshotType.PROCESS_LIST, SnapshotType.SERVER_LOGS)
        ),
        b"\x04\x02\x02\x05",
    ),
    "GET_ME": (c.GET_ME, Empty(), b""),
    "GET_CLIENT": (c.GET_CLIENT, GetClient(0xDEADBEEF), b"\xef\xbe\xad\xde"),
    "GET_CLIENTS": (c.GET_CLIENTS, Empty(), b""),
    "GET_CONSUMER_OFFSET": (
        c.GET_CONSUMER_OFFSET,
        GetConsumerOffset(Consumer.single("me"), "s1", 7, 3),
        b"\x01\x02\x02me" + STREAM + TOPIC + b"\x01\x03\0\0\0",
    ),
    "DELETE_SEGMENTS": (
        c.DELETE_SEGMENTS,
        DeleteSegments("s1", 7, partition=2, segments_count=5),
        STREAM + TOPIC + struct.pack("<II", 2, 5),
    ),
    "UPDATE_TOPIC": (
        c.UPDATE_TOPIC,
        UpdateTopic("s1", 7, Compression.GZIP, 60_000_000, 2**40, 1, "renamed"),
        STREAM + TOPIC + struct.pack("<BQQB", 2, 60_000_000, 2**40, 1) + b"\x07renamed",
    ),
    "HELLO": (c.HELLO, Empty(), b""),
    "OPEN_PUBLISHER": (
        c.OPEN_PUBLISHER,
        x.OpenPublisher(name="query", run="7"),
        msgspec.msgpack.encode({"name": "query", "run": "7"}),
    ),
    "CLOSE": (
        c.CLOSE,
        x.CloseWindow(publisher=3, epoch=2, previous=-1, window=5, manifest=(SPAN,), digest=b"d"),
        msgspec.msgpack.encode(
            {
                "publisher": 3,
                "epoch": 2,
                "previous": -1,
                "window": 5,
                "manifest": [[40, 2, 7, 1, 0]],
                "digest": b"d",
                "last": False,
                "rows": 0,
                "index": b"",
            }
        ),
    ),
    "LIST_WINDOWS": (
        c.LIST_WINDOWS,
        x.ListWindows(stream="s1", topic=7, after=3, wait_ms=500, limit=10),
        msgspec.msgpack.encode(
            {"stream": "s1", "topic": 7, "after": 3, "wait_ms": 500, "limit": 10}
        ),
    ),
    "SET_PUBLISHERS": (
        c.SET_PUBLISHERS,
        x.SetPublishers(stream="s1", topic="t", publishers=("a", "b"), after=3, epoch=2),
        msgspec.msgpack.encode(
            {"stream": "s1", "topic": "t", "publishers": ["a", "b"], "after": 3, "epoch": 2}
        ),
    ),
    "RESET_AFTER": (
        c.RESET_AFTER,
        x.ResetAfter(stream="s1", topic="t", window=-1, epoch=2),
        msgspec.msgpack.encode({"stream": "s1", "topic": "t", "window": -1, "epoch": 2}),
    ),
    "PURGE_TO": (
        c.PURGE_TO,
        x.PurgeTo(stream="s1", topic="t", window=9),
        msgspec.msgpack.encode({"stream": "s1", "topic": "t", "window": 9}),
    ),
    "PRESENT_GRANT": (
        c.PRESENT_GRANT,
        x.PresentGrant(grant=b"g"),
        msgspec.msgpack.encode({"grant": b"g"}),
    ),
    "SPEAK_FOR": (
        c.SPEAK_FOR,
        x.SpeakFor(host="10.0.0.1", token="t"),
        msgspec.msgpack.encode({"host": "10.0.0.1", "token": "t"}),
    ),
    "GET_PUBLISHING": (c.GET_PUBLISHING, Empty(), b""),
    "GET_SHARDS": (c.GET_SHARDS, Empty(), b""),
    "MOVE_SHARD": (
        c.MOVE_SHARD,
        x.MoveShard(shard=5, worker="2"),
        msgspec.msgpack.encode({"shard": 5, "worker": "2"}),
    ),
    "READ_TICKET": (
        c.READ_TICKET,
        x.ReadTicket(topics=(("s1", "t1"), (0, "t2"))),
        msgspec.msgpack.encode({"topics": [["s1", "t1"], [0, "t2"]]}),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_request(name: str) -> None:
    command, request, laid_out = CASES[name]
    assert command.name == name
    assert b"".join(command.encode_request(request)) == laid_out
    assert command.decode_request(laid_out) == request


CASES_C: dict[str, tuple[AnyCommand, object, bytes]] = {
    "LOGIN_REGISTER_WITH_TOKEN": (
        c.LOGIN_REGISTER_WITH_TOKEN,
        LoginRegisterWithToken(0x2C00, "rust-sdk", "0.11.0", "iggypat-abc", "ctx"),
        b"\0\x2c\0\0\x08rust-sdk\x060.11.0\x0biggypat-abc\x03\0\0\0ctx",
    ),
    "CREATE_STREAM": (
        c.CREATE_STREAM,
        CreateStream("s1", options=(UserHeader.of("k", "v"),)),
        b"\x02s1\x02\1\0\0\0k\x02\1\0\0\0v",
    ),
    "STORE_CONSUMER_OFFSET": (
        c.STORE_CONSUMER_OFFSET,
        StoreConsumerOffset(Consumer.single("me"), "s1", 7, 3, 9, False),
        b"\x01\x02\x02me" + STREAM + TOPIC + b"\x01\x03\0\0\0" + struct.pack("<QB", 9, 0),
    ),
}


@pytest.mark.parametrize("name", CASES_C)
def test_dialect_c(name: str) -> None:
    command, request, laid_out = CASES_C[name]
    assert command.name == name
    assert b"".join(command.encode_request(request, Dialect.C)) == laid_out
    assert command.decode_request(laid_out, Dialect.C) == request


@pytest.mark.parametrize("name", ["STAGE"])
def test_a_stage_is_a_head_and_a_send(name: str) -> None:
    assert c.STAGE.name == name
    head = x.StageHead(publisher=3, epoch=2, window=5)
    send = encode_send("s", "t", Partitioning.to_partition(1), [Message(b"payload")])
    encoded = b"".join(c.STAGE.encode_request(x.Stage(head, send)))
    body = msgspec.msgpack.encode({"publisher": 3, "epoch": 2, "window": 5})
    sent = b"".join(c.SEND_MESSAGES.encode_request(send))
    assert encoded == len(body).to_bytes(4, "little") + body + sent
    decoded = c.STAGE.decode_request(bytearray(encoded))
    assert (decoded.head, decoded.stream, decoded.topic) == (head, "s", "t")
    assert bytes(decoded.messages.area) == bytes(send.area)
    for cut in (0, 3, 10, len(body) + 4, len(encoded) - 1):
        with pytest.raises(DecodeError):
            c.STAGE.decode_request(bytearray(encoded[:cut]))


def test_dialect_a_shifts_ids_and_has_no_flag() -> None:
    request = GetConsumerOffset(Consumer.group(4), 0, 7, 3)
    laid_out = b"\x02\x01\x04\x05\0\0\0\x01\x04\x01\0\0\0\x01\x04\x08\0\0\0\x04\0\0\0"
    assert request.encode(Dialect.A) == laid_out
    assert GetConsumerOffset.decode(laid_out, Dialect.A) == request


def test_a_single_consumers_number_is_its_own() -> None:
    request = GetConsumerOffset(Consumer.single(1), "s1", "t1")
    for dialect in (Dialect.A, Dialect.B2):
        assert request.encode(dialect).startswith(b"\x01\x01\x04\x01\0\0\0")
        assert GetConsumerOffset.decode(request.encode(dialect), dialect) == request


def test_trailing_bytes_are_ignored() -> None:
    _, request, laid_out = CASES["DELETE_SEGMENTS"]
    assert DeleteSegments.decode(laid_out + b"\0\0\0\0") == request


@pytest.mark.parametrize(
    ("command", "payload", "status"),
    [
        (c.GET_CLIENT, b"\x01\x02\x03", Status.INVALID_NUMBER_ENCODING),
        (c.GET_STREAM, b"\x03\x04\0\0\0\0", Status.INVALID_COMMAND),
        (c.GET_STREAM, b"\x01\x03\0\0\0\0", Status.INVALID_IDENTIFIER),
        (c.GET_STREAM, b"\x02\x00", Status.INVALID_IDENTIFIER),
        (c.GET_STREAM, b"\x02\x05ab", Status.INVALID_COMMAND),
        (c.GET_STREAM, b"\x02\x02\xff\xfe", Status.INVALID_UTF8),
        (c.CREATE_USER, b"\x03bob\x06secret\x07\x00", Status.INVALID_USER_STATUS),
        (c.READ_TICKET, b"\xc1", Status.INVALID_COMMAND),
        (c.READ_TICKET, msgspec.msgpack.encode({"topics": [["a"]]}), Status.INVALID_COMMAND),
        (c.STORE_CONSUMER_OFFSET, b"\x09\x02\x01x", Status.INVALID_COMMAND),
    ],
)
def test_refusals_have_numbers(command: AnyCommand, payload: bytes, status: Status) -> None:
    with pytest.raises(DecodeError) as caught:
        command.decode_request(payload)
    assert caught.value.code == status


def test_numeric_zero_does_not_exist_in_dialect_a() -> None:
    with pytest.raises(DecodeError) as caught:
        c.GET_STREAM.decode_request(b"\x01\x04\0\0\0\0", Dialect.A)
    assert caught.value.code == Status.INVALID_IDENTIFIER


@pytest.mark.parametrize("dialect", [Dialect.A, Dialect.B1, Dialect.B2])
@pytest.mark.parametrize("kind", [StrategyKind.OFFSET, StrategyKind.NEXT])
@pytest.mark.parametrize("partition", [3, None])
def test_a_poll_decodes_alike_the_first_time_and_later(
    dialect: Dialect, kind: StrategyKind, partition: int | None
) -> None:
    for value in (0, 7, 2**64 - 1):
        poll = PollMessages(
            Consumer.group("g"), "s", 1, partition, Strategy(kind, value), 10, value == 7
        )
        encoded = poll.encode(dialect)
        if dialect is Dialect.A and partition is None:
            continue  # A cannot leave it out
        for _ in range(2):
            assert PollMessages.decode(encoded, dialect) == poll
            assert PollMessages.decode(encoded + b"more", dialect) == poll


def test_polls_that_are_wrong_at_their_end() -> None:
    good = PollMessages(Consumer.single(), "s", 1, 0, Strategy.next(), 10).encode()
    PollMessages.decode(good)
    for wrong in (good[:-14] + b"\x09" + good[-13:], good[:-1]):
        with pytest.raises(DecodeError):
            PollMessages.decode(wrong)


def test_secrets_stay_out_of_texts() -> None:
    login = c.LOGIN_USER.request("iggy", "hunter2")
    assert "hunter2" not in repr(login)
