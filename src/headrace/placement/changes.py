"""Changes of streams and ranges that involve the store and data nodes, step by step.

The order is always: decide, make durable, apply, tell the data nodes, answer. Whatever is
interrupted half-way is either repeated by the caller (every step is idempotent) or finished by the
tick. One change per stream at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from headrace.errors import (
    DeadlineError,
    DiskFullError,
    HeadraceError,
    NotEnoughNodesError,
    NotLeaderError,
    RangeNotFoundError,
    SealedError,
    StorageError,
    UnavailableError,
)
from headrace.placement.node_calls import NodeCalls
from headrace.placement.records import (
    OPERATIONS_MAX,
    Operations,
    RangeRecord,
    StreamRecord,
)
from headrace.placement.state import Counter, PlacementState, Seal, Writable, sealed_end
from headrace.placement.store import Store
from headrace.runtime.interfaces import Runtime
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import SealUnansweredError

NOTICES_MAX = 10_000
_SETTLE_POLL_SECONDS = 0.05

_log = logging.getLogger(__name__)


class KeyedMutex:
    """A lock per key, kept only while somebody wants it."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[None]:
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)


class Changes:
    def __init__(
        self,
        runtime: Runtime,
        state: PlacementState,
        store: Store,
        calls: NodeCalls,
        *,
        seal_timeout: float,
        leading: Callable[[], bool] = lambda: True,
    ) -> None:
        """For one term: what `state` says was loaded from `store` at its beginning."""
        self.state = state
        self._leading = leading
        self._over = False
        self._settled_at = float("-inf")
        self._runtime = runtime
        self._store = store
        self._calls = calls
        self._seal_timeout = seal_timeout
        self._mutex = KeyedMutex()
        self._failure: StorageError | None = None
        self._notices: dict[tuple[int, int], int] = {}
        """(node, stream) -> trim offset, or -1 for a deletion: what a node was not told yet."""

    def end_term(self) -> None:
        """Nothing is decided here any more, whatever still runs."""
        self._over = True

    def check_leading(self) -> None:
        if self._over or not self._leading():
            raise NotLeaderError("not the leader")

    async def commit(self, operations: Operations) -> None:
        """Durable, then applied. More than one transaction holds are cut in order."""
        self.check_leading()
        if self._failure is not None:
            raise StorageError("the placement store failed before", cause=str(self._failure))
        for start in range(0, len(operations), OPERATIONS_MAX):
            transaction = operations[start : start + OPERATIONS_MAX]
            try:
                await self._store.commit(transaction)
            except DiskFullError:
                raise  # nothing of it happened
            except NotLeaderError:
                self._over = True  # it may be durable; whoever leads next reads it
                raise
            except StorageError as error:
                # It may or may not be durable. Only a restart, which reads the store, can tell.
                self._failure = error
                raise
            self.state.apply(transaction)

    async def take_id(self, counter: Counter) -> int:
        async with self._mutex.hold(("counter", counter.name)):
            if counter.exhausted():
                await self.commit(counter.reserve())
            return counter.take()

    def settle(self, seconds: float) -> None:
        """For so long too few data nodes may only mean that they were not heard yet."""
        self._settled_at = self._runtime.clock.monotonic() + seconds

    # Streams

    async def create_stream(self, wanted: m.Stream) -> tuple[StreamRecord, RangeRecord]:
        """With a name: create if absent."""
        self.state.check_new_stream(wanted)
        if not wanted.name:
            return await self._create_stream(wanted)
        async with self._mutex.hold(("name", wanted.name)):
            known = self.state.stream_named(wanted.name)
            if known is not None:
                return known, self.state.last_range(known.stream_id)
            return await self._create_stream(wanted)

    async def _create_stream(self, wanted: m.Stream) -> tuple[StreamRecord, RangeRecord]:
        replicas = await self._choose(wanted.replica_nums)
        stream_id = await self.take_id(self.state.stream_ids)
        async with self._mutex.hold(stream_id):
            await self.commit(
                self.state.create_stream(wanted, stream_id=stream_id, replicas=replicas)
            )
            stream = self.state.stream(stream_id)
            first = self.state.last_range(stream_id)
            try:
                await self._sync(first)
            except HeadraceError:
                if not wanted.name:  # nobody could find it again
                    await self.commit(self.state.delete_stream(stream_id, self._now_ms()))
                raise
        return stream, first

    async def update_stream(self, wanted: m.Stream) -> StreamRecord:
        async with self._mutex.hold(wanted.stream_id):
            await self.commit(self.state.update_stream(wanted))
            return self.state.stream(wanted.stream_id)

    async def delete_stream(self, stream_id: int) -> None:
        async with self._mutex.hold(stream_id):
            operations = self.state.delete_stream(stream_id, self._now_ms())
            nodes = _nodes_of(operations)
            await self.commit(operations)
        await self._notify(nodes, stream_id, -1)

    async def trim_stream(self, stream_id: int, offset: int) -> RangeRecord:
        """Returns the smallest range that is left."""
        async with self._mutex.hold(stream_id):
            open_range = self.state.needs_next(stream_id, offset)
            next_offset = -1
            if open_range is not None:
                next_offset = (await self.describe(open_range)).next_offset
            operations = self.state.trim(stream_id, offset, next_offset=next_offset)
            await self.commit(operations)
            smallest = self.state.ranges(stream_id)[0]
        await self._notify(_nodes_of(operations), stream_id, offset)
        return smallest

    # Ranges

    async def describe(self, record: RangeRecord) -> m.Range:
        result = await self.describe_with_segments(record)
        assert result.range is not None  # NodeCalls.describe refuses a result without it
        return result.range

    async def describe_with_segments(self, record: RangeRecord) -> m.DescribeRangeResult:
        wanted = m.RangeId(stream_id=record.stream_id, range_index=record.range_index)
        return await self._calls.describe(self.state.nodes.address(record.replicas[0]), wanted)

    async def seal(self, stream_id: int, range_index: int, epoch: int) -> m.Range:
        """Seal-and-new; with index -1 open for writing. Returns the writable range."""
        async with self._mutex.hold(stream_id):
            if range_index == -1 and epoch >= 0:
                decision = self.state.open_for_writing(stream_id, epoch)
            else:
                decision = self.state.seal(stream_id, range_index, epoch)
            if isinstance(decision, Writable):
                await self.commit(decision.operations)  # also tells that we still lead
                try:
                    synced = await self._sync(decision.range)
                except SealedError:  # its data node stopped uncleanly, or its disk failed
                    decision = self.state.seal_last(stream_id, epoch)
                else:
                    return replace(self.wire(decision.range), next_offset=synced.next_offset)
            return await self._seal_and_new(decision)

    async def _seal_and_new(self, decision: Seal) -> m.Range:
        sealing = decision.range
        await self.commit(decision.operations)
        answers = await asyncio.gather(
            *(self._seal_replica(node_id, sealing) for node_id in sealing.replicas)
        )
        ends = [answer.range.end_offset for answer in answers if answer and answer.range]
        end = sealed_end(ends, replicas=len(sealing.replicas), quorum=sealing.ack_quorum)
        if end is None:
            raise SealUnansweredError(
                "too few data nodes answered the seal",
                stream_id=sealing.stream_id,
                range_index=sealing.range_index,
            )
        silent = [n for n, answer in zip(sealing.replicas, answers, strict=True) if not answer]
        replicas = await self._choose(self.state.stream(sealing.stream_id).replica_nums, silent)
        await self.commit(self.state.succeed(sealing, end, replicas))
        successor = self.state.last_range(sealing.stream_id)
        producers = next((answer.producers for answer in answers if answer), ())
        await self._sync(successor, producers)
        return self.wire(successor)

    async def _seal_replica(self, node_id: int, record: RangeRecord) -> m.SealRangesResult | None:
        """None when the node gave no answer that counts."""
        address = self.state.nodes.address(node_id)
        range_id = m.RangeId(
            stream_id=record.stream_id,
            range_index=record.range_index,
            writer_epoch=record.writer_epoch,
        )
        try:
            try:
                result = await self._calls.seal(address, range_id, timeout=self._seal_timeout)
            except RangeNotFoundError:
                # It never heard of the range: its SYNC was lost. A node keeps its id only together
                # with its store, and SYNC is refused by a node that is not on the replica list, so
                # a range unknown to the right node has certainly no records.
                await self._sync_node(node_id, record)
                result = await self._calls.seal(address, range_id, timeout=self._seal_timeout)
        except HeadraceError as error:
            _log.info("seal unanswered: node %d, range %s: %s", node_id, record.key, error)
            if isinstance(error, UnavailableError | DeadlineError):
                self.state.nodes.on_unreachable(node_id)
            return None
        # An answer is a sign of life: after a restart it comes before the next heartbeat.
        self.state.nodes.on_answer(node_id, int(self._runtime.clock.monotonic() * 1000))
        return result

    async def _sync(
        self, record: RangeRecord, producers: Sequence[m.ProducerState] = ()
    ) -> m.Range:
        """Tell all replicas; the primary's answer."""
        answers = await asyncio.gather(
            *(self._sync_node(node_id, record, producers) for node_id in record.replicas)
        )
        return answers[0]

    async def _sync_node(
        self, node_id: int, record: RangeRecord, producers: Sequence[m.ProducerState] = ()
    ) -> m.Range:
        durability = self.state.stream(record.stream_id).durability
        range_ = replace(self.wire(record), producers=tuple(producers))
        return await self._calls.sync(self.state.nodes.address(node_id), range_, durability)

    async def _choose(self, count: int, avoid: Sequence[int] = ()) -> tuple[int, ...]:
        clock = self._runtime.clock
        while True:
            try:
                return self.state.nodes.choose(
                    count, avoid=avoid, load=self.state.load, below=self._runtime.random.below
                )
            except NotEnoughNodesError:
                if clock.monotonic() >= self._settled_at:
                    raise
            await clock.sleep(_SETTLE_POLL_SECONDS)

    # Notices

    async def _notify(self, node_ids: Sequence[int], stream_id: int, offset: int) -> None:
        for node_id in node_ids:
            if len(self._notices) < NOTICES_MAX:  # beyond, the node's own reconciliation finds it
                self._notices[node_id, stream_id] = offset
        await asyncio.gather(*(self._deliver(node_id, stream_id) for node_id in node_ids))

    async def deliver_notices(self) -> None:
        for node_id, stream_id in list(self._notices):
            if self.state.nodes.is_alive(node_id):
                await self._deliver(node_id, stream_id)

    async def _deliver(self, node_id: int, stream_id: int) -> None:
        offset = self._notices.get((node_id, stream_id))
        if offset is None:
            return
        address = self.state.nodes.address(node_id)
        try:
            if offset < 0:
                await self._calls.delete(address, stream_id)
            else:
                await self._calls.trim(address, stream_id, offset)
        except HeadraceError as error:
            _log.info("node %d not told about stream %d: %s", node_id, stream_id, error)
        else:
            if self._notices.get((node_id, stream_id)) == offset:
                del self._notices[node_id, stream_id]

    # Wire form

    def wire(self, record: RangeRecord) -> m.Range:
        """Only a data node knows the next offset of an open range; here it is the start."""
        return m.Range(
            stream_id=record.stream_id,
            range_index=record.range_index,
            start_offset=record.start,
            end_offset=record.end,
            next_offset=record.start if record.open else record.end,
            replica_nodes=tuple(
                m.ReplicaNode(
                    data_node=m.DataNode(
                        node_id=node_id, advertise_addr=self.state.nodes.address(node_id)
                    ),
                    is_primary=position == 0,
                )
                for position, node_id in enumerate(record.replicas)
            ),
            writer_epoch=record.writer_epoch,
        )

    def _now_ms(self) -> int:
        return self._runtime.clock.now_ms()


def _nodes_of(operations: Operations) -> list[int]:
    nodes: dict[int, None] = {}
    for operation in operations:
        if isinstance(operation.record, RangeRecord):
            nodes.update(dict.fromkeys(operation.record.replicas))
    return list(nodes)
