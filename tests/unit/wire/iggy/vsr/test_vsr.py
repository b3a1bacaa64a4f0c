"""Dialect C's framing: requests cut anywhere, headers that are refused, replies and evictions."""

from __future__ import annotations

import struct

import pytest

from headrace.errors import RemoteProtocolError
from headrace.wire.iggy.classic_frames import OtherFraming, RequestFrame, TooLarge, encode_request
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import Status
from headrace.wire.iggy.messages.users import LoginRegister, LoginRegisterWithToken
from headrace.wire.iggy.request_stream import FramePool, RequestStream
from headrace.wire.iggy.vsr import batch
from headrace.wire.iggy.vsr import frames as vsr
from headrace.wire.iggy.vsr.client import Conversation, VsrReplyDecoder

CLIENT = bytes(range(1, 17))
BODY = b"\x02\x02s1"


def frame(
    operation: int = vsr.READ, code: int = 200, body: bytes = BODY, **fields: object
) -> bytearray:
    head = vsr.Head(operation, 7, 42, CLIENT)._replace(**fields)  # type: ignore[arg-type]
    return bytearray(b"".join(vsr.encode_request(head, code, [body])))


def one(data: bytes | bytearray) -> tuple[RequestFrame, vsr.Head]:
    (event,) = RequestStream().feed(bytes(data))
    assert isinstance(event, RequestFrame)
    assert event.head is not None
    return event, event.head


def test_a_header_as_the_reference_lays_it_out() -> None:
    data = frame(checksum=vsr.body_checksum(BODY))
    assert len(data) == 256 + len(BODY)
    assert struct.unpack_from("<I", data, 48) == (len(data),)
    assert data[60] == 5
    assert data[128:144] == CLIENT
    assert struct.unpack_from("<QB", data, 168) == (7, vsr.READ)
    assert struct.unpack_from("<QII", data, 184) == (42, 0, 200)
    assert not any(data[:48] + data[52:60] + data[61:128] + data[160:168] + data[200:256])
    event, head = one(data)
    assert (event.code, bytes(event.payload)) == (200, BODY)
    assert head == vsr.Head(vsr.READ, 7, 42, CLIENT, vsr.body_checksum(BODY))


def test_whole_and_byte_by_byte_are_the_same() -> None:
    data = bytes(frame() + frame(160, 101, b"x" * 300) + frame(body=b""))
    whole = RequestStream().feed(data)
    stream, pieces = RequestStream(), []
    for at in range(len(data)):
        pieces += stream.feed(data[at : at + 1])
    assert [(e.code, bytes(e.payload), e.head) for e in whole if isinstance(e, RequestFrame)] == [
        (e.code, bytes(e.payload), e.head) for e in pieces if isinstance(e, RequestFrame)
    ]
    assert len(pieces) == 3
    assert stream.has_heads
    assert stream.buffered_bytes == 0


def test_classic_bytes_stay_classic() -> None:
    data = b"".join(encode_request(1)) + b"".join(encode_request(200, [BODY]))
    stream, events = RequestStream(), []
    for at in range(len(data)):
        events += stream.feed(data[at : at + 1])
    assert [e.code for e in events if isinstance(e, RequestFrame) and e.head is None] == [1, 200]
    assert not stream.has_heads


@pytest.mark.parametrize(
    ("at", "value"), [(48, b"\xff\0\0\0"), (60, b"\x08")], ids=["size", "command"]
)
def test_zeros_that_begin_no_header_are_no_framing_of_ours(at: int, value: bytes) -> None:
    data = frame()
    data[at : at + len(value)] = value
    stream, events = RequestStream(), []
    for position in range(len(data)):
        events += stream.feed(bytes(data[position : position + 1]))
    assert events == [OtherFraming()]


