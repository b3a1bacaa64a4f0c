"""Decisions of a data node, as tables."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from headrace.datanode.state import Differences, NodeState, SyncAction, reconcile
from headrace.errors import (
    FencedError,
    HeadraceError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    RangeNotFoundError,
    SealedError,
    UnavailableError,
    UnexpectedOffsetError,
)
from headrace.storage.layout import RangeKey
from headrace.wire.sbp.errors import AppendGapError, AppendPendingError, NotPrimaryError
from headrace.wire.sbp.messages import DataNode, Range, ReplicaNode


@dataclass
class View:
    key: RangeKey
    start_offset: int = 0
    next_offset: int = 0
    end_offset: int = -1
    writer_epoch: int = -1
    failed: bool = False
    replicas: tuple[int, ...] = ()
    ack_quorum: int = 1
    decided: bool = False
    missing: tuple[int, int] | None = None
    queued: int = 0
    committed_offset: int = 0
    doubtful: int = -1

    @property
    def durable_offset(self) -> int:
        return self.next_offset - self.queued

    @durable_offset.setter
    def durable_offset(self, value: int) -> None:
        raise NotImplementedError

    @property
    def final(self) -> bool:
        return self.sealed and (self.decided or self.ack_quorum == 1)

    @property
    def sealed(self) -> bool:
        return self.end_offset >= 0


def view(
    index: int, start: int = 0, end: int = -1, *, next_offset: int = -1, epoch: int = -1
) -> View:
    known_next = end if end >= 0 else max(next_offset, start)
    return View(RangeKey(1, index), start, known_next, end, epoch)


def shared(
    end: int = -1, *, next_offset: int = 0, primary: int = 8, index: int = 0, decided: bool = False
) -> View:
    """A range of three replicas on nodes 8 (this one), 9 and 10."""
    replicas = (primary, *({8, 9, 10} - {primary}))
    return View(
        RangeKey(1, index), next_offset=next_offset, end_offset=end, replicas=replicas,
        ack_quorum=2, decided=decided,
    )  # fmt: skip


def state_of(*views: View) -> NodeState[View]:
    state: NodeState[View] = NodeState(node_id=8)
    for each in views:
        state.on_range(each)
    return state


@pytest.mark.parametrize(
    ("index", "expected"),
    [(-1, 2), (2, 2), (1, SealedError), (0, SealedError), (3, RangeNotFoundError)],
)
def test_which_range_an_append_means(index: int, expected: int | type[HeadraceError]) -> None:
    state = state_of(view(2, 9), view(1, 5, 9))
    if isinstance(expected, int):
        assert state.writable(1, index).key.range_index == expected
    else:
        with pytest.raises(expected):
            state.writable(1, index)
    with pytest.raises(RangeNotFoundError):
        state.writable(7, index)


@pytest.mark.parametrize(
    ("range_epoch", "epoch", "expected_offset", "error"),
    [
        (-1, -1, -1, None),
        (-1, -1, 4, None),
        (-1, -1, 5, UnexpectedOffsetError),
        (-1, 3, 4, RangeNotFoundError),  # only SYNC gives a range its epoch
        (3, 3, 4, None),
        (3, 3, -1, UnexpectedOffsetError),  # an owned append says where it belongs
        (3, 3, 3, UnexpectedOffsetError),
        (3, 3, 5, UnexpectedOffsetError),
        (3, 2, 4, FencedError),
        (3, -1, -1, FencedError),
        (3, 4, 4, RangeNotFoundError),
        (0, -1, -1, FencedError),  # owned from birth
    ],
)
def test_epoch_and_offset_of_an_append(
    range_epoch: int, epoch: int, expected_offset: int, error: type[HeadraceError] | None
) -> None:
    log = view(0, 0, next_offset=4, epoch=range_epoch)
    state = state_of(log)
    if error is None:
        state.check_append(log, writer_epoch=epoch, expected_offset=expected_offset)
    else:
        with pytest.raises(error):
            state.check_append(log, writer_epoch=epoch, expected_offset=expected_offset)


@pytest.mark.parametrize("why", ["sealed", "failed", "interrupted", "stopped"])
def test_ranges_that_take_no_more(why: str) -> None:
    log = view(0, 0, 4 if why == "sealed" else -1)
    log.failed = why == "failed"
    state = state_of(log)
    if why == "interrupted":
        state.interrupted.add(log.key)
    if why == "stopped":
        state.stopped.add(log.key)
    with pytest.raises(SealedError):
        state.check_append(log, writer_epoch=-1, expected_offset=-1)
    log.writer_epoch = 5
    with pytest.raises(FencedError):  # a writer that is over learns that first
        state.check_append(log, writer_epoch=4, expected_offset=0)


def test_a_seal_ends_the_interruption() -> None:
    log = view(0)
    state = state_of(log)
    state.interrupted.add(log.key)
    state.on_sealed(log.key)
    assert state.interrupted == set()


def test_a_seal_needs_the_epoch() -> None:
    log = view(0, epoch=3)
    state = state_of(log)
    state.check_seal(log, 3)
    state.check_seal(log, 4)
    for epoch in (2, -1):
        with pytest.raises(FencedError):
            state.check_seal(log, epoch)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (4, OffsetOutOfRangeError),
        (5, 1),
        (8, 1),
        (9, RangeNotFoundError),  # range 2 lives elsewhere
        (19, RangeNotFoundError),
        (20, 3),
        (25, 4),  # a sealed end is where the next range starts
        (99, 4),
    ],
)
def test_which_range_holds_an_offset(offset: int, expected: int | type[HeadraceError]) -> None:
    state = state_of(view(0, 5, 5), view(1, 5, 9), view(3, 20, 25), view(4, 25))
    if isinstance(expected, int):
        assert state.containing(1, offset).key.range_index == expected
    else:
        with pytest.raises(expected):
            state.containing(1, offset)


def test_beyond_a_sealed_end_readers_must_ask_again() -> None:
    state = state_of(view(0, 0, 5))
    with pytest.raises(OffsetOutOfRangeError):
        state.containing(1, 5)
    with pytest.raises(RangeNotFoundError):
        state.containing(2, 0)
    state.closing = True
    with pytest.raises(UnavailableError):
        state.containing(1, 0)


def wanted(index: int, start: int = 0, end: int = -1, *, epoch: int = -1, node: int = 8) -> Range:
    replica = ReplicaNode(data_node=DataNode(node_id=node), is_primary=True)
    return Range(
        stream_id=1,
        range_index=index,
        start_offset=start,
        end_offset=end,
        writer_epoch=epoch,
        replica_nodes=(replica,),
    )


@pytest.mark.parametrize(
    ("known", "asked", "expected"),
    [
        (None, wanted(0), SyncAction.CREATE),
        (None, wanted(0, 5, 5), SyncAction.CREATE),
        (None, wanted(0, 0, 5), SyncAction.CREATE),  # to be filled from other replicas
        (None, wanted(0, node=9), RangeNotFoundError),
        (view(0, epoch=2), wanted(0, epoch=2), SyncAction.NOTHING),
        (view(0, epoch=2), wanted(0, epoch=3), SyncAction.RAISE_EPOCH),
        (view(0, epoch=2), wanted(0, epoch=1), FencedError),
        (view(0, epoch=2), wanted(0, epoch=-1), FencedError),
        (view(0), wanted(0, 0, 4), SyncAction.FINISH),
        (shared(4, next_offset=4), wanted(0, 0, 3), SyncAction.FINISH),  # only this disk's end
        (shared(4, next_offset=4, decided=True), wanted(0, 0, 4), SyncAction.NOTHING),
        (shared(4, next_offset=4, decided=True), wanted(0, 0, 5), InvalidArgumentError),
        (view(0, 0, 4), wanted(0, 0, 4), SyncAction.NOTHING),
        (view(0, 0, 4), wanted(0), SealedError),  # a sealed range never reopens
    ],
)
def test_sync(known: View | None, asked: Range, expected: SyncAction | type[HeadraceError]) -> None:
    state = state_of(*([known] if known else []))
    if isinstance(expected, SyncAction):
        assert state.sync(known, asked) is expected
    else:
        with pytest.raises(expected):
            state.sync(known, asked)


def test_sync_does_not_revive_an_interrupted_range() -> None:
    log = view(0, epoch=1)
    state = state_of(log)
    state.interrupted.add(log.key)
    with pytest.raises(SealedError):
        state.sync(log, wanted(0, epoch=2))
    assert state.sync(log, wanted(0, 0, 0, epoch=2)) is SyncAction.FINISH


def test_who_leads_a_range() -> None:
    alone, led, followed = view(0), shared(index=1), shared(index=2, primary=9)
    state = state_of(alone, led, followed)
    assert [state.leads(each) for each in (alone, led, followed)] == [True, True, False]
    assert [state.follows(each) for each in (alone, led, followed)] == [False, False, True]
    state.stopped.add(led.key)
    assert not state.leads(led), "others may have committed more"
    state.stopped.clear()
    led.end_offset = 0
    assert not state.leads(led)
    assert not state.follows(led)


def test_a_secondary_takes_appends_of_the_primary_only() -> None:
    followed = shared(primary=9)
    state = state_of(followed)
    with pytest.raises(NotPrimaryError):
        state.check_append(followed, writer_epoch=-1, expected_offset=-1)
    assert not state.check_replica(followed, base_offset=0)
    led = shared()
    with pytest.raises(InvalidArgumentError):
        state_of(led).check_replica(led, base_offset=0)


@pytest.mark.parametrize(
    ("base_offset", "expected"),
    [
        (0, True),  # durable: compare
        (5, True),
        (6, AppendPendingError),
        (9, AppendPendingError),
        (10, False),
        (11, AppendGapError),
    ],
)
def test_the_window_of_a_secondary(base_offset: int, expected: bool | type[HeadraceError]) -> None:
    """Upstream defect 16: what is durable already is no failure of the replica."""
    followed = shared(primary=9, next_offset=10)
    followed.queued = 4
    state = state_of(followed)
    if isinstance(expected, bool):
        assert state.check_replica(followed, base_offset=base_offset) is expected
        return
    with pytest.raises(expected) as refused:
        state.check_replica(followed, base_offset=base_offset)
    assert refused.value.data["next"] == 10


def test_a_sealed_secondary_refuses_whatever_is_sent() -> None:
    followed = shared(4, primary=9, next_offset=4)
    state = state_of(followed)
    for base_offset in (0, 4, 5):
        with pytest.raises(SealedError):
            state.check_replica(followed, base_offset=base_offset)


def test_ends_that_were_not_decided_are_no_ends_for_readers() -> None:
    state = state_of(shared(0))
    for offset in (0, 5):
        with pytest.raises(NotPrimaryError):
            state.containing(1, offset)


def test_below_ranges_that_start_elsewhere_the_placement_manager_knows() -> None:
    with pytest.raises(RangeNotFoundError):
        state_of(view(3, 20)).containing(1, 19)


def test_nothing_is_served_below_a_trim_also_where_the_data_came_later() -> None:
    behind = shared(primary=9, next_offset=50)
    state = state_of(behind)
    state.on_trimmed(1, 42)
    state.on_trimmed(1, 40)
    state.on_trimmed(2, 99)
    with pytest.raises(OffsetOutOfRangeError):
        state.containing(1, 41)
    assert state.containing(1, 42) is behind
    state.on_removed(behind.key)
    assert state.trimmed == {}


def test_when_a_node_awaits_word() -> None:
    assert not state_of(view(0, 0, 5), view(1, 5), shared(9, decided=True, index=2)).awaits_word()
    assert state_of(shared(9)).awaits_word()
    incomplete = shared(9, decided=True)
    incomplete.missing = (4, 9)
    assert state_of(incomplete).awaits_word()
    for reason in ("interrupted", "stopped"):
        state = state_of(shared())
        getattr(state, reason).add(RangeKey(1, 0))
        assert state.awaits_word()


def test_a_removed_range_leaves_the_others() -> None:
    state = state_of(view(0, 0, 5), view(1, 5))
    state.stopped.add(RangeKey(1, 1))
    state.on_removed(RangeKey(1, 1))
    assert [each.key.range_index for each in state.ranges(1)] == [0]
    assert not state.stopped
    state.on_removed(RangeKey(1, 0))
    assert state.streams() == []


def test_owned_streams_are_known_by_any_range() -> None:
    assert state_of(view(0, 0, 5, epoch=0), view(1, 5)).is_owned(1)
    assert not state_of(view(0)).is_owned(1)


def test_deletion_forgets_everything() -> None:
    state = state_of(view(0))
    state.interrupted.add(RangeKey(1, 0))
    state.on_deleted(1)
    assert (state.streams(), state.interrupted) == ([], set())


def test_reconciliation_says_nothing_of_ranges_that_came_later() -> None:
    """A stream that had left this node may come back while the list is on its way."""
    local = [View(RangeKey(2, 0))]
    assert reconcile(local, []) == Differences(trim=(), retire=(RangeKey(2, 0),), sync=())


@pytest.mark.parametrize(
    ("index", "end", "allowed"),
    [
        (3, -1, True),
        (2, -1, False),  # given up
        (1, -1, False),  # so is everything before it
        (2, 9, True),  # a copy of a sealed range may come back
    ],
)
def test_a_late_sync_opens_no_range_that_was_given_up(index: int, end: int, allowed: bool) -> None:
    state: NodeState[View] = NodeState(
        node_id=8, given_up=lambda stream_id, range_index: stream_id == 1 and range_index <= 2
    )
    asked = wanted(index, 0, end)
    if allowed:
        assert state.sync(None, asked) is SyncAction.CREATE
    else:
        with pytest.raises(SealedError):
            state.sync(None, asked)
    assert state.sync(None, replace(asked, stream_id=2)) is SyncAction.CREATE


@pytest.mark.parametrize(("index", "end", "allowed"), [(4, -1, True), (1, -1, False), (1, 9, True)])
def test_a_late_sync_opens_no_range_that_has_a_successor(
    index: int, end: int, allowed: bool
) -> None:
    state = state_of(view(2, 9), view(3, 12))
    if allowed:
        assert state.sync(None, wanted(index, 0, end)) is SyncAction.CREATE
    else:
        with pytest.raises(SealedError):
            state.sync(None, wanted(index, 0, end))


def test_reconciliation() -> None:
    local = [
        view(0, 0, 5),  # trimmed away
        view(1, 5, 9),  # trimmed to 7
        view(2, 9),  # sealed at 12 meanwhile
        View(RangeKey(2, 0)),  # deleted
        View(RangeKey(3, 0), 0, 4),  # as it should be
        View(RangeKey(3, 2), 5, 9, 9, replicas=(9, 8), ack_quorum=2),  # its end was decided: 7
    ]
    new = Range(stream_id=3, range_index=1, start_offset=4, end_offset=-1)
    decided = Range(stream_id=3, range_index=2, start_offset=5, end_offset=7)
    sealed = Range(stream_id=1, range_index=2, start_offset=9, end_offset=12)
    listed = [
        Range(stream_id=1, range_index=1, start_offset=7, end_offset=9),
        sealed,
        Range(stream_id=3, range_index=0, start_offset=0, end_offset=-1),
        new,
        decided,
    ]
    assert reconcile(local, listed) == Differences(
        trim=((RangeKey(1, 1), 7),),
        retire=(RangeKey(1, 0), RangeKey(2, 0)),
        sync=(sealed, new, decided),
    )
