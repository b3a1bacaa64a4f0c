"""The placement manager's shell: recovers from the store, serves, looks after things each tick."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from headrace.client.channels import Connect
from headrace.client.tasks import TaskSet
from headrace.config.placement import PlacementSettings
from headrace.errors import HeadraceError, InvalidArgumentError, UnavailableError
from headrace.net.sbp_access import Access
from headrace.net.sbp_channel import Channel, InProcessChannel
from headrace.net.sbp_server import Peer, Routes, SbpServer, build_routes
from headrace.placement.changes import Changes, KeyedMutex
from headrace.placement.handlers import handlers
from headrace.placement.node_calls import NodeCalls
from headrace.placement.nodes import Nodes
from headrace.placement.records import StreamRecord
from headrace.placement.state import Counter, PlacementState
from headrace.placement.store import Store
from headrace.runtime.interfaces import Runtime
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.messages import OK
from headrace.wire.sbp.opcodes import Role

T = TypeVar("T")

SEALS_PER_TICK = 32

_log = logging.getLogger(__name__)


class PlacementService:
    """`start`, then `listen` and/or `connect`, finally `close`. The store belongs to the caller."""

    def __init__(
        self,
        runtime: Runtime,
        settings: PlacementSettings,
        *,
        store: Store,
        node: Callable[[str], Connect],
        secret: bytes | None,
        plain_streams: bool = False,
    ) -> None:
        """`node` makes connections to data nodes by address. `plain_streams`: anonymous peers may
        use streams that do not belong to the cluster (embedded mode on loopback)."""
        self.runtime = runtime
        self.settings = settings
        self._secret = secret
        self.access = Access(
            runtime.clock, Role.PLACEMENT_MANAGER, secret=secret, plain_streams=plain_streams
        )
        self.state = PlacementState(
            nodes=Nodes(settings.node_timeout_ms, settings.disk_free_bytes_min),
            stream_ids=Counter("stream", settings.stream_id_block),
            replicas_max=settings.replicas_max,
        )
        self._calls = NodeCalls(node, timeout=settings.node_call_timeout_ms / 1000)
        self._store = store
        self.changes = Changes(
            runtime,
            self.state,
            store,
            self._calls,
            seal_timeout=settings.seal_timeout_ms / 1000,
        )
        self.routes: Routes = build_routes(Role.PLACEMENT_MANAGER, handlers(self))
        self._servers: list[SbpServer] = []
        self._channels: list[InProcessChannel] = []
        self._mutex = KeyedMutex()
        self._changing = TaskSet("placement change")
        self._background = TaskSet("placement")
        self._closed = False

    async def start(self) -> None:
        leavings = self.state.recover(await self._store.load(), self._monotonic_ms())
        await self.changes.commit(leavings)
        self._background.start(self._tick_forever(), name="tick")

    async def listen(self, host: str, port: int) -> str:
        """Serve on TCP; returns the address."""
        server = SbpServer(
            self.runtime,
            self.routes,
            authorize=self.access.authorize,
            secret=self._secret,
            on_goaway=self._on_goaway,
        )
        await server.start(host, port)
        self._servers.append(server)
        return server.address

    async def connect(self) -> Channel:
        """A channel inside this process; it ends with the service."""
        channel = InProcessChannel(self.routes, Peer(address="in-process"))
        if self._closed:
            await channel.close()
        self._channels.append(channel)
        return channel

    def _on_goaway(self, peer: Peer) -> None:
        if peer.role is m.ClientRole.DATA_NODE:
            self.state.nodes.on_unreachable(peer.node_id)  # it leaves: no new ranges for it

    async def close(self) -> None:
        """Stop accepting, finish what changes the store, then let go."""
        self._closed = True
        for server in self._servers:
            await server.close()
        for channel in self._channels:
            await channel.close()
        await self._background.close()
        await self._changing.finish()
        await self._calls.close()

    async def protect(self, work: Coroutine[Any, Any, T]) -> T:
        """Let a change run to its end even when the request that asked for it is cancelled:
        what is durable in the store must also be applied to the state."""
        if self._closed:
            work.close()
            raise UnavailableError("placement manager closing")
        return await asyncio.shield(self._changing.start(work))

    async def register(self, node: m.DataNode, store_id: str) -> None:
        """A data node's heartbeat."""
        if not 0 <= node.node_id < self.state.node_ids.bound:
            # Another cluster's node, or this store was lost: taking it in would let the node
            # believe that its streams were deleted.
            raise InvalidArgumentError("node id was never given out here", node_id=node.node_id)
        async with self._mutex.hold("nodes"):
            await self.changes.commit(
                self.state.nodes.register(node.node_id, node.advertise_addr, store_id)
            )
        self.state.nodes.on_heartbeat(node.node_id, self._monotonic_ms())

    async def lease(self, action: m.LeaseAction, request: m.LeaseRequest) -> m.LeaseResponse:
        leases = self.state.leases
        now_ms = self._monotonic_ms()
        async with self._mutex.hold(("lease", request.name)):
            if action is m.LeaseAction.QUERY:
                granted = False
            else:
                if action is m.LeaseAction.ACQUIRE:
                    verdict = leases.acquire(
                        request.name,
                        holder=request.holder,
                        duration_ms=request.duration_ms,
                        address=request.address,
                        epoch=request.epoch,
                        now_ms=now_ms,
                    )
                else:
                    verdict = leases.release(
                        request.name, holder=request.holder, epoch=request.epoch
                    )
                await self.changes.commit(verdict.operations)
                leases.on_decided(verdict)
                granted = verdict.granted
        record = leases.records.get(request.name)
        held = leases.held(request.name, now_ms)
        return m.LeaseResponse(
            granted=granted,
            epoch=record.epoch if record else -1,
            holder=record.holder if record and held else "",
            remaining_ms=leases.remaining_ms(request.name, now_ms) if held else 0,
            address=record.address if record and held else "",
            status=OK,
        )

    def statistics(self) -> dict[str, object]:
        nodes = self.state.nodes
        return {
            "streams": len(self.state.streams()),
            "nodes": [
                {
                    "node_id": record.node_id,
                    "address": record.address,
                    "alive": nodes.is_alive(record.node_id),
                    "open_ranges": self.state.open_ranges(record.node_id),
                }
                for record in nodes.records.values()
            ],
            "sealing": len(self.state.sealing()),
        }

    # Ticks

    async def _tick_forever(self) -> None:
        retention_ms = self._monotonic_ms()
        while True:
            await self.runtime.clock.sleep(self.settings.tick_interval_ms / 1000)
            for node_id in self.state.nodes.on_tick(self._monotonic_ms()):
                _log.warning("data node %d lost", node_id)
            await self._guarded(self.protect(self._finish_seals()))
            await self._guarded(self.changes.deliver_notices())
            await self._guarded(self.protect(self._forget_tombstones()))
            if self._monotonic_ms() - retention_ms >= self.settings.retention_interval_ms:
                retention_ms = self._monotonic_ms()
                await self._guarded(self.protect(self.enforce_retention()))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except HeadraceError as error:
            _log.warning("tick: %s", error)

    async def _finish_seals(self) -> None:
        """Seals that found too few data nodes go on when their primaries live again."""
        for record in self.state.sealing()[:SEALS_PER_TICK]:
            if self.state.nodes.is_alive(record.replicas[0]):
                try:
                    await self.changes.seal(
                        record.stream_id, record.range_index, record.writer_epoch
                    )
                except HeadraceError as error:
                    _log.info("seal of %s still open: %s", record.key, error)

    async def _forget_tombstones(self) -> None:
        before_ms = self.runtime.clock.now_ms() - self.settings.tombstone_ms
        await self.changes.commit(self.state.expired_tombstones(before_ms))

    async def enforce_retention(self) -> None:
        """Trim plain streams by time; the cluster's own streams are trimmed by their owners."""
        for stream in self.state.streams():
            if stream.retention_period_ms > 0 and not self.state.is_owned(stream.stream_id):
                try:
                    await self._expire(stream)
                except HeadraceError as error:
                    _log.info("retention of stream %d: %s", stream.stream_id, error)

    async def _expire(self, stream: StreamRecord) -> None:
        before_ms = self.runtime.clock.now_ms() - stream.retention_period_ms
        ranges = self.state.ranges(stream.stream_id)
        offset = ranges[0].start
        for record in ranges:
            described = await self.changes.describe_with_segments(record)
            for segment in described.segments:
                if segment.end <= segment.base or segment.max_timestamp >= before_ms:
                    break
                offset = max(offset, segment.end)
            else:
                continue
            break
        if offset > ranges[0].start:
            await self.changes.trim_stream(stream.stream_id, offset)

    def _monotonic_ms(self) -> int:
        return int(self.runtime.clock.monotonic() * 1000)