@pytest.mark.parametrize(
    ("at", "value", "fault"),
    [
        (0, b"\1", "checksums that no client states"),
        (16, b"\1", "checksums that no client states"),
        (32, b"\1", "checksums that no client states"),
        (60, b"\6", "not a request"),
        (128, bytes(16), "no client id"),
        (144, b"\1", "the body does not have this checksum"),
        (168, b"\xff" * 8, "number out of range"),
        (184, b"\xff" * 8, "number out of range"),
    ],
)
def test_a_fault_costs_only_its_own_frame(at: int, value: bytes, fault: str) -> None:
    bad = frame()
    bad[at : at + len(value)] = value
    events = RequestStream().feed(bytes(frame() + bad + frame()))
    faults = [e.head.fault for e in events if isinstance(e, RequestFrame) and e.head is not None]
    assert faults == ["", fault, ""]


def test_codes_of_operations() -> None:
    assert one(frame(128, 0))[0].code == 202
    assert one(frame(160, 0))[0].code == 101
    assert one(frame(200, 0))[0].code == -1  # nobody's
    for own in (101, 202, 38, 44, 40, 45, 39):  # what has an operation is no read
        assert one(frame(vsr.READ, own))[0].code == -1
    assert one(frame(vsr.READ, 9000))[0].code == 9000


@pytest.mark.parametrize("context", ["", "by a test"])
def test_a_login_tells_passwords_from_tokens(context: str) -> None:
    password = LoginRegister(vsr.VERSION, "sdk", "0.11.0", "iggy", "iggy", context)
    token = LoginRegisterWithToken(vsr.VERSION, "sdk", "0.11.0", "t" * 40, context)
    assert one(frame(vsr.REGISTER, 0, password.encode(Dialect.C)))[0].code == 40
    assert one(frame(vsr.REGISTER, 0, token.encode(Dialect.C)))[0].code == 45
    for length in range(len(token.encode(Dialect.C))):
        assert one(frame(vsr.REGISTER, 0, token.encode(Dialect.C)[:length]))[0].code in (40, 45)


def test_lengths_are_refused_before_their_bytes_come() -> None:
    limited = RequestStream(frame_bytes_max=1000, send_frame_bytes_max=5000)
    head = frame(200, 0)
    struct.pack_into("<I", head, 48, 256 + 5001)
    (event,) = limited.feed(bytes(head[:100]))
    assert isinstance(event, TooLarge)
    assert limited.feed(bytes(frame())) == []

    reads = RequestStream(frame_bytes_max=1000, send_frame_bytes_max=5000)
    head = frame()
    struct.pack_into("<I", head, 48, 256 + 1001)
    assert reads.feed(bytes(head[:255])) == []
    (event,) = reads.feed(bytes(head[255:256]))
    assert isinstance(event, TooLarge)
    assert event.head is not None
    assert (event.code, event.head.number) == (200, 7)

    sends = RequestStream(frame_bytes_max=1000, send_frame_bytes_max=5000)
    (event,) = sends.feed(bytes(frame(160, 0, b"m" * 5000)))
    assert isinstance(event, RequestFrame)
    again = frame(160, 0, b"m" * 10)
    struct.pack_into("<I", again, 48, 255)
    (event,) = sends.feed(bytes(again))
    assert isinstance(event, TooLarge)


def test_room_for_the_rest_of_a_frame() -> None:
    data = bytes(frame(160, 0, bytes(range(256)) * 8))
    stream = RequestStream()
    assert stream.room(0, 1 << 20) is None
    assert stream.feed(data[:1000]) == []
    assert stream.room(1001, 1 << 20) is None
    assert stream.room(0, len(data) - 1) is None
    room = stream.room(1000, len(data))
    assert room is not None
    room[:] = data[1000:]
    event = stream.complete()
    assert isinstance(event, RequestFrame)
    assert bytes(event.payload) == data[256:]
    assert stream.buffered_bytes == 0


