"""Rules of the connection that implementations got wrong, each by its name in the reference.

`defect N` are faults of the original implementation, `F N` failure scenarios, `I N` invariants.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.config.datanode import DataNodeSettings
from headrace.config.settings import parse_settings
from headrace.errors import ConfigError, HeadraceError, SealedError, UnavailableError
from headrace.net.sbp_channel import ChannelLimits
from headrace.net.sbp_server import Payload, Peer, Reply, ServerLimits
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.flat import encode
from headrace.wire.sbp.frames import FRAME_BYTES_MAX, Frame, encode_frame
from headrace.wire.sbp.opcodes import TABLE, Code, Role
from tests.log_cluster import batch
from tests.sim.log_world import World
from tests.unit.net.sbp_fixtures import (
    ToyNode,
    append_request,
    connect,
    fetch_request,
    raised,
    serving,
    until,
)
from tests.unit.net.test_sbp_server import Raw, status_in
from tests.unit.net.test_sbp_timers import NEVER, Cluster, frames_until_closed

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "conformance" / "sbp" / "frames.json").read_text()
)


def wire(*frames: Frame) -> bytes:
    return b"".join(piece for frame in frames for piece in encode_frame(frame))


def head(length: int, *, magic: int = 23, header_bytes: int = 0, stream_id: int = 1) -> bytes:
    return struct.pack(">IBHBII", length, magic, Code.APPEND, 0, stream_id, 1 << 24 | header_bytes)


def vector(name: str) -> bytes:
    (found,) = [each for each in VECTORS["frames"] if each["name"] == name]
    return bytes.fromhex(found["hex"])


# Defects of the original


async def test_defect_1_two_frames_in_one_buffer_are_both_served() -> None:
    async with serving(ToyNode().handlers()) as server:
        raw = await Raw.connect(server)
        header = encode(append_request(0))
        raw.connection.write(
            [wire(Frame(Code.APPEND, 0, 1, header, b"12345"), Frame(Code.PING, 0, 2, b"", b"sbp"))]
        )
        assert {(await raw.frame()).stream_id, (await raw.frame()).stream_id} == {1, 2}
        await raw.close()


@pytest.mark.parametrize("cut", [1, 3, 4, 15, 16, 20, 45])
async def test_defect_1_however_the_buffer_is_cut(cut: int) -> None:
    sent = wire(
        Frame(Code.APPEND, 0, 1, encode(append_request(0)), b"12345"), Frame(Code.PING, 0, 2)
    )
    async with serving(ToyNode().handlers()) as server:
        raw = await Raw.connect(server)
        raw.connection.write([sent[:cut]])
        await raw.connection.drain()
        await asyncio.sleep(0.005)
        raw.connection.write([sent[cut:]])
        assert {(await raw.frame()).stream_id, (await raw.frame()).stream_id} == {1, 2}
        await raw.close()


def test_defect_7_batch_length_is_bytes_not_a_count() -> None:
    world = World(3)

    async def main() -> None:
        await world.start_placement()
        await world.start_node()
        client = world.client()
        stream = await client.create_stream()
        pieces = [batch(b"a", b"bc"), batch(b"defg")]
        sizes = [sum(map(len, each)) for each in pieces]
        for each in pieces:
            await client.append(stream.stream_id, each)
        (range_,) = await client.list_ranges(stream.stream_id)
        info = m.FetchInfo(stream_id=stream.stream_id, request_index=4, batch_max_bytes=9999)
        reply = await client.node(range_).call(Code.FETCH, m.FetchRequest(fetch_requests=(info,)))
        (result,) = cast(m.FetchResponse, reply.message).fetch_responses
        assert result.request_index == 4
        assert result.batch_length == sum(sizes) == sum(map(len, reply.payload))
        await client.close()

    world.simulation.run(world.simulation.on("writer", main()))


async def test_defect_9_unknown_opcodes_are_ignored_and_bad_headers_answered() -> None:
    async with serving(ToyNode().handlers()) as server:
        raw = await Raw.connect(server)
        for stream_id, opcode in enumerate((0, 5, 0x1003, 0x7FFF, 0xFFFF), 1):
            raw.send(Frame(opcode, 0, stream_id, b"any", b"thing"))
        for stream_id, code in enumerate(sorted(TABLE), 100):
            if TABLE[code].request is not None:
                raw.send(Frame(code, 0, stream_id, b"\xff" * 7))
        raw.send(Frame(Code.PING, 0, 999))
        answered = {}
        while (frame := await raw.frame()).stream_id != 999:
            answered[frame.stream_id] = status_in(frame).code
        asked = [i for i, code in enumerate(sorted(TABLE), 100) if TABLE[code].request is not None]
        await until(lambda: server.statistics()["requests_in_flight"] == 0)
        while set(answered) != set(asked):
            frame = await raw.frame()
            answered[frame.stream_id] = status_in(frame).code
        assert set(answered.values()) == {2}
        await raw.close()


def test_defect_12_heartbeats_come_three_times_within_the_idle_limit() -> None:
    assert ChannelLimits().heartbeat_interval <= ServerLimits().idle_timeout / 3
    assert DataNodeSettings().heartbeat_interval_ms <= ServerLimits().idle_timeout * 1000 / 3
    with pytest.raises(ConfigError, match="heartbeat_interval_ms"):
        parse_settings(b"[advanced.data_node]\nheartbeat_interval_ms = 30000\n", {})


def test_defect_13_late_and_unknown_requests_leave_nothing_behind() -> None:
    """Their entries once kept a connection from ever counting as idle."""
    cluster = Cluster()

    async def main() -> None:
        connection = await cluster.raw()
        slow = encode(m.AppendRequest(50, (m.AppendInfo(m.Range(1), 0, 5),)))
        done = asyncio.Event()

        async def late(message: m.Message, payload: Payload, peer: Peer) -> Reply:
            await done.wait()
            return Reply(m.AppendResponse())

        table = cast(dict[int, Any], cluster.server.routes.table)
        route = table[Code.APPEND]
        table[Code.APPEND] = type(route)(route.opcode, late)
        connection.write(
            [wire(Frame(0x5555, 0, 1), Frame(Code.LEASE, 0, 2), Frame(Code.APPEND, 0, 3, slow))]
        )
        await cluster.client.clock.sleep(2)
        done.set()
        started = cluster.client.clock.monotonic()
        frames = await frames_until_closed(connection)
        assert [(frame.opcode, frame.flags, frame.stream_id) for frame in frames] == [
            (Code.LEASE, 7, 2),
            (Code.APPEND, 7, 3),
            (Code.GOAWAY, 0, 3),
        ]
        assert cluster.client.clock.monotonic() - started < 25
        assert cluster.server.statistics()["requests_in_flight"] == 0

    cluster.run(main())


async def test_defect_14_a_header_longer_than_the_frame_harms_nobody() -> None:
    async with serving(ToyNode().handlers()) as server:
        other = await connect(server)
        for length, header_bytes in (
            (16, 1),
            (100, 85),
            (100, 0xFFFFFF),
            (FRAME_BYTES_MAX, 0xFFFFFF),
        ):
            raw = await Raw.connect(server)
            raw.connection.write(
                [head(length, header_bytes=header_bytes), bytes(min(length, 100) - 12)]
            )
            if length <= 100:
                assert status_in(await raw.frame()).code == 2
                raw.send(Frame(Code.PING, 0, 2))
                assert (await raw.frame()).stream_id == 2, "the next frame is found"
            raw.connection.abort()
            await raw.connection.wait_closed()
            await other.call(Code.APPEND, append_request(0), [b"12345"])
        await other.close()


@pytest.mark.parametrize("flags", [0x00, 0x01, 0x02, 0x80])
async def test_defect_19_a_goaway_with_any_reason_is_a_goaway(flags: int) -> None:
    left: list[Peer] = []
    async with serving(ToyNode().handlers(), on_goaway=left.append) as server:
        raw = await Raw.connect(server)
        raw.send(Frame(Code.GOAWAY, flags, 9))
        answer = await raw.frame()
        assert (answer.opcode, answer.flags, answer.stream_id) == (Code.GOAWAY, 3, 9)
        assert len(left) == 1
        raw.send(Frame(Code.GOAWAY, 3, 9))  # a reply: nobody leaves, nothing is answered
        raw.send(Frame(Code.PING, 0, 10))
        assert (await raw.frame()).opcode == Code.PING
        assert len(left) == 1
        await raw.close()


# The reference's bytes, both ways


async def test_the_vectors_of_ping_and_goaway() -> None:
    names = [each["name"] for each in VECTORS["frames"]]
    ping, pong = (next(n for n in names if n.startswith(start)) for start in ("PING", "PONG"))
    async with serving(ToyNode().handlers()) as server:
        connection = await server.runtime.transport.connect(*_host_and_port(server.address))
        connection.write([vector(ping)])
        received = b""
        while len(received) < len(vector(pong)):
            received += await connection.receive()
        assert received == vector(pong)
        connection.close()
        await connection.wait_closed()


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


# F25, I17: no input costs others anything


BAD: dict[str, bytes] = {
    "oversize": head(FRAME_BYTES_MAX + 1),
    "zero length": bytes(20),
    "length 15": head(15) + bytes(4),
    "truncated": wire(Frame(Code.APPEND, 0, 1, encode(append_request(0)), b"12345"))[:-3],
    "three wrong magics": (head(16, magic=0x22) + bytes(4)) * 3,
    "header longer than the frame": (head(100, header_bytes=89) + bytes(88)) * 3,
}


@pytest.mark.parametrize("name", BAD)
async def test_f25_i17_malformed_frames_end_their_own_connection_only(name: str) -> None:
    node = ToyNode()
    async with serving(node.handlers()) as server:
        good = await connect(server)
        raw = await Raw.connect(server)
        raw.connection.write([BAD[name]])
        await raw.connection.drain()
        if name == "truncated":
            await asyncio.sleep(0.05)
            raw.connection.close()  # its peer gave up half-way: nothing was applied
        else:
            frames = await raw.end()
            assert frames[-1].opcode == Code.GOAWAY
            assert all(frame.flags == 7 for frame in frames[:-1])
        await raw.close()
        assert node.batches == []
        await good.call(Code.APPEND, append_request(0), [b"12345"])
        await good.close()


# F27


def test_f27_a_silence_longer_than_the_idle_limit_loses_no_registration() -> None:
    world = World(27)

    async def main() -> None:
        await world.start_placement()
        await world.start_node()
        assert world.node is not None
        assert world.placement is not None
        node_id = world.node.node_id
        client = world.client()
        stream = await client.create_stream()
        await client.append(stream.stream_id, batch(b"before"))
        for _ in range(3):
            world.simulation.partition("pm", "dn")
            await world.sleep(40)
            world.simulation.heal("pm", "dn")
            await world.sleep(5)
            assert world.node.node_id == node_id
            await client.create_stream()  # needs a live node
        await client.append(stream.stream_id, batch(b"after"))
        (range_,) = await client.list_ranges(stream.stream_id)
        data_node = range_.replica_nodes[0].data_node
        assert data_node is not None
        assert data_node.node_id == node_id
        assert range_.range_index == 0, "a pause is no reason to seal"
        await client.close()

    world.simulation.run(world.simulation.on("writer", main()))


# I15: every request gets exactly one terminal frame, or its connection fails


def _mixed_handlers(node: ToyNode, generator: random.Random) -> dict[int, Any]:
    handlers = node.handlers()

    async def append(message: m.Message, payload: Payload, peer: Peer) -> Reply:
        await asyncio.sleep(generator.choice((0, 0, 0.001, 0.02)))
        if generator.random() < 0.2:
            raise SealedError("sealed")
        if generator.random() < 0.1:
            raise ZeroDivisionError  # a bug
        return await node.append(message, payload, peer)

    async def fetch(message: m.Message, payload: Payload, peer: Peer) -> AsyncIterator[Reply]:
        request = cast(m.FetchRequest, message)

        async def parts() -> AsyncIterator[Reply]:
            count = generator.randrange(4)
            for index in range(count):
                await asyncio.sleep(generator.choice((0, 0.002)))
                size = generator.choice((0, 10, 5 << 20)) if index == 0 else 10
                result = m.FetchResult(1, request.max_wait_ms, size)
                last = index == count - 1 and generator.random() < 0.5
                yield Reply(m.FetchResponse(fetch_responses=(result,)), [bytes(size)], last)
            if generator.random() < 0.2:
                raise SealedError("half-way")

        return parts()

    handlers[Code.APPEND] = append
    handlers[Code.FETCH] = fetch
    return handlers


@pytest.mark.parametrize("seed", range(3))
async def test_i15_exactly_one_terminal_frame_per_request(seed: int) -> None:
    generator = random.Random(seed)
    node = ToyNode()
    async with serving(_mixed_handlers(node, generator)) as server:
        raw = await Raw.connect(server)
        count = 150
        for stream_id in range(1, count + 1):
            raw.send(
                generator.choice(
                    (
                        Frame(Code.APPEND, 0, stream_id, encode(append_request(0)), b"12345"),
                        Frame(
                            Code.APPEND, 0, stream_id,
                            encode(append_request(0, timeout_ms=1)), b"12345",
                        ),
                        Frame(Code.FETCH, 0, stream_id, encode(fetch_request(1))),
                        Frame(Code.PING, 0, stream_id, b"", b"p"),
                        Frame(Code.LEASE, 0, stream_id),
                        Frame(Code.FETCH, 0, stream_id, b"garbage"),
                        Frame(Code.FETCH, 0, stream_id, b"", header_format=2),
                    )
                )
            )  # fmt: skip
        terminal: Counter[int] = Counter()
        while terminal.total() < count:
            frame = await raw.frame()
            assert not terminal[frame.stream_id], "nothing follows the last frame"
            assert frame.flags & 1
            terminal[frame.stream_id] += bool(frame.flags & 6)
        await until(lambda: server.statistics()["requests_in_flight"] == 0)
        raw.send(Frame(Code.PING, 0, count + 1))
        assert (await raw.frame()).stream_id == count + 1, "nothing came in between"
        assert set(terminal.values()) == {1}
        assert set(terminal) == set(range(1, count + 1))
        await raw.close()


def test_i15_a_lost_connection_ends_every_call() -> None:
    cluster = Cluster()

    async def main() -> None:
        channel = await cluster.connect(NEVER)
        calls = [
            asyncio.create_task(
                raised(channel.call(Code.FETCH, fetch_request(1, wait_ms=9000), timeout=99))
            )
            for _ in range(20)
        ]
        await cluster.client.clock.sleep(1)
        cluster.simulation.break_connections("client", "server")
        results = await asyncio.gather(*calls)
        assert all(isinstance(each, UnavailableError) for each in results)
        assert isinstance(results[0], HeadraceError)
        await channel.close()

    cluster.run(main())


def test_every_served_opcode_has_an_answer_table() -> None:
    """What `_send_all` relies on for its closing frame."""
    for code, row in TABLE.items():
        if code not in (Code.PING, Code.GOAWAY) and row.served_by & (
            Role.DATA_NODE | Role.PLACEMENT_MANAGER
        ):
            assert row.response is not None
