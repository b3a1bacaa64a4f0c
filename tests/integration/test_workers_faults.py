"""What workers of a broker must not do wrong: stale ones, moved shards, requests sent again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.broker.shards.service import WorkerService
from headrace.client.iggy import IggyClient
from headrace.errors import HeadraceError, UnauthorizedError
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages.messages import Message, encode_send
from headrace.wire.iggy.messages.users import GlobalPermissions, Permissions
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from headrace.wire.iggy.vsr.client import Conversation
from tests.integration.broker_stack import DEVELOPMENT, Stack
from tests.integration.test_workers_of_a_broker import members, spread, until
from tests.integration.worker_stack import WorkerStack

QUICK = msgspec.structs.replace(DEVELOPMENT, lease_ms=1500)


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[WorkerStack]:
    stack = await WorkerStack(str(tmp_path), settings=QUICK).start()
    try:
        await until(lambda: spread(stack))
        yield stack
    finally:
        await stack.stop()


def coordinator(stack: WorkerStack) -> int:
    (number,) = [n for n, w in stack.workers.items() if w.broker.workers.coordinates]
    return number


def stop_following(service: WorkerService) -> Callable[[], None]:
    """The worker reads no more of the catalogue's log, until the result is called."""
    assert service.worker is not None
    follower: Any = service.worker._catalogue
    read, gate = follower._read, asyncio.Event()

    async def held(reader: object) -> None:
        await gate.wait()
        await read(reader)

    follower._read = held
    return gate.set


async def test_a_worker_that_cannot_be_told_answers_nobody_by_what_it_knew(
    stack: WorkerStack,
) -> None:
    first = coordinator(stack)
    other = next(n for n in stack.workers if n != first)
    async with AsyncExitStack() as closing:
        admin = await closing.enter_async_context(await stack.connect(first))
        await admin.create_stream("s")
        await admin.create_topic("s", "t", partitions_count=3)
        everything = Permissions(GlobalPermissions(send_messages=True, poll_messages=True))
        await admin.create_user("ann", "secret-of-ann", permissions=everything)
        user = await closing.enter_async_context(await stack.connect(other, login=False))
        await user.login("ann", "secret-of-ann")
        allowed = 0

        async def keep_sending() -> None:
            nonlocal allowed
            while True:
                for partition in range(3):
                    to = Partitioning.to_partition(partition)
                    await user.send("s", "t", [Message(b"x")], partitioning=to)
                    allowed += 1

        sending = asyncio.create_task(keep_sending())
        await asyncio.sleep(0.2)
        go_on = stop_following(stack.workers[other])
        await asyncio.sleep(0.5)  # what it read then is over
        assert not sending.done()
        await admin.update_permissions("ann", None)
        before = allowed
        await asyncio.sleep(0.3)
        assert allowed == before, "the change was answered"
        go_on()
        with pytest.raises(UnauthorizedError):
            await sending


async def test_sends_go_on_in_order_while_shards_move(stack: WorkerStack) -> None:
    pauses: list[float] = []

    async def produce(client: IggyClient, partition: int, stop: asyncio.Event) -> int:
        to, n = Partitioning.to_partition(partition), 0
        clock = stack.runtime.clock
        while not stop.is_set():
            begun = clock.monotonic()
            await client.send("s", "t", [Message(b"%d" % n)], partitioning=to)
            pauses.append(clock.monotonic() - begun)
            n += 1
        return n

    async with AsyncExitStack() as closing:
        clients = [
            await closing.enter_async_context(await stack.connect(number)) for number in range(3)
        ]
        await clients[0].create_stream("s")
        await clients[0].create_topic("s", "t", partitions_count=6)
        stop = asyncio.Event()
        other = next(n for n in stack.workers if n != coordinator(stack))
        producing = [
            asyncio.create_task(produce(clients[p % 3], p, stop))
            for p in range(6)
            if p % 3 != other
        ]
        await asyncio.sleep(0.2)
        mover = stack.workers[coordinator(stack)].worker
        assert mover is not None
        assert mover.coordinator is not None
        names = [service.holder for service in stack.workers.values()]
        for shard in range(1, 13):
            stack.workers[coordinator(stack)].broker.catalogue.pins[shard] = names[(shard + 1) % 3]
            mover.coordinator._look.set()
        await asyncio.sleep(1.5)
        stop.set()
        sent = await asyncio.gather(*producing)
        partitions = [p for p in range(6) if p % 3 != other]
        for partition, count in zip(partitions, sent, strict=True):
            polled = await clients[0].poll(
                "s", "t", partition=partition, strategy=Strategy.first(), count=100_000
            )
            payloads = [int(bytes(message.payload)) for message in polled.messages()]
            assert payloads == list(range(count))
        assert max(pauses) < 1.0, "far below it on a quiet machine"


