"""What is known in one term, and the only way to change it: durable first, then applied.

A term is the time in which one placement manager leads; the only one there is leads for its whole
life. What still runs after its term ended changes nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from headrace.concurrency.locks import KeyedLock
from headrace.errors import DiskFullError, NotEnoughNodesError, NotLeaderError, StorageError
from headrace.placement.metadata.records import OPERATIONS_MAX, Operations, RangeRecord
from headrace.placement.metadata.store import Store
from headrace.placement.state import Counter, PlacementState
from headrace.runtime.interfaces import Runtime
from headrace.wire.sbp import messages as m

_NODES_POLL_SECONDS = 0.05


class Term:
    """What one leader knows, and the gate through which it changes that."""

    def __init__(
        self,
        runtime: Runtime,
        state: PlacementState,
        store: Store,
        *,
        leading: Callable[[], bool] = lambda: True,
    ) -> None:
        self.state = state
        self.mutex = KeyedLock()
        self._runtime = runtime
        self._store = store
        self._leading = leading
        self._over = False
        self._nodes_awaited_until = float("-inf")
        self._failure: StorageError | None = None

    # Leadership

    def end_term(self) -> None:
        """Nothing is decided here any more, whatever still runs."""
        self._over = True

    def check_leading(self) -> None:
        if self._over or not self._leading():
            raise NotLeaderError("not the leader")

    def wait_for_nodes(self, seconds: float) -> None:
        """For so long too few data nodes may only mean that they were not heard yet."""
        self._nodes_awaited_until = self._runtime.clock.monotonic() + seconds

    # Changes

    async def commit(self, operations: Operations, *, above: int = 0) -> None:
        """Durable, then applied. More than one transaction holds are cut in order; each carries the
        metadata's next version, higher than `above`."""
        self.check_leading()
        if self._failure is not None:
            raise StorageError("the placement store failed before", cause=str(self._failure))
        step = OPERATIONS_MAX - 1
        for start in range(0, len(operations), step):
            transaction = [*operations[start : start + step], self.state.raise_version(above)]
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
        async with self.mutex.hold(("counter", counter.name)):
            if counter.exhausted():
                await self.commit(counter.reserve())
            return counter.take()

    async def choose(
        self,
        count: int,
        *,
        at_least: int | None = None,
        avoid: Collection[int] = (),
        not_first: int = -1,
        preferred: int = -1,
    ) -> tuple[int, ...]:
        """Nodes for a new range, the primary first; `preferred` if it can."""
        clock = self._runtime.clock
        while True:
            try:
                return self.state.nodes.choose(
                    count,
                    at_least=at_least,
                    avoid=avoid,
                    not_first=not_first,
                    preferred=preferred,
                    load=self.state.load,
                    below=self._runtime.random.below,
                )
            except NotEnoughNodesError:
                if clock.monotonic() >= self._nodes_awaited_until:
                    raise
            await clock.sleep(_NODES_POLL_SECONDS)

    # Time and form

    def now_ms(self) -> int:
        return self._runtime.clock.now_ms()

    def monotonic_ms(self) -> int:
        return int(self._runtime.clock.monotonic() * 1000)

    def wire(self, record: RangeRecord, *, viewer: int = -1) -> m.Range:
        """Only a data node knows the next offset of an open range; here it is the start.

        `viewer`: the data node that is told. While it joins, it counts itself as a replica; nobody
        else looks for the range there. Of a sealed range those that hold all of it come first.
        """
        members = sorted(record.replicas, key=record.incomplete.__contains__)
        if viewer in record.joining:
            members.append(viewer)
        return m.Range(
            stream_id=record.stream_id,
            range_index=record.range_index,
            start_offset=record.start,
            end_offset=record.content_end,
            next_offset=record.start if record.open else record.content_end,
            replica_nodes=tuple(
                m.ReplicaNode(
                    data_node=m.DataNode(
                        node_id=node_id, advertise_addr=self.state.nodes.address(node_id)
                    ),
                    is_primary=position == 0,
                )
                for position, node_id in enumerate(members)
            ),
            writer_epoch=record.writer_epoch,
            ack_quorum=record.ack_quorum,
            doubtful_offset=record.doubtful,
            held_offset=self.state.held_end(record),
            lost_until=record.end if record.lost >= 0 else -1,
        )
