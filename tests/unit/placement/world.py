"""Placement managers in the simulator, over data nodes that are models of what a node promises.

A `FakeNode` keeps for each range where it starts, how far it is written and where it was sealed;
the rules are those of a data node (a seal is for ever, the final end truncates or leaves a hole to
copy), without its files. So a test says in one line what each replica holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.config.placement import PlacementSettings
from headrace.errors import (
    HeadraceError,
    NotLeaderError,
    RangeNotFoundError,
    SealedError,
    UnavailableError,
)
from headrace.net.sbp_channel import Channel, as_over_tcp
from headrace.net.sbp_server import Payload, Peer, Reply
from headrace.placement.metadata.records import RangeRecord
from headrace.placement.metadata.store import MemoryStore
from headrace.placement.service import PlacementService
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import raise_for_status, status_of
from headrace.wire.sbp.messages import OK, Message
from headrace.wire.sbp.opcodes import Code
from tests.simulator.runtime import Simulation
from tests.simulator.shared_metadata import MemoryMetadata

SETTINGS = PlacementSettings(
    node_timeout_ms=3_000,
    tick_interval_ms=200,
    seal_timeout_ms=500,
    replace_after_ms=10_000,
    settle_ms=1_000,
)


@dataclass(slots=True)
class Held:
    """A range on one node."""

    start: int
    next: int
    end: int = -1
    final: int = -1
    quorum: int = 1
    writer_epoch: int = -1
    producers: tuple[m.ProducerState, ...] = ()
    whole: bool = True
    members: tuple[int, ...] = ()


@dataclass(slots=True)
class FakeNode:
    node_id: int
    store_id: str
    address: str
    reachable: bool = True
    interrupted: bool = False
    copies: bool = True
    """Whether what is missing of a range arrives at the next SYNC."""
    sources: Callable[[tuple[int, int], int], bool] = lambda key, end: True
    """Whether somebody who has the range up to there can be reached."""
    deaf: set[Code] = field(default_factory=set)
    ranges: dict[tuple[int, int], Held] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    trimmed: dict[int, int] = field(default_factory=dict)
    calls: list[tuple[Code, Message]] = field(default_factory=list)
    reserved: dict[int, bool] = field(default_factory=dict)
    host_id: str = ""

    def write(self, stream_id: int, range_index: int, count: int) -> None:
        held = self.ranges[stream_id, range_index]
        assert held.end < 0, "sealed"
        held.next += count

    def serve(self, code: Code, message: Message) -> Message:
        self.calls.append((code, message))
        match message:
            case m.SyncRangesRequest():
                return m.SyncRangesResponse(
                    sync_responses=tuple(map(self._sync_stream, message.stream_ranges)), status=OK
                )
            case m.SealRangesRequest():
                return m.SealRangesResponse(
                    seal_responses=tuple(map(self._seal, message.ranges)), status=OK
                )
            case m.DescribeRangesRequest():
                return m.DescribeRangesResponse(
                    describe_responses=tuple(map(self._describe, message.ranges)), status=OK
                )
            case m.DeleteStreamsRequest():
                for stream in message.streams:
                    self.deleted.add(stream.stream_id)
                    self.ranges = {k: v for k, v in self.ranges.items() if k[0] != stream.stream_id}
                return m.DeleteStreamsResponse(status=OK)
            case m.TrimStreamsRequest():
                for trimmed in message.trimmed_streams:
                    self.trimmed[trimmed.stream_id] = trimmed.trim_offset
                return m.TrimStreamsResponse(status=OK)
        raise AssertionError(f"nobody asks a node {code.name}")

    def _sync_stream(self, wanted: m.StreamRanges) -> m.SyncRangesResult:
        self.reserved[wanted.stream_id] = wanted.reserved
        try:
            ranges = tuple(self._sync(range_) for range_ in wanted.ranges)
        except HeadraceError as error:
            return m.SyncRangesResult(wanted.stream_id, wanted.ranges, status_of(error))
        return m.SyncRangesResult(wanted.stream_id, ranges, OK)

    def _sync(self, wanted: m.Range) -> m.Range:
        members = tuple(r.data_node.node_id for r in wanted.replica_nodes if r.data_node)
        if self.node_id not in members:
            raise RangeNotFoundError("not a replica")
        key = (wanted.stream_id, wanted.range_index)
        held = self.ranges.get(key)
        if held is None:
            if (
                wanted.end_offset < 0
                and wanted.start_offset > 0
                and wanted.writer_epoch < 0
                and not wanted.producers_whole
            ):
                raise RangeNotFoundError("not without its producers")
            held = self.ranges[key] = Held(wanted.start_offset, wanted.start_offset)
            held.producers = wanted.producers
            held.whole = wanted.producers_whole or wanted.start_offset == 0
        held.members = members
        held.quorum = wanted.ack_quorum
        held.writer_epoch = max(held.writer_epoch, wanted.writer_epoch)
        if wanted.end_offset >= 0:
            assert held.final in (-1, wanted.end_offset), "a final end never changes"
            held.final = held.end = wanted.end_offset
            held.next = min(held.next, wanted.end_offset)
            if self.copies and self.sources(key, wanted.end_offset):
                held.next = wanted.end_offset
        elif held.end >= 0 or self.interrupted:
            raise SealedError("takes no more")
        return self._wire(key, held)

    def _seal(self, wanted: m.RangeId) -> m.SealRangesResult:
        key = (wanted.stream_id, wanted.range_index)
        held = self.ranges.get(key)
        if held is None:
            error = RangeNotFoundError(stream_id=key[0], range_index=key[1])
            return m.SealRangesResult(m.Range(*key), status_of(error))
        if held.end < 0:
            held.end = held.next
            if held.quorum <= 1:
                held.final = held.end  # nobody else has a say
        range_ = replace(self._wire(key, held), producers_whole=held.whole)
        producers = tuple(p for p in held.producers if p.last_base_offset < held.end)
        return m.SealRangesResult(range_, OK, producers)

    def _describe(self, wanted: m.RangeId) -> m.DescribeRangeResult:
        key = (wanted.stream_id, wanted.range_index)
        held = self.ranges.get(key)
        if held is None:
            error = RangeNotFoundError(stream_id=key[0], range_index=key[1])
            return m.DescribeRangeResult(key[0], m.Range(*key), status_of(error))
        segments = (m.SegmentInfo(held.start, held.next, 1, 1),)
        return m.DescribeRangeResult(key[0], self._wire(key, held), OK, segments)

    def _wire(self, key: tuple[int, int], held: Held) -> m.Range:
        return m.Range(*key, held.start, held.end, held.next)


class NodeChannel:
    def __init__(self, world: World, manager: str, address: str) -> None:
        self._world = world
        self._manager = manager
        self._address = address

    async def call(
        self, code: Code, message: Message, payload: Payload = (), *, timeout: float = 3.0
    ) -> Reply:
        node = self._world.by_address(self._address)
        clock = self._world.clock
        await clock.sleep(0.001)
        cut = (self._manager, node.node_id) in self._world.cut
        if not node.reachable or cut or code in node.deaf:
            await clock.sleep(timeout)
            raise UnavailableError("no answer", node=node.node_id)
        try:
            answer = node.serve(code, message)
        except HeadraceError as error:
            raise as_over_tcp(error) from error
        await clock.sleep(0.001)
        return Reply(answer)

    async def close(self) -> None:
        pass


class World:
    """`managers` placement managers over one `MemoryMetadata`; with 0 of them one over a store of
    its own, as in embedded mode."""

    def __init__(self, seed: int, *, managers: int, settings: PlacementSettings) -> None:
        self.simulation = Simulation(seed)
        self.settings = settings
        self.clock = self.simulation.runtime("etcd").clock
        self.metadata = MemoryMetadata(self.clock)
        self.store = MemoryStore()
        self.names = [f"pm{number}" for number in range(1, managers + 1)]
        self.services: dict[str, PlacementService] = {}
        self.nodes: list[FakeNode] = []
        self.cut: set[tuple[str, int]] = set()  # (manager, node id) that do not reach each other
        self._peers: dict[tuple[str, int], Peer] = {}
        self._beating: list[asyncio.Task[None]] = []

    # Placement managers

    async def start(self, name: str = "pm") -> PlacementService:
        runtime = self.simulation.runtime(name)

        def connect(address: str) -> Callable[[], Awaitable[Channel]]:
            async def make() -> Channel:
                return NodeChannel(self, name, address)

            return make

        async def run() -> PlacementService:
            if self.names:
                membership = self.metadata.join(runtime, self.settings, name)
                service = PlacementService(
                    runtime,
                    self.settings,
                    store=membership.store,
                    node=connect,
                    secret=None,
                    election=membership.election,
                    advertise=f"{name}:1",
                    name=name,
                )
            else:
                service = PlacementService(
                    runtime, self.settings, store=self.store, node=connect, secret=None
                )
            await service.start()
            return service

        service = self.services[name] = await self.simulation.on(name, run())
        return service

    def crash(self, name: str) -> None:
        del self.services[name]
        self.simulation.crash(name)

    async def stop(self, name: str) -> None:
        await self.simulation.on(name, self.services.pop(name).close())

    def leaders(self) -> list[str]:
        return [name for name, service in self.services.items() if service.leading]

    async def leader(self, *, but: str = "") -> PlacementService:
        """The one that leads, waited for; never two."""

        def found() -> bool:
            assert len(self.leaders()) <= 1, "two leaders"
            return bool(self.leaders()) and self.leaders()[0] != but

        await self.until(found)
        return self.services[self.leaders()[0]]

    async def call(self, service: PlacementService, code: Code, message: Message) -> Any:
        channel = await service.connect()
        reply = await channel.call(code, message, timeout=30)
        raise_for_status(getattr(reply.message, "status", None))
        return reply.message

    # Data nodes

    async def add_nodes(self, count: int) -> None:
        leader = await self.leader()
        for _ in range(count):
            allocated = await self.call(leader, Code.ALLOCATE_ID, m.IdAllocationRequest())
            number = allocated.id
            self.nodes.append(FakeNode(number, f"store-{number}", f"dn{number}:1"))
        await self.beat()

    async def beat(self, nodes: Sequence[FakeNode] | None = None) -> None:
        """One heartbeat of each node to each placement manager that it reaches."""
        for node in self.nodes if nodes is None else nodes:
            for name, service in list(self.services.items()):
                gone = self.services.get(name) is not service
                if gone or not node.reachable or (name, node.node_id) in self.cut:
                    continue
                peer = self._peers.setdefault((name, node.node_id), Peer(address=node.address))
                peer.role, peer.node_id = m.ClientRole.DATA_NODE, node.node_id
                request = m.HeartbeatRequest(
                    node.store_id,
                    m.ClientRole.DATA_NODE,
                    m.DataNode(node.node_id, node.address),
                    host_id=node.host_id,
                )
                await self.simulation.on(name, _heartbeat(service, request, peer))

    def keep_beating(self) -> None:
        async def forever() -> None:
            while True:
                await self.clock.sleep(0.5)
                try:
                    await self.beat()
                except UnavailableError:
                    continue  # a placement manager crashed meanwhile

        self._beating.append(asyncio.get_running_loop().create_task(forever()))

    def goaway(self, node: FakeNode) -> None:
        for (name, node_id), peer in list(self._peers.items()):
            if node_id == node.node_id and name in self.services:
                self.services[name]._on_goaway(peer)  # what the server calls
                del self._peers[name, node_id]

    def by_address(self, address: str) -> FakeNode:
        return next(node for node in self.nodes if node.address == address)

    def holders(self, record: RangeRecord) -> list[FakeNode]:
        return [self.nodes[n] for n in record.replicas]

    # Requests that look for the leader

    async def ask(self, code: Code, message: Message) -> Any:
        for _ in range(200):
            try:
                return await self.call(await self.leader(), code, message)
            except NotLeaderError:
                await self.clock.sleep(0.05)
        raise AssertionError("no leader")

    async def create(self, name: str = "", replicas: int = 1, **more: Any) -> m.CreateStreamResult:
        wanted = m.Stream(replica_nums=replicas, name=name, **more)
        answer = await self.ask(Code.CREATE_STREAMS, m.CreateStreamsRequest(streams=(wanted,)))
        (result,) = answer.create_responses
        raise_for_status(result.status)
        assert isinstance(result, m.CreateStreamResult)
        return result

    async def seal(
        self, stream_id: int, range_index: int, epoch: int = -1, *, preferred: int = -1
    ) -> m.Range:
        wanted = m.RangeId(stream_id, range_index, epoch, preferred_node=preferred)
        answer = await self.ask(Code.SEAL_RANGES, m.SealRangesRequest(ranges=(wanted,)))
        (result,) = answer.seal_responses
        raise_for_status(result.status)
        assert isinstance(result.range, m.Range)
        return result.range

    async def list(self, stream_id: int = -1, node_id: int = -1) -> tuple[m.Range, ...]:
        node = m.DataNode(node_id) if node_id >= 0 else None
        criteria = m.RangeCriteria(node, stream_id)
        answer = await self.ask(Code.LIST_RANGES, m.ListRangesRequest(range_criteria=(criteria,)))
        (result,) = answer.list_responses
        raise_for_status(result.status)
        ranges: tuple[m.Range, ...] = result.ranges
        return ranges

    async def until(self, check: Callable[[], bool], *, seconds: float = 60.0) -> None:
        deadline = self.clock.monotonic() + seconds
        while not check():
            assert self.clock.monotonic() < deadline, "did not happen in time"
            await self.clock.sleep(0.02)

    async def close(self) -> None:
        for task in self._beating:
            task.cancel()
        await asyncio.gather(*self._beating, return_exceptions=True)
        for name in list(self.services):
            await self.stop(name)


async def _heartbeat(service: PlacementService, request: m.HeartbeatRequest, peer: Peer) -> None:
    await service.routes.table[Code.HEARTBEAT].handler(request, (), peer)


def simulate(
    test: Callable[[World], Coroutine[Any, Any, None]],
    *,
    managers: int = 0,
    nodes: int = 0,
    seed: int = 1,
    settings: PlacementSettings = SETTINGS,
) -> World:
    """Start everything, run the test, close everything."""
    world = World(seed, managers=managers, settings=settings)

    async def main() -> None:
        for name in world.names or ["pm"]:
            await world.start(name)
        await world.leader()
        await world.add_nodes(nodes)
        world.keep_beating()
        await test(world)
        await world.close()

    world.simulation.run(main())
    return world
