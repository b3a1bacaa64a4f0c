"""Seal-and-new: a range ends where its replicas say it must, and the next one begins there.

The intent is durable first. Then the replicas seal, each durably before it answers, so a leader
that dies here costs nothing: the next one asks again and gets the same ends. End and successor are
one transaction. Whoever asks again gets the successor that there is.

A primary that has led the range all its life tells what it acknowledged, and the range ends there:
whatever fewer disks hold than an acknowledgement takes is not part of it. Without its word the end
has to be where the furthest of too few is, for that may have been acknowledged. What is then not
known to be on enough disks is *doubtful*: nobody is told that it is stored, and nobody reads it,
until healing has brought it to enough of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from headrace.concurrency.tasks import TaskSet
from headrace.errors import (
    DeadlineError,
    HeadraceError,
    RangeNotFoundError,
    SealedError,
    StorageError,
    UnavailableError,
)
from headrace.placement.metadata.records import RangeRecord
from headrace.placement.node_calls import NodeCalls
from headrace.placement.node_notices import NodeNotices, producers_below
from headrace.placement.state import Seal, Writable, held_end, sealed_end
from headrace.placement.term import Term
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import SealUnansweredError
from headrace.wire.sbp.messages import ack_quorum

_GRACE_SECONDS = 0.05
"""Once enough have answered: how long those are waited for that were silent before."""

_log = logging.getLogger(__name__)


class Sealing:
    """The seals of one term."""

    def __init__(
        self, term: Term, notices: NodeNotices, calls: NodeCalls, *, timeout: float
    ) -> None:
        self._term = term
        self._state = term.state
        self._notices = notices
        self._calls = calls
        self._timeout = timeout
        self._opened: dict[int, int] = {}  # by stream: the range that this leader opened last
        self.on_doubtful: Callable[[], None] = lambda: None
        """Called when a range was sealed whose end has yet to come to enough replicas."""

    async def seal(
        self, stream_id: int, range_index: int, epoch: int, *, preferred: int = -1
    ) -> m.Range:
        """Seal-and-new; with index -1 open for writing. Returns the writable range.

        `preferred`: the node that leads the new range, if it can; where none is opened it says
        nothing.
        """
        async with self._term.mutex.hold(stream_id):
            if range_index == -1 and epoch >= 0:
                decision = self._state.open_for_writing(stream_id, epoch)
            else:
                decision = self._state.seal(stream_id, range_index, epoch)
            if isinstance(decision, Writable):
                await self._term.commit(decision.operations)  # also tells that we still lead
                try:
                    synced = await self._notices.open(decision.range)
                    self._opened[stream_id] = decision.range.range_index
                except (SealedError, StorageError):  # stopped uncleanly, or the disk failed
                    decision = self._state.seal_last(stream_id, epoch)
                else:
                    writable = self._term.wire(decision.range)
                    return replace(writable, next_offset=synced.next_offset)
            return await self._seal_and_new(decision, preferred)

    async def ensure_opened(self, record: RangeRecord) -> None:
        """Its replicas know what was known of producers: nothing before it is needed for that."""
        if self._opened.get(record.stream_id) != record.range_index:
            with suppress(SealedError):  # they had it, then
                await self._notices.open(record)
            self._opened[record.stream_id] = record.range_index

    def forget(self, stream_id: int) -> None:
        """It is deleted."""
        self._opened.pop(stream_id, None)

    async def finish(self, record: RangeRecord) -> None:
        """Seal that very range if it is still the open one; a client may have been first."""
        async with self._term.mutex.hold(record.stream_id):
            found = self._state.find(record.stream_id, record.range_index)
            if found is not None and found.open:
                await self._seal_and_new(self._state.seal_last(found.stream_id, found.writer_epoch))

    async def _seal_and_new(self, decision: Seal, preferred: int = -1) -> m.Range:
        sealing = decision.range
        await self._term.commit(decision.operations)
        answers = await self._seal_replicas(sealing)
        told = {n: a.range for n, a in answers.items() if a.range is not None}
        ends = {n: range_.end_offset for n, range_ in told.items()}
        primary = told.get(sealing.replicas[0])
        end = sealed_end(
            list(ends.values()),
            replicas=len(sealing.replicas),
            quorum=sealing.ack_quorum,
            acknowledged=-1 if primary is None else primary.acknowledged_offset,
        )
        if end is None:
            raise SealUnansweredError(
                "too few data nodes answered the seal",
                stream_id=sealing.stream_id,
                range_index=sealing.range_index,
            )
        behind = tuple(n for n in sealing.replicas if ends.get(n, -1) < end)
        wanted = self._state.stream(sealing.stream_id).replica_nums
        if preferred in sealing.replicas and preferred not in ends:
            preferred = -1  # it could not even seal
        replicas = await self._term.choose(
            wanted,
            at_least=ack_quorum(wanted),
            avoid=behind,
            not_first=sealing.replicas[0],
            preferred=preferred,
        )
        doubtful = -1
        if primary is None or primary.acknowledged_offset < 0:
            doubtful = _doubtful(sealing, end, told.values())
        await self._term.commit(self._state.succeed(sealing, end, replicas, behind, doubtful))
        if doubtful >= 0:
            self.on_doubtful()
        if len(sealing.replicas) > 1 and end > sealing.start:
            closed = self._state.range(sealing.stream_id, sealing.range_index)
            self._notices.later(closed.replicas, closed)
        successor = self._state.last_range(sealing.stream_id)
        producers = self._producers_at(successor, answers)
        await self._notices.open(successor, producers)
        self._opened[successor.stream_id] = successor.range_index
        return self._term.wire(successor)

    def _producers_at(
        self, successor: RangeRecord, answers: Mapping[int, m.SealRangesResult]
    ) -> Sequence[m.ProducerState] | None:
        """None when the answers do not tell: all that is known is what was before."""
        holders = [
            a
            for a in answers.values()
            if a.range is not None and a.range.end_offset >= successor.start
        ]
        dropped = self._state.find(successor.stream_id, successor.range_index - 1) is None
        if dropped and not any(a.range is not None and a.range.producers_whole for a in holders):
            return None
        return producers_below(holders, successor.start)

    async def _seal_replicas(self, record: RangeRecord) -> Mapping[int, m.SealRangesResult]:
        """The answers by node. All are waited for; a node that was silent before only for a
        moment, once the others are enough."""
        if len(record.replicas) == 1:
            answer = await self._seal_replica(record.replicas[0], record)
            return {} if answer is None else {record.replicas[0]: answer}
        asking = TaskSet("seal")
        tasks = {asking.start(self._seal_replica(n, record)): n for n in record.replicas}
        trusted = [t for t, n in tasks.items() if self._state.nodes.is_alive(n)]
        try:
            if trusted:
                await asyncio.wait(trusted)
            found = [t for t in tasks if t.done() and t.result() is not None]
            enough = len(found) > len(record.replicas) - record.ack_quorum
            await asyncio.wait(tasks, timeout=_GRACE_SECONDS if enough else None)
        finally:
            finished = [t for t in tasks if t.done()]
            await asking.close()
        answers = {tasks[t]: t.result() for t in finished}
        return {n: answers[n] for n in record.replicas if answers.get(n) is not None}  # type: ignore[misc]  # None is left out

    async def _seal_replica(self, node_id: int, record: RangeRecord) -> m.SealRangesResult | None:
        """None when the node gave no answer that counts."""
        address = self._state.nodes.address(node_id)
        range_id = m.RangeId(
            stream_id=record.stream_id,
            range_index=record.range_index,
            writer_epoch=record.writer_epoch,
        )
        try:
            try:
                result = await self._calls.seal(address, range_id, timeout=self._timeout)
            except RangeNotFoundError:
                # It never heard of the range: its SYNC was lost. A node keeps its id only together
                # with its store, and SYNC is refused by a node that is not on the replica list, so
                # a range unknown to the right node has certainly no records.
                await self._notices.sync(node_id, record)
                result = await self._calls.seal(address, range_id, timeout=self._timeout)
        except HeadraceError as error:
            _log.info("seal unanswered: node %d, range %s: %s", node_id, record.key, error)
            if isinstance(error, UnavailableError | DeadlineError):
                self._state.nodes.on_unreachable(node_id)
            return None
        self._state.nodes.on_answer(node_id, self._term.monotonic_ms())
        return result


def _doubtful(record: RangeRecord, end: int, told: Collection[m.Range]) -> int:
    """Where begins what may not have been acknowledged and is on too few disks; -1: nowhere.

    What a replica was told to be committed is on enough, and so is what enough answered to have.
    """
    held = held_end([range_.end_offset for range_ in told], quorum=record.ack_quorum)
    sure = max(record.start, held, *(range_.next_offset for range_ in told))
    return sure if sure < end else -1
