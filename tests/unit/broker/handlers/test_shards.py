"""One process leads every shard: what it tells of that, and what of a move it refuses."""

from __future__ import annotations

import pytest

from headrace.wire.iggy import commands as c
from headrace.wire.iggy.errors import IggyError, Status
from headrace.wire.iggy.messages.extensions import MoveShard
from headrace.wire.iggy.messages.system import Empty
from tests.unit.broker.fake_cluster import FakeCluster
from tests.unit.broker.harness import opened


async def test_one_worker_leads_everything() -> None:
    async with opened() as h:
        h.broker.name = "me"
        client = await h.root()
        await client.stream()
        await client.topic(partitions=3)
        found = await client.call(c.GET_SHARDS, Empty())
        assert [row.shard for row in found.shards] == list(range(64))
        assert {row.worker for row in found.shards} == {"me"}
        assert sum(row.partitions for row in found.shards) == 3
        (worker,) = found.workers
        assert (worker.name, worker.number, worker.coordinates) == ("me", 0, True)
        assert (worker.shards, worker.partitions, worker.connections) == (64, 3, 1)
        assert worker.requests >= 3


async def test_a_pin_outlives_the_broker() -> None:
    cluster = FakeCluster()
    async with opened(cluster) as h:
        h.broker.name = "me"
        client = await h.root()
        moved = await client.call(c.MOVE_SHARD, MoveShard(shard=5, worker="0"))
        assert (moved.worker, moved.pinned) == ("me", "me"), "by the number of the worker"
        await client.call(c.MOVE_SHARD, MoveShard(shard=6, worker="me"))
        await client.call(c.MOVE_SHARD, MoveShard(shard=6))
    async with opened(cluster, epoch=2) as h:
        assert h.broker.catalogue.pins == {5: "me"}


@pytest.mark.parametrize(
    ("shard", "worker", "status"),
    [
        (0, "me", Status.FIRST_SHARD_STAYS),
        (64, "me", Status.SHARD_NOT_FOUND),
        (-1, "", Status.SHARD_NOT_FOUND),
        (5, "other", Status.WORKER_NOT_FOUND),
        (5, "1", Status.WORKER_NOT_FOUND),
    ],
)
async def test_what_cannot_be_moved(shard: int, worker: str, status: Status) -> None:
    async with opened() as h:
        h.broker.name = "me"
        client = await h.root()
        with pytest.raises(IggyError) as refused:
            await client.call(c.MOVE_SHARD, MoveShard(shard=shard, worker=worker))
        assert refused.value.code == status
        assert h.broker.catalogue.pins == {}