def test_memory_of_sends_is_used_again() -> None:
    pool = FramePool(bytes_max=5000)
    stream = RequestStream(pool=pool)

    def receive(operation: int, body: bytes) -> RequestFrame:
        data = bytes(frame(operation, 0, body))
        assert stream.feed(data[:300]) == []
        room = stream.room(0, 1 << 20)
        assert room is not None
        assert len(room) == len(data) - 300
        room[:] = data[300:]
        event = stream.complete()
        assert isinstance(event, RequestFrame)
        assert bytes(event.payload) == body
        return event

    first = receive(160, b"a" * 1000).payload
    second = receive(160, b"b" * 900).payload
    assert first[:900] == second  # the same memory
    kept = receive(128, b"c" * 800).payload  # of others it is their own
    assert bytes(second[:1]) == b"c"
    receive(160, b"d" * 800)
    assert bytes(kept) == b"c" * 800
    receive(160, b"e" * 4000)
    receive(160, b"f" * 4000)
    assert pool.bytes <= 5000
    assert len(pool.take(100_000)) == 100_000
    event = receive(160, b"g" * 1000)
    assert isinstance(event.head, vsr.Head)
    assert event.head.lent is not None
    event.head.lent.kept = True
    receive(160, b"h" * 1000)
    receive(160, b"i" * 1000)
    assert bytes(event.payload) == b"g" * 1000, "kept: another one's memory was used"


def test_memory_of_former_lengths_makes_room() -> None:
    pool = FramePool(bytes_max=1 << 20)
    for _ in range(1000):
        pool.give(bytearray(20_000))
    assert pool.bytes <= 64 * 20_000
    long = bytearray(150_000)
    pool.give(long)
    assert pool.bytes <= 1 << 20
    assert pool.take(149_000) is long
    assert pool.take(149_000) is not long


def test_a_send_gets_room_to_grow() -> None:
    """By sixteen bytes for each of many messages; not where its beginning makes no sense."""

    def room_of(operation: int, body: bytes, *, kept: bool = False) -> memoryview | None:
        data = bytes(frame(operation, 0, body))
        stream = RequestStream(keeps_frames=lambda: kept)
        assert stream.feed(data[:300]) == []
        rest = stream.room(0, 1 << 21)
        assert rest is not None
        rest[:] = data[300:]
        event = stream.complete()
        assert isinstance(event, RequestFrame)
        assert event.head is not None
        assert bytes(event.payload) == body
        assert (event.head.lent is None) == (operation != 160 or event.head.room is not None)
        return event.head.room

    least = batch.IN_PLACE_BYTES_MIN
    body = struct.pack("<I10xI", 14, 100) + bytes(least - 18)
    room = room_of(160, body)
    assert room is not None
    assert len(room) == len(body) + 100 * 16
    assert bytes(room[: len(body)]) == body
    assert room_of(128, body) is None
    assert room_of(160, body, kept=True) is None
    few = struct.pack("<I10xI", 14, 16) + bytes(least)
    many = struct.pack("<I10xI", 14, 1 << 20) + bytes(least)
    unbelievable = struct.pack("<I", 1 << 31) + bytes(least)
    for other in (body[:-1], few, many, unbelievable, bytes(least), b"\3" * least):
        assert room_of(160, other) is None


# --- replies --------------------------------------------------------------------------------------


def reply(operation: int, status: int, *pieces: bytes) -> bytes:
    head = vsr.Head(operation, 9, 42, CLIENT, b"\1" * 16)
    return b"".join(vsr.encode_reply(head, status, pieces))


def test_a_reply_as_the_reference_lays_it_out() -> None:
    data = reply(vsr.READ, 0, b"ab", b"c")
    assert struct.unpack_from("<I", data, 48) == (259,)
    assert (data[60], data[208], data[256:]) == (8, vsr.READ, b"abc")
    assert data[128:144] == b"\1" * 16
    assert data[160:176] == CLIENT
    assert struct.unpack_from("<Q", data, 200) == (9,)
    assert struct.unpack_from("<I", data, 216) == (0,)
    assert not any(data[220:256])


def test_results_are_framed_where_clients_expect_them() -> None:
    assert reply(128, 0, b"made")[256:] == b"\0\0\0\0made"
    assert reply(128, Status.STREAM_NAME_ALREADY_EXISTS)[256:] == struct.pack("<III", 1, 0, 1012)
    assert struct.unpack_from("<I", reply(128, Status.STREAM_NAME_ALREADY_EXISTS), 216) == (0,)
    for operation in (vsr.READ, vsr.SEND, vsr.LOGOUT, 138):
        assert reply(operation, 0, b"x")[256:] == b"x"
        refused = reply(operation, Status.UNAUTHORIZED)
        assert (len(refused), struct.unpack_from("<I", refused, 216)) == (256, (41,))
    assert set(range(128, 150)) - {138} | {1, 161, 162} == vsr.RESULTS


