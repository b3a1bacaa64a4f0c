"""What may go when it is not listed, and what is kept aside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from headrace.datanode.control.node_files import MetadataSeen, Quarantine, is_given_up, is_the_same
from headrace.storage.layout import RangeKey
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import OutdatedMetadataError
from tests.simulator.runtime import Simulation

KEY = RangeKey(7, 2)


@dataclass
class View:
    """Range 2 of stream 7, [100, 120) of which 110 are acknowledged."""

    key: RangeKey = KEY
    start_offset: int = 100
    next_offset: int = 120
    durable_offset: int = 120
    committed_offset: int = 110
    doubtful: int = -1
    replicas: tuple[int, ...] = (1, 2, 3)
    ack_quorum: int = 2
    final: bool = False
    missing: tuple[int, int] | None = None
    end_offset: int = -1
    writer_epoch: int = 5
    sealed: bool = False
    failed: bool = False


def listed(index: int, start: int, end: int = -1, *, epoch: int = 5) -> m.Range:
    return m.Range(7, index, start, end, writer_epoch=epoch)


@pytest.mark.parametrize(
    ("streams", "goes"),
    [
        ({}, False),  # nobody knows the stream
        ({7: None}, True),  # deleted
        ({7: [listed(3, 110)]}, True),  # trimmed, or dropped as empty
        ({7: [listed(3, 105)]}, False),  # goes on below what was acknowledged: another history
        ({7: [listed(1, 50)]}, False),  # the list ends before it
        ({7: [listed(2, 100, 115), listed(3, 115)]}, True),  # other nodes have it
        ({7: [listed(2, 100, 105), listed(3, 105)]}, False),  # less than was acknowledged
        ({7: [listed(2, 100, 115, epoch=4), listed(3, 115)]}, False),  # an older writer's
        ({7: [listed(2, 100)]}, False),  # open on other nodes: that never happens to this one
    ],
)
def test_only_what_is_accounted_for_goes(
    streams: dict[int, Sequence[m.Range] | None], goes: bool
) -> None:
    assert is_given_up(View(), streams) is goes


def test_it_comes_back_only_as_what_it_was() -> None:
    def wanted(end: int, *nodes: int) -> m.Range:
        members = tuple(m.ReplicaNode(m.DataNode(n)) for n in nodes)
        return m.Range(7, 2, 100, end, replica_nodes=members)

    assert is_the_same(View(), wanted(-1, 3, 2, 1))
    assert not is_the_same(View(), wanted(-1, 1, 2, 4)), "they do not know where it ends"
    assert is_the_same(View(), wanted(110, 1, 4))
    assert not is_the_same(View(), wanted(109, 1, 4)), "acknowledged records would be cut off"
    assert not is_the_same(View(final=True, end_offset=112), wanted(113, 1))


def test_versions_only_rise_and_orders_may_lag_a_little() -> None:
    seen = MetadataSeen()
    assert seen.on_told([-1, 4])
    assert not seen.on_told([-1]), "nobody leads just now"
    assert seen.on_told([6])
    seen.check(4)
    seen.check(-1)
    with pytest.raises(OutdatedMetadataError):
        seen.check(3)
    with pytest.raises(OutdatedMetadataError):
        seen.on_told([5, -1])
    assert seen.on_told([5, 7]), "one that was deposed and does not know it"


def test_both_outlive_the_process() -> None:
    disk = Simulation(1).runtime("node").disk
    disk.make_folder("/n")
    quarantine = Quarantine(1_000)
    quarantine.add([KEY], 50)
    quarantine.add([KEY], 90)
    quarantine.save(disk, "/n")
    seen = MetadataSeen(9)
    seen.save(disk, "/n")
    quarantine, seen = Quarantine(1_000), MetadataSeen()
    quarantine.load(disk, "/n")
    seen.load(disk, "/n")
    assert (list(quarantine), quarantine.since_ms(KEY), seen.newest) == ([KEY], 50, 9)
    assert (quarantine.over(1_050), quarantine.over(1_051)) == ([], [KEY])
