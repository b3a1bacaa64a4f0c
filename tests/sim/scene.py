"""A cluster for one scripted failure: short words for what the scenarios do and ask.

    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 10)
        scene.cluster.crash(scene.primary(stream))
        ...

    play(script)

`play` heals the cluster after the script, waits until it is whole, and lets the checker see the
history; so a scenario asserts what is special about it and gets the invariants for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.config.datanode import DataNodeSettings
from headrace.errors import HeadraceError
from headrace.net.sbp_channel import Channel
from headrace.placement.metadata.records import RangeRecord, StreamRecord
from headrace.sbp_client.client import SbpClient
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import raise_for_status
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import PRODUCER
from tests.log_cluster import batch, bodies
from tests.sim.checker import check
from tests.sim.cluster import NODE_PORT, NODE_SETTINGS, Cluster
from tests.sim.ending import finish, insist

CLIENT = "client"


class Scene:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.simulation = cluster.simulation
        self.client: SbpClient = cluster.client(CLIENT)
        self.written: dict[int, dict[int, bytes]] = {}
        """By stream: the body of every acknowledged record, by offset."""
        self._bodies = 0

    async def sleep(self, seconds: float) -> None:
        await self.cluster.sleep(seconds)

    # Metadata

    async def create(self, *, replicas: int = 3, name: str = "") -> int:
        made = await self.client.create_stream(replica_nums=replicas, name=name)
        return made.stream_id

    def ranges(self, stream_id: int) -> list[RangeRecord]:
        found = [
            record
            for record in self.cluster.records()
            if isinstance(record, RangeRecord) and record.stream_id == stream_id
        ]
        return sorted(found, key=lambda record: record.range_index)

    def stream(self, stream_id: int) -> StreamRecord:
        for record in self.cluster.records():
            if isinstance(record, StreamRecord) and record.stream_id == stream_id:
                return record
        raise AssertionError(f"no stream {stream_id}")

    def hosts(self, stream_id: int, index: int = -1) -> list[str]:
        """The replicas of a range, the primary first; of the last one without an index."""
        by_id = {node_id: host for host, node_id in self.cluster.history.hosts.items()}
        return [by_id[node_id] for node_id in self.ranges(stream_id)[index].replicas]

    def primary(self, stream_id: int) -> str:
        return self.hosts(stream_id)[0]

    def spare(self, stream_id: int) -> str:
        """A data node without the last range."""
        return next(h for h in self.cluster.nodes if h not in self.hosts(stream_id))

    def leader(self) -> str:
        """The placement manager that leads now."""
        found = [host for host, service in self.cluster.placements.items() if service.leading]
        assert len(found) == 1, f"{found} lead"
        return found[0]

    # Data

    def body(self) -> bytes:
        self._bodies += 1
        return b"record %d" % self._bodies

    async def append(self, stream_id: int, count: int = 1, *, timeout: float = 3.0) -> int:
        """One batch after the other; returns the offset after the last."""
        end = 0
        for _ in range(count):
            body = self.body()
            offset = await self.client.append(stream_id, batch(body), timeout=timeout)
            self.written.setdefault(stream_id, {})[offset] = body
            end = offset + 1
        return end

    async def append_to(
        self,
        host: str,
        stream_id: int,
        index: int,
        body: bytes = b"",
        *,
        producer: tuple[int, int] = (-1, -1),
        timeout_ms: int = 1000,
    ) -> int:
        """An APPEND by hand, to this node and this range; the error its answer stands for."""
        pieces = batch(
            body or self.body(),
            attributes=PRODUCER if producer[0] >= 0 else 0,
            producer_id=producer[0],
            sequence=producer[1],
        )
        info = m.AppendInfo(
            range=m.Range(stream_id=stream_id, range_index=index),
            batch_length=sum(map(len, pieces)),
        )
        reply = await self.call(
            host, Code.APPEND, m.AppendRequest(timeout_ms, (info,)), b"".join(pieces)
        )
        assert isinstance(reply, m.AppendResponse)
        result = reply.append_responses[0]
        raise_for_status(result.status, stream_id=stream_id)
        return result.base_offset

    async def fetch_from(
        self, host: str, stream_id: int, offset: int, *, max_wait_ms: int = 0
    ) -> list[tuple[int, bytes]]:
        """A FETCH by hand from one replica: (offset, body), or the error of its answer."""
        info = m.FetchInfo(stream_id=stream_id, fetch_offset=offset, batch_max_bytes=1 << 20)
        request = m.FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, fetch_requests=(info,))
        channel = await self.channel(host)
        try:
            reply = await channel.call(Code.FETCH, request, timeout=max_wait_ms / 1000 + 3)
        finally:
            await channel.close()
        assert isinstance(reply.message, m.FetchResponse)
        for result in reply.message.fetch_responses:
            raise_for_status(result.status, stream_id=stream_id, offset=offset)
        return bodies([memoryview(b"".join(reply.payload))])

    async def describe(self, host: str, stream_id: int, index: int) -> m.Range:
        request = m.DescribeRangesRequest(1000, (m.RangeId(stream_id, index),))
        reply = await self.call(host, Code.DESCRIBE_RANGES, request)
        assert isinstance(reply, m.DescribeRangesResponse)
        raise_for_status(reply.describe_responses[0].status)
        assert reply.describe_responses[0].range is not None
        return reply.describe_responses[0].range

    async def channel(self, host: str) -> Channel:
        return await self.cluster.channel(CLIENT, f"{host}:{NODE_PORT}")

    async def call(
        self, host: str, code: Code, message: m.Message, payload: bytes = b""
    ) -> m.Message:
        channel = await self.channel(host)
        try:
            reply = await channel.call(code, message, (payload,) if payload else ())
        finally:
            await channel.close()
        return reply.message

    async def read_all(self, stream_id: int, start: int = 0) -> dict[int, bytes]:
        """As a client reads: from `start` to the acknowledged end."""
        _, end = await self.client.bounds(stream_id)
        found: dict[int, bytes] = {}
        offset = start
        while offset < end:
            fetched = await self.client.fetch(
                stream_id, offset, max_bytes=1 << 20, max_wait_ms=1000
            )
            assert fetched.pieces, f"nothing at {offset} of {end}"
            found.update(bodies(fetched.pieces))
            offset = fetched.next_offset
        return found

    async def check_written(self, stream_id: int) -> None:
        """Everything that was acknowledged reads back."""
        found = await insist(lambda: self.read_all(stream_id, self.ranges(stream_id)[0].start))
        for offset, body in self.written.get(stream_id, {}).items():
            if offset >= self.ranges(stream_id)[0].start:
                assert found.get(offset) == body

    # Waiting

    async def until(
        self, check: Callable[[], bool], seconds: float = 30.0, *, pause: float = 0.05
    ) -> None:
        deadline = self.simulation.time() + seconds
        while not check():
            assert self.simulation.time() < deadline, "did not happen in time"
            await self.sleep(pause)

    async def until_replicated(self, stream_id: int, seconds: float = 60.0) -> None:
        """Every range has all the replicas its stream asks for, complete."""

        def complete() -> bool:
            wanted = self.stream(stream_id).replica_nums
            alive = {service.node_id for service in self.cluster.services.values()}
            return all(
                len(r.replicas) == wanted
                and set(r.replicas) <= alive
                and not (r.joining or r.incomplete or r.sealing)
                for r in self.ranges(stream_id)
            )

        await self.until(complete, seconds)


def play(
    script: Callable[[Scene], Awaitable[None]],
    *,
    seed: int = 1,
    nodes: int = 4,
    managers: int = 3,
    whole: bool = True,
    node_settings: DataNodeSettings = NODE_SETTINGS,
) -> Scene:
    """Run the script on a fresh cluster, then check; `whole=False` when it cannot be healed."""
    cluster = Cluster(seed, managers=managers, nodes=nodes, node_settings=node_settings)
    scene: list[Scene] = []

    async def main() -> Any:
        await cluster.start()
        scene.append(Scene(cluster))
        await script(scene[0])
        await scene[0].client.close()
        return await finish(cluster) if whole else None

    final = cluster.simulation.run(main(), seconds_max=1000)
    if final is not None:
        violations = check(cluster.history, final)
        assert not violations, "\n".join(violations[:20])
    return scene[0]


async def failing(work: Awaitable[Any]) -> HeadraceError:
    """The error of something that must fail."""
    try:
        result = await work
    except HeadraceError as error:
        return error
    raise AssertionError(f"did not fail: {result!r}")


async def in_background(work: Awaitable[Any]) -> asyncio.Future[Any]:
    """Begun before this returns, awaited later."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    return task
