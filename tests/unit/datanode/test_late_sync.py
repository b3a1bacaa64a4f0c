"""SYNC_RANGES that arrives when the range it opens is long gone from the node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from headrace.config.datanode import DataNodeSettings
from headrace.errors import DiskFullError, SealedError
from headrace.sbp_client.client import SbpClient
from headrace.storage.layout import RangeKey
from tests.log_cluster import Cluster, batch, eventually, read_all
from tests.simulator.runtime import SimulatedDisk, Simulation


def simulate(
    test: Callable[[Cluster, SbpClient, SimulatedDisk], Coroutine[Any, Any, None]],
) -> None:
    simulation = Simulation(7)

    async def main() -> None:
        settings = DataNodeSettings(heartbeat_interval_ms=200, reconcile_interval_ms=100)
        cluster = Cluster(
            simulation.runtime("host"), "/data", tcp=False, sqlite=False, node_settings=settings
        )
        await cluster.start()
        await test(cluster, cluster.client(), simulation.disk("host"))
        await cluster.close()

    simulation.run(main())


async def restart(cluster: Cluster, *, cleanly: bool) -> None:
    if cleanly:
        await cluster.stop_node()
    else:
        await cluster.kill_node()
    await cluster.start_node()


@pytest.mark.parametrize("restarts", [(), (True,), (False,), (False, True)])
@pytest.mark.parametrize("records", [0, 1])
def test_f11_a_dropped_range_stays_dropped(records: int, restarts: tuple[bool, ...]) -> None:
    async def body(cluster: Cluster, client: SbpClient, disk: SimulatedDisk) -> None:
        stream_id = (await client.create_stream()).stream_id
        (first,) = await client.list_ranges(stream_id)
        for _ in range(records):
            await client.append(stream_id, batch(b"a"))
        await client.seal(stream_id, 0)
        await client.append(stream_id, batch(b"b"))
        await client.trim(stream_id, records)

        async def dropped() -> bool:
            return cluster.live(0).state.find(RangeKey(stream_id, 0)) is None

        await eventually(cluster.runtime, dropped)
        for cleanly in restarts:
            await restart(cluster, cleanly=cleanly)
        state = cluster.live(0).state
        for log in state.ranges(stream_id):  # whatever else is here does not decide it
            state.on_removed(log.key)
        with pytest.raises(SealedError):
            await cluster.live(0).ranges.sync(first)
        assert state.find(RangeKey(stream_id, 0)) is None

    simulate(body)


@pytest.mark.parametrize("restarts", [(), (True,), (False,)])
def test_a_deleted_stream_stays_deleted(restarts: tuple[bool, ...]) -> None:
    async def body(cluster: Cluster, client: SbpClient, disk: SimulatedDisk) -> None:
        stream_id = (await client.create_stream()).stream_id
        (first,) = await client.list_ranges(stream_id)
        await client.delete_stream(stream_id)
        for cleanly in restarts:
            await restart(cluster, cleanly=cleanly)
        for index in (0, 1, 99):
            with pytest.raises(SealedError):
                await cluster.live(0).ranges.sync(replace(first, range_index=index))
        assert cluster.live(0).state.ranges(stream_id) == []
        other = await client.create_stream()
        assert await client.append(other.stream_id, batch(b"a")) == 0

    simulate(body)


def test_a_copy_may_come_back() -> None:
    async def body(cluster: Cluster, client: SbpClient, disk: SimulatedDisk) -> None:
        stream_id = (await client.create_stream()).stream_id
        (first,) = await client.list_ranges(stream_id)
        await cluster.live(0).ranges.delete(RangeKey(stream_id, 0))
        log = await cluster.live(0).ranges.sync(replace(first, end_offset=0))
        assert log.final
        with pytest.raises(SealedError):
            await cluster.live(0).ranges.sync(first)

    simulate(body)


def test_a_range_that_is_deleted_while_it_is_opened() -> None:
    async def body(cluster: Cluster, client: SbpClient, disk: SimulatedDisk) -> None:
        stream_id = (await client.create_stream()).stream_id
        (first,) = await client.list_ranges(stream_id)
        node = cluster.live(0)
        opening = [
            asyncio.ensure_future(node.ranges.sync(replace(first, range_index=index)))
            for index in range(1, 6)
        ]
        await asyncio.sleep(0)
        await client.delete_stream(stream_id)
        await asyncio.wait(opening)
        assert any(isinstance(task.exception(), SealedError) for task in opening)
        assert cluster.live(0).state.ranges(stream_id) == []
        assert not any(f"/streams/{stream_id}/" in path for path in disk.files())

    simulate(body)


def test_a_full_disk_does_not_keep_streams_from_being_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The space for remembering it may be what the deletion has to give back first."""

    async def body(cluster: Cluster, client: SbpClient, disk: SimulatedDisk) -> None:
        stream_id = (await client.create_stream()).stream_id
        (first,) = await client.list_ranges(stream_id)
        await client.append(stream_id, batch(b"x" * 1000))
        with monkeypatch.context() as patch:
            file = cluster.live(0).fences
            write = type(file)._rewrite
            tries: list[int] = []

            def full_once(self: object, data: bytes, records: int) -> None:
                tries.append(records)
                if len(tries) == 1:
                    raise DiskFullError("no space left")
                write(file, data, records)

            patch.setattr(type(file), "_rewrite", full_once)
            await cluster.live(0).ranges.delete_stream(stream_id)
        assert len(tries) == 2
        assert not any(f"/streams/{stream_id}/" in path for path in disk.files())
        await cluster.kill_node()
        await cluster.start_node()
        with pytest.raises(SealedError):
            await cluster.live(0).ranges.sync(first)

    simulate(body)


def test_a_stream_that_left_comes_back_with_a_later_range() -> None:
    async def body(cluster: Cluster, client: SbpClient, disk: SimulatedDisk) -> None:
        stream_id = (await client.create_stream()).stream_id
        await client.seal(stream_id, 0)  # empty: dropped, while the stream lives on
        await client.seal(stream_id, 1)

        async def dropped() -> bool:
            return len(cluster.live(0).state.ranges(stream_id)) == 1

        await eventually(cluster.runtime, dropped)
        assert await client.append(stream_id, batch(b"a")) == 0
        assert await read_all(client, stream_id) == [(0, b"a")]

    simulate(body)
