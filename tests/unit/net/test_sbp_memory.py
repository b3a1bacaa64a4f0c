"""What peers of an SBP port can take before and after they proved who they are."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress

from headrace.errors import UnavailableError
from headrace.net.admission import host_of, pick
from headrace.net.credentials import node_credential
from headrace.net.sbp_routes import Access
from headrace.net.sbp_server import Payload, Peer, Reply, SbpServer, ServerLimits, Standing
from headrace.runtime.interfaces import Connection
from headrace.runtime.system import system_runtime
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.flat import encode
from headrace.wire.sbp.frames import FRAME_BYTES_MAX, Frame, encode_frame
from headrace.wire.sbp.opcodes import Code, Role
from tests.unit.net.sbp_fixtures import (
    SECRET,
    ToyNode,
    append_request,
    connect,
    fetch_request,
    serving,
    until,
)
from tests.unit.net.test_sbp_server import Raw

MIB = 1 << 20
LIMITS = ServerLimits(
    linger=0.1, grace=1.0, held_bytes_max=8 * MIB, pressure_timeout=0.1, idle_timeout=2.0
)


def access(*, plain_streams: bool = False) -> Access:
    clock = system_runtime().clock
    return Access(clock, Role.DATA_NODE, secret=SECRET, plain_streams=plain_streams)


async def begin_frame(server: SbpServer, sent: int) -> Raw:
    """The front of a frame of 16 MiB."""
    raw = await Raw.connect(server)
    head = struct.pack(">IBHBII", FRAME_BYTES_MAX, 23, Code.APPEND, 0, 1, 1 << 24)
    raw.connection.write([head, bytes(sent)])
    return raw


async def is_ended(connection: Connection) -> bool:
    with suppress(UnavailableError):
        while await connection.receive():
            pass
    connection.abort()
    await connection.wait_closed()
    return True


async def test_a_stranger_gets_small_frames_until_its_credential() -> None:
    node, guard = ToyNode(), access()
    async with serving(
        node.handlers(), secret=SECRET, authorize=guard.authorize, standing=guard.standing
    ) as server:
        stranger = await begin_frame(server, 100_000)
        assert await is_ended(stranger.connection)
        await until(lambda: not server.statistics()["connections"])
        assert server.statistics()["held_bytes"] == 0
        raw = await Raw.connect(server)  # all at once: what follows the proof is read with it
        heartbeat = m.HeartbeatRequest(client_id="x", credential=node_credential(SECRET))
        raw.send(
            Frame(Code.PING, 0, 1, payload=bytes(60_000)),
            Frame(Code.HEARTBEAT, 0, 2, encode(heartbeat)),
            Frame(Code.APPEND, 0, 3, encode(append_request(0)), bytes(5 * MIB)),
        )
        assert [(await raw.frame()).stream_id for _ in range(3)] == [1, 2, 3]
        assert len(node.batches[0]) == 5 * MIB
        await raw.close()


async def test_half_sent_frames_of_all_guests_together_are_bounded() -> None:
    guard, most = access(plain_streams=True), 0
    async with serving(
        ToyNode().handlers(), secret=SECRET, authorize=guard.authorize, standing=guard.standing,
        limits=LIMITS,
    ) as server:  # fmt: skip
        proved = await connect(server, credential=node_credential(SECRET))
        guests = [await begin_frame(server, 3 * MIB) for _ in range(12)]
        ended = [asyncio.create_task(is_ended(guest.connection)) for guest in guests]
        while sum(task.done() for task in ended) < 8:
            most = max(most, server.statistics()["held_bytes"])
            await proved.call(Code.APPEND, append_request(0), [bytes(MIB)])  # as if alone
            await asyncio.sleep(0.01)
        assert most <= 9 * MIB + 3 * MIB + 12 * MIB // 4
        for guest in guests:
            guest.connection.abort()
        await asyncio.gather(*ended)
        await proved.close()


async def test_answers_that_nobody_takes_are_bounded_over_all_peers() -> None:
    guard, node = access(plain_streams=True), ToyNode()

    async def fetch(message: m.Message, payload: Payload, peer: Peer) -> Reply:
        assert peer.reply_gate is not None
        await peer.reply_gate.enter(2 * MIB)
        result = m.FetchResult(0, 0, 2 * MIB)
        return Reply(m.FetchResponse(fetch_responses=(result,)), [bytes(2 * MIB)], held=2 * MIB)

    handlers = {**node.handlers(), Code.FETCH: fetch}
    async with serving(
        handlers, secret=SECRET, authorize=guard.authorize, standing=guard.standing, limits=LIMITS
    ) as server:
        lazy = [await Raw.connect(server) for _ in range(12)]
        request = encode(fetch_request(0))
        for raw in lazy:
            raw.send(*(Frame(Code.FETCH, 0, number, request) for number in range(1, 9)))
        reader = await connect(server)
        async with asyncio.timeout(60):
            reply = await reader.call(Code.FETCH, fetch_request(0), timeout=60)
        assert sum(map(len, reply.payload)) == 2 * MIB
        assert server.statistics()["held_bytes"] <= 8 * MIB + MIB
        assert server.statistics()["connections_cut_off"] > 0
        for raw in lazy:
            raw.connection.abort()
            await raw.connection.wait_closed()
        await reader.close()


async def test_who_proves_nothing_does_not_stay_by_pings() -> None:
    guard = access()
    limits = ServerLimits(linger=0.1, idle_timeout=2.0, proof_timeout=0.5)
    async with serving(
        ToyNode().handlers(), secret=SECRET, authorize=guard.authorize, standing=guard.standing,
        limits=limits,
    ) as server:  # fmt: skip
        node = await connect(server, credential=node_credential(SECRET))
        stranger = await Raw.connect(server)
        ended = asyncio.create_task(is_ended(stranger.connection))
        while not ended.done():
            stranger.connection.write(encode_frame(Frame(Code.PING, 0, 1)))
            await asyncio.sleep(0.05)
        await node.call(Code.APPEND, append_request(0), [b"batch"])
        assert server.statistics()["connections_cut_off"] == 1
        await node.close()


async def test_when_all_connections_are_taken_strangers_make_room() -> None:
    guard = access()
    limits = ServerLimits(linger=0.1, connections_max=4)
    async with serving(
        ToyNode().handlers(), secret=SECRET, authorize=guard.authorize, standing=guard.standing,
        limits=limits,
    ) as server:  # fmt: skip
        strangers = [await Raw.connect(server) for _ in range(4)]
        await until(lambda: server.statistics()["connections"] == 4)
        proof = node_credential(SECRET)
        nodes = [await connect(server, credential=proof) for _ in range(4)]
        for channel in nodes:
            await channel.call(Code.APPEND, append_request(0), [b"batch"])
        assert all([await is_ended(raw.connection) for raw in strangers])
        assert server.statistics()["connections_cut_off"] == 4
        late = await Raw.connect(server)
        assert await is_ended(late.connection)  # nobody who proved itself is put out
        assert server.statistics()["connections_refused"] == 1
        for channel in nodes:
            await channel.close()


class At:
    def __init__(self, address: str) -> None:
        self.address = address


def test_the_host_with_most_gives_up_its_oldest() -> None:
    here = [At(f"[::1]:{port}") for port in range(3)]
    there = [At(f"10.0.0.7:{port}") for port in range(4)]
    assert pick([here[0], there[0], here[1], there[1], here[2], there[2], there[3]]) is there[0]
    assert pick([]) is None
    assert host_of("unknown") == "unknown"


def test_standing_follows_the_credential() -> None:
    assert access().standing(Peer()) is Standing.STRANGER
    assert access(plain_streams=True).standing(Peer()) is Standing.GUEST
    assert access().standing(Peer(in_process=True)) is Standing.NODE