@pytest.mark.parametrize(
    ("operation", "status", "reason"),
    [
        (vsr.REGISTER, Status.INVALID_CREDENTIALS, 9),
        (vsr.REGISTER, Status.INVALID_PERSONAL_ACCESS_TOKEN, 10),
        (vsr.REGISTER, Status.RESOURCE_NOT_FOUND, 10),
        (vsr.REGISTER, Status.PERSONAL_ACCESS_TOKEN_EXPIRED, 10),
        (vsr.REGISTER, Status.USER_INACTIVE, 11),
        (vsr.REGISTER, Status.INCOMPATIBLE_PROTOCOL_VERSION, 14),
        (vsr.REGISTER, Status.INVALID_COMMAND, 15),
        (128, Status.UNAUTHENTICATED, 1),
        (vsr.SEND, Status.INVALID_SESSION, 7),
        (vsr.READ, Status.STALE_CLIENT, 13),
        (161, Status.STALE_CLIENT, 13),
    ],
)
def test_evictions(operation: int, status: int, reason: int) -> None:
    data = reply(operation, status)
    assert len(data) == 256
    assert struct.unpack_from("<I", data, 48) == (256,)
    assert (data[60], data[255]) == (13, reason)
    assert data[128:144] == CLIENT
    newest, oldest = struct.unpack_from("<II", data, 144)
    assert oldest <= vsr.VERSION == 0x2C00 <= newest
    assert vsr.decode_reply(data).evicted == reason


def test_a_refused_read_is_no_eviction() -> None:
    refused = vsr.decode_reply(reply(vsr.READ, Status.UNAUTHENTICATED))
    assert (refused.status, refused.evicted) == (40, None)
    transient = vsr.decode_reply(reply(vsr.REGISTER, Status.TASK_TIMEOUT))
    assert (transient.status, transient.evicted) == (12001, None)


def test_clients_read_what_servers_write() -> None:
    decoder = VsrReplyDecoder()
    data = reply(128, 0, b"made") + reply(vsr.SEND, 0) + reply(128, 1012) + reply(vsr.SEND, 3007)
    frames = []
    for at in range(len(data)):
        frames += decoder.feed(data[at : at + 1])
    found = [(one.status, bytes(one.payload)) for one in frames]
    assert found == [(0, b"made"), (0, b""), (1012, b""), (3007, b"")]
    with pytest.raises(RemoteProtocolError):
        VsrReplyDecoder(response_bytes_max=10).feed(reply(vsr.READ, 0, b"x" * 11))
    for broken in (
        reply(128, 0)[:256],
        reply(128, 1012)[:260],
        bytes(60) + b"\x09" + bytes(195),
    ):
        changed = bytearray(broken)
        struct.pack_into("<I", changed, 48, len(changed))
        with pytest.raises(RemoteProtocolError):
            vsr.decode_reply(bytes(changed))


def test_a_conversation_numbers_its_changes() -> None:
    talk = Conversation(CLIENT)
    login = one(b"".join(talk.encode(40, [b"body"])))[1]
    assert (login.operation, login.number, login.session) == (vsr.REGISTER, 0, 0)
    talk.on_registered(5)
    read = one(b"".join(talk.encode(200, [BODY])))[1]
    assert (read.number, read.session, any(read.checksum)) == (1, 5, False)
    first = b"".join(talk.encode(202, [BODY]))
    assert one(first)[1] == vsr.Head(128, 1, 5, CLIENT, vsr.body_checksum(BODY))
    assert b"".join(talk.again()) == first
    assert one(b"".join(talk.encode(101, [b"m"])))[1].number == 2
    assert one(b"".join(talk.encode(1, [])))[1].number == 3