async def test_members_of_a_lost_coordinator_leave(stack: WorkerStack) -> None:
    async with AsyncExitStack() as closing:
        first = coordinator(stack)
        others = [n for n in stack.workers if n != first]
        inside = await stack.connect(first)
        clients = [await closing.enter_async_context(await stack.connect(n)) for n in others]
        await clients[0].create_stream("s")
        await clients[0].create_topic("s", "t", partitions_count=6)
        await clients[0].create_group("s", "t", "g")
        for client in (inside, *clients):
            await client.join_group("s", "t", "g")
        for client in (inside, *clients):
            group = await client.get_group("s", "t", "g")
            assert group is not None
            assert len(group.members) == 3
        await stack.stop_worker(first)
        await inside.close()
        await until(lambda: len(members(stack)) == 2)
        await until(lambda: spread(stack))
        for n in range(12):
            to = Partitioning.to_partition(n % 6)
            await clients[0].send("s", "t", [Message(b"%d" % n)], partitioning=to)
        got: list[bytes] = []
        for _ in range(12):
            for client in clients:
                polled = await client.poll(
                    "s", "t", consumer=Consumer.group("g"), strategy=Strategy.next(), count=4,
                    auto_commit=True,
                )  # fmt: skip
                got += [bytes(message.payload) for message in polled.messages()]
        assert sorted(got) == sorted(b"%d" % n for n in range(12))


async def test_a_changed_password_ends_other_logins_everywhere(stack: WorkerStack) -> None:
    async with AsyncExitStack() as closing:
        admin = await closing.enter_async_context(await stack.connect(0))
        everything = Permissions(GlobalPermissions(read_streams=True))
        await admin.create_user("ann", "secret-of-ann", permissions=everything)
        users = []
        for number in (1, 1, 2, 0):
            user = await closing.enter_async_context(await stack.connect(number, login=False))
            await user.login("ann", "secret-of-ann")
            users.append(user)
        await users[0].change_password("ann", current="secret-of-ann", new="another-secret")
        await users[0].get_streams()
        for user in users[1:]:
            with pytest.raises(HeadraceError):
                await user.get_streams()


