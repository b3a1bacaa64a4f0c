"""The placement manager's decisions against a model of streams, with crashes at any point.

Data nodes are modelled as counters: appends land while a range is open there; a seal fixes the end.
A crash rebuilds the state from what was committed, in the middle of a seal or a long deletion too.
Checked after every step: ranges tile their stream, only the last is open, sealed ends and starts
never move back, no append shares an offset with another, ids and epochs only rise.
"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from headrace.errors import FencedError, InvalidArgumentError, NotFoundError
from headrace.placement.metadata.records import (
    OPERATIONS_MAX,
    Operations,
    Put,
    Record,
    StreamRecord,
    decode_record,
    encode_record,
)
from headrace.placement.nodes import Nodes
from headrace.placement.state import Counter, PlacementState, Seal, Writable
from headrace.wire.sbp.messages import Stream

NODE = 0


class Disk:
    """What was committed, in encoded form."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], tuple[Record, bytes]] = {}

    def commit(self, operations: Operations) -> None:
        assert len(operations) <= OPERATIONS_MAX
        for operation in operations:
            record = operation.record
            if isinstance(operation, Put):
                self.values[record.table, record.key] = (record, encode_record(record))
            else:
                self.values.pop((record.table, record.key), None)

    def load(self) -> list[Record]:
        return [decode_record(r.table, data) for r, data in self.values.values()]


