"""Bytes of the three protocols come out as text, from hex, from files and from captures."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import dpkt
import pytest
from click.testing import CliRunner

from headrace.cli.decode import pieces_of
from headrace.cli.decode.explaining import Conversation, Protocol, Side
from headrace.cli.main import app
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.classic_frames import encode_request, encode_response
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.messages.messages import Message, encode_send
from headrace.wire.iggy.messages.users import LoginUser
from headrace.wire.iggy.primitives import Partitioning
from headrace.wire.sbp.flat import encode
from headrace.wire.sbp.frames import END, RESPONSE, Frame, encode_frame
from headrace.wire.sbp.messages import OK, FetchInfo, FetchRequest, FetchResponse, FetchResult
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import encode_header
from headrace.wire.umbilical.codec import PROTOCOL_NAME, PROTOCOL_VERSION, TABLE
from headrace.wire.umbilical.codec import encode as encode_message
from headrace.wire.umbilical.rpc import ClientConnection
from tests.conformance.umbilical import samples

FRAMES = sorted(Path("tests/conformance/iggy").glob("frames*/*.hex"))


def hexed(path: Path) -> bytes:
    text = "".join(
        line.partition("#")[0] for line in path.read_text().splitlines() if line[:1] != "#"
    )
    return bytes.fromhex(text)


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: path.stem)
def test_every_recorded_request_is_told(path: Path) -> None:
    entries = list(Conversation().feed(Side.CLIENT, hexed(path)))
    assert entries
    for entry in entries:
        assert (entry.protocol, entry.error) == (Protocol.IGGY, "")
        assert "unknown" not in entry.name


def iggy_exchange() -> list[tuple[Side, bytes]]:
    login = c.LOGIN_USER.encode_request(LoginUser("ann", "top secret", "0.10.0", "x"), Dialect.B2)
    send = encode_send(
        "shop", "orders", Partitioning.by_key(b"k"), [Message(b"one"), Message(b"2")]
    )
    return [
        (Side.CLIENT, b"".join(encode_request(38, login))),
        (Side.SERVER, b"".join(encode_response(0, [(7).to_bytes(4, "little")]))),
        (Side.CLIENT, b"".join(encode_request(101, send.pieces(Dialect.B2)))),
        (Side.SERVER, b"".join(encode_response(2010))),
    ]


def check_iggy(told: list[dict[str, Any]]) -> None:
    assert [(each["sender"], each["name"]) for each in told] == [
        ("client", "LOGIN_USER"), ("server", "LOGIN_USER answer"),
        ("client", "SEND_MESSAGES"), ("server", "SEND_MESSAGES answer"),
    ]  # fmt: skip
    assert told[0]["fields"]["username"] == "ann"
    assert "top secret" not in json.dumps(told)
    assert told[1]["fields"]["user_id"] == 7
    assert (told[2]["fields"]["stream"], told[2]["fields"]["count"]) == ("shop", 2)
    assert told[3]["fields"]["refused"] == "TOPIC_ID_NOT_FOUND"


def run(*arguments: str, input: bytes | None = None) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["decode", *arguments, "--json"], input=input)
    assert done.exit_code == 0, (done.output, done.exception)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_hex_with_marks_for_both_sides() -> None:
    marks = {Side.CLIENT: ">", Side.SERVER: "<"}
    text = "# a login\n" + "".join(
        f"{marks[side]} {data.hex(' ', 4)}\n" for side, data in iggy_exchange()
    )
    check_iggy(run(input=text.encode()))


def test_bytes_that_are_not_hex_are_taken_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "client.bin"
    file.write_bytes(b"".join(data for side, data in iggy_exchange() if side is Side.CLIENT))
    assert [each["name"] for each in run(str(file))] == ["LOGIN_USER", "SEND_MESSAGES"]
    assert pieces_of(b"abc", Side.SERVER) == [(Side.SERVER, b"abc")]


def capture(path: Path, pieces: list[tuple[Side, bytes]], seed: int) -> None:
    """A connection in packets of all sizes, some swapped with the next, some sent twice."""
    rng = random.Random(seed)
    client, server = b"\x7f\0\0\1", b"\x7f\0\0\2"
    at = {Side.CLIENT: 0xFFFF_FFF0, Side.SERVER: 1000}
    ports = {Side.CLIENT: (50000, 8090), Side.SERVER: (8090, 50000)}
    with path.open("wb") as file:
        writer = dpkt.pcap.Writer(file)

        def write(side: Side, sequence: int, data: bytes, flags: int = dpkt.tcp.TH_ACK) -> None:
            sport, dport = ports[side]
            tcp = dpkt.tcp.TCP(sport=sport, dport=dport, seq=sequence, flags=flags, data=data)
            ends = (client, server) if side is Side.CLIENT else (server, client)
            ip = dpkt.ip.IP(src=ends[0], dst=ends[1], p=dpkt.ip.IP_PROTO_TCP, data=tcp)
            ip.len = len(ip)
            writer.writepkt(bytes(dpkt.ethernet.Ethernet(data=ip)))

        for side, flags in ((Side.CLIENT, 0x02), (Side.SERVER, 0x12)):
            write(side, at[side], b"", flags)
            at[side] = (at[side] + 1) % (1 << 32)
        for side, data in pieces:
            packets = []
            while data:
                size = min(rng.randint(1, 40), len(data))
                packets.append((at[side], data[:size]))
                at[side] = (at[side] + size) % (1 << 32)
                data = data[size:]
            for number in range(0, len(packets) - 1, 3):
                packets[number], packets[number + 1] = packets[number + 1], packets[number]
            for sequence, payload in packets:
                for _ in range(rng.choice((1, 1, 2))):
                    write(side, sequence, payload)


@pytest.mark.parametrize("seed", range(10))
def test_a_capture_is_put_together_again(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "some.pcap"
    capture(path, iggy_exchange(), seed)
    told = run(str(path))
    check_iggy(told)
    assert {each["connection"] for each in told} == {1}
    assert CliRunner().invoke(app, ["decode", str(path), "--port", "1"]).exit_code == 1


def test_sbp_is_told_with_its_batches() -> None:
    body = (b"payload",)
    header = encode_header(
        base_offset=5, body=body, record_count=1, base_timestamp=1, max_timestamp=2
    )
    request = FetchRequest(max_wait_ms=9, fetch_requests=(FetchInfo(3, 0, 5, 100),))
    result = FetchResult(stream_id=3, batch_length=len(header) + 7, status=OK)
    answer = FetchResponse(fetch_responses=(result,), status=OK)
    conversation = Conversation()
    asked = Frame(Code.FETCH, 0, 1, encode(request))
    answered = Frame(Code.FETCH, RESPONSE | END, 1, encode(answer), [header, *body])
    (first,) = conversation.feed(Side.CLIENT, b"".join(encode_frame(asked)))
    (second,) = conversation.feed(Side.SERVER, b"".join(encode_frame(answered)))
    assert (first.name, first.fields["max_wait_ms"]) == ("FETCH", 9)
    assert second.name == "FETCH answer"
    assert second.fields["payload"][0]["base_offset"] == 5


def test_the_umbilical_is_told() -> None:
    client = ClientConnection(PROTOCOL_NAME, PROTOCOL_VERSION, bytes(16))
    conversation = Conversation()
    greeting = conversation.feed(Side.CLIENT, client.greet("container"))
    assert [each.name for each in greeting] == ["hello", "context"]
    for number, name in enumerate(TABLE):
        data = client.call(number, name, encode_message(samples.REQUESTS[name]))
        (entry,) = conversation.feed(Side.CLIENT, data)
        assert (entry.name, entry.error) == (name, "")


def test_rubbish_is_no_frame() -> None:
    done = CliRunner().invoke(app, ["decode", "-"], input=b"\x01\x00")
    assert (done.exit_code, "no whole frame" in done.stderr) == (1, True)
    bad = Conversation(Protocol.SBP)
    (entry,) = bad.feed(Side.CLIENT, b"\xff" * 64)
    assert entry.error
