"""On how many data nodes things are kept: partitions by their topic's replication factor, the
broker's own logs by a setting."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.broker.errors import InvalidReplicationError
from headrace.broker.term.broker_registry import BrokerRegistry, hosts_alive
from headrace.config.broker import REPLICAS_MAX, BrokerSettings
from headrace.errors import NotEnoughNodesError
from headrace.observability.logging import get_logger
from headrace.sbp_client.client import SbpClient

log = get_logger(__name__)


async def topic_replicas(settings: BrokerSettings, roster: BrokerRegistry, asked: int) -> int:
    """The replication factor of a topic whose creator asked for that many; 0 = the default."""
    if asked == 1 or (not asked and settings.replicas == 1):
        return 1
    description = await roster.describe()
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


async def log_replicas(settings: BrokerSettings, roster: BrokerRegistry) -> int:
    """Of the broker's own logs, when they are made."""
    return settings.log_replicas or _all_of(hosts_alive(await roster.describe()))


async def keep_log_replicas(
    settings: BrokerSettings, roster: BrokerRegistry, client: SbpClient, stream_ids: Sequence[int]
) -> None:
    """Raise what was decided when fewer data nodes lived; it is never lowered."""
    wanted = await log_replicas(settings, roster)
    for stream_id in stream_ids:
        stream = await client.describe_stream(stream_id)
        if stream.replica_nums < wanted:
            log.info("more replicas for a log", name=stream.name, replicas=wanted)
            await client.update(stream_id, replica_nums=wanted)


def _all_of(alive: int) -> int:
    return max(1, min(alive, REPLICAS_MAX))
