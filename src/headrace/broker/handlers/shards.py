"""Shards and workers (commands 9012 and 9013): who leads what, and giving a shard to a worker.

The coordinator answers both. A move is a catalogue event first, so that it outlives whoever decided
it, and carried out by balance.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.broker.catalogue import events
from headrace.broker.core import Broker
from headrace.broker.sessions.sessions import Session
from headrace.broker.shards.figures import partitions_by_shard, state_of
from headrace.broker.shards.messages import WorkerState
from headrace.broker.shards.offset_logs import FIRST
from headrace.wire.iggy.messages import extensions as m
from headrace.wire.iggy.messages.system import Empty
from headrace.wire.iggy.refusals import FirstShardError, ShardNotFoundError, WorkerNotFoundError


async def get_shards(broker: Broker, session: Session, request: Empty) -> m.ShardMap:
    states = await _states(broker)
    epochs = {shard: epoch for state in states for shard, epoch in state.epochs.items()}
    partitions = partitions_by_shard(broker)
    return m.ShardMap(
        shards=tuple(
            m.ShardLeader(
                shard=shard,
                worker=_leader(broker, shard),
                epoch=epochs.get(shard, -1),
                partitions=partitions[shard],
                pinned=broker.catalogue.pins.get(shard, ""),
            )
            for shard in range(broker.catalogue.shards)
        ),
        workers=tuple(state.figures for state in states),
    )


async def move_shard(broker: Broker, session: Session, request: m.MoveShard) -> m.ShardMoved:
    shard = request.shard
    if shard == FIRST:
        raise FirstShardError(shard=shard)
    if not 0 <= shard < broker.catalogue.shards:
        raise ShardNotFoundError(shard=shard, shards=broker.catalogue.shards)
    worker = _find(await _states(broker), request.worker) if request.worker else ""
    if broker.catalogue.pins.get(shard, "") != worker:
        await broker.commit(lambda: events.ShardPinned(shard, worker))
    if worker:
        await broker.workers.wait_led(shard, worker)
    return m.ShardMoved(shard=shard, worker=_leader(broker, shard), pinned=worker)


async def _states(broker: Broker) -> list[WorkerState]:
    states = [state_of(broker), *await broker.workers.states()]
    return sorted(states, key=lambda state: (state.figures.number, state.figures.name))


def _leader(broker: Broker, shard: int) -> str:
    return broker.name if broker.shards.leads(shard) else broker.workers.leader_of(shard)


def _find(states: Sequence[WorkerState], wanted: str) -> str:
    """The name of a worker that lives, by its name or number."""
    for state in states:
        if wanted in (state.figures.name, str(state.figures.number)):
            return state.figures.name
    raise WorkerNotFoundError(worker=wanted)
