"""The placement manager's shell: recovers from the store, serves, looks after things each tick."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from headrace.concurrency.locks import KeyedLock
from headrace.concurrency.tasks import TaskSet
from headrace.config.placement import PlacementSettings
from headrace.errors import (
    HeadraceError,
    InvalidArgumentError,
    NotLeaderError,
    UnavailableError,
)
from headrace.net.sbp_channel import Channel, InProcessChannel
from headrace.net.sbp_routes import Access
from headrace.net.sbp_server import Peer, Routes, SbpServer, ServerLimits, build_routes
from headrace.net.tls import TlsAcceptor
from headrace.placement.adoption import Adoption
from headrace.placement.changes import Changes
from headrace.placement.description import count_ranges, metrics_of
from headrace.placement.handlers import handlers
from headrace.placement.healing import Healer
from headrace.placement.lease_requests import LeaseRequests
from headrace.placement.metadata.election import Election
from headrace.placement.metadata.records import StreamRecord
from headrace.placement.metadata.store import Store
from headrace.placement.node_calls import NodeCalls
from headrace.placement.nodes import Liveness, Nodes
from headrace.placement.state import Counter, PlacementState
from headrace.placement.term import Term
from headrace.runtime.interfaces import Runtime
from headrace.sbp_client.channels import Connect
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import OutdatedMetadataError
from headrace.wire.sbp.messages import OK
from headrace.wire.sbp.opcodes import Role

T = TypeVar("T")

_HURRY_SECONDS = 0.05
"""Between two looks at ranges whose end has yet to come to enough nodes: writers wait for that."""

_LEASE_CHANGES_BITS = 20
"""Versions of the leases begin at the time of day, with room for so many changes in each
millisecond: a term's are above those of the term before, as far as clocks agree."""

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
        election: Election | None = None,
        advertise: str = "",
        name: str = "",
    ) -> None:
        """`node` makes connections to data nodes by address. `plain_streams`: anonymous peers may
        use streams that do not belong to the cluster (embedded mode on loopback). `election`: one
        of several over one store, known to the others and to clients as `name` under `advertise`
        (else where it listens); without, the only one."""
        self.runtime = runtime
        self.settings = settings
        self._secret = secret
        self.access = Access(
            runtime.clock, Role.PLACEMENT_MANAGER, secret=secret, plain_streams=plain_streams
        )
        self._store = store
        self._election = election
        self._advertise = advertise
        self._name = name
        self._calls = NodeCalls(
            node,
            timeout=settings.node_call_timeout_ms / 1000,
            version=lambda: self.state.version,
        )
        self._liveness = Liveness()
        self._ready = False
        self._new_term()
        self.routes: Routes = build_routes(Role.PLACEMENT_MANAGER, handlers(self))
        self._servers: list[SbpServer] = []
        self._channels: list[InProcessChannel] = []
        self._mutex = KeyedLock()
        self._changing = TaskSet("placement change")
        self._electing = TaskSet("placement election")
        self._background = TaskSet("placement")
        self._trouble = asyncio.Event()
        self._closed = False

    async def start(self) -> None:
        if self._election is None:
            await self._take_over()
        elif self._advertise:
            self._stand()
        self._background.start(self._watch_forever(), name="watch")
        self._background.start(self._heal_forever(), name="heal")
        self._background.start(self._tick_forever(), name="tick")

    # Leadership

    @property
    def leading(self) -> bool:
        """Whether requests are served; otherwise another one is to be asked."""
        return self.elected and not self.outdated

    @property
    def elected(self) -> bool:
        return self._ready and (self._election is None or self._election.leading)

    @property
    def outdated(self) -> bool:
        """Whether a data node has seen newer metadata: what is known here was put back to an
        earlier day. Nothing is decided on it."""
        return self.metadata_seen > self.state.version

    @property
    def metadata_version(self) -> int:
        """-1 while another one knows better."""
        return self.state.version if self.elected else -1

    def check_elected(self) -> None:
        if not self.elected:
            raise self.not_leader()

    def check_leading(self) -> None:
        self.check_elected()
        if self.outdated:
            raise OutdatedMetadataError(version=self.state.version, seen=self.metadata_seen)

    def managers(self) -> Sequence[m.PlacementManagerNode]:
        """All placement managers that are known; the only one does not know its address."""
        return self._election.managers() if self._election is not None else ()

    def not_leader(self) -> NotLeaderError:
        managers = tuple(self.managers())
        leader = next((m.advertise_addr for m in managers if m.is_leader), "")
        if leader == self._advertise:  # not yet, or not any more
            leader = ""
            managers = tuple(replace(m, is_leader=False) for m in managers)
        return NotLeaderError("not the leader", leader=leader, managers=managers)

    def _stand(self) -> None:
        assert self._election is not None
        run = self._election.run(self._advertise, self._take_over, self._step_down)
        self._electing.start(run, name="run")

    def _new_term(self) -> None:
        """What is known starts anew, from the store; who lives is known already."""
        settings = self.settings
        nodes = Nodes(
            settings.node_timeout_ms,
            settings.disk_free_bytes_min,
            settings.replace_after_ms,
            settings.disk_free_percent_min,
            liveness=self._liveness,
        )
        self.state = PlacementState(
            nodes=nodes,
            stream_ids=Counter("stream", settings.stream_id_block),
            replicas_max=settings.replicas_max,
        )
        election = self._election
        term = Term(
            self.runtime,
            self.state,
            self._store,
            leading=lambda: election is None or election.leading,
        )
        self.changes = Changes(term, self._calls, seal_timeout=settings.seal_timeout_ms / 1000)
        self.changes.sealing.on_doubtful = lambda: self._trouble.set()
        self.leases = LeaseRequests(term, self.runtime.clock)
        self._healer = Healer(self.changes, below=self.runtime.random.below)
        self.metadata_seen = -1
        """By data nodes, as far as they told in this term."""

    async def _take_over(self) -> None:
        self._new_term()
        term = self.changes.term
        records = await self._store.load()
        await term.commit(term.state.recover(records, term.monotonic_ms()))
        term.state.leases.version = term.now_ms() << _LEASE_CHANGES_BITS
        self.changes.tell_newest_again(single_copies=self._election is not None)
        if self._election is not None:
            term.wait_for_nodes(self.settings.settle_ms / 1000)
        self._ready = True

    def _step_down(self) -> None:
        self._ready = False
        self.changes.term.end_term()
        self.leases.end()

    async def listen(
        self,
        host: str,
        port: int,
        *,
        tls: TlsAcceptor | None = None,
        limits: ServerLimits | None = None,
    ) -> str:
        """Serve on TCP, and TLS on the same port; returns the address."""
        server = SbpServer(
            self.runtime,
            self.routes,
            authorize=self.access.authorize,
            standing=self.access.standing,
            secret=self._secret,
            limits=limits,
            on_goaway=self._on_goaway,
            tls=tls,
        )
        await server.start(host, port)
        self._servers.append(server)
        if self._election is not None and not self._advertise:
            self._advertise = server.address
            self._stand()
        return server.address

    async def connect(self) -> Channel:
        """A channel inside this process; it ends with the service."""
        channel = InProcessChannel(self.routes, Peer(address="in-process"))
        if self._closed:
            await channel.close()
        self._channels.append(channel)
        return channel

    def _on_goaway(self, peer: Peer) -> None:
        if peer.role is m.ClientRole.DATA_NODE and self.access.is_node(peer):
            self.state.nodes.on_goaway(peer.node_id, peer)
            self._trouble.set()

    async def close(self) -> None:
        """Let another one lead, stop accepting, finish what changes the store, then let go."""
        self._closed = True
        self.leases.end()
        if self._election is not None:
            await self._changing.finish()
            await self._electing.close()
            await self._election.resign()
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

    async def on_heartbeat(self, request: m.HeartbeatRequest, peer: Peer) -> None:
        """Of a data node."""
        node, store_id = request.data_node, request.client_id
        assert node is not None
        if self.leading:
            self._check_known(node)
        self._note_seen(node.node_id, request.metadata_version)
        if self.leading:
            with suppress(NotLeaderError):  # then it is as if it had reached a follower
                await self.protect(self._register(node, request))
        self.state.nodes.on_heartbeat(
            node.node_id,
            self._monotonic_ms(),
            address=node.advertise_addr,
            store_id=store_id,
            connection=peer,
        )

    def _note_seen(self, node_id: int, version: int) -> None:
        if not self.elected or version <= self.metadata_seen:
            return
        self.metadata_seen = version
        if self.outdated:
            _log.error(
                "data node %d has seen version %d of the metadata, this is %d: it was put back to "
                "an earlier state. Nothing is decided until the newer one is there, or "
                "`headrace cluster accept-metadata` was run",
                node_id, version, self.state.version,
            )  # fmt: skip

    async def adopt(self, request: m.AdoptRequest) -> m.AdoptResponse:
        """Also while the metadata is outdated, which is what it can end."""
        if self.outdated and not request.accept_metadata:
            raise OutdatedMetadataError(version=self.state.version, seen=self.metadata_seen)
        adopted = await Adoption(self.changes, self._calls).adopt(
            request.stream_id,
            name=request.name,
            seen=self.metadata_seen if self.outdated else -1,
        )
        return m.AdoptResponse(
            ranges=tuple(map(self.changes.wire, adopted)),
            metadata_version=self.state.version,
            status=OK,
        )

    def _check_known(self, node: m.DataNode) -> None:
        """Another cluster's node, or this store was lost: taking it in would let the node believe
        that its streams were deleted."""
        if not 0 <= node.node_id < self.state.node_ids.bound:
            raise InvalidArgumentError("node id was never given out here", node_id=node.node_id)

    async def _register(self, node: m.DataNode, request: m.HeartbeatRequest) -> None:
        term = self.changes.term
        async with self._mutex.hold("nodes"):
            nodes = term.state.nodes
            operations = nodes.register(
                node.node_id,
                node.advertise_addr,
                request.client_id,
                request.host,
                request.host_id,
            )
            await term.commit(operations)
            if len(operations) > 1:
                _log.warning("data node %d took the address of another", node.node_id)
                self._trouble.set()

    def statistics(self) -> dict[str, object]:
        """As far as this one knows; all of it only while it leads."""
        nodes, now_ms = self.state.nodes, self._monotonic_ms()
        return {
            "name": self._name,
            "leading": self.leading,
            "metadata_version": self.state.version,
            "metadata_outdated": self.elected and self.outdated,
            "managers": [
                {"name": m.name, "address": m.advertise_addr, "leader": bool(m.is_leader)}
                for m in self.managers()
            ],
            "nodes": [
                {
                    "node_id": record.node_id,
                    "address": record.address,
                    "host": nodes.host(record.node_id),
                    "host_id": record.host_id,
                    "alive": nodes.is_alive(record.node_id),
                    "condition": nodes.condition(record.node_id, now_ms),
                    "open_ranges": self.state.open_ranges(record.node_id),
                    "led_ranges": self.state.load(record.node_id)[1],
                    "metrics": metrics_of(nodes.metrics(record.node_id)),
                }
                for record in nodes.records.values()
            ],
            **count_ranges(self.state),
            "leases_held": sum(
                self.state.leases.held(name, now_ms) for name in self.state.leases.records
            ),
        }

    # Ticks

    async def _watch_forever(self) -> None:
        """Who is heard, also while another one leads."""
        while True:
            await self.runtime.clock.sleep(self.settings.tick_interval_ms / 1000)
            for node_id in self.state.nodes.on_tick(self._monotonic_ms()):
                _log.warning("data node %d lost", node_id)
                self._trouble.set()

    async def _heal_forever(self) -> None:
        """Every tick, and at once when a node is lost or leaves; more often what writers wait
        for."""
        tick = self.settings.tick_interval_ms / 1000
        due = self.runtime.clock.monotonic() + tick
        while True:
            left = due - self.runtime.clock.monotonic()
            doubtful = self.leading and bool(self.state.doubtful())
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, _HURRY_SECONDS) if doubtful else left):
                    await self._trouble.wait()
            whole_round = self._trouble.is_set() or self.runtime.clock.monotonic() >= due
            self._trouble.clear()
            if not self.leading:
                due = self.runtime.clock.monotonic() + tick
            elif whole_round:
                await self._guarded(self.protect(self._healer.round()))
                due = self.runtime.clock.monotonic() + tick
            else:
                await self._guarded(self.protect(self._healer.hurry()))

    async def _tick_forever(self) -> None:
        retention_ms = self._monotonic_ms()
        while True:
            await self.runtime.clock.sleep(self.settings.tick_interval_ms / 1000)
            if not self.leading:
                continue
            await self._guarded(self.changes.notices.deliver_notices())
            await self._guarded(self.protect(self._forget_tombstones()))
            if self._monotonic_ms() - retention_ms >= self.settings.retention_interval_ms:
                retention_ms = self._monotonic_ms()
                await self._guarded(self.protect(self.enforce_retention()))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except HeadraceError as error:
            _log.warning("tick: %s", error)

    async def _forget_tombstones(self) -> None:
        before_ms = self.runtime.clock.now_ms() - self.settings.tombstone_ms
        await self.changes.term.commit(self.state.expired_tombstones(before_ms))

    async def enforce_retention(self) -> None:
        """Trim plain streams by time; the cluster's own streams are trimmed by their owners."""
        for stream in self.state.streams():
            self.check_leading()
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
            described = await self.changes.describe(record)
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
