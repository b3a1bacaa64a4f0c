"""A data node's talk with its placement managers, on a cluster in the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.config.datanode import DataNodeSettings
from headrace.config.placement import PlacementSettings
from headrace.datanode.control.placement_contact import _raise_unless_one
from headrace.errors import (
    DeadlineError,
    HeadraceError,
    InvalidArgumentError,
    NotEnoughNodesError,
    RemoteProtocolError,
    RequestError,
    UnavailableError,
)
from headrace.net.sbp_routes import Reply
from headrace.sbp_client.channels import PlacementChannel
from headrace.sbp_client.client import SbpClient
from headrace.storage.layout import RangeKey
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import status_of
from headrace.wire.sbp.opcodes import Code
from tests.log_cluster import Cluster, batch
from tests.simulator.runtime import Simulation

NODE = DataNodeSettings(
    heartbeat_interval_ms=200, unsettled_interval_ms=100, reconcile_interval_ms=60_000
)


def simulate(
    test: Callable[[Cluster, SbpClient], Coroutine[Any, Any, None]],
    *,
    nodes: int = 3,
    placements: int = 1,
) -> None:
    simulation = Simulation(5)

    async def main() -> None:
        cluster = Cluster(
            simulation.runtime("host"),
            "/data",
            tcp=False,
            sqlite=False,
            nodes=nodes,
            placements=placements,
            node_settings=NODE,
            placement_settings=PlacementSettings(tick_interval_ms=100, node_timeout_ms=2_000),
            node_runtime=lambda at: simulation.runtime(f"dn{at}"),
        )
        await cluster.start()
        await test(cluster, cluster.client())
        await cluster.close()

    simulation.run(main())


GOOD = Reply(m.HeartbeatResponse(status=m.OK))
REFUSED = Reply(m.HeartbeatResponse(status=status_of(InvalidArgumentError("never given out"))))
ODD = Reply(m.ReportMetricsResponse())
DOWN = UnavailableError("down")
LATE = DeadlineError("late")


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([GOOD], None),
        ([DOWN, REFUSED, GOOD], None),
        ([REFUSED], RequestError),
        ([REFUSED, REFUSED], RequestError),
        ([REFUSED, DOWN], UnavailableError),  # the silent one may know us
        ([LATE, REFUSED], DeadlineError),
        ([DOWN], UnavailableError),
        ([ODD], RemoteProtocolError),
    ],
)
def test_one_placement_manager_that_knows_us_is_enough(
    outcomes: list[Reply | HeadraceError], expected: type[HeadraceError] | None
) -> None:
    if expected is None:
        _raise_unless_one(outcomes)
    else:
        with pytest.raises(expected):
            _raise_unless_one(outcomes)


def test_a_range_in_trouble_is_sealed_however_long_it_takes() -> None:
    async def body(cluster: Cluster, client: SbpClient) -> None:
        stream = await client.create_stream(replica_nums=3)
        await client.append(stream.stream_id, batch(b"a"))
        node = cluster.live(0)
        key = RangeKey(stream.stream_id, 0)
        log = node.state.range(key)
        real = node.contact.call
        attempts = 0

        async def failing(code: Code, *args: Any) -> Any:
            nonlocal attempts
            if code is Code.SEAL_RANGES:
                attempts += 1
                if attempts < 4:
                    raise NotEnoughNodesError("not now")
            return await real(code, *args)

        node.contact.call = failing  # type: ignore[method-assign, assignment]  # a few times
        node.contact.ask_seal(key, "a test")
        node.contact.ask_seal(key, "a test, again")
        await cluster.runtime.clock.sleep(10)
        assert log.sealed
        assert attempts == 4, "one after the other, and not once more"
        assert node.contact._asked == {}
        node.contact.ask_seal(RangeKey(99, 0), "unknown")
        await cluster.runtime.clock.sleep(1)
        assert node.contact._asked == {}

    simulate(body)


def test_what_a_placement_manager_forgot_in_a_restart_is_asked_for() -> None:
    async def body(cluster: Cluster, client: SbpClient) -> None:
        stream = await client.create_stream(replica_nums=3)
        for n in range(4):
            await client.append(stream.stream_id, batch(b"%d" % n))
        await client.seal(stream.stream_id, 0)
        await cluster.runtime.clock.sleep(2)
        placement = cluster.placement
        assert placement is not None

        async def deaf(*_: object) -> None:
            raise UnavailableError("not reached")

        placement._calls.trim = deaf  # type: ignore[method-assign, assignment]
        await client.trim(stream.stream_id, 2)
        logs = [cluster.live(at).state.range(RangeKey(stream.stream_id, 0)) for at in range(3)]
        assert [log.start_offset for log in logs] == [0, 0, 0]
        await cluster.stop_placement()
        await cluster.start_placement()
        await cluster.runtime.clock.sleep(3)
        assert [log.start_offset for log in logs] == [2, 2, 2]

    simulate(body)


def test_a_new_leader_is_asked_what_the_old_one_had_to_tell() -> None:
    async def body(cluster: Cluster, client: SbpClient) -> None:
        stream = await client.create_stream(replica_nums=3)
        await client.append(stream.stream_id, batch(b"a"))
        leader = next(p for p in cluster.placements if p is not None and p.leading)
        leader._calls.delete = lambda *_: asyncio.sleep(0)  # type: ignore[method-assign]
        await client.delete_stream(stream.stream_id)
        assert cluster.live(0).state.ranges(stream.stream_id)
        await cluster.stop_placement(cluster.placements.index(leader))
        await cluster.runtime.clock.sleep(10)
        for at in range(3):
            assert cluster.live(at).state.ranges(stream.stream_id) == []

    simulate(body, placements=3)


def test_reconciliation_is_rare_when_all_is_settled_and_slows_down_when_not() -> None:
    async def body(cluster: Cluster, client: SbpClient) -> None:
        stream = await client.create_stream(replica_nums=3)
        await client.append(stream.stream_id, batch(b"a"))
        node = cluster.live(0)
        looks: list[float] = []
        real = node.contact.reconcile

        async def look() -> None:
            looks.append(cluster.runtime.clock.monotonic())
            await real()

        node.contact.reconcile = look  # type: ignore[method-assign]  # counted
        await cluster.runtime.clock.sleep(20)
        assert looks == []
        await cluster.runtime.clock.sleep(60)
        assert len(looks) == 1
        looks.clear()
        node.state.stopped.add(RangeKey(stream.stream_id, 0))  # waits for a seal nobody asked for
        node.contact.reconcile_soon()
        await cluster.runtime.clock.sleep(20)
        assert 4 <= len(looks) <= 9, "0.1 s, 0.2 s, 0.4 s and so on"
        node.state.stopped.clear()

    simulate(body)


def test_a_node_that_stops_without_its_placement_manager_does_not_wait() -> None:
    async def body(cluster: Cluster, client: SbpClient) -> None:
        stream = await client.create_stream(replica_nums=3)
        await client.append(stream.stream_id, batch(b"a"))
        await cluster.stop_placement()
        await cluster.runtime.clock.sleep(1)
        started = cluster.runtime.clock.monotonic()
        await cluster.stop_node(1)
        assert cluster.runtime.clock.monotonic() - started < 1
        await cluster.start_placement()

    simulate(body)


def test_links_count_their_connections() -> None:
    async def body(cluster: Cluster, client: SbpClient) -> None:
        links = PlacementChannel.single(cluster.placement_connect)
        request = m.ListRangesRequest(timeout_ms=1000)
        for _ in range(3):
            await links.call(Code.LIST_RANGES, request, timeout=1.0)
        assert links.connections == 1
        await cluster.stop_placement()
        with pytest.raises(HeadraceError):
            await links.call(Code.LIST_RANGES, request, timeout=1.0)
        await cluster.start_placement()
        await links.call(Code.LIST_RANGES, request, timeout=1.0)
        assert links.connections == 2
        await links.close()

    simulate(body)
