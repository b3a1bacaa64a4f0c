"""Both ends of a connection without sockets: the same bytes give the same events in any chunks."""

from __future__ import annotations

import pytest

from headrace.errors import DeadlineError, InvalidArgumentError, UnavailableError
from headrace.wire.sbp import connection
from headrace.wire.sbp.connection import (
    Answer,
    BadResponse,
    ClientConnection,
    GoAway,
    Request,
    Response,
    ServerConnection,
)
from headrace.wire.sbp.flat import Buffer, decode, encode
from headrace.wire.sbp.frames import Frame, FrameDecoder, encode_frame
from headrace.wire.sbp.messages import FetchRequest, SystemErrorResponse
from headrace.wire.sbp.opcodes import TABLE, Code, Role

HEADER = encode(FetchRequest(5))


def wire(*frames: Frame) -> bytes:
    return b"".join(b"".join(encode_frame(frame)) for frame in frames)


def one_frame(pieces: list[Buffer]) -> Frame:
    (frame,) = FrameDecoder().feed(b"".join(pieces))
    assert isinstance(frame, Frame)
    return frame


def plain(event: object) -> object:
    """Events by content; a Request is itself only."""
    if isinstance(event, Request):
        return event.opcode.code, event.stream_id, bytes(event.header), bytes(event.payload)
    return b"".join(event.pieces) if isinstance(event, Answer) else event


def damaged(frame: Frame) -> bytes:
    data = bytearray(wire(frame))
    data[-1] ^= 1
    return bytes(data)


CLIENT_SPEAKS = (
    wire(
        Frame(Code.PING, 0, 1, b"", b"p"),
        Frame(Code.FETCH, 0, 2, HEADER),
        Frame(Code.FETCH, 0, 2, HEADER),  # in flight
        Frame(0x6666, 0, 3),  # unknown
        Frame(Code.CREATE_STREAMS, 0, 4, HEADER),  # another role's
        Frame(Code.FETCH, 0, 5, HEADER, header_format=2),
        Frame(Code.FETCH, 3, 6, HEADER),  # a response nobody waits for
        Frame(Code.GOAWAY, 0, 7),
    )
    + damaged(Frame(Code.APPEND, 0, 8, b"", b"x"))
    + damaged(Frame(Code.APPEND, 1, 9, b"", b"x"))  # a damaged response is nobody's business
)


def test_server_events_whole_and_byte_by_byte() -> None:
    whole = [plain(e) for e in ServerConnection(Role.DATA_NODE).receive(CLIENT_SPEAKS)]
    server = ServerConnection(Role.DATA_NODE)
    bytewise = [
        plain(e)
        for i in range(len(CLIENT_SPEAKS))
        for e in server.receive(CLIENT_SPEAKS[i : i + 1])
    ]
    assert whole == bytewise
    assert [e for e in whole if not isinstance(e, bytes)] == [
        (Code.FETCH, 2, HEADER, b""),
        GoAway(),
    ]
    answers = [one_frame([e]) for e in whole if isinstance(e, bytes)]
    assert [(a.opcode, a.stream_id, a.flags) for a in answers] == [
        (Code.PING, 1, 3),
        (Code.FETCH, 2, 7),
        (Code.CREATE_STREAMS, 4, 7),
        (Code.FETCH, 5, 7),
        (Code.GOAWAY, 7, 3),
        (Code.APPEND, 8, 7),
    ]


def test_client_events_whole_and_byte_by_byte() -> None:
    outcomes = []
    for chunk in (10_000, 1):
        client = ClientConnection()
        ids = [client.request(Code.FETCH, HEADER)[0] for _ in range(4)]
        assert ids == [1, 2, 3, 4]
        data = wire(
            Frame(Code.FETCH, 1, 2, b"h", b"first"),
            Frame(Code.FETCH, 3, 77),  # unknown id
            Frame(Code.APPEND, 3, 3),  # another operation
            Frame(Code.PING, 0, 2, b"", b"p"),  # the server's own id 2
            Frame(Code.FETCH, 5, 2),
            Frame(Code.GOAWAY, 0, 2),
        ) + damaged(Frame(Code.FETCH, 3, 1, b"", b"x"))
        events = []
        for position in range(0, len(data), chunk):
            events += [plain(e) for e in client.receive(data[position : position + chunk])]
        outcomes.append(events)
    assert outcomes[0] == outcomes[1]
    assert outcomes[0] == [
        Response(2, 1, b"h", b"first"),
        BadResponse(3, "answer to another operation"),
        wire(Frame(Code.PING, 3, 2, b"", b"p")),
        Response(2, 5, b"", b""),
        wire(Frame(Code.GOAWAY, 3, 2)),
        GoAway((3, 4)),
        BadResponse(1, "payload checksum mismatch"),
    ]
    assert not Response(1, 1, b"", b"").is_last
    assert Response(1, 3, b"", b"").is_last
    assert Response(1, 5, b"", b"").is_last  # a system error ends an answer also without END


def test_every_opcode_is_served_by_the_roles_of_the_table() -> None:
    for role in (Role.DATA_NODE, Role.PLACEMENT_MANAGER):
        for code, row in TABLE.items():
            if code in (Code.PING, Code.GOAWAY):
                continue
            (event,) = ServerConnection(role).receive(wire(Frame(code, 0, 1)))
            assert isinstance(event, Request) == bool(row.served_by & role), row.name


def test_goaway_tells_the_highest_id_received_and_later_requests_are_dropped() -> None:
    server = ServerConnection(Role.DATA_NODE)
    server.receive(wire(Frame(Code.FETCH, 0, 5, HEADER), Frame(Code.FETCH, 0, 3, HEADER)))
    goaway = one_frame(server.go_away())
    assert (goaway.opcode, goaway.flags, goaway.stream_id) == (Code.GOAWAY, 0, 5)
    assert server.receive(wire(Frame(Code.FETCH, 0, 6, HEADER))) == []
    (pong,) = server.receive(wire(Frame(Code.PING, 0, 7)))
    assert isinstance(pong, Answer)
    assert sorted(server.in_flight) == [3, 5]


def test_an_answer_goes_to_the_request_it_answers_and_only_once() -> None:
    server = ServerConnection(Role.DATA_NODE)
    (first,) = server.receive(wire(Frame(Code.FETCH, 0, 5, HEADER)))
    assert isinstance(first, Request)
    timeout = one_frame(server.fail(first, DeadlineError("timeout")))
    assert decode(SystemErrorResponse, timeout.header).status is not None
    (second,) = server.receive(wire(Frame(Code.FETCH, 0, 5, HEADER)))  # the id is free again
    assert isinstance(second, Request)
    assert server.respond(first, b"", (), last=True) == []  # too late, and not the second's answer
    assert server.fail(first, InvalidArgumentError("late")) == []
    assert one_frame(server.respond(second, b"h", [b"p"], last=False)).flags == 1
    assert one_frame(server.respond(second, b"h", [b"p"], last=True)).flags == 3
    assert server.in_flight == {}


def test_a_client_out_of_ids_asks_for_another_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STREAM_ID_MAX", 2)
    client = ClientConnection()
    assert [client.request(Code.PING)[0] for _ in range(2)] == [1, 2]
    with pytest.raises(UnavailableError):
        client.request(Code.PING)
    assert client.going_away


def test_a_forgotten_request_gets_no_answer() -> None:
    client = ClientConnection()
    stream_id, _ = client.request(Code.PING)
    client.forget(stream_id)
    assert client.receive(wire(Frame(Code.PING, 3, stream_id))) == []
