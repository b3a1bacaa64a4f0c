"""How far a pipeline's queries have read, asked of a real broker: one position per query."""

from __future__ import annotations

from pathlib import Path

from headrace.client.iggy import IggyClient
from headrace.pipeline.controller.backlog import Reading, readings, remove_positions
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Consumer, Partitioning
from tests.integration.broker_stack import Stack


async def test_each_query_has_a_position_and_the_slowest_of_an_operator_counts(
    tmp_path: Path,
) -> None:
    stack = await Stack(str(tmp_path / "s")).start()
    try:
        client = await stack.connect()
        await client.create_stream("shop")
        await client.create_topic("shop", "orders", partitions_count=2)
        await client.send(
            "shop",
            "orders",
            [Message(b"x") for _ in range(10)],
            partitioning=Partitioning.to_partition(0),
        )
        for query, offset in {
            "revenue": 9,
            "split.small": 6,
            "split.large": 3,
            "split_dead_letter": 0,
        }.items():
            await store(client, f"pipeline.shop.{query}", offset)
        await store(client, "somebody", 1)
        found = await readings(client, "shop", "shop/orders", {"revenue", "split", "audit"})
        assert {name: some["orders/0"] for name, some in found.items()} == {
            "revenue": Reading(0, 10, 10),
            "split": Reading(0, 10, 4),
            "audit": Reading(0, 10, None),
        }
        assert {some["orders/1"].end for some in found.values()} == {0}
        assert await readings(client, "shop", "shop/gone", {"revenue"}) == {"revenue": {}}
        await client.create_topic("shop", "orders-eu", partitions_count=1)
        several = await readings(client, "shop", "shop/orders*", {"revenue"})
        assert sorted(several["revenue"]) == ["orders-eu/0", "orders/0", "orders/1"]

        await remove_positions(client, "shop", "shop/orders", {"split"})
        left = sorted(one.name for one in await client.get_groups("shop", "orders"))
        assert left == ["pipeline.shop.revenue", "somebody"]
        await client.close()
    finally:
        await stack.stop()


async def store(client: IggyClient, group: str, offset: int) -> None:
    await client.create_group("shop", "orders", group)
    await client.store_consumer_offset(
        Consumer.group(group), "shop", "orders", offset=offset, partition=0
    )
