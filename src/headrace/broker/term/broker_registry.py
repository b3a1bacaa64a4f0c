"""The cluster as the placement manager tells it: which brokers there are, how many replicas fit.

Each broker keeps a lease of its own, named after it, beside the leader's one. The lease's address
tells where clients reach the broker: `host:port`, and `;quic=port` when it serves QUIC. Whoever
wants to know asks the placement manager, at most once a second.

The number of data nodes that live bounds the replicas. A partition has as many as the replication
factor of its topic says, the broker's own logs as many as a setting says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from headrace.broker.shards.leases import SHARD_PREFIX
from headrace.config.broker import REPLICAS_MAX, BrokerSettings
from headrace.errors import HeadraceError, NotEnoughNodesError
from headrace.net.addresses import format_address, parse_address
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Runtime
from headrace.sbp_client.client import SbpClient
from headrace.wire.iggy.refusals import InvalidReplicationError
from headrace.wire.sbp import messages as m

log = get_logger(__name__)

LEADER_LEASE = "broker"
PREFIX = "broker/"
_FRESH_SECONDS = 1.0
_RETRY_SECONDS = 1.0
_RELEASE_SECONDS = 1.0  # it runs out by itself


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where clients reach a broker."""

    host: str
    port: int
    quic_port: int = 0

    def __str__(self) -> str:
        address = format_address(self.host, self.port)
        return f"{address};quic={self.quic_port}" if self.quic_port else address


def parse_broker_address(text: str) -> BrokerAddress:
    address, _, quic = text.partition(";quic=")
    host, port = parse_address(address)
    return BrokerAddress(host, port, int(quic) if quic.isdecimal() else 0)


@dataclass(frozen=True, slots=True)
class ListedBroker:
    """A broker that lives, as its lease tells."""

    id: str
    address: BrokerAddress
    leads: bool


def listed_brokers(description: m.DescribeClusterResponse) -> list[ListedBroker]:
    """The brokers that live, in the order of their ids."""
    leader = next((x.holder for x in description.leases if x.name == LEADER_LEASE), "")
    found = []
    for lease in description.leases:
        if lease.name.startswith(SHARD_PREFIX):
            continue  # held by a worker, whose address is for other workers
        if lease.name.startswith(PREFIX) and lease.address:
            try:
                address = parse_broker_address(lease.address)
            except HeadraceError:
                continue  # of a version that writes it otherwise
            found.append(ListedBroker(lease.holder, address, lease.holder == leader))
    return found


def leader_address(description: m.DescribeClusterResponse) -> str:
    """Where clients reach the broker that leads, or coordinates those that do; empty for nobody."""
    for broker in listed_brokers(description):
        if broker.leads:
            return format_address(broker.address.host, broker.address.port)
    return ""


def hosts_alive(description: m.DescribeClusterResponse) -> int:
    """How many replicas of a log there can be: each is on another host."""
    alive = [node for node in description.nodes if node.is_alive]
    return len({node.host for node in alive if node.host}) + sum(not node.host for node in alive)


class BrokerRegistry:
    """What the placement manager says about the cluster, a second old at most."""

    def __init__(self, runtime: Runtime, client: SbpClient) -> None:
        self._clock = runtime.clock
        self._client = client
        self._asking = asyncio.Lock()
        self._known: m.DescribeClusterResponse | None = None
        self._asked = float("-inf")

    async def describe(self) -> m.DescribeClusterResponse:
        """What was known last when the placement manager does not answer; its error at first."""
        async with self._asking:
            if self._known is None or self._clock.monotonic() - self._asked > _FRESH_SECONDS:
                try:
                    self._known = await self._client.describe_cluster()
                except HeadraceError as error:
                    if self._known is None:
                        raise
                    log.warning("cluster not described", reason=str(error))
                self._asked = self._clock.monotonic()
            return self._known


async def stay_listed(
    runtime: Runtime, client: SbpClient, *, holder: str, address: BrokerAddress, duration_ms: int
) -> None:
    """Keep this broker's own lease until cancelled; then give it back."""
    name = f"{PREFIX}{holder}"
    epoch = -1
    try:
        while True:
            pause = duration_ms / 3000
            try:
                answer = await client.lease(name, holder, duration_ms, str(address), epoch)
                epoch = answer.epoch if answer.granted else -1
            except HeadraceError as error:
                log.info("broker not listed", reason=str(error))
                pause = min(pause, _RETRY_SECONDS)
            await runtime.clock.sleep(pause)
    finally:
        with suppress(HeadraceError, TimeoutError):
            async with asyncio.timeout(_RELEASE_SECONDS):
                await client.release(name, holder, epoch)


async def topic_replicas(settings: BrokerSettings, registry: BrokerRegistry, asked: int) -> int:
    """The replication factor of a topic whose creator asked for that many; 0 = the default."""
    if asked == 1 or (not asked and settings.replicas == 1):
        return 1
    description = await registry.describe()
    alive = hosts_alive(description)
    if len(description.nodes) == 1 and asked:
        # Iggy itself takes any number here and keeps one copy; whoever lists the topic sees that.
        log.info("one data node, so one replica", asked=asked)
        return 1
    if not asked:
        if settings.replicas > alive:
            raise NotEnoughNodesError(
                "topics get that many replicas here unless their creator says otherwise",
                replicas=settings.replicas,
                data_nodes=alive,
            )
        return settings.replicas or _all_of(alive)
    if asked > min(alive, REPLICAS_MAX):
        raise InvalidReplicationError(
            "more replicas than live data nodes, or than are supported",
            replicas=asked,
            data_nodes=alive,
            supported=REPLICAS_MAX,
        )
    return asked


async def log_replicas(settings: BrokerSettings, registry: BrokerRegistry) -> int:
    """The replicas that the broker's own logs get when they are made."""
    return settings.log_replicas or _all_of(hosts_alive(await registry.describe()))


async def keep_log_replicas(
    settings: BrokerSettings, registry: BrokerRegistry, client: SbpClient, stream_ids: Sequence[int]
) -> None:
    """Raise what was decided when fewer data nodes lived; it is never lowered."""
    wanted = await log_replicas(settings, registry)
    for stream_id in stream_ids:
        stream = await client.describe_stream(stream_id)
        if stream.replica_nums < wanted:
            log.info("more replicas for a log", name=stream.name, replicas=wanted)
            await client.update(stream_id, replica_nums=wanted)


def _all_of(alive: int) -> int:
    return max(1, min(alive, REPLICAS_MAX))
