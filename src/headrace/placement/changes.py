"""Changes of streams and ranges that involve the store and data nodes, step by step.

The order is always: decide, make durable, apply, tell the data nodes, answer. Whatever is
interrupted half-way is either repeated by the caller (every step is idempotent) or finished by the
tick. One change per stream at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from headrace.errors import (
    HeadraceError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from headrace.placement.metadata.records import Operations, RangeRecord, StreamRecord
from headrace.placement.node_calls import NodeCalls
from headrace.placement.node_notices import NodeNotices
from headrace.placement.sealing import Sealing
from headrace.placement.term import Term
from headrace.wire.sbp import messages as m


class Changes:
    """The changes of one term; a new leader starts with new ones."""

    def __init__(self, term: Term, calls: NodeCalls, *, seal_timeout: float) -> None:
        self.term = term
        self.state = term.state
        self.notices = NodeNotices(term, calls)
        self.sealing = Sealing(term, self.notices, calls, timeout=seal_timeout)
        self._calls = calls

    async def seal(
        self, stream_id: int, range_index: int, epoch: int, *, preferred: int = -1
    ) -> m.Range:
        """Seal-and-new; with index -1 open for writing. Returns the writable range, which a new
        one has on the node `preferred`, if that can lead it."""
        return await self.sealing.seal(stream_id, range_index, epoch, preferred=preferred)

    def wire(self, record: RangeRecord, *, viewer: int = -1) -> m.Range:
        return self.term.wire(record, viewer=viewer)

    # Streams

    async def create_stream(self, wanted: m.Stream) -> tuple[StreamRecord, RangeRecord]:
        """With a name: create if absent; with a name and no replicas: find, or NotFoundError."""
        if wanted.name and not wanted.replica_nums:
            found = self.state.stream_named(wanted.name)
            self.term.check_leading()
            if found is None:
                raise NotFoundError("no such stream", name=wanted.name)
            return found, self.state.last_range(found.stream_id)
        self.state.check_new_stream(wanted)
        if not wanted.name:
            return await self._create_stream(wanted)
        async with self.term.mutex.hold(("name", wanted.name)):
            known = self.state.stream_named(wanted.name)
            if known is not None:
                self.term.check_leading()
                return known, self.state.last_range(known.stream_id)
            return await self._create_stream(wanted)

    async def _create_stream(self, wanted: m.Stream) -> tuple[StreamRecord, RangeRecord]:
        replicas = await self.term.choose(wanted.replica_nums, preferred=wanted.preferred_node)
        stream_id = await self.term.take_id(self.state.stream_ids)
        async with self.term.mutex.hold(stream_id):
            await self.term.commit(
                self.state.create_stream(wanted, stream_id=stream_id, replicas=replicas)
            )
            stream = self.state.stream(stream_id)
            first = self.state.last_range(stream_id)
            try:
                await self.notices.open(first)
            except HeadraceError:
                if not wanted.name:  # nobody could find it again
                    await self.term.commit(self.state.delete_stream(stream_id, self.term.now_ms()))
                    self.notices.notify_later(first.replicas, stream_id, -1)
                raise
        return stream, first

    async def update_stream(self, wanted: m.Stream) -> StreamRecord:
        async with self.term.mutex.hold(wanted.stream_id):
            await self.term.commit(self.state.update_stream(wanted))
            return self.state.stream(wanted.stream_id)

    async def delete_stream(self, stream_id: int) -> None:
        async with self.term.mutex.hold(stream_id):
            operations = self.state.delete_stream(stream_id, self.term.now_ms())
            await self.term.commit(operations)
            self.sealing.forget(stream_id)
        await self.notices.notify(_nodes_of(operations), stream_id, -1)

    async def trim_stream(self, stream_id: int, offset: int) -> RangeRecord:
        """Returns the smallest range that is left."""
        async with self.term.mutex.hold(stream_id):
            open_range = self.state.needs_next(stream_id, offset)
            next_offset = -1
            if open_range is not None:
                next_offset = await self._next_offset(open_range, offset)
            operations = self.state.trim(stream_id, offset, next_offset=next_offset)
            last = self.state.last_range(stream_id)
            if last.open and last.writer_epoch < 0 and offset >= last.start > 0:
                await self.sealing.ensure_opened(last)  # while there is still who tells producers
            # Not only those that lose something by it: who holds another range of the stream may
            # still have one that it is no longer asked to keep.
            holders = _holders(self.state.ranges(stream_id))
            await self.term.commit(operations)
            smallest = self.state.ranges(stream_id)[0]
        if operations:
            await self.notices.notify(holders, stream_id, offset)
        return smallest

    async def _next_offset(self, record: RangeRecord, offset: int) -> int:
        """Committed, as far as a replica knows; the primary knows best.

        Without the primary a trim above what the others know may be right or wrong.
        """
        highest = -1
        for node_id in sorted(record.replicas, key=self._is_silent):
            try:
                found = await self._describe_on(node_id, record)
            except HeadraceError:
                continue
            assert found.range is not None  # NodeCalls.describe refuses a result without it
            highest = max(highest, found.range.next_offset)
            if node_id == record.replicas[0] or highest >= offset:
                return highest
        raise UnavailableError(
            "no replica knows the offset", stream_id=record.stream_id, offset=offset, known=highest
        )

    # Ranges

    async def accept_loss(self, stream_id: int, range_index: int, held: int) -> m.Range:
        """Give up what no living replica has of a sealed range: all from `held` on.

        InvalidArgumentError when they have more by now, or all of it: whoever asks has to look
        again at what would be lost.
        """
        async with self.term.mutex.hold(stream_id):
            record = self.state.range(stream_id, range_index)
            if record.open:
                raise InvalidArgumentError("the range is open", range=record.key)
            found = max([record.start, *await self._held(record)])
            if found != held:
                raise InvalidArgumentError(
                    "not what living nodes hold of it", range=record.key, found=held, held=found
                )
            await self.term.commit(self.state.accept_loss(record, held))
            record = self.state.range(stream_id, range_index)
            self.state.forget_held((stream_id, range_index))
            self.notices.later((*record.replicas, *record.joining), record)
        return self.term.wire(record)

    async def _held(self, record: RangeRecord) -> list[int]:
        """What living replicas have of it right now."""

        async def ask(node_id: int) -> int:
            try:
                return (await self.notices.sync(node_id, record)).next_offset
            except HeadraceError as error:
                if self._is_silent(node_id):
                    return -1
                raise UnavailableError(
                    "a living replica does not say what it has", node_id=node_id
                ) from error

        alive = filter(self.state.nodes.is_alive, record.replicas)
        return await asyncio.gather(*map(ask, alive))

    async def describe(self, record: RangeRecord) -> m.DescribeRangeResult:
        """From any replica that answers, those that live and hold everything first."""
        error: HeadraceError | None = None

        def rank(node_id: int) -> tuple[bool, bool]:
            return self._is_silent(node_id), node_id in record.incomplete

        for node_id in sorted(record.replicas, key=rank):
            try:
                return await self._describe_on(node_id, record)
            except HeadraceError as failed:
                error = error or failed
        raise error or InvalidArgumentError("a range without replicas")

    def _is_silent(self, node_id: int) -> bool:
        return not self.state.nodes.is_alive(node_id)

    async def _describe_on(self, node_id: int, record: RangeRecord) -> m.DescribeRangeResult:
        wanted = m.RangeId(stream_id=record.stream_id, range_index=record.range_index)
        return await self._calls.describe(self.state.nodes.address(node_id), wanted)

    def tell_newest_again(self, *, single_copies: bool) -> None:
        """After a take-over: what the last leader decided and perhaps did not tell any more.

        Without `single_copies` only ranges on which several nodes have to agree: the node of a
        placement manager that restarted by itself asks for the rest.
        """
        for stream in self.state.streams():
            for record in self.state.ranges(stream.stream_id)[-2:]:
                several = len(record.replicas) > 1
                if not record.sealing and (several or (single_copies and record.open)):
                    self.notices.later(record.replicas, record)


def _nodes_of(operations: Operations) -> list[int]:
    records = (operation.record for operation in operations)
    return _holders(record for record in records if isinstance(record, RangeRecord))


def _holders(ranges: Iterable[RangeRecord]) -> list[int]:
    """Every node that keeps, or is to keep, one of them."""
    return list(dict.fromkeys(node for each in ranges for node in (*each.replicas, *each.joining)))