class Placement(RuleBasedStateMachine):
    streams = Bundle("streams")

    @initialize()
    def boot(self) -> None:
        self.disk = Disk()
        self.state = self.recover()
        self.node_next: dict[tuple[int, int], int] = {}  # (stream, index) -> next offset there
        self.node_sealed: set[tuple[int, int]] = set()
        self.sealed_ends: dict[tuple[int, int], int] = {}
        self.starts: dict[int, int] = {}
        self.written: dict[int, int] = {}  # stream -> records acknowledged
        self.epochs: dict[int, int] = {}
        self.ids: set[int] = set()
        self.deleted: set[int] = set()
        self.names: dict[str, int] = {}

    def recover(self) -> PlacementState:
        state = PlacementState(nodes=Nodes(timeout_ms=100), stream_ids=Counter("stream", 3))
        leavings = state.recover(self.disk.load(), now_ms=0)
        self.disk.commit(leavings[:OPERATIONS_MAX])
        state.apply(leavings)
        return state

    def commit(self, operations: Operations) -> None:
        self.disk.commit(operations)
        self.state.apply(operations)

    @rule()
    def crash(self) -> None:
        self.state = self.recover()

    @rule(target=streams, name=st.sampled_from(["", "a", "b", "p/1"]))
    def create(self, name: str) -> object:
        known = self.state.stream_named(name) if name else None
        if known is not None:
            assert self.names[name] == known.stream_id
            return multiple()
        counter = self.state.stream_ids
        if counter.exhausted():
            self.commit(counter.reserve())
        stream_id = counter.take()
        assert stream_id not in self.ids, "ids are never reused"
        self.ids.add(stream_id)
        wanted = Stream(name=name, replica_nums=1)
        self.commit(self.state.create_stream(wanted, stream_id=stream_id, replicas=(NODE,)))
        self.node_next[stream_id, 0] = 0
        self.starts[stream_id] = 0
        self.written[stream_id] = 0
        self.epochs[stream_id] = self.state.last_range(stream_id).writer_epoch
        if name:
            self.names[name] = stream_id
        return stream_id

    @rule(target=streams, stream_id=consumes(streams), cut=st.booleans())
    def delete(self, stream_id: int, cut: bool) -> object:
        operations = self.state.delete_stream(stream_id, 1)
        if cut and len(operations) > 1:
            self.disk.commit(operations[:1])  # the tombstone only: power fails in between
            self.state = self.recover()
        else:
            self.commit(operations)
        self.deleted.add(stream_id)
        self.names = {n: i for n, i in self.names.items() if i != stream_id}
        assert self.state.delete_stream(stream_id, 2) == []
        for refused in (
            lambda: self.state.trim(stream_id, 0),
            lambda: self.state.seal(stream_id, 0, 99),
            lambda: self.state.update_stream(Stream(stream_id=stream_id)),
        ):
            try:
                refused()
            except NotFoundError:
                continue
            raise AssertionError("a deleted stream is gone")
        return multiple()

    @rule(stream_id=streams, count=st.integers(1, 9))
    def append(self, stream_id: int, count: int) -> None:
        key = (stream_id, self.state.last_range(stream_id).range_index)
        if key in self.node_sealed or key not in self.node_next:
            return  # the data node refuses
        base = self.node_next[key]
        assert base == self.written[stream_id], "appends never share an offset, nor leave a gap"
        self.node_next[key] += count
        self.written[stream_id] += count

    @rule(stream_id=streams, back=st.integers(0, 2), bump=st.integers(0, 2), fail=st.integers(0, 2))
    def seal(self, stream_id: int, back: int, bump: int, fail: int) -> None:
        last = self.state.last_range(stream_id)
        epoch = last.writer_epoch + bump
        decision = self.state.seal(stream_id, max(0, last.range_index - back), epoch)
        if isinstance(decision, Writable):
            assert decision.range == last
            assert last.open
            assert not last.sealing
            assert bump == 0, "a higher epoch never gets the range of a lower one"
            return
        self.finish(decision, fail)

    @rule(stream_id=streams, count=st.integers(1, 9))
    def append_and_seal(self, stream_id: int, count: int) -> None:
        """The common path, so that deep histories are reached often."""
        self.append(stream_id, count)
        self.seal(stream_id, back=0, bump=0, fail=0)

    def finish(self, decision: Seal, fail: int) -> None:
        """`fail`: 1 crash after the intent, 2 crash after the data node sealed."""
        sealing = decision.range
        key = (sealing.stream_id, sealing.range_index)
        self.commit(decision.operations)
        self.epochs[sealing.stream_id] = sealing.writer_epoch
        if fail == 1:
            self.state = self.recover()
            return
        self.node_sealed.add(key)
        if fail == 2:
            self.state = self.recover()
            return
        end = self.node_next.get(key, sealing.start)
        self.commit(self.state.succeed(sealing, end, (NODE,)))
        successor = self.state.last_range(sealing.stream_id)
        assert successor.start == end == self.written[sealing.stream_id]
        self.node_next[sealing.stream_id, successor.range_index] = end

    @rule(stream_id=streams, epoch=st.integers(0, 12), fail=st.integers(0, 2))
    def open_for_writing(self, stream_id: int, epoch: int, fail: int) -> None:
        try:
            decision = self.state.open_for_writing(stream_id, epoch)
        except FencedError:
            assert epoch < self.epochs[stream_id]
            return
        assert epoch >= self.epochs[stream_id]
        if isinstance(decision, Seal):
            self.finish(decision, fail)
        else:
            self.commit(decision.operations)
            self.epochs[stream_id] = epoch

    @rule(stream_id=streams, offset=st.integers(-1, 60))
    def trim(self, stream_id: int, offset: int) -> None:
        last = self.state.last_range(stream_id)
        next_offset = -1
        if self.state.needs_next(stream_id, offset) is not None:
            next_offset = self.node_next[stream_id, last.range_index]
        try:
            operations = self.state.trim(stream_id, offset, next_offset=next_offset)
        except InvalidArgumentError:
            assert offset < self.starts[stream_id] or offset > self.written[stream_id]
            return
        assert self.starts[stream_id] <= offset <= self.written[stream_id]
        self.commit(operations)
        self.starts[stream_id] = offset

    @invariant()
    def ranges_tile_their_stream(self) -> None:
        for stream in self.state.streams():
            ranges = self.state.ranges(stream.stream_id)
            assert ranges[0].start == self.starts[stream.stream_id]
            assert all(a.end == b.start for a, b in pairwise(ranges))
            assert all(not r.open for r in ranges[:-1])
            assert ranges[-1].open
            assert [r.range_index for r in ranges] == sorted({r.range_index for r in ranges})

    @invariant()
    def sealed_ends_never_change(self) -> None:
        for stream in self.state.streams():
            for record in self.state.ranges(stream.stream_id):
                key = (record.stream_id, record.range_index)
                if record.open:
                    assert key not in self.sealed_ends, "a sealed range never reopens"
                else:
                    assert self.sealed_ends.setdefault(key, record.end) == record.end

    @invariant()
    def epochs_never_fall(self) -> None:
        for stream in self.state.streams():
            last = self.state.last_range(stream.stream_id)
            assert last.writer_epoch == self.epochs[stream.stream_id]

    @invariant()
    def memory_is_what_was_committed(self) -> None:
        records = [r for r in self.disk.load() if isinstance(r, StreamRecord) and r.deleted_ms < 0]
        assert {r.stream_id for r in records} == {s.stream_id for s in self.state.streams()}
        by_node = {(r.stream_id, r.range_index) for r in self.state.ranges_of_node(NODE)}
        listed = {
            (r.stream_id, r.range_index)
            for s in self.state.streams()
            for r in self.state.ranges(s.stream_id)
        }
        assert by_node == listed


TestPlacement = Placement.TestCase
TestPlacement.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
