"""Who leads which shard, told by any worker; and an operator moves a shard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from headrace.errors import InvalidArgumentError, NotFoundError, UnauthorizedError
from headrace.process.cluster_state import cluster_info
from headrace.web.metrics.broker import BrokerFigures
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.messages.users import GlobalPermissions, Permissions
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from tests.integration.test_workers_of_a_broker import spread, until
from tests.integration.worker_stack import WorkerStack


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[WorkerStack]:
    stack = await WorkerStack(str(tmp_path)).start()
    try:
        await until(lambda: spread(stack))
        yield stack
    finally:
        await stack.stop()


def leader(stack: WorkerStack, shard: int) -> int:
    """The number of the worker that holds the shard."""
    (found,) = [n for n, w in stack.workers.items() if w.broker.shards.leads(shard)]
    return found


async def test_every_worker_tells_the_same_map(stack: WorkerStack) -> None:
    async with AsyncExitStack() as closing:
        clients = [
            await closing.enter_async_context(await stack.connect(number)) for number in range(3)
        ]
        await clients[0].create_stream("s")
        await clients[0].create_topic("s", "t", partitions_count=6)
        maps = [await client.get_shards() for client in clients]
        assert maps[0].shards == maps[1].shards == maps[2].shards
        names = {stack.workers[n].holder: n for n in range(3)}
        for row in maps[0].shards:
            led = stack.workers[names[row.worker]].broker.shards.get(row.shard)
            assert row.epoch == led.epoch
        assert sum(row.partitions for row in maps[0].shards) == 6
        workers = maps[0].workers
        assert [(w.number, w.name) for w in workers] == sorted((n, h) for h, n in names.items())
        assert [w.address for w in workers] == [stack.workers[n].address for n in range(3)]
        assert [w.connections for w in workers] == [1, 1, 1]
        assert sum(w.shards for w in workers) == 64
        assert sum(w.partitions for w in workers) == 6
        assert [w.coordinates for w in workers].count(True) == 1
        last = maps[2].workers
        passed, taken = (
            sum(w.requests_passed_on for w in last),
            sum(w.requests_taken_in for w in last),
        )
        assert 0 < passed <= taken


async def test_a_shard_moves_with_what_it_holds(stack: WorkerStack) -> None:
    async with AsyncExitStack() as closing:
        clients = [
            await closing.enter_async_context(await stack.connect(number)) for number in range(3)
        ]
        await clients[0].create_stream("s")
        await clients[0].create_topic("s", "t", partitions_count=1)
        (topic,) = stack.workers[0].broker.catalogue.topics()
        shard, to = topic.partitions[0].shard, Partitioning.to_partition(0)
        assert shard, "not the coordinator's"
        there = [number for number in range(3) if number != leader(stack, shard)]
        for number in [*there, *there]:
            await clients[2].send("s", "t", [Message(b"x")], partitioning=to)
            await clients[0].poll("s", "t", partition=0, auto_commit=True)
            moved = await clients[1].move_shard(shard, str(number))
            holder = stack.workers[number].holder
            assert (moved.worker, moved.pinned) == (holder, holder)
            assert leader(stack, shard) == number
        for client in clients:
            polled = await client.poll("s", "t", partition=0, strategy=Strategy.first())
            assert polled.count == 4
            stored = await client.get_consumer_offset(Consumer.single(), "s", "t", 0)
            assert stored is not None
            assert stored.stored_offset == 3


async def test_a_pin_outlives_the_coordinator_and_ends(stack: WorkerStack) -> None:
    async with AsyncExitStack() as closing:
        (coordinator,) = [n for n, w in stack.workers.items() if w.broker.workers.coordinates]
        mine, other = [number for number in stack.workers if number != coordinator]
        client = await closing.enter_async_context(await stack.connect(mine))
        given = stack.workers[mine].holder
        mine_before = [
            row.shard for row in (await client.get_shards()).shards if row.worker == given
        ]
        others = [shard for shard in range(1, 64) if shard not in mine_before][:3]
        for shard in others:
            assert (await client.move_shard(shard, given)).worker == given
        await stack.stop_worker(coordinator)
        await until(lambda: all(leader(stack, shard) == mine for shard in others))
        found = await client.get_shards()
        assert {row.shard for row in found.shards if row.pinned == given} == set(others)
        for shard in others:
            assert (await client.move_shard(shard, "")).pinned == ""
        assert not any(row.pinned for row in (await client.get_shards()).shards)
        await until(lambda: spread(stack))
        assert other in stack.workers


async def test_what_is_refused(stack: WorkerStack) -> None:
    async with AsyncExitStack() as closing:
        admin = await closing.enter_async_context(await stack.connect(0))
        with pytest.raises(InvalidArgumentError, match="stays with the worker that coordinates"):
            await admin.move_shard(0, "1")
        with pytest.raises(NotFoundError, match="no worker that lives has the name or number '9'"):
            await admin.move_shard(3, "9")
        with pytest.raises(NotFoundError, match="no shard 64"):
            await admin.move_shard(64, "1")
        everything_but = Permissions(GlobalPermissions(read_servers=True, manage_users=True))
        await admin.create_user("ann", "secret-of-ann", permissions=everything_but)
        for number in range(3):
            user = await closing.enter_async_context(await stack.connect(number, login=False))
            await user.login("ann", "secret-of-ann")
            with pytest.raises(UnauthorizedError):
                await user.move_shard(3, "1")
            assert len((await user.get_shards()).shards) == 64


async def test_placement_managers_tell_of_workers_too(stack: WorkerStack) -> None:
    described = await stack.clients[0].describe_cluster(count_ranges=True)
    found = cluster_info((), (), described)
    assert {one.name for one in found.workers} == {w.holder for w in stack.workers.values()}
    assert sum(one.shards for one in found.workers) == 64
    assert [one.coordinates for one in found.workers].count(True) == 1
    assert [(one.address, one.role) for one in found.brokers] == [("embedded", "leader")]


async def test_workers_tell_what_they_lead_and_pass_on(stack: WorkerStack) -> None:
    async with AsyncExitStack() as closing:
        clients = [
            await closing.enter_async_context(await stack.connect(number)) for number in range(3)
        ]
        for client in clients:
            await client.get_shards()
        figures = [
            msgspec.convert(stack.workers[n].statistics(), BrokerFigures).singles()
            for n in range(3)
        ]
        assert sum(one["broker_shards_led"] for one in figures) == 64
        assert sorted(one["broker_coordinating"] for one in figures) == [0, 0, 1]
        passed = sum(one["broker_requests_passed_on_total"] for one in figures)
        assert 2 <= passed == sum(one["broker_requests_taken_in_total"] for one in figures)
        delays = stack.workers[0].broker.loop_delay
        await until(lambda: delays.delays.count > 1)
