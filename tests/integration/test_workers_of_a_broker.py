"""Several workers lead the partitions of one cluster; clients of any of them see one server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from headrace.errors import HeadraceError, UnauthorizedError
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.messages.users import GlobalPermissions, Permissions
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from tests.integration.worker_stack import WorkerStack


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # workers work in the background
            await asyncio.sleep(0.01)


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[WorkerStack]:
    stack = await WorkerStack(str(tmp_path)).start()
    try:
        await until(lambda: spread(stack))
        yield stack
    finally:
        await stack.stop()


def spread(stack: WorkerStack) -> bool:
    held = [len(w.worker.shards.held) for w in stack.workers.values() if w.worker is not None]
    known = [w.worker.peers.leaders for w in stack.workers.values() if w.worker is not None]
    return sum(held) == 64 and max(held) - min(held) <= 1 and all(k == known[0] for k in known)


async def test_shards_are_spread_and_every_connection_reaches_everything(
    stack: WorkerStack,
) -> None:
    async with AsyncExitStack() as closing:
        clients = [
            await closing.enter_async_context(await stack.connect(number)) for number in range(3)
        ]
        await clients[1].create_stream("s")
        await clients[2].create_topic("s", "t", partitions_count=6)
        for partition in range(6):
            to = Partitioning.to_partition(partition)
            sent = [Message(b"%d" % n) for n in range(10)]
            await clients[partition % 3].send("s", "t", sent, partitioning=to)
        for client in clients:
            for partition in range(6):
                polled = await client.poll("s", "t", partition=partition, strategy=Strategy.first())
                payloads = [bytes(message.payload) for message in polled.messages()]
                assert payloads == [b"%d" % n for n in range(10)]
            topic = await client.get_topic("s", "t")
            assert topic is not None
            assert topic.topic.messages_count == 60
        assert sum(w.forwarding.passed_on for w in stack.workers.values()) > 10


async def test_members_on_different_workers_share_a_group(stack: WorkerStack) -> None:
    async with AsyncExitStack() as closing:
        clients = [
            await closing.enter_async_context(await stack.connect(number)) for number in range(3)
        ]
        await clients[0].create_stream("s")
        await clients[0].create_topic("s", "t", partitions_count=6)
        await clients[0].create_group("s", "t", "g")
        for client in clients:
            await client.join_group("s", "t", "g")
        for n in range(60):
            to = Partitioning.to_partition(n % 6)
            await clients[n % 3].send("s", "t", [Message(b"%d" % n)], partitioning=to)
        got: list[bytes] = []
        for _ in range(6):
            for client in clients:
                polled = await client.poll(
                    "s", "t", consumer=Consumer.group("g"), strategy=Strategy.next(), count=4,
                    auto_commit=True,
                )  # fmt: skip
                got += [bytes(message.payload) for message in polled.messages()]
        assert sorted(got) == sorted(b"%d" % n for n in range(60)) or len(set(got)) == len(got)
        await clients[2].close()
        await until(lambda: len(members(stack)) == 2)
        for _ in range(20):
            for client in clients[:2]:
                polled = await client.poll(
                    "s", "t", consumer=Consumer.group("g"), strategy=Strategy.next(), count=4,
                    auto_commit=True,
                )  # fmt: skip
                got += [bytes(message.payload) for message in polled.messages()]
        assert sorted(got) == sorted(b"%d" % n for n in range(60)), "each message once"


def members(stack: WorkerStack) -> list[object]:
    for service in stack.workers.values():
        if service.broker.workers.coordinates:
            membership = service.broker.membership
            return [m for uid in membership.groups() for m in membership.members(uid)]
    return []


async def test_another_worker_takes_over_what_one_led(stack: WorkerStack) -> None:
    async with AsyncExitStack() as closing:
        first = await closing.enter_async_context(await stack.connect(0))
        second = await closing.enter_async_context(await stack.connect(1))
        await first.create_stream("s")
        await first.create_topic("s", "t", partitions_count=6)
        for round_ in range(3):
            for partition in range(6):
                to = Partitioning.to_partition(partition)
                await second.send("s", "t", [Message(b"%d" % round_)], partitioning=to)
                await second.poll("s", "t", partition=partition, count=1, auto_commit=True)
            if round_ == 1:
                await stack.stop_worker(2)
        await until(lambda: spread(stack))
        for partition in range(6):
            polled = await second.poll("s", "t", partition=partition, strategy=Strategy.first())
            assert [bytes(m.payload) for m in polled.messages()] == [b"0", b"1", b"2"]
            stored = await first.get_consumer_offset(Consumer.single(), "s", "t", partition)
            assert stored is not None
            assert stored.stored_offset == 2
        await stack.start_worker(2)
        await until(lambda: spread(stack))
        third = await closing.enter_async_context(await stack.connect(2))
        for partition in range(6):
            polled = await third.poll("s", "t", partition=partition, strategy=Strategy.first())
            assert polled.count == 3


async def test_the_next_coordinator_goes_on(stack: WorkerStack) -> None:
    async with AsyncExitStack() as closing:
        (coordinator,) = [n for n, w in stack.workers.items() if w.broker.workers.coordinates]
        others = [number for number in stack.workers if number != coordinator]
        clients = [await closing.enter_async_context(await stack.connect(n)) for n in others]
        await clients[0].create_stream("s")
        await clients[0].create_topic("s", "t", partitions_count=6)
        await clients[0].create_group("s", "t", "g")
        await clients[0].join_group("s", "t", "g")
        await stack.stop_worker(coordinator)
        await clients[1].create_stream("after")
        assert {s.name for s in await clients[0].get_streams()} == {"s", "after"}
        for partition in range(6):
            to = Partitioning.to_partition(partition)
            await clients[1].send("s", "t", [Message(b"x")], partitioning=to)
        group = await clients[0].get_group("s", "t", "g")
        assert group is not None
        assert len(group.members) == 1, "members outlive the coordinator"


async def test_a_right_that_is_taken_away_ends_everywhere(stack: WorkerStack) -> None:
    async with AsyncExitStack() as closing:
        admin = await closing.enter_async_context(await stack.connect(0))
        await admin.create_stream("s")
        await admin.create_topic("s", "t", partitions_count=3)
        everything = Permissions(GlobalPermissions(send_messages=True, poll_messages=True))
        await admin.create_user("ann", "secret-of-ann", permissions=everything)
        users = []
        for number in range(3):
            user = await closing.enter_async_context(await stack.connect(number, login=False))
            await user.login("ann", "secret-of-ann")
            await user.send("s", "t", [Message(b"x")])
            users.append(user)
        await admin.update_permissions("ann", None)
        for user in users:
            for partition in range(3):
                to = Partitioning.to_partition(partition)
                with pytest.raises(UnauthorizedError):
                    await user.send("s", "t", [Message(b"y")], partitioning=to)
        await admin.delete_user("ann")
        for user in users:
            with pytest.raises(HeadraceError):
                await user.get_streams()


async def test_who_changes_its_password_stays_logged_in(stack: WorkerStack) -> None:
    for number in range(3):
        async with await stack.connect(number) as client, await stack.connect(number) as other:
            await client.change_password("iggy", current="iggy", new="another")
            await client.get_streams()
            with pytest.raises(HeadraceError):
                await other.get_streams()
            await client.change_password("iggy", current="another", new="iggy")
