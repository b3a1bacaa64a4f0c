"""What a worker tells of itself: which shards it leads, and how it does."""

from __future__ import annotations

from collections import Counter

from headrace.broker.core import Broker
from headrace.broker.shards.messages import WorkerState
from headrace.net.addresses import format_address
from headrace.wire.iggy.messages.extensions import WorkerFigures


def partitions_by_shard(broker: Broker) -> Counter[int]:
    return Counter(p.shard for topic in broker.catalogue.topics() for p in topic.partitions)


def state_of(broker: Broker) -> WorkerState:
    """Of this process, which is the only worker where one process leads everything."""
    shards = broker.shards
    epochs = {
        shard: shards.get(shard).epoch
        for shard in range(broker.catalogue.shards)
        if shards.leads(shard)
    }
    partitions, process, totals = (
        partitions_by_shard(broker),
        broker.figures(),
        broker.traffic.totals(),
    )
    figures = WorkerFigures(
        name=broker.name,
        number=broker.sessions.worker or 0,
        host=process.hostname,
        address=format_address(*broker.address),
        coordinates=broker.workers.coordinates,
        shards=len(epochs),
        partitions=sum(partitions[shard] for shard in epochs),
        connections=len(broker.sessions),
        requests=totals["requests"],
        requests_passed_on=totals["requests_passed_on"],
        requests_taken_in=totals["requests_taken_in"],
        loop_delay_ms=round(broker.loop_delay.p99_ms(), 2),
        memory_bytes=process.memory,
        cpu_percent=round(process.cpu_percent, 1),
    )
    return WorkerState(figures, epochs)
