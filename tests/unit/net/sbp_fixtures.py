"""A small data node for tests of the transport: it keeps appended batches in a list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import cast

from headrace.net.addresses import parse_address
from headrace.net.sbp_channel import ChannelLimits, TcpChannel
from headrace.net.sbp_server import (
    Handler,
    Payload,
    Peer,
    Reply,
    SbpServer,
    ServerLimits,
    Standing,
    build_routes,
)
from headrace.net.tls import ClientTls, TlsAcceptor
from headrace.runtime.interfaces import Runtime
from headrace.runtime.system import system_runtime
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.opcodes import TABLE, Code, Opcode, Role

SECRET = b"s" * 32


class ToyNode:
    """Handlers of every opcode of a data node; tests replace those they are about."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.started: list[int] = []  # expected_offset of appends, in the order they started
        self.release = asyncio.Event()  # lets slow fetches go on
        self.cancelled = 0
        self.peers: list[Peer] = []

    def handlers(self) -> dict[int, Handler]:
        table: dict[int, Handler] = {
            code: self.refuse
            for code, row in TABLE.items()
            if row.served_by & Role.DATA_NODE and code not in (Code.PING, Code.GOAWAY)
        }
        table[Code.HEARTBEAT] = self.heartbeat
        table[Code.APPEND] = self.append
        table[Code.FETCH] = self.fetch
        table[Code.DESCRIBE_RANGES] = self.describe
        return table

    async def refuse(self, message: m.Message, payload: Payload, peer: Peer) -> Reply:
        raise NotImplementedError  # a bug in a handler, as far as the server can tell

    async def heartbeat(self, message: m.Message, payload: Payload, peer: Peer) -> Reply:
        request = cast(m.HeartbeatRequest, message)
        self.peers.append(peer)
        return Reply(m.HeartbeatResponse(request.client_id, request.client_role))

    async def append(self, message: m.Message, payload: Payload, peer: Peer) -> Reply:
        request = cast(m.AppendRequest, message)
        results = []
        for info in request.append_requests:
            self.started.append(info.expected_offset)
            self.batches.append(b"".join(payload))
            offset = len(self.batches) - 1
            results.append(m.AppendResult(1, info.request_index, offset, 5))
        return Reply(m.AppendResponse(append_responses=tuple(results)))

    async def fetch(self, message: m.Message, payload: Payload, peer: Peer) -> Reply:
        """Data at once, or when `release` is set if the caller is ready to wait."""
        request = cast(m.FetchRequest, message)
        if request.max_wait_ms:
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        results = []
        pieces: list[bytes] = []
        for info in request.fetch_requests:
            piece = bytes([info.request_index % 256]) * info.batch_max_bytes
            pieces.append(piece)
            results.append(m.FetchResult(info.stream_id, info.request_index, len(piece)))
        return Reply(m.FetchResponse(fetch_responses=tuple(results)), pieces)

    async def describe(self, message: m.Message, payload: Payload, peer: Peer) -> Reply:
        return Reply(m.DescribeRangesResponse())


def allow_all(opcode: Opcode, peer: Peer) -> None: ...


@asynccontextmanager
async def serving(
    handlers: Mapping[int, Handler],
    *,
    runtime: Runtime | None = None,
    authorize: Callable[[Opcode, Peer], None] = allow_all,
    secret: bytes | None = None,
    limits: ServerLimits | None = None,
    on_goaway: Callable[[Peer], None] | None = None,
    tls: TlsAcceptor | None = None,
    host: str = "127.0.0.1",
    standing: Callable[[Peer], Standing] = lambda _: Standing.NODE,
) -> AsyncIterator[SbpServer]:
    server = SbpServer(
        runtime or system_runtime(),
        build_routes(Role.DATA_NODE, handlers),
        authorize=authorize,
        standing=standing,
        secret=secret,
        limits=limits or ServerLimits(linger=0.2, grace=2.0),
        on_goaway=on_goaway,
        tls=tls,
    )
    await server.start(host, 0)
    try:
        yield server
    finally:
        await server.close()


async def connect(
    server: SbpServer,
    *,
    role: m.ClientRole = m.ClientRole.CUSTOMER,
    credential: bytes = b"",
    node: m.DataNode | None = None,
    limits: ChannelLimits | None = None,
    tls: ClientTls | None = None,
) -> TcpChannel:
    host, port = parse_address(server.address)
    return await TcpChannel.connect(
        server.runtime,
        host,
        port,
        client_id="test",
        role=role,
        credential=credential,
        node=node,
        limits=limits,
        tls=tls,
        timeout=20,
    )


def fetch_request(*sizes: int, wait_ms: int = 0) -> m.FetchRequest:
    infos = tuple(m.FetchInfo(1, i, 0, size) for i, size in enumerate(sizes))
    return m.FetchRequest(max_wait_ms=wait_ms, fetch_requests=infos)


def append_request(offset: int, *, timeout_ms: int = 0) -> m.AppendRequest:
    return m.AppendRequest(timeout_ms, (m.AppendInfo(m.Range(1), 0, 5, -1, offset),))


async def until(condition: Callable[[], bool], *, seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # a test watches from outside
            await asyncio.sleep(0.005)


async def raised(call: Awaitable[object]) -> BaseException | None:
    """The error a call ended with, if any."""
    try:
        await call
    except Exception as error:
        return error
    return None
