"""Consumer groups through the dispatcher: membership, turns, rebalance."""

from __future__ import annotations

import asyncio

from headrace.config.broker import BrokerSettings
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages import consumers as g
from headrace.wire.iggy.messages.consumers import GetConsumerOffset, StoreConsumerOffset
from headrace.wire.iggy.messages.system import Empty
from headrace.wire.iggy.messages.topics import CreatePartitions, DeletePartitions, DeleteTopic
from headrace.wire.iggy.messages.users import (
    CreateUser,
    GlobalPermissions,
    Permissions,
    UpdateUser,
    UserStatus,
)
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from tests.unit.broker.fake_cluster import FakeCluster
from tests.unit.broker.harness import Client, Harness, code_of, opened

GROUP = Consumer.group("g")


async def prepared(h: Harness, partitions: int = 3) -> Client:
    client = await h.root()
    await client.stream()
    await client.topic(partitions=partitions)
    created = await client.call(c.CREATE_CONSUMER_GROUP, g.CreateGroup("s", "t", "g"))
    assert (created.group.id, created.group.partitions_count) == (0, partitions)
    return client


async def join(client: Client) -> None:
    await client.call(c.JOIN_CONSUMER_GROUP, g.JoinGroup("s", "t", "g"))


async def members(client: Client) -> dict[int, tuple[int, ...]]:
    found = await client.call(c.GET_CONSUMER_GROUP, g.GetGroup("s", "t", "g"))
    assert found is not None
    assert found.group.members_count == len(found.members)
    return {member.id: member.partitions for member in found.members}


async def poll(
    client: Client, partition: int | None = None, *, commit: bool = False
) -> list[bytes]:
    polled = await client.poll(
        Strategy.next(), 10, partition=partition, consumer=GROUP, commit=commit
    )
    return [m.payload for m in polled.messages()]


async def test_joining_leaving_and_disconnecting_rebalance() -> None:
    async with opened() as h:
        first = await prepared(h)
        second, third = await h.root(), await h.root()
        await join(first)
        await join(first)
        assert await members(first) == {first.session.client_id: (0, 1, 2)}
        await join(second)
        await join(third)
        ids = [x.session.client_id for x in (first, second, third)]
        assert await members(first) == dict(zip(ids, [(0,), (1,), (2,)], strict=True))
        h.disconnect(second)
        assert await members(first) == {ids[0]: (0, 2), ids[2]: (1,)}
        await third.call(c.LEAVE_CONSUMER_GROUP, g.LeaveGroup("s", "t", "g"))
        assert await members(first) == {ids[0]: (0, 1, 2)}
        leave = g.LeaveGroup("s", "t", "g")
        assert await code_of(third.call(c.LEAVE_CONSUMER_GROUP, leave)) == 5006
        me = await first.call(c.GET_ME, Empty())
        assert [(x.stream_id, x.topic_id, x.group_id) for x in me.groups] == [(0, 0, 0)]
        await first.call(c.LOGOUT_USER, Empty())
        assert await members(await h.root()) == {}


async def test_a_member_polls_its_partitions_in_turn() -> None:
    async with opened() as h:
        client = await prepared(h)
        for partition in range(3):
            await client.send(b"p%d" % partition, to=Partitioning.to_partition(partition))
        assert await code_of(poll(client)) == 5006
        await join(client)
        assert [await poll(client) for _ in range(4)] == [[b"p0"], [b"p1"], [b"p2"], [b"p0"]]
        assert [await poll(client, commit=True) for _ in range(3)] == [[b"p1"], [b"p2"], [b"p0"]]
        assert [await poll(client) for _ in range(3)] == [[], [], []]


async def test_only_owned_partitions_are_served() -> None:
    async with opened() as h:
        first = await prepared(h, partitions=1)
        second = await h.root()
        await first.send(b"x")
        await join(first)
        await join(second)
        assert await poll(first, 0) == [b"x"]
        assert await poll(second, 0) == []
        idle = await second.poll(Strategy.next(), 10, partition=None, consumer=GROUP)
        assert (idle.partition, idle.current_offset, idle.count) == (0, 0, 0)
        assert await code_of(poll(first, 7)) == 3007
        h.disconnect(first)
        assert await poll(second, 0) == [b"x"]


async def test_changing_partitions_reassigns_them() -> None:
    async with opened() as h:
        first = await prepared(h, partitions=2)
        second = await h.root()
        await join(first)
        await join(second)
        a, b = first.session.client_id, second.session.client_id
        await first.call(c.CREATE_PARTITIONS, CreatePartitions("s", "t", 2))
        assert await members(first) == {a: (0, 2), b: (1, 3)}
        await first.call(c.DELETE_PARTITIONS, DeletePartitions("s", "t", 3))
        assert await members(first) == {a: (0,), b: ()}


