"""Every recorded request of dialect C means what it should and encodes to the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import xxhash

from headrace.wire.iggy.classic_frames import RequestFrame
from headrace.wire.iggy.commands import TABLE
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.messages import consumers, system, topics, users
from headrace.wire.iggy.messages.messages import (
    FlushUnsavedBuffer,
    PollMessages,
    SendMessages,
    decode_messages,
)
from headrace.wire.iggy.messages.system import Empty
from headrace.wire.iggy.messages.topics import Compression, CreateTopic, UpdateTopic
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from headrace.wire.iggy.request_stream import RequestStream
from headrace.wire.iggy.user_headers import HeaderKind, UserHeader
from headrace.wire.iggy.vsr import batch as vsr_batch
from headrace.wire.iggy.vsr import frames
from tests.conformance.iggy.test_bodies import EXPECTED as UNCHANGED

FOLDER = Path(__file__).parent / "frames_c"
FRAMES = sorted(path.stem.removeprefix("0.9.0-") for path in FOLDER.glob("*.hex"))
SENDS = [name for name in FRAMES if name.startswith("send-messages")]
SESSION = 42


def text(key: str, value: str) -> UserHeader:
    return UserHeader.of(key, value)


def number(key: str, value: int) -> UserHeader:
    return UserHeader(key.encode(), value.to_bytes(8, "little"), HeaderKind.UINT64)


DURABLE = (text("consumer_offset_durability", "replicated"), text("durability", "replicated"))
PLACE = ("s1", "t1")
EXPECTED: dict[str, object] = {
    **{name: request for name, (_, request) in UNCHANGED.items()},
    "create-consumer-group": consumers.CreateGroup(*PLACE, "g1"),
    "create-partitions": topics.CreatePartitions(*PLACE, 3),
    "create-personal-access-token-raw": users.CreatePersonalAccessToken("tok", 0),
    "create-stream": topics.CreateStream("s1"),
    "create-topic": CreateTopic("s1", 2, Compression.NONE, 0, 0, 0, "t1", DURABLE),
    "create-topic-options": CreateTopic(
        "s1",
        2,
        Compression.NONE,
        0,
        0,
        0,
        "t1",
        (
            text("compression_algorithm", "gzip"),
            *DURABLE,
            number("max_topic_size", 10**9),
            number("message_expiry", 300_000_000),
            number("segment_size", 128 << 20),
        ),
    ),
    "create-user": users.CreateUser("bob", "secret"),
    "delete-consumer-offset-part0": consumers.DeleteConsumerOffset(Consumer.group("g1"), *PLACE, 0),
    "delete-partitions": topics.DeletePartitions(*PLACE, 1),
    "delete-stream": topics.DeleteStream(5),
    "delete-topic": topics.DeleteTopic(*PLACE),
    "describe-options": system.DescribeOptions(system.OptionScope.TOPIC),
    "flush-unsaved-buffer-raw": FlushUnsavedBuffer(*PLACE, 0),
    "get-clients-raw": Empty(),
    "get-cluster-metadata": Empty(),
    "get-consumer-group": consumers.GetGroup(*PLACE, "g1"),
    "get-consumer-groups": consumers.GetGroups(*PLACE),
    "get-me-raw": Empty(),
    "get-personal-access-tokens-raw": Empty(),
    "get-stats": Empty(),
    "get-stream-named": topics.GetStream("s1"),
    "get-streams": Empty(),
    "get-topic": topics.GetTopic(*PLACE),
    "get-topics": topics.GetTopics("s1"),
    "get-user": users.GetUser("iggy"),
    "get-users": Empty(),
    "join-consumer-group": consumers.JoinGroup(*PLACE, "g1"),
    "login-register": users.LoginRegister(frames.VERSION, "rust-sdk", "0.11.0", "iggy", "iggy"),
    "logout-user": Empty(),
    "ping": Empty(),
    "poll-messages-consumer-next-part0": PollMessages(
        Consumer.single(1), *PLACE, 0, Strategy.next(), 10, True
    ),
    "poll-messages-consumer-offset5-nopart": PollMessages(
        Consumer.single("c"), *PLACE, None, Strategy.offset(5), 10
    ),
    "poll-messages-group-next-part0": PollMessages(
        Consumer.group("g1"), *PLACE, 0, Strategy.next(), 10
    ),
    "purge-stream": topics.PurgeStream("s1"),
    "purge-topic": topics.PurgeTopic(*PLACE),
    "store-consumer-offset-part0": consumers.StoreConsumerOffset(
        Consumer.group("g1"), *PLACE, 0, 2
    ),
    "sync-consumer-group": consumers.SyncGroup(*PLACE, "g1"),
    "update-stream": topics.UpdateStream("s1", "s2"),
    "update-topic": UpdateTopic(*PLACE, Compression.NONE, 0, 0, 0, "t2"),
}


def frame_bytes(name: str) -> bytes:
    return bytes.fromhex((FOLDER / f"0.9.0-{name}.hex").read_text())


def frame_of(name: str) -> tuple[RequestFrame, frames.Head]:
    (frame,) = RequestStream().feed(frame_bytes(name))
    assert isinstance(frame, RequestFrame)
    assert frame.head is not None
    return frame, frame.head


def test_all_recordings_are_here() -> None:
    assert len(FRAMES) == 50
    assert set(FRAMES) == EXPECTED.keys() | set(SENDS)


@pytest.mark.parametrize("name", EXPECTED)
def test_frame(name: str) -> None:
    frame, head = frame_of(name)
    command = TABLE[frame.code]
    assert command.name.lower().replace("_", "-") in name
    request = command.decode_request(frame.payload, Dialect.C)
    assert request == EXPECTED[name]
    pieces = command.encode_request(request, Dialect.C)
    assert b"".join(frames.encode_request(head, frame.code, pieces)) == frame_bytes(name)


@pytest.mark.parametrize("name", FRAMES)
def test_header(name: str) -> None:
    frame, head = frame_of(name)
    assert head.fault == ""
    assert any(head.client)
    early = name in ("login-register", "ping")
    assert head.session == (0 if early else SESSION)
    is_read = head.operation == frames.READ
    assert is_read == (frame.code not in (*frames.OPERATION_OF, 40))
    if is_read or head.operation >= frames.SEND:
        assert not any(head.checksum)
    else:
        assert head.checksum == frames.body_checksum(frame.payload)


def test_numbers_are_given_to_what_changes_something() -> None:
    """Reads carry the number that the next change will have."""
    changes = [frame_of(name)[1] for name in FRAMES]
    numbers = [
        head.number for head in changes if head.operation not in (frames.READ, frames.REGISTER)
    ]
    assert sorted(set(numbers)) == sorted(numbers)


@pytest.mark.parametrize("name", SENDS)
def test_send(name: str) -> None:
    frame, head = frame_of(name)
    assert head.operation == frames.SEND
    request = SendMessages.decode(frame.payload, Dialect.C)
    assert (request.stream, request.topic) == PLACE
    assert request.partitioning == Partitioning.to_partition(0)  # the client chose it
    messages = decode_messages(request.area)
    expected = {
        "send-messages-two": [b"hello", b"world!!"],
        "send-messages-balanced-id77": [b"hello"],
        "send-messages-key-and-header": [b"hello"],
    }
    assert [message.payload for message in messages] == expected[name]
    assert all(message.id for message in messages)
    assert (messages[0].id == 77) == name.endswith("id77")
    seven = UserHeader(b"a", bytes((7, 0, 0, 0)), HeaderKind.UINT32)
    assert messages[0].user_headers == ((seven,) if name.endswith("header") else ())
    pieces = request.pieces(Dialect.C)
    assert b"".join(frames.encode_request(head, frame.code, pieces)) == frame_bytes(name)


def test_the_origin_of_each_message_is_its_own() -> None:
    request = SendMessages.decode(frame_of("send-messages-two")[0].payload, Dialect.C)
    first, second = decode_messages(request.area)
    assert second.origin_timestamp_us - first.origin_timestamp_us == 1


def test_checksums_as_the_protocol_has_them() -> None:
    """By hand, over the recorded bytes."""
    payload = frame_of("send-messages-two")[0].payload
    batch = bytes(payload[22:])
    first = batch[256 : 256 + 48 + 5]
    second = batch[256 + 48 + 5 :]
    sums = b""
    for one in (first, second):
        assert xxhash.xxh3_64_intdigest(one[8:]).to_bytes(8, "little") == one[:8]
        sums += one[:8]
    covered = batch[:40] + batch[48:52] + sums
    assert xxhash.xxh3_64_intdigest(covered).to_bytes(8, "little") == batch[40:48]
    assert vsr_batch.identity_of_send(payload) == bytes(payload[:22]) + batch[:48]
