"""What data nodes have to be told: ranges to open, final ends, deletions, trims.

What a node did not hear is told again each tick while it lives. What waits is kept in memory only:
after a take-over the newest ranges are told again, and a node asks by itself for the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from headrace.concurrency.tasks import TaskSet
from headrace.errors import (
    DeadlineError,
    HeadraceError,
    RangeNotFoundError,
    SealedError,
    UnavailableError,
)
from headrace.placement.metadata.records import RangeRecord
from headrace.placement.node_calls import NodeCalls, RangeSync
from headrace.placement.state import RESERVED_PREFIX
from headrace.placement.term import Term
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import SealUnansweredError

NOTICES_MAX = 10_000
SYNCS_MAX = 100_000
SYNCS_PER_CALL = 256
_GRACE_SECONDS = 0.25
_PRODUCERS_SECONDS = 1.0

_log = logging.getLogger(__name__)

Key = tuple[int, int]  # stream id, range index


class NodeNotices:
    """What each data node has yet to hear, during one term."""

    def __init__(self, term: Term, calls: NodeCalls) -> None:
        self._term = term
        self._calls = calls
        self._rounds = 0
        self._syncs: dict[int, dict[Key, None]] = {}  # by node: ranges it was not told yet
        self._notices: dict[tuple[int, int], int] = {}
        """(node, stream) -> trim offset, or -1 for a deletion: what a node was not told yet."""

    # Ranges

    async def open(
        self, record: RangeRecord, producers: Sequence[m.ProducerState] | None = None
    ) -> m.Range:
        """Tell all replicas of an open range; the primary's answer. `producers` is what is known
        of them where it begins, None when that has to be asked for.

        Enough when the primary and as many as an acknowledgement needs have it: the others are
        waited for a moment, and told again. SealedError when it takes no more appends.
        """
        if len(record.replicas) == 1:
            return await self.sync(record.replicas[0], record, producers)
        asking = TaskSet("sync")
        tasks = [asking.start(self.sync(n, record, producers)) for n in record.replicas]
        try:
            pending = set(tasks)
            while pending and not _enough(tasks, record.ack_quorum) and not _failed(tasks[0]):
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if pending and not _failed(tasks[0]):
                await asyncio.wait(pending, timeout=_GRACE_SECONDS)
        finally:
            await asking.close()
        errors: list[BaseException] = []
        for node_id, task in zip(record.replicas, tasks, strict=True):
            error = None if task.cancelled() else task.exception()
            if error is not None:
                errors.append(error)
            if isinstance(error, HeadraceError):
                self._note_silence(node_id, error)
            if error is not None or task.cancelled():
                self.later([node_id], record)
        if _enough(tasks, record.ack_quorum):
            return tasks[0].result()
        raise next((e for e in errors if isinstance(e, SealedError)), errors[0])

    async def sync(
        self, node_id: int, record: RangeRecord, producers: Sequence[m.ProducerState] | None = None
    ) -> m.Range:
        """The range as the node has it now."""
        wanted = self._sync_of(node_id, record, producers)
        (answer,) = await self._send(node_id, [wanted])
        if producers is None and _needs_producers(record, answer):
            return await self._sync_with_producers(node_id, record)
        if isinstance(answer, HeadraceError):
            raise answer
        return answer

    async def _send(
        self, node_id: int, syncs: Sequence[RangeSync]
    ) -> list[m.Range | HeadraceError]:
        """Not by one that has stalled and leads no more: the range may be sealed and forgotten."""
        check = self._term.check_leading
        return await self._calls.sync(self._address(node_id), syncs, check=check)

    async def _sync_with_producers(self, node_id: int, record: RangeRecord) -> m.Range:
        """It does not have the range, or not any more, and opens none without its producers."""
        producers = await self._producers_before(record)
        wanted = self._sync_of(node_id, record, producers)
        (answer,) = await self._send(node_id, [wanted])
        if isinstance(answer, HeadraceError):
            raise answer
        return answer

    async def _producers_before(self, record: RangeRecord) -> Sequence[m.ProducerState]:
        """What was known of producers where the range begins.

        The replicas of the range before it tell that as often as they are asked to seal it.
        SealUnansweredError when none does: without, batches would be stored twice.
        """
        before = self._term.state.range_before(record)
        if before is None:
            return ()  # everything was trimmed, or there never was anything
        nodes = self._term.state.nodes
        wanted = m.RangeId(before.stream_id, before.range_index, before.writer_epoch)
        found: list[m.SealRangesResult] = []
        for node_id in sorted(before.replicas, key=lambda n: not nodes.is_alive(n)):
            try:
                answer = await self._calls.seal(
                    self._address(node_id), wanted, timeout=_PRODUCERS_SECONDS
                )
            except HeadraceError as error:
                _log.info("node %d does not tell producers: %s", node_id, error)
                continue
            end = before.content_end
            if answer.range is None or answer.range.end_offset < end:
                continue
            if answer.range.producers_whole:
                return producers_below([answer], end)
            if node_id not in before.incomplete:
                found.append(answer)
        if not found:
            raise SealUnansweredError("nobody tells the producers so far", range=before.key)
        return producers_below(found, before.content_end)

    def later(self, node_ids: Iterable[int], record: RangeRecord) -> None:
        """With the next round."""
        for node_id in node_ids:
            waiting = self._syncs.setdefault(node_id, {})
            if len(waiting) < SYNCS_MAX:  # beyond, the node's own reconciliation finds it
                waiting[record.stream_id, record.range_index] = None

    async def deliver_ranges(self, wanted: Iterable[tuple[int, Key]]) -> list[tuple[int, Key]]:
        """Tell what waits, and `wanted` besides: (node, range) that have yet to be complete.

        Returns those of any that hold their sealed range whole now.
        """
        self._rounds += 1
        due: dict[int, dict[Key, None]] = {}
        for node_id, key in wanted:
            due.setdefault(node_id, {})[key] = None
        for node_id, waiting in list(self._syncs.items()):
            due.setdefault(node_id, {}).update(waiting)
        alive = [node_id for node_id in due if self._term.state.nodes.is_alive(node_id)]
        rounds = await asyncio.gather(*(self._deliver_to(n, list(due[n])) for n in alive))
        return [(n, key) for n, keys in zip(alive, rounds, strict=True) for key in keys]

    async def _deliver_to(self, node_id: int, keys: list[Key]) -> list[Key]:
        whole: list[Key] = []
        state = self._term.state
        records = []
        start = self._rounds * SYNCS_PER_CALL % max(len(keys), 1)  # everybody's turn comes
        for key in (*keys[start:], *keys[:start])[:SYNCS_PER_CALL]:
            record = state.find(*key)
            if record is None or node_id not in (*record.replicas, *record.joining):
                self._told(node_id, key)  # trimmed, deleted or moved meanwhile
            else:
                records.append(record)
        if not records:
            return []
        try:
            syncs = [self._sync_of(node_id, record) for record in records]
            answers = await self._send(node_id, syncs)
        except HeadraceError as error:
            _log.info("node %d not told about %d ranges: %s", node_id, len(records), error)
            self._note_silence(node_id, error)
            return []
        for record, answer in zip(records, answers, strict=True):
            key = (record.stream_id, record.range_index)
            if _needs_producers(record, answer):
                try:
                    answer = await self._sync_with_producers(node_id, record)
                except HeadraceError as error:
                    answer = error
            if isinstance(answer, SealedError) and record.open:
                self._told(node_id, key)  # it cannot go on in it: the range will be sealed
            elif isinstance(answer, HeadraceError):
                _log.info("node %d refuses range %s: %s", node_id, record.key, answer)
            else:
                self._told(node_id, key)
                if record.open:
                    continue
                state.note_held(key, node_id, answer.next_offset)
                if answer.next_offset >= record.content_end:
                    whole.append(key)
        return whole

    def _told(self, node_id: int, key: Key) -> None:
        waiting = self._syncs.get(node_id, {})
        waiting.pop(key, None)
        if not waiting:
            self._syncs.pop(node_id, None)

    def _sync_of(
        self, node_id: int, record: RangeRecord, producers: Sequence[m.ProducerState] | None = None
    ) -> RangeSync:
        stream = self._term.state.stream(record.stream_id)
        wanted = self._term.wire(record, viewer=node_id)
        if producers is not None:
            wanted = replace(wanted, producers=tuple(producers), producers_whole=True)
        return RangeSync(
            wanted,
            durability=stream.durability,
            reserved=stream.name.startswith(RESERVED_PREFIX),
        )

    # Deletions and trims

    def notify_later(self, node_ids: Iterable[int], stream_id: int, offset: int) -> None:
        """-1: the stream is deleted; else it is trimmed there."""
        for node_id in node_ids:
            if len(self._notices) < NOTICES_MAX:  # beyond, the node's own reconciliation finds it
                self._notices[node_id, stream_id] = offset

    async def notify(self, node_ids: Sequence[int], stream_id: int, offset: int) -> None:
        """Those that live at once, the others when they are back."""
        self.notify_later(node_ids, stream_id, offset)
        alive = filter(self._term.state.nodes.is_alive, node_ids)
        await asyncio.gather(*(self._deliver(node_id, stream_id) for node_id in alive))

    async def deliver_notices(self) -> None:
        """To all nodes side by side; one that stops to answer holds up nobody else."""
        waiting: dict[int, list[int]] = {}
        for node_id, stream_id in self._notices:
            waiting.setdefault(node_id, []).append(stream_id)

        async def deliver(node_id: int) -> None:
            for stream_id in waiting[node_id]:
                if not self._term.state.nodes.is_alive(node_id):
                    return
                await self._deliver(node_id, stream_id)

        await asyncio.gather(*map(deliver, waiting))

    async def _deliver(self, node_id: int, stream_id: int) -> None:
        offset = self._notices.get((node_id, stream_id))
        if offset is None:
            return
        try:
            if offset < 0:
                await self._calls.delete(self._address(node_id), stream_id)
            else:
                await self._calls.trim(self._address(node_id), stream_id, offset)
        except HeadraceError as error:
            _log.info("node %d not told about stream %d: %s", node_id, stream_id, error)
            self._note_silence(node_id, error)
        else:
            if self._notices.get((node_id, stream_id)) == offset:
                del self._notices[node_id, stream_id]

    def _note_silence(self, node_id: int, error: HeadraceError) -> None:
        """Whoever does not answer is not asked again before its next heartbeat."""
        if isinstance(error, UnavailableError | DeadlineError):
            self._term.state.nodes.on_unreachable(node_id)

    def _address(self, node_id: int) -> str:
        return self._term.state.nodes.address(node_id)


def _needs_producers(record: RangeRecord, answer: m.Range | HeadraceError) -> bool:
    return isinstance(answer, RangeNotFoundError) and record.open and record.writer_epoch < 0


def producers_below(answers: Iterable[m.SealRangesResult], end: int) -> tuple[m.ProducerState, ...]:
    """What replicas of a sealed range that hold it up to `end` know, in the order of the log.

    Each tells batches that are in the log: together they know at least as much as the best of them.
    Above `end` there are batches that are cut off: their producers send them again.
    """
    known: dict[tuple[int, int], m.ProducerState] = {}
    for answer in answers:
        if answer.range is not None and answer.range.end_offset >= end:
            for state in answer.producers:
                key = (state.producer_id, state.next_sequence)
                better = key not in known or (known[key].last_base_offset < state.last_base_offset)
                if state.last_base_offset < end and better:
                    known[key] = state
    return tuple(sorted(known.values(), key=lambda state: state.last_base_offset))


def _enough(tasks: Sequence[asyncio.Task[m.Range]], quorum: int) -> bool:
    """Whether the primary, the first, and `quorum` of all have answered well."""
    good = [t.done() and not t.cancelled() and not _failed(t) for t in tasks]
    return good[0] and sum(good) >= quorum


def _failed(task: asyncio.Task[m.Range]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None
