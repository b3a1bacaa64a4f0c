"""Ranges that a node leads: acknowledgement, loss of a quorum, lags."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from headrace.config.datanode import DataNodeSettings
from headrace.datanode.replication.leader import LedRange, LedRanges
from headrace.errors import (
    CorruptionError,
    DiskFullError,
    HeadraceError,
    SealedError,
    ThrottledError,
)
from headrace.net.sbp_channel import Channel
from headrace.runtime.interfaces import Runtime
from headrace.storage.layout import RangeKey
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import QuorumError
from tests.unit.datanode.fake_replica import SETTINGS, FakeLog, FakeNode, batch_at, simulate


class Cluster:
    """This node, which leads, and the nodes of its replicas."""

    def __init__(self, runtime: Runtime, settings: DataNodeSettings = SETTINGS) -> None:
        self.runtime = runtime
        self.nodes = {1: FakeNode(), 2: FakeNode()}
        self.stopped: list[tuple[RangeKey, type[HeadraceError]]] = []
        self.asked: list[RangeKey] = []
        self.leading = LedRanges(
            runtime,
            settings,
            connect_to=self._connect_to,
            addresses={1: "node:1", 2: "node:2"},
            introduce=m.HeartbeatRequest,
            on_stopped=lambda key, error: self.stopped.append((key, type(error))),
            ask_seal=lambda key, reason: self.asked.append(key),
        )

    def _connect_to(self, address: str) -> Callable[[], asyncio.Future[Channel]]:
        node = self.nodes[int(address.partition(":")[2])]
        return lambda: asyncio.ensure_future(node.connect())

    def lead(self, stream_id: int = 1, *, quorum: int = 2) -> tuple[LedRange, FakeLog]:
        log = FakeLog(stream_id, quorum=quorum)
        self.leading.lead(log.real, [1, 2])
        return self.leading.require(log.real), log

    def append(self, led: LedRange, log: FakeLog) -> asyncio.Future[None]:
        header, body = batch_at(log.next_offset)
        return led.append(header, body)


def leading(test: Callable[[Cluster], object], settings: DataNodeSettings = SETTINGS) -> None:
    async def body(runtime: Runtime) -> None:
        cluster = Cluster(runtime, settings)
        await test(cluster)  # type: ignore[misc]  # a coroutine function
        await cluster.leading.close()

    simulate(body)


def test_an_append_needs_our_disk_and_a_quorum() -> None:
    async def body(cluster: Cluster) -> None:
        led, log = cluster.lead()
        cluster.nodes[2].cut()
        done = cluster.append(led, log)
        await asyncio.sleep(0.1)
        assert cluster.nodes[1].next_offsets[log.key] == 1
        assert not done.done(), "not on our disk"
        log.sync()
        await done
        assert log.committed_offset == 1
        cluster.nodes[1].slow = asyncio.Event()
        second = cluster.append(led, log)
        log.sync()
        await asyncio.sleep(0.1)
        assert not second.done(), "on our disk alone"
        cluster.nodes[1].slow.set()
        await second

    leading(body)


def test_the_repetition_of_a_batch_waits_for_the_first_one() -> None:
    async def body(cluster: Cluster) -> None:
        led, log = cluster.lead()
        first, second = cluster.append(led, log), cluster.append(led, log)
        again = led.wait(1)
        log.sync(1)
        await asyncio.wait_for(again, 1)
        await first
        assert not second.done()
        log.sync()
        await second
        assert led.wait(2).done()

    leading(body)


def test_a_refused_append_takes_no_place() -> None:
    async def body(cluster: Cluster) -> None:
        led, log = cluster.lead()

        def refuse(*_: object, **__: object) -> None:
            raise ThrottledError("too much")

        log.append = refuse  # type: ignore[method-assign, assignment]  # the log is full
        with pytest.raises(ThrottledError):
            cluster.append(led, log)
        await asyncio.sleep(0.1)
        assert cluster.nodes[1].next_offsets.get(log.key, 0) == 0

    leading(body)


def test_too_few_reachable_replicas_stop_the_range_after_a_while() -> None:
    async def body(cluster: Cluster) -> None:
        led, log = cluster.lead()
        for node in cluster.nodes.values():
            node.cut()
        await asyncio.sleep(5)
        assert cluster.stopped == [], "nobody waits for anything"
        started = cluster.runtime.clock.monotonic()
        done = cluster.append(led, log)
        log.sync()
        with pytest.raises(QuorumError):
            await done
        waited = cluster.runtime.clock.monotonic() - started
        assert 0.4 <= waited <= 0.6, "a node that has just come back gets its chance"
        assert cluster.stopped == [(log.key, QuorumError)]
        assert cluster.asked == [log.key]
        with pytest.raises(SealedError):
            cluster.leading.require(log.real)
        with pytest.raises(QuorumError):
            await led.wait(9)

    leading(body)


def test_one_of_two_secondaries_is_enough() -> None:
    async def body(cluster: Cluster) -> None:
        led, log = cluster.lead()
        cluster.nodes[1].cut()
        for _ in range(3):
            done = cluster.append(led, log)
            log.sync()
            await done
            await asyncio.sleep(1)
        assert cluster.stopped == []
        assert cluster.leading.missing_replicas() == 1
        assert cluster.leading.statistics()["replica_nodes_unreachable"] == 1

    leading(body)


def test_replicas_that_are_over_for_ever() -> None:
    async def body(cluster: Cluster) -> None:
        led, log = cluster.lead()
        cluster.nodes[1].refusal = lambda key, base: SealedError("sealed")
        done = cluster.append(led, log)
        log.sync()
        await done
        assert cluster.asked == [log.key], "the range will never be whole again"
        cluster.nodes[2].refusal = lambda key, base: SealedError("sealed")
        lost = cluster.append(led, log)
        log.sync()
        with pytest.raises(QuorumError):
            await lost
        assert cluster.stopped == [(log.key, QuorumError)]

    leading(body)


def test_replicas_that_differ_stop_the_range_at_once() -> None:
    async def body(cluster: Cluster) -> None:
        led, log = cluster.lead()
        cluster.nodes[1].refusal = lambda key, base: CorruptionError("another batch")
        cluster.nodes[2].slow = asyncio.Event()
        done = cluster.append(led, log)
        log.sync()
        with pytest.raises(QuorumError, match="differ"):
            await done
        assert cluster.stopped == [(log.key, CorruptionError)]

    leading(body)


def test_our_own_disk_stops_the_range() -> None:
    async def body(cluster: Cluster) -> None:
        led, log = cluster.lead()
        done = [cluster.append(led, log) for _ in range(3)]
        log.fail(DiskFullError("full"))
        for each in done:
            with pytest.raises(QuorumError, match="full"):
                await each
        assert cluster.stopped == [(log.key, DiskFullError)]

    leading(body)


def test_a_seal_ends_it_without_trouble() -> None:
    async def body(cluster: Cluster) -> None:
        led, log = cluster.lead()
        done = cluster.append(led, log)
        cluster.leading.release(log.key, SealedError("sealed"))
        with pytest.raises(SealedError):
            await done
        log.sync()
        await asyncio.sleep(1)
        assert log.committed_offset == 0, "nothing is acknowledged after a seal"
        assert (cluster.stopped, cluster.asked) == ([], [])
        assert cluster.leading.find(log.key) is None
        cluster.leading.release(log.key, SealedError("again"))

    leading(body)


def test_a_replica_that_lags_is_reported_once_in_a_while() -> None:
    settings = msgspec.structs.replace(
        SETTINGS, replica_lag_ms_max=2_000, replica_absent_ms_max=8_000
    )

    async def body(cluster: Cluster) -> None:
        led, log = cluster.lead()
        cluster.nodes[1].refusal = lambda key, base: ThrottledError("slow")
        started = cluster.runtime.clock.monotonic()
        for _ in range(40):
            done = cluster.append(led, log)
            log.sync()
            await done
            await asyncio.sleep(0.25)
            if cluster.asked:
                break
        assert 2.0 <= cluster.runtime.clock.monotonic() - started <= 3.5
        await asyncio.sleep(30)
        assert cluster.asked == [log.key]
        await asyncio.sleep(60)
        assert len(cluster.asked) > 1

    leading(body, settings)


def test_a_replica_that_is_gone_gets_more_time() -> None:
    settings = msgspec.structs.replace(
        SETTINGS, replica_lag_ms_max=2_000, replica_absent_ms_max=8_000
    )

    async def body(cluster: Cluster) -> None:
        led, log = cluster.lead()
        await asyncio.sleep(0.5)
        cluster.nodes[1].cut()
        done = cluster.append(led, log)
        log.sync()
        await done
        await asyncio.sleep(6)
        assert cluster.asked == []
        await asyncio.sleep(4)
        assert cluster.asked == [log.key]

    leading(body, settings)


def test_a_node_without_an_address_is_unreachable() -> None:
    async def body(runtime: Runtime) -> None:
        cluster = Cluster(runtime)
        cluster.leading._addresses = {1: "node:1", 2: ""}
        led, log = cluster.lead(quorum=3)
        done = cluster.append(led, log)
        log.sync()
        with pytest.raises(QuorumError):
            await done
        await cluster.leading.close()

    simulate(body)


def test_leading_twice_is_leading_once() -> None:
    async def body(cluster: Cluster) -> None:
        led, log = cluster.lead()
        cluster.leading.lead(log.real, [1, 2])
        assert cluster.leading.require(log.real) is led
        assert cluster.leading.statistics()["ranges_led"] == 1

    leading(body)
