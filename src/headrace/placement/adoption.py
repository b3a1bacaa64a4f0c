"""Taking into the metadata what data nodes hold and it does not list.

For metadata that was put back to an earlier day: the ranges that came later are still on the data
nodes, which keep aside what nobody lists. A range there says where it begins, who its replicas are
and under which epoch it was written; it ends where the next one begins. The last one is listed as
being sealed, and the ordinary seal finds its end. Nothing is adopted over something that is listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec.structs import replace

from headrace.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from headrace.placement.changes import Changes
from headrace.placement.metadata.records import (
    CounterRecord,
    LeaseRecord,
    Operation,
    Put,
    RangeRecord,
    Remove,
    StreamRecord,
)
from headrace.placement.node_calls import NodeCalls
from headrace.placement.state import PlacementState
from headrace.wire.sbp import messages as m

Held = Mapping[int, Mapping[int, m.Range]]
"""Of one stream: by range index, then by node."""


class Adoption:
    """Asks the data nodes what they hold, and lists it in the metadata of one term."""

    def __init__(self, changes: Changes, calls: NodeCalls) -> None:
        self._changes = changes
        self._term = changes.term
        self._state = changes.state
        self._calls = calls

    async def adopt(self, stream_id: int, *, name: str, seen: int) -> list[RangeRecord]:
        """Of one stream, or with -1 of all that are listed. `seen`: the metadata is outdated, data
        nodes know that version of it; ids and epochs go on above what they have. -1: it is not."""
        held = await self._ask_nodes(stream_id if seen < 0 else -1)
        if stream_id >= 0:
            wanted = [stream_id]
            if stream_id not in held:
                raise NotFoundError("no data node holds such a stream", stream_id=stream_id)
        else:
            wanted = [each.stream_id for each in self._state.streams() if each.stream_id in held]
        operations: list[Operation] = counters_above(self._state, held) if seen >= 0 else []
        if name and stream_id >= 0:
            operations += await self._free(name)
        for each in wanted:
            async with self._term.mutex.hold(each):
                operations += plan_adoption(self._state, each, held[each], name=name)
                if seen < 0:
                    await self._term.commit(operations)
                    operations = []
        if operations:  # in one go: nothing else is decided meanwhile
            await self._term.commit(operations, above=seen)
            for counter in (self._state.stream_ids, self._state.node_ids):
                counter.next = counter.bound
        self._changes.tell_newest_again(single_copies=True)
        return [
            record
            for each in wanted
            for record in self._state.ranges(each)
            if record.range_index in held[each]
        ]

    async def _free(self, name: str) -> list[Operation]:
        """Whoever looked for the stream meanwhile has made an empty one of that name."""
        taken = self._state.stream_named(name)
        if taken is None:
            return []
        last = self._state.last_range(taken.stream_id)
        described = await self._changes.describe(last)
        if last.start > 0 or described.range is None or described.range.next_offset > 0:
            raise AlreadyExistsError("another stream has that name, and records", name=name)
        operations = self._state.delete_stream(taken.stream_id, self._term.now_ms())
        await self._term.commit(operations)
        self._changes.notices.notify_later(last.replicas, taken.stream_id, -1)
        return []

    async def _ask_nodes(self, stream_id: int) -> dict[int, dict[int, dict[int, m.Range]]]:
        """Those that live; one that does not answer fails it all, as it may hold the most."""
        nodes = self._state.nodes
        found: dict[int, dict[int, dict[int, m.Range]]] = {}
        for node_id, sighting in nodes.liveness.sightings.items():
            if not sighting.usable or not sighting.address:
                continue
            for each in await self._calls.held(sighting.address, stream_id):
                by_index = found.setdefault(each.stream_id, {})
                by_index.setdefault(each.range_index, {})[node_id] = each
        return found


def counters_above(state: PlacementState, held: Mapping[int, Held]) -> list[Operation]:
    """Ids that were given out are not given out again; whoever leads next may write."""
    streams, nodes = max(held, default=-1), max(state.nodes.liveness.sightings, default=-1)
    epoch = max(
        (one.writer_epoch for by in held.values() for each in by.values() for one in each.values()),
        default=-1,
    )
    return [
        Put(CounterRecord(name="stream", bound=max(state.stream_ids.bound, streams + 1))),
        Put(CounterRecord(name="node", bound=max(state.node_ids.bound, nodes + 1))),
        *(
            Put(LeaseRecord(name=lease.name, epoch=max(lease.epoch, epoch)))
            for lease in state.leases.records.values()
        ),
    ]


def plan_adoption(
    state: PlacementState, stream_id: int, held: Held, *, name: str
) -> list[Operation]:
    """What lists the ranges of a stream that come after those that are listed."""
    if state.is_deleted(stream_id):
        raise InvalidArgumentError("the stream was deleted", stream_id=stream_id)
    try:
        stream = state.stream(stream_id)
        last = state.last_range(stream_id)
    except NotFoundError:
        stream, last = _new_stream(state, stream_id, held, name), None
    later = [index for index in sorted(held) if last is None or index > last.range_index]
    if not later:
        return []
    operations: list[Operation] = [Put(stream)] if last is None else []
    starts = {index: max(one.start_offset for one in held[index].values()) for index in later}
    if last is not None:
        operations.append(_closed(last, starts[later[0]]))
    for index, following in pairwise(later):
        _check_end(held[index], starts[following])
        if starts[following] > starts[index]:
            operations.append(Put(_sealed(held[index], starts[index], starts[following], stream)))
    operations.append(Put(_sealing(held[later[-1]], starts[later[-1]], stream)))
    return operations


def _new_stream(state: PlacementState, stream_id: int, held: Held, name: str) -> StreamRecord:
    newest = held[max(held)]
    if _epoch(newest) >= 0 and not name:
        raise InvalidArgumentError(
            "the stream is not listed, and belongs to the cluster: say its name, as in "
            "p/<topic uid>/<partition>/<generation>",
            stream_id=stream_id,
        )
    return StreamRecord(stream_id=stream_id, name=name, replica_nums=len(_members(newest)))


def _closed(last: RangeRecord, end: int) -> Operation:
    if not last.open or end < last.start:
        raise InvalidArgumentError(
            "what data nodes hold does not go on where the stream ends",
            stream_id=last.stream_id, start=last.start, found=end,
        )  # fmt: skip
    if end == last.start:
        return Remove(last)
    return Put(replace(last, end=end, sealing=False, incomplete=last.replicas))


def _check_end(held: Mapping[int, m.Range], end: int) -> None:
    for one in held.values():
        if one.end_offset not in (-1, end):
            raise InvalidArgumentError(
                "a range between two that are held is missing",
                stream_id=one.stream_id, range_index=one.range_index, end=one.end_offset, next=end,
            )  # fmt: skip


def _sealed(held: Mapping[int, m.Range], start: int, end: int, stream: StreamRecord) -> RangeRecord:
    """Its replicas are those that have it; whether they have all of it they are asked."""
    one = next(iter(held.values()))
    return RangeRecord(
        stream_id=one.stream_id,
        range_index=one.range_index,
        start=start,
        end=end,
        replicas=tuple(held),
        ack_quorum=min(len(held), max(1, one.ack_quorum)),
        writer_epoch=_epoch(held),
        replica_nums=stream.replica_nums,
        incomplete=tuple(held),
    )


def _sealing(held: Mapping[int, m.Range], start: int, stream: StreamRecord) -> RangeRecord:
    one = next(iter(held.values()))
    return RangeRecord(
        stream_id=one.stream_id,
        range_index=one.range_index,
        start=start,
        sealing=True,
        replicas=_members(held),
        ack_quorum=max(1, one.ack_quorum),
        writer_epoch=_epoch(held),
        replica_nums=stream.replica_nums,
    )


def _members(held: Mapping[int, m.Range]) -> tuple[int, ...]:
    """As they were when it was opened: the rule for its end counts those that are silent, too."""
    lists: Sequence[tuple[int, ...]] = [
        tuple(r.data_node.node_id for r in one.replica_nodes if r.data_node is not None)
        for one in held.values()
    ]
    return max(lists, key=len, default=()) or tuple(held)


def _epoch(held: Mapping[int, m.Range]) -> int:
    return max(one.writer_epoch for one in held.values())
