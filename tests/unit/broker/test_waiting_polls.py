"""Polls that find nothing, through the dispatcher: what ends their wait, and what they get then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages import consumers as g
from headrace.wire.iggy.messages import users
from headrace.wire.iggy.messages.messages import PolledMessages
from headrace.wire.iggy.messages.topics import DeleteTopic, PurgeTopic
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from tests.unit.broker.harness import NOW_US, QUICK, Client, Harness, code_of, opened
from tests.unit.net.sbp_fixtures import until

LONG = msgspec.structs.replace(QUICK, poll_wait_ms=10_000)
SHORT = msgspec.structs.replace(QUICK, poll_wait_ms=30)
GROUP = Consumer.group("g")
NEXT = Strategy.next()


def payloads(polled: PolledMessages) -> list[bytes]:
    return [message.payload for message in polled.messages()]


async def prepared(h: Harness, partitions: int = 1, *sent: bytes) -> tuple[Client, Client]:
    """A producer, and a consumer whose polls are known."""
    producer, consumer = await h.root(), await h.root()
    await producer.stream()
    await producer.topic(partitions=partitions)
    if sent:
        await producer.send(*sent)
        await consumer.poll()
    return producer, consumer


async def waiting(h: Harness, poll: Coroutine[Any, Any, Any], number: int = 1) -> asyncio.Task[Any]:
    """The poll, once it is held."""
    task = asyncio.create_task(poll)
    await until(lambda: len(h.broker.held_polls) >= number)
    await asyncio.sleep(0.005)
    assert not task.done()
    return task


@pytest.mark.parametrize("commit", [False, True], ids=["at once", "the long way"])
async def test_a_send_ends_the_wait(commit: bool) -> None:
    async with opened(settings=LONG) as h:
        producer, consumer = await prepared(h, 1, b"a")
        poll = await waiting(h, consumer.poll(Strategy.offset(1), commit=commit))
        assert len(consumer.session.held_polls) == commit, "those that a task waits for"
        await producer.send(b"b", b"c")
        assert payloads(await poll) == [b"b", b"c"]
        told = h.broker.held_polls.statistics()
        assert (told["polls_waiting"], told["polls_woken"]) == (0, 1)
        assert h.broker.traffic.polled_messages == 3
        durations = h.broker.traffic.commands[c.POLL_MESSAGES.code].durations
        assert durations.seconds < 0.005, "the wait is no work"


@pytest.mark.parametrize("commit", [False, True])
async def test_time_ends_the_wait(commit: bool) -> None:
    async with opened(settings=SHORT) as h:
        _, consumer = await prepared(h, 1, b"a")
        for _ in range(2):
            began = time.monotonic()
            polled = await consumer.poll(Strategy.offset(1), commit=commit)
            assert (polled.count, polled.current_offset) == (0, 0)
            assert 0.02 < time.monotonic() - began < 5


async def test_polls_may_be_answered_without_a_wait() -> None:
    async with opened(settings=msgspec.structs.replace(QUICK, poll_wait_ms=0)) as h:
        _, consumer = await prepared(h, 1, b"a")
        for commit in (False, True):
            assert (await consumer.poll(Strategy.offset(1), commit=commit)).count == 0
        assert h.broker.held_polls.statistics()["polls_held"] == 0


async def test_only_polls_that_could_find_something_wait() -> None:
    async with opened(settings=LONG) as h:
        producer, consumer = await prepared(h, 1, b"a")
        assert (await consumer.poll(Strategy.offset(1), 0)).count == 0, "nothing was asked for"
        pressed = h.connect()
        await pressed.login()
        h.dispatcher.on_behind(pressed.session)  # another request waits
        assert (await pressed.poll(Strategy.offset(1))).count == 0
        assert h.broker.held_polls.statistics()["polls_held"] == 0
        poll = await waiting(h, pressed.poll(Strategy.offset(1), commit=True))
        h.dispatcher.on_behind(pressed.session)  # now one comes
        assert (await poll).count == 0
        await producer.send(b"b")


@pytest.mark.parametrize(
    ("strategy", "found"),
    [
        (Strategy.offset(2), [b"c"]),
        (Strategy.next(), [b"b"]),
        (Strategy.timestamp(NOW_US + 5), [b"b"]),
    ],
)
async def test_strategies_wait_for_what_they_ask_for(
    strategy: Strategy, found: list[bytes]
) -> None:
    async with opened(settings=LONG) as h:
        producer, consumer = await prepared(h, 1, b"a")
        await producer.call(
            c.STORE_CONSUMER_OFFSET, g.StoreConsumerOffset(Consumer.single(), "s", "t", 0, 0)
        )
        poll = await waiting(h, consumer.poll(strategy))
        if strategy.kind is Strategy.timestamp(0).kind:
            h.clock.now_us_ = NOW_US + 4
            await producer.send(b"too old")
            await asyncio.sleep(0.01)
            assert not poll.done()
        h.clock.now_us_ = NOW_US + 5
        await producer.send(b"b")
        if found == [b"c"]:
            await asyncio.sleep(0.01)
            assert not poll.done(), "that is offset 1"
            await producer.send(b"c")
        assert payloads(await poll) == found


@pytest.mark.parametrize("strategy", [Strategy.first(), Strategy.last(), Strategy.offset(0), NEXT])
async def test_a_partition_that_was_never_written_is_waited_for(strategy: Strategy) -> None:
    async with opened(settings=LONG) as h:
        producer, consumer = await prepared(h)
        poll = await waiting(h, consumer.poll(strategy))
        await producer.send(b"first")
        assert payloads(await poll) == [b"first"]


async def test_what_is_asked_after_the_wait_is_asked_anew() -> None:
    """The topic may be gone, the user too; the long way and the short one agree."""
    async with opened(settings=LONG) as h:
        producer, consumer = await prepared(h, 1, b"a")
        for commit in (False, True):
            await producer.call(c.CREATE_USER, users.CreateUser(
                "bob", "secret", users.UserStatus.ACTIVE,
                users.Permissions(users.GlobalPermissions(poll_messages=True)),
            ))  # fmt: skip
            bob = h.connect()
            await bob.login("bob", "secret")
            await bob.poll()
            poll = await waiting(h, bob.poll(Strategy.offset(h.broker.open_logs()[0].committed),
                                             commit=commit))  # fmt: skip
            await producer.call(c.DELETE_USER, users.DeleteUser("bob"))
            await producer.send(b"secret")
            assert await code_of(poll) == 40, "he is logged out"
        for commit in (False, True):
            await consumer.poll(commit=commit)
            offset = Strategy.offset(h.broker.open_logs()[0].committed)
            poll = await waiting(h, consumer.poll(offset, commit=commit))
            await producer.call(c.PURGE_TOPIC, PurgeTopic("s", "t"))
            await producer.send(*[b"again"] * (offset.value + 1))
            assert payloads(await poll) == [b"again"], "from the other life"
        await consumer.poll()
        polls = [await waiting(h, consumer.poll(Strategy.offset(99), commit=commit), 1 + commit)
                 for commit in (False, True)]  # fmt: skip
        await producer.call(c.DELETE_TOPIC, DeleteTopic("s", "t"))
        assert [await code_of(poll) for poll in polls] == [2010, 2010]


@pytest.mark.parametrize("commit", [False, True])
async def test_a_lost_lease_is_told_after_the_wait(commit: bool) -> None:
    async with opened(settings=LONG) as h:
        _, consumer = await prepared(h, 1, b"a")
        poll = await waiting(h, consumer.poll(Strategy.offset(1), commit=commit))
        h.lease.holds = False
        h.broker.held_polls.close()
        assert await code_of(poll) != 0, "another broker may lead already"


async def test_a_stale_session_is_told_after_the_wait() -> None:
    async with opened(settings=LONG) as h:
        producer, consumer = await prepared(h, 1, b"a")
        for offset, commit in ((1, False), (2, True)):
            poll = await waiting(h, consumer.poll(Strategy.offset(offset), commit=commit))
            consumer.session.stale = True
            await producer.send(b"b")
            assert await code_of(poll) == 30
            consumer.session.stale = False


async def test_closing_ends_all_waits() -> None:
    async with opened(settings=LONG) as h:
        _, consumer = await prepared(h, 1, b"a")
        polls = [await waiting(h, consumer.poll(Strategy.offset(1), commit=commit), 1 + commit)
                 for commit in (False, True)]  # fmt: skip
        h.broker.held_polls.close()
        assert [(await poll).count for poll in polls] == [0, 0]


# -- groups


async def joined(h: Harness, partitions: int, members: int) -> tuple[Client, list[Client]]:
    producer, _ = await prepared(h, partitions)
    await producer.call(c.CREATE_CONSUMER_GROUP, g.CreateGroup("s", "t", "g"))
    found = [await h.root() for _ in range(members)]
    for member in found:
        await member.call(c.JOIN_CONSUMER_GROUP, g.JoinGroup("s", "t", "g"))
    return producer, found


def member_poll(member: Client, *, commit: bool = True) -> Coroutine[Any, Any, PolledMessages]:
    return member.poll(NEXT, 10, partition=None, consumer=GROUP, commit=commit)


@pytest.mark.parametrize("commit", [False, True])
async def test_a_member_waits_for_any_of_its_partitions(commit: bool) -> None:
    async with opened(settings=LONG) as h:
        producer, (member,) = await joined(h, 4, 1)
        for partition in (2, 0, 3, 1):
            poll = await waiting(h, member_poll(member, commit=commit))
            await producer.send(b"m%d" % partition, to=Partitioning.to_partition(partition))
            polled = await poll
            assert (polled.partition, payloads(polled)) == (partition, [b"m%d" % partition])
            if not commit:
                stored = g.StoreConsumerOffset(GROUP, "s", "t", partition, 0)
                await member.call(c.STORE_CONSUMER_OFFSET, stored)


async def test_a_member_is_not_held_by_an_empty_partition_while_another_is_full() -> None:
    async with opened(settings=LONG) as h:
        producer, (member,) = await joined(h, 8, 1)
        await producer.send(b"a", to=Partitioning.to_partition(5))
        await producer.send(b"b", to=Partitioning.to_partition(2))
        found = {payloads(await member_poll(member))[0] for _ in range(2)}
        assert found == {b"a", b"b"}
        assert h.broker.held_polls.statistics()["polls_held"] == 0


async def test_a_member_without_partitions_waits_for_some() -> None:
    async with opened(settings=LONG) as h:
        producer, (first, second) = await joined(h, 1, 2)
        poll = await waiting(h, member_poll(second))
        await producer.send(b"a")
        await asyncio.sleep(0.01)
        assert not poll.done(), "it is the other's"
        await first.call(c.LEAVE_CONSUMER_GROUP, g.LeaveGroup("s", "t", "g"))
        assert payloads(await poll) == [b"a"]


async def test_a_member_that_loses_its_partition_gets_nothing_of_it() -> None:
    async with opened(settings=SHORT) as h:
        producer, (first,) = await joined(h, 1, 1)
        poll = await waiting(h, member_poll(first))
        h.disconnect(first)  # its connection ends, and another takes its place
        other = await h.root()
        await other.call(c.JOIN_CONSUMER_GROUP, g.JoinGroup("s", "t", "g"))
        await producer.send(b"a")
        assert await code_of(poll) in (40, 5006)
        assert payloads(await member_poll(other)) == [b"a"]


async def test_who_waits_does_not_lock_others_out() -> None:
    """Polls that commit run one at a time per reader, but not while they wait."""
    async with opened(settings=LONG) as h:
        producer, consumer = await prepared(h, 1, b"a")
        poll = await waiting(h, consumer.poll(Strategy.offset(9), commit=True))
        assert len(h.broker.committing) == 0
        again = await h.root()
        assert payloads(await again.poll(Strategy.first(), commit=True)) == [b"a"]
        await producer.send(*[b"b"] * 9)
        assert payloads(await poll) == [b"b"]


async def test_many_wait_and_all_are_answered() -> None:
    async with opened(settings=LONG) as h:
        producer, consumer = await prepared(h, 1, b"a")
        polls = [asyncio.create_task(consumer.poll(Strategy.offset(1))) for _ in range(500)]
        polls += [asyncio.create_task(consumer.poll(Strategy.offset(1), commit=True))
                  for _ in range(100)]  # fmt: skip
        await until(lambda: len(h.broker.held_polls) == 600)
        await producer.send(b"b")
        for poll in polls:
            assert payloads(await poll) == [b"b"]
        assert len(h.broker.held_polls) == 0
        assert not consumer.session.held_polls
