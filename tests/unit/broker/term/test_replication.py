"""On how many data nodes topics and the broker's logs are kept, and what clients are told."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.term.broker_registry import (
    BrokerAddress,
    keep_log_replicas,
    listed_brokers,
    parse_broker_address,
)
from headrace.config.broker import BrokerSettings
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.errors import Status
from headrace.wire.iggy.messages.system import Empty, NodeRole
from headrace.wire.iggy.messages.topics import Compression, CreateTopic, GetTopic, UpdateTopic
from headrace.wire.sbp import messages as m
from tests.unit.broker.fake_cluster import FakeCluster
from tests.unit.broker.harness import Client, code_of, opened


async def create(client: Client, factor: int, name: str) -> int:
    """The factor that the topic then has."""
    made = await client.call(
        c.CREATE_TOPIC, CreateTopic("s", 1, Compression.NONE, 0, 0, factor, name)
    )
    return made.topic.replication_factor


@pytest.mark.parametrize(
    ("nodes", "setting", "asked", "given"),
    [
        (1, 0, 0, 1), (2, 0, 0, 2), (3, 0, 0, 3), (5, 0, 0, 3),
        (3, 1, 0, 1), (3, 2, 0, 2), (3, 1, 3, 3), (3, 0, 2, 2), (5, 3, 1, 1),
        (1, 0, 2, 1), (1, 0, 255, 1),  # what an Iggy server takes, one node keeps once
    ],
)  # fmt: skip
async def test_a_topic_has_the_replication_it_was_given(
    nodes: int, setting: int, asked: int, given: int
) -> None:
    settings = BrokerSettings(replicas=setting)
    async with opened(FakeCluster(nodes=nodes), settings=settings) as h:
        client = await h.root()
        await client.stream()
        assert await create(client, asked, "t") == given
        await client.send(b"x")
        found = await client.call(c.GET_TOPIC, GetTopic("s", "t"))
        assert found is not None
        assert found.topic.replication_factor == given
        (name,) = [name for name in h.cluster.names if name.startswith("p/")]
        assert h.cluster.named(name).replicas == given


@pytest.mark.parametrize(("nodes", "asked"), [(2, 3), (3, 4), (5, 4), (3, 255)])
async def test_more_replicas_than_the_cluster_can_keep_are_refused(nodes: int, asked: int) -> None:
    async with opened(FakeCluster(nodes=nodes)) as h:
        client = await h.root()
        await client.stream()
        assert await code_of(create(client, asked, "t")) == Status.INVALID_REPLICATION_FACTOR
        assert await create(client, 1, "t") == 1
        taken = Status.TOPIC_NAME_ALREADY_EXISTS
        assert await code_of(create(client, asked, "t")) == taken, "whoever lives just now"


async def test_a_default_that_cannot_be_kept_is_not_lowered() -> None:
    async with opened(FakeCluster(nodes=2), settings=BrokerSettings(replicas=3)) as h:
        client = await h.root()
        await client.stream()
        assert await code_of(create(client, 0, "t")) == Status.TASK_TIMEOUT
        h.cluster.nodes = 3
        h.broker.registry._asked = float("-inf")
        assert await create(client, 0, "t") == 3


async def test_another_replication_reaches_what_is_stored() -> None:
    async with opened(FakeCluster(nodes=3)) as h:
        client = await h.root()
        await client.stream()
        await create(client, 1, "t")
        await client.send(b"x")
        (name,) = [name for name in h.cluster.names if name.startswith("p/")]

        async def update(factor: int) -> None:
            await client.call(
                c.UPDATE_TOPIC, UpdateTopic("s", "t", Compression.NONE, 0, 0, factor, "t")
            )

        for asked, given in ((3, 3), (0, 3), (2, 2)):
            await update(asked)
            found = await client.call(c.GET_TOPIC, GetTopic("s", "t"))
            assert found is not None
            assert found.topic.replication_factor == h.cluster.named(name).replicas == given
        assert await code_of(update(4)) == Status.INVALID_REPLICATION_FACTOR


async def test_the_logs_get_a_replica_per_node_and_more_when_nodes_come() -> None:
    cluster = FakeCluster(nodes=1)
    async with opened(cluster) as h:
        assert [cluster.named(name).replicas for name in ("s/catalogue", "s/offsets")] == [1, 1]
        for nodes, wanted in ((3, 3), (2, 3), (9, 3)):
            cluster.nodes = nodes
            h.broker.registry._asked = float("-inf")
            ids = [cluster.names[name] for name in ("s/catalogue", "s/offsets")]
            await keep_log_replicas(h.broker.settings, h.broker.registry, h.broker.client, ids)
            assert {cluster.streams[stream_id].replicas for stream_id in ids} == {wanted}
    other = FakeCluster(nodes=3)
    async with opened(other, settings=BrokerSettings(log_replicas=2)):
        await asyncio.sleep(0.01)
        assert other.named("s/catalogue").replicas == 2


async def test_the_uuid_of_a_cluster_is_kept_by_its_catalogue() -> None:
    cluster = FakeCluster()
    async with opened(cluster) as h:
        assert h.broker.cluster_uuid == "c0ffee"
        h.broker.catalogue.cluster_uuid = ""  # forgotten, but not by the log
    async with opened(cluster, epoch=2) as h:
        assert h.broker.cluster_uuid == "c0ffee"
        version, chunks = h.broker.catalogue.snapshot()
        kept = list(chunks)
        h.broker.catalogue.restore(version, kept)
        assert h.broker.cluster_uuid == "c0ffee"


# -- brokers


async def test_one_broker_alone_is_the_only_node() -> None:
    async with opened() as h:
        h.broker.address = ("10.0.0.1", 8090)
        client = await h.root()
        told = await client.call(c.GET_CLUSTER_METADATA, Empty())
        assert [(node.ip, node.tcp_port, node.role) for node in told.nodes] == [
            ("10.0.0.1", 8090, NodeRole.LEADER)
        ]


async def test_brokers_that_stand_by_are_told_to_clients() -> None:
    cluster = FakeCluster()
    for name, holder, address in (
        ("broker", "us", "10.0.0.1:8090"),
        ("broker/us", "us", "10.0.0.1:8090"),
        ("broker/them", "them", "10.0.0.2:8090;quic=8080"),
        ("broker/odd", "odd", "of another version"),
        ("controller", "c", ""),
    ):
        cluster.leases[name] = (holder, 1)
        cluster.addresses[name] = address
    async with opened(cluster) as h:
        h.broker.address = ("10.0.0.1", 8090)
        client = await h.root()
        told = await client.call(c.GET_CLUSTER_METADATA, Empty())
        assert [(n.ip, n.tcp_port, n.quic_port, n.role) for n in told.nodes] == [
            ("10.0.0.1", 8090, 0, NodeRole.LEADER),
            ("10.0.0.2", 8090, 8080, NodeRole.FOLLOWER),
        ]


def test_places_as_text() -> None:
    for place in (
        BrokerAddress("10.0.0.1", 8090),
        BrokerAddress("::1", 1, 2),
        BrokerAddress("broker.example", 8090, 8080),
    ):
        assert parse_broker_address(str(place)) == place
    assert str(BrokerAddress("::1", 1, 2)) == "[::1]:1;quic=2"


def test_members_are_those_with_a_lease_of_their_own() -> None:
    described = m.DescribeClusterResponse(
        leases=(
            m.LeaseInfo("broker", "b"),
            m.LeaseInfo("broker/a", "a", "h:1"),
            m.LeaseInfo("broker/b", "b", "h:2"),
            m.LeaseInfo("broker/new", "new"),
        )
    )
    assert [(x.id, str(x.address), x.leads) for x in listed_brokers(described)] == [
        ("a", "h:1", False),
        ("b", "h:2", True),
    ]