async def test_group_offsets_are_the_groups_own_and_die_with_it() -> None:
    cluster = FakeCluster()
    async with opened(cluster) as h:
        client = await prepared(h, partitions=1)
        await client.send(b"a", b"b", b"c")
        await join(client)
        await client.call(c.STORE_CONSUMER_OFFSET, StoreConsumerOffset(GROUP, "s", "t", None, 1))
        assert await poll(client) == [b"c"]
        as_consumer = GetConsumerOffset(Consumer.single(0), "s", "t")
        assert await client.call(c.GET_CONSUMER_OFFSET, as_consumer) is None
    async with opened(cluster, epoch=2) as h:
        client = await h.root()
        stored = await client.call(c.GET_CONSUMER_OFFSET, GetConsumerOffset(GROUP, "s", "t", 0))
        assert stored is not None
        assert stored.stored_offset == 1
        assert await code_of(poll(client)) == 5006  # members are connections: none survived
        await client.call(c.DELETE_CONSUMER_GROUP, g.DeleteGroup("s", "t", "g"))
        await client.call(c.CREATE_CONSUMER_GROUP, g.CreateGroup("s", "t", "g"))
        await join(client)
        assert await poll(client) == [b"a", b"b", b"c"]


async def test_deleting_group_or_topic_ends_membership() -> None:
    async with opened() as h:
        client = await prepared(h)
        await join(client)
        await client.call(c.DELETE_CONSUMER_GROUP, g.DeleteGroup("s", "t", "g"))
        assert h.broker.membership.groups_of(client.session.client_id) == []
        assert await code_of(poll(client)) == 5000
        await client.call(c.CREATE_CONSUMER_GROUP, g.CreateGroup("s", "t", "g"))
        await join(client)
        await client.call(c.DELETE_TOPIC, DeleteTopic("s", "t"))
        assert h.broker.membership.groups() == []
        missing = g.GetGroup("s", "t", "g")
        assert await client.call(c.GET_CONSUMER_GROUP, missing) is None
        assert (await client.call(c.GET_CONSUMER_GROUPS, g.GetGroups("s", "t"))).groups == ()


async def test_an_inactive_user_leaves_its_groups() -> None:
    async with opened() as h:
        root = await prepared(h)
        admin = GlobalPermissions.all()
        create = CreateUser("ann", "secret", UserStatus.ACTIVE, Permissions(admin))
        await root.call(c.CREATE_USER, create)
        ann = h.connect()
        await ann.login("ann", "secret")
        await join(ann)
        assert len(await members(root)) == 1
        await root.call(c.UPDATE_USER, UpdateUser("ann", None, UserStatus.INACTIVE))
        assert await members(root) == {}


async def test_only_a_ping_keeps_a_client() -> None:
    """Silent for 1.2 intervals: out of its groups, told so with its next request, and only once."""
    settings = BrokerSettings(heartbeat_interval_ms=1600)
    async with opened(settings=settings) as h:
        quiet = await prepared(h)
        await join(quiet)
        pinging = h.connect()
        await pinging.login()
        await join(pinging)
        seen = quiet.session.seen
        await quiet.poll(topic="t")
        assert quiet.session.seen == seen, "any other request is no sign of life"
        assert await pinging.status(c.PING.code) == 0
        assert pinging.session.seen > seen
        quiet.session.seen -= 2.0
        while len(h.broker.membership.members(h.broker.membership.groups()[0])) == 2:
            assert await pinging.status(c.PING.code) == 0
            await h.broker.runtime.clock.sleep(0.005)
        (left,) = (await members(pinging)).values()
        assert len(left) == 3, "it got the other one's partitions"
        assert await code_of(poll(quiet)) == 30
        assert await code_of(quiet.login()) == 30, "the connection is over: its server closes it"


async def test_without_the_setting_nobody_is_stale() -> None:
    async with opened() as h:
        client = await prepared(h)
        await join(client)
        client.session.seen = float("-inf")
        await h.broker.runtime.clock.sleep(0.05)
        assert await code_of(poll(client)) == 0


async def test_a_partition_that_moves_is_not_read_twice() -> None:
    """One member's poll commits while the other, who just got the partition, polls too."""
    async with opened() as h:
        first = await prepared(h, partitions=1)
        second = await h.root()
        for n in range(20):
            await first.send(b"%d" % n)
        await join(first)
        assert await poll(first, commit=True) == [b"%d" % n for n in range(10)]
        h.cluster.gate.clear()  # the offset is on its way, but not stored yet
        polls = [asyncio.create_task(poll(first, commit=True))]
        await asyncio.sleep(0.02)
        await first.call(c.LEAVE_CONSUMER_GROUP, g.LeaveGroup("s", "t", "g"))
        await join(second)
        polls.append(asyncio.create_task(poll(second, commit=True)))
        await asyncio.sleep(0.02)
        h.cluster.gate.set()
        got = await asyncio.gather(*polls)
        assert got == [[b"%d" % n for n in range(10, 20)], []]
        assert len(h.broker.committing) == 0
