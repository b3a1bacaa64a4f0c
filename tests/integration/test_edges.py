"""The topics between queries on a real broker: made, grown at a window, reset and purged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.client.iggy import IggyClient
from headrace.config.datanode import StorageSettings
from headrace.errors import FencedError, HeadraceError, InvalidArgumentError
from headrace.ids import WindowId
from headrace.pipeline.plan.edges import (
    Edge,
    edges_of,
    last_closed,
    make_edge,
    purge_edge,
    purge_window,
    remove_edges,
    reset_edge,
)
from headrace.pipeline.plan.logical import Endpoint, LogicalPlan, Operator, Port, Stream
from headrace.pipeline.plan.physical import make_physical_plan
from headrace.wire.iggy.messages.extensions import WindowsListed
from headrace.wire.iggy.messages.messages import Message, encode_send
from headrace.wire.iggy.primitives import Partitioning
from headrace.wire.umbilical.windows import NO_WINDOW, WindowGrid
from tests.integration.broker_stack import Stack

GRID = WindowGrid(1_700_000_000_000, 500)


def at(ordinal: int) -> WindowId:
    return GRID.window_at(GRID.start_ms + ordinal * GRID.width_ms)


async def publish(
    client: IggyClient, edge: Edge, instance: int, epoch: int, window: int, payload: bytes
) -> None:
    opened = await client.open_publisher(edge.publisher(instance), str(epoch), epoch=epoch)
    messages = encode_send(
        edge.iggy_stream, edge.topic, Partitioning.to_partition(instance), [Message(payload)]
    )
    span = await client.stage(opened, window, messages)
    await client.close_window(
        opened, previous=opened.last_window, window=window, manifest=[span], rows=1
    )


async def listed(client: IggyClient, edge: Edge, after: int = -1) -> WindowsListed:
    return await client.list_windows(edge.iggy_stream, edge.topic, after=after)


def windows(answer: WindowsListed) -> list[list[int]]:
    return [[each.window for each in publisher.windows] for publisher in answer.publishers]


async def test_the_life_of_an_edge(tmp_path: Path) -> None:
    stack = await Stack(
        str(tmp_path / "s"), storage=StorageSettings(segment_bytes_max=1 << 20)
    ).start()
    try:
        client = await stack.connect()
        edge = Edge("shop", "valid")
        for _ in range(2):  # a controller that is started again
            await make_edge(client, edge)
        assert await last_closed(client, edge) == NO_WINDOW
        for ordinal in range(8):
            await publish(client, edge, 0, 1, at(ordinal), b"x" * 300_000)
        grown = Edge("shop", "valid", 3)
        with pytest.raises(InvalidArgumentError):
            await make_edge(client, grown, after=at(5))
        assert await last_closed(client, edge) == at(7)
        await make_edge(client, grown, after=at(7))
        for instance in range(3):
            await publish(client, grown, instance, 2, at(9), b"y")
        answer = await listed(client, edge, after=at(6))
        assert answer.closed == at(9)
        assert windows(answer) == [[at(7), at(9)], [at(9)], [at(9)]]

        await reset_edge(client, grown, window=at(8), epoch=3)
        with pytest.raises(FencedError):
            await publish(client, grown, 1, 2, at(9), b"zombie")
        assert windows(await listed(client, edge, after=at(6))) == [[at(7)], [], []]
        for instance in range(3):
            await publish(client, grown, instance, 3, at(9), b"y again")

        await purge_edge(client, grown, window=NO_WINDOW)
        assert (await listed(client, edge)).purged == NO_WINDOW
        await purge_edge(client, grown, window=at(6))
        ticket = await client.read_ticket([(edge.iggy_stream, edge.topic)])
        assert ticket.topics[0].partitions[0].start > 0, "segments are trimmed"
        await client.close()

        await stack.stop_broker()
        await stack.start_broker()
        client = await stack.connect()
        answer = await listed(client, edge)
        assert (answer.purged, answer.resets, answer.closed) == (at(6), 1, at(9))
        assert windows(answer) == [[at(7), at(9)], [at(9)], [at(9)]]
        with pytest.raises(HeadraceError):
            await client.purge_to("nowhere", "at all", window=at(6))

        await make_edge(client, Edge("shop", "gone"))
        await client.create_topic(edge.iggy_stream, "mine", partitions_count=1)
        await make_edge(client, Edge("shop.again", "valid"))
        await remove_edges(client, "shop")
        assert [one.name for one in await client.get_topics(edge.iggy_stream)] == ["mine"]
        await client.delete_topic(edge.iggy_stream, "mine")
        for _ in range(2):
            await remove_edges(client, "shop")
        assert [one.name for one in await client.get_streams()] == ["_pipeline.shop.again"]
        # Its publishers went with it: the same application begins with its first window.
        await make_edge(client, edge)
        await publish(client, edge, 0, 1, at(0), b"from the beginning")
        assert windows(await listed(client, edge)) == [[at(0)]]
        await client.close()
    finally:
        await stack.stop()


async def test_a_reader_waits_for_a_window_without_holding_up_others(tmp_path: Path) -> None:
    stack = await Stack(str(tmp_path / "s")).start()
    try:
        writer, reader = await stack.connect(), await stack.connect()
        edge = Edge("shop", "valid")
        await make_edge(writer, edge)
        waiting = asyncio.create_task(
            reader.list_windows(edge.iggy_stream, edge.topic, wait_ms=20_000)
        )
        await publish(writer, edge, 0, 1, at(3), b"x")
        answer = await asyncio.wait_for(waiting, 5)
        assert windows(answer) == [[at(3)]]
        await writer.close()
        await reader.close()
    finally:
        await stack.stop()


def test_edges_are_the_streams_between_containers() -> None:
    plan = LogicalPlan(
        "shop",
        (
            Operator("orders", outputs=(Port("output"),)),
            Operator("valid", inputs=(Port("orders"),), outputs=(Port("output"),), instances=2),
            Operator("report", inputs=(Port("valid"),), isolate=True, terminal=True),
        ),
        (
            Stream("orders", Endpoint("orders", "output"), (Endpoint("valid", "orders"),)),
            Stream("valid", Endpoint("valid", "output"), (Endpoint("report", "valid"),)),
        ),
    )
    first, second = edges_of(make_physical_plan(plan))
    assert (first.address, first.publishers) == (
        "_pipeline.shop/orders",
        ("pipeline/shop/orders/0",),
    )
    assert second.publishers == ("pipeline/shop/valid/0", "pipeline/shop/valid/1")


def test_what_may_be_purged() -> None:
    hour = 3_600_000
    now = GRID.millis(at(10_000))

    def found(committed: WindowId, now_ms: int, retention: int = hour) -> WindowId:
        return purge_window(GRID, committed, now_ms=now_ms, rollback_retention_ms=retention)

    assert found(NO_WINDOW, now) == NO_WINDOW
    assert found(at(9_000), now) == at(10_000 - 7_200 - 1)
    assert found(at(100), now) == at(99), "never up to where somebody recovers"
    assert found(at(9_000), now, 0) == at(8_999)
    assert found(at(100), GRID.millis(at(200))) == NO_WINDOW, "younger than the retention"
