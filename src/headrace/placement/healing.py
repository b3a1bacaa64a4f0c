"""Healing: ranges that lost a replica get another one.

An open range is never given another replica: it is sealed and goes on elsewhere. A sealed one gets
a new replica beside the old ones: the node *joins*, copies, and takes the place of a dead replica
in one transaction once it holds everything. Nothing is given up before.

A range with two replicas on one host (nodes may say late where they are) is treated alike where
another host can have it: an open one goes on elsewhere, of a sealed one a node of another host
joins and then takes the place of one of the two.

The functions decide from the placement state alone, without I/O. The `Healer` carries out what they
decide, a bounded part of it each round.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from headrace.errors import HeadraceError
from headrace.placement.changes import Changes
from headrace.placement.metadata.records import Put, RangeRecord
from headrace.placement.state import PlacementState, held_end
from headrace.wire.sbp.messages import ack_quorum

SEALS_PER_ROUND = 32
JOINS_PER_ROUND = 64

_log = logging.getLogger(__name__)


def can_finish(state: PlacementState, record: RangeRecord) -> bool:
    """Whether a seal has a chance: enough replicas to know the end, enough nodes to go on."""
    nodes = state.nodes
    living = sum(map(nodes.is_alive, record.replicas))
    wanted = state.stream(record.stream_id).replica_nums
    enough = living > len(record.replicas) - record.ack_quorum
    return enough and nodes.hosts(roomy=False) >= ack_quorum(wanted)


def to_move(state: PlacementState, now_ms: int) -> Iterator[RangeRecord]:
    """Open ranges that are better sealed and continued on other nodes."""
    seen: dict[tuple[int, int], None] = {}
    for record in _suspects(state, now_ms):
        key = (record.stream_id, record.range_index)
        if record.open and not record.sealing and key not in seen:
            seen[key] = None
            if _is_better_moved(state, record, now_ms) and can_finish(state, record):
                yield record


def _suspects(state: PlacementState, now_ms: int) -> Iterator[RangeRecord]:
    nodes = state.nodes
    for node_id in nodes.records:
        if nodes.is_lost(node_id, now_ms) or nodes.is_draining(node_id):
            yield from state.ranges_of_node(node_id)
    yield from state.lacking_copies()
    yield from state.sharing_host()


def _is_better_moved(state: PlacementState, record: RangeRecord, now_ms: int) -> bool:
    """A range without its primary takes no appends: any successor is better. One that lacks a
    secondary goes on; it moves only when it then gets all it should have."""
    nodes = state.nodes
    primary = record.replicas[0]
    if nodes.is_lost(primary, now_ms) or nodes.is_draining(primary):
        return True
    wanted = state.stream(record.stream_id).replica_nums
    if nodes.hosts() < wanted:
        return False
    return (
        len(record.replicas) < min(record.replica_nums, wanted)
        or any(nodes.is_dead(n, now_ms) or nodes.is_draining(n) for n in record.replicas)
        or bool(nodes.sharing_host(record.replicas))
    )


def to_heal(state: PlacementState, now_ms: int) -> Iterator[RangeRecord]:
    """Sealed ranges with a dead replica, fewer than were asked for, or two on one host."""
    nodes = state.nodes
    seen: dict[tuple[int, int], None] = {}
    for node_id in nodes.records:
        if nodes.is_dead(node_id, now_ms):
            for record in state.ranges_of_node(node_id):
                if not record.open:
                    seen[record.stream_id, record.range_index] = None
    for record in (*state.lacking_copies(), *state.sharing_host()):
        if not record.open:
            seen[record.stream_id, record.range_index] = None
    for key in seen:
        found = state.find(*key)
        if found is not None and (
            missing(state, found, now_ms) > 0 or with_joining(state, found, (), now_ms) != found
        ):
            yield found


def missing(state: PlacementState, record: RangeRecord, now_ms: int) -> int:
    """Nodes that should begin to join; negative when some that join are not needed any more.

    Only a replica that is dead is to be replaced, and only one that lives makes its replacement
    needless: in between, as after a take-over, copies go on.
    """
    nodes = state.nodes
    wanted = wanted_copies(state, record) if record.content_end > record.start else 0
    joining = sum(not nodes.is_dead(n, now_ms) for n in record.joining)
    undead = sum(not nodes.is_dead(n, now_ms) for n in record.replicas)
    if record.doubtful >= 0:  # writers wait for it: whoever is away now is not waited for
        alive = sum(map(nodes.is_alive, (*record.replicas, *record.joining)))
        return max(0, wanted - undead - joining, record.ack_quorum - alive)
    misplaced = nodes.sharing_host(record.replicas)
    whole = sum(
        nodes.is_alive(n) and n not in record.incomplete and n not in misplaced
        for n in record.replicas
    )
    lacking = max(0, wanted - undead - joining) or min(0, wanted - whole - joining)
    if lacking or not misplaced or not _is_whole(state, record):
        return lacking
    apart = min(wanted, len(record.replicas)) - (len(record.replicas) - len(misplaced))
    others = nodes.hosts(beside=(*record.replicas, *record.joining))
    return max(0, min(apart - joining, others))


def _is_whole(state: PlacementState, record: RangeRecord) -> bool:
    """Whether every replica lives and holds all of it: one of them may make room for another."""
    return not record.incomplete and all(map(state.nodes.is_alive, record.replicas))


def wanted_copies(state: PlacementState, record: RangeRecord) -> int:
    """What was asked for when it was opened. A later UPDATE is for later ranges, but nobody gets
    more copies than the stream is now said to need."""
    asked = record.replica_nums or len(record.replicas)
    return min(asked, state.stream(record.stream_id).replica_nums)


def with_joining(
    state: PlacementState, record: RangeRecord, chosen: tuple[int, ...], now_ms: int
) -> RangeRecord:
    """With `chosen` joining, and without those that died while they joined or are not needed."""
    joining = tuple(n for n in record.joining if not state.nodes.is_dead(n, now_ms))
    surplus = min(len(joining), max(0, -missing(state, record, now_ms)))
    return replace(record, joining=(*joining[: len(joining) - surplus], *chosen))


def with_whole_copy(
    state: PlacementState, record: RangeRecord, node_id: int, now_ms: int
) -> RangeRecord:
    """`node_id` holds all of the sealed range."""
    incomplete = tuple(n for n in record.incomplete if n != node_id)
    holders = {n for n in record.replicas if n not in incomplete} | {node_id}
    doubtful = record.doubtful if len(holders) < record.ack_quorum else -1
    record = replace(record, incomplete=incomplete, doubtful=doubtful)
    if node_id not in record.joining:
        return record
    joining = tuple(n for n in record.joining if n != node_id)
    dead = next((n for n in record.replicas if state.nodes.is_dead(n, now_ms)), None)
    replicas = record.replicas
    if dead is not None:
        replicas = tuple(node_id if n == dead else n for n in replicas)
        incomplete = tuple(n for n in incomplete if n != dead)
    elif len(replicas) < wanted_copies(state, record):
        replicas = (*replicas, node_id)
    elif not all(map(state.nodes.is_alive, replicas)):
        return record  # somebody may still turn out to be dead
    elif misplaced := state.nodes.sharing_host(replicas):
        if incomplete:
            return record  # nobody makes room before all hold everything
        apart = tuple(node_id if n == misplaced[-1] else n for n in replicas)
        if len(state.nodes.sharing_host(apart)) < len(misplaced):
            replicas = apart
    return replace(record, replicas=replicas, joining=joining, incomplete=incomplete)


def held_by_enough(record: RangeRecord, held: Mapping[int, int]) -> int:
    """Below which offset a sealed range was on enough disks for an acknowledgement, as far as its
    replicas have said (`held`); -1 when too few have. A disk that was lost since counts."""
    ends = [
        held.get(n, -1) if n in record.incomplete else record.content_end for n in record.replicas
    ]
    ends += [held.get(n, -1) for n in record.joining]
    return held_end(ends, quorum=record.ack_quorum)


def whole_copies(state: PlacementState, record: RangeRecord) -> int:
    """Live replicas that surely hold all of a sealed range, or take part in an open one."""
    return sum(state.nodes.is_alive(n) and n not in record.incomplete for n in record.replicas)


class Healer:
    """Carries out seals and joins during one term."""

    def __init__(self, changes: Changes, *, below: Callable[[int], int]) -> None:
        self._changes = changes
        self._term = changes.term
        self._state = changes.state
        self._below = below

    async def round(self) -> None:
        """Unfinished seals, then open ranges in trouble, then copies of sealed ones."""
        state, now_ms = self._state, self._term.monotonic_ms()
        unfinished = (r for r in state.sealing() if can_finish(state, r))
        await self._seal(list(islice(unfinished, SEALS_PER_ROUND)), "seal still open")
        await self._seal(list(islice(to_move(state, now_ms), SEALS_PER_ROUND)), "not moved")
        for record in list(islice(to_heal(state, now_ms), JOINS_PER_ROUND)):
            await self._heal(record)
        await self._tell(self._state.lacking_copies())

    async def hurry(self) -> None:
        """Bring what is doubtful to enough nodes: writers wait for it."""
        now_ms = self._term.monotonic_ms()
        for record in list(islice(self._state.doubtful(), JOINS_PER_ROUND)):
            if missing(self._state, record, now_ms) > 0:
                await self._heal(record)
        await self._tell(self._state.doubtful())

    async def _seal(self, records: Sequence[RangeRecord], otherwise: str) -> None:
        async def seal(record: RangeRecord) -> None:
            try:
                await self._changes.sealing.finish(record)
            except HeadraceError as error:
                _log.info("%s: range %s: %s", otherwise, record.key, error)

        await asyncio.gather(*map(seal, records))

    async def _heal(self, record: RangeRecord) -> None:
        """Let nodes join, and those go that are not needed."""
        async with self._term.mutex.hold(record.stream_id):
            state, now_ms = self._state, self._term.monotonic_ms()
            found = state.find(record.stream_id, record.range_index)
            if found is None or found.open:
                return
            wanted = missing(state, found, now_ms)
            chosen: tuple[int, ...] = ()
            if wanted > 0 and whole_copies(state, found):
                chosen = state.nodes.choose(
                    wanted,
                    at_least=0,
                    exclude=(*found.replicas, *found.joining),
                    beside=[
                        n
                        for n in (*found.replicas, *found.joining)
                        if not state.nodes.is_dead(n, now_ms)
                    ],
                    load=state.load,
                    below=self._below,
                )
            healed = with_joining(state, found, chosen, now_ms)
            if healed != found:
                _log.info("range %s: joining %s", found.key, healed.joining)
                await self._term.commit([Put(healed)])

    async def _tell(self, records: Sequence[RangeRecord]) -> None:
        """Tell nodes what they have yet to hear, and note who holds a range whole by now."""
        pending = (
            (node_id, (record.stream_id, record.range_index))
            for record in records
            if not record.open
            for node_id in (*record.incomplete, *record.joining)
        )
        for node_id, key in await self._changes.notices.deliver_ranges(pending):
            await self._note_whole(node_id, key)
        for record in self._state.doubtful():
            await self._note_held(record)

    async def _note_held(self, record: RangeRecord) -> None:
        """Enough hold more of it than was known, if not all."""
        if held_by_enough(record, self._state.told_held(record)) <= record.doubtful:
            return
        async with self._term.mutex.hold(record.stream_id):
            found = self._state.find(record.stream_id, record.range_index)
            if found is None:
                return
            held = held_by_enough(found, self._state.told_held(found))
            if 0 <= found.doubtful < held:
                doubtful = held if held < found.content_end else -1
                await self._term.commit([Put(replace(found, doubtful=doubtful))])
                self._changes.notices.later((*found.replicas, *found.joining), found)

    async def _note_whole(self, node_id: int, key: tuple[int, int]) -> None:
        record = self._state.find(*key)
        if record is None or node_id not in (*record.incomplete, *record.joining):
            return  # it was whole before
        async with self._term.mutex.hold(key[0]):
            record = self._state.find(*key)
            if record is None or record.open:
                return
            now_ms = self._term.monotonic_ms()
            completed = with_whole_copy(self._state, record, node_id, now_ms)
            if completed != record:
                await self._term.commit([Put(completed)])
            if not completed.incomplete:
                self._state.forget_held(key)
            if completed.doubtful < 0 <= record.doubtful:
                self._changes.notices.later((*completed.replicas, *completed.joining), completed)