async def test_a_wait_for_windows_outlasts_the_wait_for_a_leader(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(QUICK, leader_wait_ms=200)
    stack = await WorkerStack(str(tmp_path), workers_count=2, settings=settings).start()
    try:
        await until(lambda: spread(stack))
        other = next(n for n in stack.workers if n != coordinator(stack))
        async with await stack.connect(other) as client:
            await client.create_stream("s")
            await client.create_topic("s", "t", partitions_count=2)
            await client.set_publishers("s", "t", ["s/t/0", "s/t/1"])
            begun = stack.runtime.clock.monotonic()
            listed = await client.list_windows("s", "t", wait_ms=1500)
            assert stack.runtime.clock.monotonic() - begun > 1.4
            assert listed.closed == -1
    finally:
        await stack.stop()


async def test_a_folder_of_one_process_and_of_workers_in_turn(tmp_path: Path) -> None:
    partitions = 4

    async def use(connect: Callable[[], Awaitable[IggyClient]], round_: int) -> None:
        async with await connect() as client:
            if round_ == 0:
                await client.create_stream("s")
                await client.create_topic("s", "t", partitions_count=partitions)
            for partition in range(partitions):
                to = Partitioning.to_partition(partition)
                stored = await client.get_consumer_offset(Consumer.single(), "s", "t", partition)
                assert (None if stored is None else stored.stored_offset) == (
                    round_ - 1 if round_ else None
                )
                await client.send("s", "t", [Message(b"%d" % round_)], partitioning=to)
                polled = await client.poll(
                    "s", "t", partition=partition, strategy=Strategy.next(), auto_commit=True
                )
                payloads = [bytes(message.payload) for message in polled.messages()]
                assert payloads == [b"%d" % round_]

    for round_ in range(4):
        if round_ % 2 == 0:
            one = await Stack(str(tmp_path), settings=QUICK).start()
            try:
                await use(one.connect, round_)
            finally:
                await one.stop()
        else:
            several = await WorkerStack(str(tmp_path), settings=QUICK).start()
            try:
                await until(partial(spread, several))
                await use(partial(several.connect, 1), round_)
            finally:
                await several.stop()


async def connect_c(stack: WorkerStack, number: int, talk: Conversation) -> IggyClient:
    port = int(stack.workers[number].address.rpartition(":")[2])
    client = await IggyClient.connect(stack.runtime, "127.0.0.1", port, conversation=talk)
    await client.login("iggy", "iggy")
    return client


async def cut(client: IggyClient) -> None:
    client._connection.abort()
    with suppress(HeadraceError):
        await client.close()


async def test_a_numbered_request_sent_again_through_another_worker(stack: WorkerStack) -> None:
    talk = Conversation(stack.runtime.random.bytes(16))
    first = await connect_c(stack, 0, talk)
    await first.create_stream("s")
    await first.create_topic("s", "t", partitions_count=4)
    for number in (1, 2, 0):
        await cut(first)
        first = await connect_c(stack, number, talk)
        await first.again(c.CREATE_TOPIC)
    for n in range(8):
        await first.send("s", "t", [Message(b"%d" % n, id=1 + n)])
        await cut(first)
        if n == 5:  # whoever leads the partition then knows it by what is stored
            await stack.stop_worker(2)
        first = await connect_c(stack, n % 2, talk)
        await first.again(c.SEND_MESSAGES)
    payloads = []
    for partition in range(4):
        polled = await first.poll("s", "t", partition=partition, strategy=Strategy.first())
        payloads += [bytes(message.payload) for message in polled.messages()]
    assert sorted(payloads) == [b"%d" % n for n in range(8)]
    await first.close()


async def test_a_send_is_known_by_its_bytes_under_another_session(stack: WorkerStack) -> None:
    """As apache-iggy 0.9.0 sends it again: over a new connection, as a new client."""
    batch = [Message(b"%d" % n, id=1000 + n) for n in range(3)]
    request = encode_send("s", "t", Partitioning.balanced(), batch)
    talk = Conversation(stack.runtime.random.bytes(16))
    first = await connect_c(stack, 0, talk)
    await first.create_stream("s")
    await first.create_topic("s", "t", partitions_count=4)
    await first.call(c.SEND_MESSAGES, request)
    await cut(first)
    await until(lambda: not len(stack.workers[0].broker.sessions))
    second = await connect_c(stack, 1, Conversation(stack.runtime.random.bytes(16)))
    await second.call(c.SEND_MESSAGES, request)
    topic = await second.get_topic("s", "t")
    assert topic is not None
    assert topic.topic.messages_count == 3
    await second.close()


async def test_numbers_of_a_session_begin_anew_after_its_end(stack: WorkerStack) -> None:
    name = stack.runtime.random.bytes(16)
    for n in range(2):
        client = await connect_c(stack, n + 1, Conversation(name))
        await client.create_stream(f"s{n}")
        await client.create_topic(f"s{n}", "t", partitions_count=2)
        await client.logout()
        await client.close()


async def test_a_send_of_a_worker_that_lost_its_lease_meanwhile_is_not_sent_again(
    stack: WorkerStack,
) -> None:
    first = coordinator(stack)
    other = next(n for n in stack.workers if n != first)
    async with AsyncExitStack() as closing:
        client = await closing.enter_async_context(await stack.connect(other))
        await client.create_stream("s")
        await client.create_topic("s", "t", partitions_count=6)
        broker, leases = stack.workers[first].broker, stack.workers[first].leases
        topic = broker.catalogue.topic("s", "t")
        led = next(p for p in topic.partitions if broker.shards.leads(p.shard))
        log: Any = await broker.partitions.get(topic, led)
        append, is_current = log.append, leases._is_current

        async def append_and_pause(*args: Any, **kwargs: Any) -> int:
            offset: int = await append(*args, **kwargs)
            leases._is_current = lambda: False
            return offset

        log.append = append_and_pause
        to = Partitioning.to_partition(led.id)
        with pytest.raises(HeadraceError):
            await client.send("s", "t", [Message(b"x")], partitioning=to)
        leases._is_current, log.append = is_current, append
        await until(lambda: leases.holds)
        polled = await client.poll("s", "t", partition=led.id, strategy=Strategy.first())
        assert polled.count == 1


async def test_clients_of_all_workers_are_listed(stack: WorkerStack) -> None:
    async with AsyncExitStack() as closing:
        clients = [
            await closing.enter_async_context(await stack.connect(number)) for number in range(3)
        ]
        ids = {(await client.get_me()).client.client_id for client in clients}
        assert len(ids) == 3
        for client in clients:
            assert {each.client_id for each in await client.get_clients()} == ids
            for each in ids:
                found = await client.get_client(each)
                assert found is not None
                assert found.client.user_id is not None
            assert (await client.get_stats()).clients_count == 3


@pytest.mark.parametrize("coordinating", [False, True])
async def test_a_worker_that_dies_takes_nothing_along(
    stack: WorkerStack, coordinating: bool
) -> None:
    lost = next(n for n in stack.workers if (n == coordinator(stack)) == coordinating)
    others = [n for n in stack.workers if n != lost]
    async with AsyncExitStack() as closing:
        clients = [await closing.enter_async_context(await stack.connect(n)) for n in others]
        inside = await stack.connect(lost)
        await inside.create_stream("s")
        await inside.create_topic("s", "t", partitions_count=6)
        await inside.create_group("s", "t", "g")
        await inside.join_group("s", "t", "g")
        for partition in range(6):
            to = Partitioning.to_partition(partition)
            for n in range(3):
                await clients[n % 2].send("s", "t", [Message(b"%d" % n)], partitioning=to)
            await clients[0].poll("s", "t", partition=partition, count=2, auto_commit=True)
        await stack.kill_worker(lost)
        await cut(inside)
        await clients[1].create_stream("after")
        for partition in range(6):
            stored = await clients[1].get_consumer_offset(Consumer.single(), "s", "t", partition)
            assert stored is not None
            assert stored.stored_offset == 1, "it went back"
            to = Partitioning.to_partition(partition)
            await clients[0].send("s", "t", [Message(b"3")], partitioning=to)
            polled = await clients[1].poll("s", "t", partition=partition, strategy=Strategy.first())
            assert [bytes(each.payload) for each in polled.messages()] == [b"0", b"1", b"2", b"3"]
        await until(lambda: not members(stack))
        await until(lambda: spread(stack))
