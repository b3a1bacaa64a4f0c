"""Wireshark's own dissection (tshark) of our traffic, with the dissectors that we ship."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.cli.decode.explaining import Conversation, Side
from headrace.cli.main import app
from headrace.cli.wireshark import scripts
from headrace.client.iggy import IggyClient
from headrace.client.url import TlsOptions
from headrace.config.settings import Settings
from headrace.errors import NotFoundError
from headrace.net.addresses import parse_address
from headrace.runtime.system import system_runtime
from headrace.sbp_client.channels import tcp_connect
from headrace.sbp_client.client import SbpClient
from headrace.testing import LocalBroker
from headrace.wire.iggy.classic_frames import encode_response
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.vsr import frames as vsr
from headrace.wire.sbp.records import encode_header
from headrace.wire.umbilical.codec import PROTOCOL_NAME, PROTOCOL_VERSION, TABLE
from headrace.wire.umbilical.codec import encode as encode_message
from headrace.wire.umbilical.rpc import (
    ClientConnection,
    ErrorCode,
    Request,
    RpcError,
    encode_error,
    encode_success,
)
from tests.captures import Recorded, RecordingProxy, write_pcap
from tests.conformance.umbilical import samples
from tests.unit.cli.decode.test_decode import FRAMES, hexed

UMBILICAL_PORT = 45_678
OTHER_PORT = 45_679
Layers = dict[str, Any]


def tshark(capture: Path, *arguments: str, home: Path | None = None) -> str:
    loaded = [] if home else [f"-Xlua_script:{each}" for each in scripts()]
    done = subprocess.run(
        ["tshark", "-r", str(capture), *loaded, *arguments],
        capture_output=True, encoding="utf-8", errors="replace", timeout=120, check=False,
        env=os.environ | ({"HOME": str(home), "XDG_CONFIG_HOME": str(home)} if home else {}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Lua" not in done.stderr, done.stderr
    assert "Lua Error" not in done.stdout
    return done.stdout


def dissected(capture: Path, *arguments: str) -> Iterator[tuple[int, str, Layers]]:
    """Every frame of ours: the number of its connection, the protocol, its fields."""
    wanted = ["-T", "json", "-J", "tcp sbp iggy umbilical", "--no-duplicate-keys", *arguments]
    for packet in json.loads(tshark(capture, *wanted)):
        layers = packet["_source"]["layers"]
        for protocol in ("sbp", "iggy", "umbilical"):
            found = layers.get(protocol, [])
            for each in found if isinstance(found, list) else [found]:
                yield int(layers["tcp"]["tcp.stream"]), protocol, each


def deep(fields: Any, name: str) -> Iterator[Any]:
    """Every value of the field, however deep it stands."""
    if isinstance(fields, list):
        for each in fields:
            yield from deep(each, name)
    elif isinstance(fields, dict):
        for key, value in fields.items():
            if key == name:
                yield from value if isinstance(value, list) else [value]
            else:
                yield from deep(value, name)


async def iggy_session(broker: LocalBroker) -> list[Recorded]:
    host, port = parse_address(broker.address)
    async with RecordingProxy(host, port, 8090) as proxy:
        async with await IggyClient.connect(
            system_runtime(), "127.0.0.1", proxy.listening
        ) as client:
            await client.login("iggy", "iggy")
            await client.create_stream("shop")
            await client.create_topic("shop", "orders", partitions_count=1)
            await client.send("shop", "orders", [Message(b"one"), Message(b"two" * 3000)])
            await client.poll("shop", "orders", partition=0, count=10)
            with pytest.raises(NotFoundError):
                await client.delete_topic("shop", "nothing")
        return proxy.recorded


async def sbp_session(broker: LocalBroker) -> list[Recorded]:
    managers, nodes = broker.addresses["placement_manager"], broker.addresses["data_node"]
    async with (
        RecordingProxy(*parse_address(managers), 12378) as manager,
        RecordingProxy(*parse_address(nodes), 10911) as node,
    ):
        runtime = system_runtime()
        to_node = tcp_connect(runtime, f"127.0.0.1:{node.listening}", client_id="test")
        client = SbpClient(
            runtime,
            placement=tcp_connect(runtime, f"127.0.0.1:{manager.listening}", client_id="test"),
            node=lambda _: to_node,
        )
        try:
            stream = await client.create_stream(name="plain")
            body = (b"payload",)
            header = encode_header(
                base_offset=0, body=body, record_count=1, base_timestamp=5, max_timestamp=5
            )
            await client.append(stream.stream_id, [header, *body])
            await client.bounds(stream.stream_id)
        finally:
            await client.close()
        return [*manager.recorded, *node.recorded]


def umbilical_session() -> Recorded:
    client = ClientConnection(PROTOCOL_NAME, PROTOCOL_VERSION, bytes(16))
    kept = Recorded(UMBILICAL_PORT).add(Side.CLIENT, client.greet("container"))
    for number, name in enumerate(TABLE):
        kept.add(Side.CLIENT, client.call(number, name, encode_message(samples.REQUESTS[name])))
        request = Request(number, bytes(16), -1, name, PROTOCOL_NAME, PROTOCOL_VERSION, b"")
        kept.add(Side.SERVER, encode_success(request, encode_message(samples.RESPONSES[name])))
    kept.add(Side.CLIENT, client.call(9, "log", encode_message(samples.REQUESTS["log"])))
    request = Request(9, bytes(16), -1, "log", PROTOCOL_NAME, PROTOCOL_VERSION, b"")
    error = RpcError("java.io.IOException", "no such container", ErrorCode.ERROR_APPLICATION)
    return kept.add(Side.SERVER, encode_error(request, error))


def golden_sessions() -> list[Recorded]:
    """What real clients sent, by their version, each request answered with an empty success."""
    sessions: dict[str, Recorded] = {}
    for path in FRAMES:
        frame = hexed(path)
        kept = sessions.setdefault(path.stem.split("-")[0] + path.parent.name, Recorded(8090))
        answer = encode_response(0)
        if path.parent.name == "frames_c":
            head, _ = vsr.decode_header(bytearray(frame))
            answer = vsr.encode_reply(head, 0)
        kept.add(Side.CLIENT, frame).add(Side.SERVER, b"".join(answer))
    return list(sessions.values())


@pytest.fixture(scope="module")
def sessions() -> list[Recorded]:
    async def both(broker: LocalBroker) -> list[Recorded]:
        return [*await iggy_session(broker), *await sbp_session(broker)]

    with LocalBroker(settings=Settings(plain_streams=True)) as broker:
        recorded = asyncio.run(both(broker))
    return [*recorded, umbilical_session(), *golden_sessions()]


@pytest.fixture(scope="module")
def frames(
    sessions: list[Recorded], tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[int, str, Layers]]:
    path = tmp_path_factory.mktemp("captures") / "sessions.pcap"
    write_pcap(path, sessions)
    return list(dissected(path, "-2"))


def test_every_frame_of_every_session_is_told(
    sessions: list[Recorded], frames: list[tuple[int, str, Layers]]
) -> None:
    """Whatever the segments: as many frames as our own decoder finds, with the same names."""
    for number, session in enumerate(sessions):
        conversation = Conversation()
        told = [e for side, data in session.pieces for e in conversation.feed(side, data)]
        found = [(protocol, each) for stream, protocol, each in frames if stream == number]
        assert {protocol for protocol, _ in found} == {str(told[0].protocol)}, number
        assert len(found) == len(told), (number, told[0].protocol)
        if told[0].protocol == "iggy":
            asked = [
                (int(each["iggy.code"]), each["iggy.dialect"])
                for _, each in found
                if "iggy.response" not in each
            ]
            assert asked == [
                (e.fields["code"], e.fields["dialect"]) for e in told if e.sender is Side.CLIENT
            ]
    assert not any(list(deep(each, "_ws.malformed")) for _, _, each in frames)
    problems = {name for _, _, each in frames for name in _experts(each)}
    assert problems == {"iggy.refused", "umbilical.failed"}


def _experts(fields: Any) -> set[str]:
    return {
        str(name)
        for each in deep(fields, "_ws.expert")
        for name in each
        if not name.startswith("_ws.")
    }


def test_iggy_fields_and_their_replies(frames: list[tuple[int, str, Layers]]) -> None:
    session = [each for stream, _, each in frames if stream == 0]
    asked = [each for each in session if "iggy.response" not in each]
    replies = [each for each in session if "iggy.response" in each]
    assert list(deep(asked[0], "iggy.username")) == ["iggy"]
    assert not list(deep(asked[0], "iggy.password"))
    send = next(each for each in asked if each["iggy.code"] == "101")
    assert list(deep(send, "iggy.topic")) == ["orders"]
    assert next(deep(send, "iggy.message.payload")) == b"one".hex(":")
    poll = next(each for each in replies if each["iggy.code"] == "100")
    assert list(deep(poll, "iggy.message.offset")) == ["0", "1"]
    refused = [each["iggy.status"] for each in replies if each["iggy.status"] != "0"]
    assert refused == ["2010"]
    for request, reply in zip(asked, replies, strict=True):
        assert request["iggy.code"] == reply["iggy.code"]
        assert int(request["iggy.response_in"]) > int(reply["iggy.request_in"])


def test_dialects_are_told(sessions: list[Recorded], frames: list[tuple[int, str, Layers]]) -> None:
    golden = len(sessions) - len(golden_sessions())
    spoken = {
        stream: {each["iggy.dialect"] for found, _, each in frames if found == stream}
        for stream in range(golden, len(sessions))
    }
    assert {"A", "B1", "B2", "C"} <= set().union(*spoken.values())
    assert {"C"} in spoken.values()


def test_sbp_fields(frames: list[tuple[int, str, Layers]]) -> None:
    sbp = [each for _, protocol, each in frames if protocol == "sbp"]
    append = next(each for each in sbp if each["sbp.opcode"] == "0x1001")
    assert next(deep(append, "sbp.append_info.batch_length")) == str(55 + len(b"payload"))
    assert next(deep(append, "sbp.batch.record_count")) == "1"
    assert int(append["sbp.response_in"]) > 0
    named = [name for each in sbp for name in deep(each, "sbp.stream.name")]
    assert "plain" in named


def test_umbilical_fields(frames: list[tuple[int, str, Layers]]) -> None:
    told = [each for _, protocol, each in frames if protocol == "umbilical"]
    calls = [each["umbilical.method"] for each in told if "umbilical.request_in" in each]
    assert calls == [*TABLE, "log"]
    beat: Any = samples.REQUESTS["processHeartbeat"]
    sent = next(each for each in told if each.get("umbilical.method") == "processHeartbeat")
    assert list(deep(sent, "umbilical.container_heartbeat.jvm_name")) == [beat.jvm_name]
    assert list(deep(sent, "umbilical.container_heartbeat.sent_tms")) == [str(beat.sent_tms)]
    assert told[-1]["umbilical.exception"] == "java.io.IOException"


def test_what_is_inside_tls_is_told_with_the_session_keys(tmp_path: Path) -> None:
    keys, capture = tmp_path / "keys", tmp_path / "tls.pcap"
    tls = TlsOptions(enabled=True, insecure=True).client()
    assert tls is not None
    tls.context.keylog_filename = str(keys)

    async def session(broker: LocalBroker) -> list[Recorded]:
        host, port = parse_address(broker.address)
        async with RecordingProxy(host, port, 8090) as proxy:
            async with await IggyClient.connect(
                system_runtime(), "127.0.0.1", proxy.listening, tls=tls
            ) as client:
                await client.login("iggy", "iggy")
            return proxy.recorded

    with LocalBroker() as broker:
        write_pcap(capture, asyncio.run(session(broker)), segment_bytes_max=300)
    with_keys = list(dissected(capture, "-o", f"tls.keylog_file:{keys}"))
    assert [each["iggy.code"] for _, _, each in with_keys][:2] == ["38", "38"]
    assert not list(dissected(capture))


def test_bytes_that_mean_nothing_are_no_error(sessions: list[Recorded], tmp_path: Path) -> None:
    """Flipped, lost and doubled bytes: frames are marked malformed, and no script fails."""
    rng = random.Random(4)
    spoiled = []
    for session in sessions * 3:
        kept = Recorded(session.port)
        for side, data in session.pieces[:60]:
            changed = bytearray(data[:4000])
            for _ in range(rng.randint(0, 3)):
                at = rng.randrange(len(changed))
                what = rng.choice(("flip", "cut", "more"))
                if what == "flip":
                    changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
                elif what == "cut" and len(changed) > 8:
                    del changed[at : at + rng.randint(1, 8)]
                else:
                    changed[at:at] = rng.randbytes(rng.randint(1, 8))
            kept.add(side, bytes(changed))
        spoiled.append(kept)
    noise = [rng.randbytes(rng.randint(1, 3000)) for _ in range(60)]
    spoiled += [
        Recorded(port).add(Side.CLIENT, each).add(Side.SERVER, each[::-1])
        for each in noise
        for port in (8090, 12378, OTHER_PORT)
    ]
    spoiled.append(Recorded(OTHER_PORT).add(Side.CLIENT, b"hrpc\x09\0\0", *noise))
    path = tmp_path / "spoiled.pcap"
    write_pcap(path, spoiled, seed=1, segment_bytes_max=2000)
    found = {name for _, _, each in dissected(path) for name in _experts(each)}
    assert {"iggy.malformed", "sbp.malformed", "umbilical.malformed"} <= found


def test_install_and_uninstall(sessions: list[Recorded], tmp_path: Path) -> None:
    """Into the folder that tshark names, where it finds them by itself."""
    capture = tmp_path / "one.pcap"
    write_pcap(capture, sessions[:1])
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = CliRunner(env=home).invoke(app, ["wireshark", "install", "--json"])
    assert done.exit_code == 0, done.output
    target = Path(json.loads(done.stdout)["path"])
    assert target.is_relative_to(tmp_path)
    fields = tshark(capture, "-T", "fields", "-e", "iggy.code", "-Y", "iggy", home=tmp_path)
    assert "302" in fields
    other = ["--path", str(tmp_path / "elsewhere")]
    assert CliRunner().invoke(app, ["wireshark", "uninstall", *other]).exit_code != 0
    assert CliRunner(env=home).invoke(app, ["wireshark", "uninstall"]).exit_code == 0
    assert not target.exists()
