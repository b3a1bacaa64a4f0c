"""Taking a query's checkpoint back to a window."""

from __future__ import annotations

import json

import pytest

from headrace.errors import CorruptionError
from headrace.ids import WindowId
from headrace.pipeline.container.window_log import WindowLog, roll_back
from headrace.runtime.interfaces import Disk
from headrace.wire.umbilical.windows import WindowGrid
from tests.simulator.disk import SimulatedDisk
from tests.simulator.random import SimulatedRandom

START = 1_700_000_000_000
GRID = WindowGrid(START, 500)
CHECKPOINT = "/data/checkpoints/revenue"


def make(batches: range) -> tuple[Disk, WindowLog]:
    """Batch n of window 10 n, all but the last committed, with the checksums that Spark keeps."""
    disk = SimulatedDisk(SimulatedRandom(1))
    windows = WindowLog(disk, CHECKPOINT, GRID)
    for folder in ("offsets", "commits"):
        disk.make_folder(f"{CHECKPOINT}/{folder}")
    for batch in batches:
        planned = {"batchTimestampMs": START + 5_000 * batch}
        disk.write_atomic(
            f"{CHECKPOINT}/offsets/{batch}", f"v1\n{json.dumps(planned)}\n{{}}".encode()
        )
        disk.write_atomic(f"{CHECKPOINT}/offsets/.{batch}.crc", b"")
        if batch != batches[-1]:
            disk.write_atomic(f"{CHECKPOINT}/commits/{batch}", b"v1\n{}")
        windows.enter(batch)
    return disk, windows


def window(count: int) -> WindowId:
    return GRID.window_at(START + 500 * count)


def names(disk: Disk, folder: str) -> list[str]:
    return disk.list(f"{CHECKPOINT}/{folder}")


def test_batches_after_the_window_are_gone_with_their_checksums() -> None:
    disk, windows = make(range(6))
    assert roll_back(disk, CHECKPOINT, windows, window(25)) == 2
    assert names(disk, "offsets") == [".0.crc", ".1.crc", ".2.crc", "0", "1", "2"]
    assert names(disk, "commits") == ["0", "1", "2"]
    assert windows.last() == window(20)
    assert roll_back(disk, CHECKPOINT, windows, window(25)) == 2, "again changes nothing"
    # What comes next is a new batch, in a window of its own.
    planned = {"batchTimestampMs": START + 60_000}
    disk.write_atomic(f"{CHECKPOINT}/offsets/3", f"v1\n{json.dumps(planned)}".encode())
    assert not windows.enter(3).replay


def test_before_the_first_batch_nothing_is_left() -> None:
    disk, windows = make(range(3))
    assert roll_back(disk, CHECKPOINT, windows, WindowId(-1)) == -1
    assert names(disk, "offsets") == names(disk, "commits") == []


def test_a_fresh_query_has_nothing_to_forget() -> None:
    disk = SimulatedDisk(SimulatedRandom(1))
    windows = WindowLog(disk, CHECKPOINT, GRID)
    assert roll_back(disk, CHECKPOINT, windows, window(3)) == -1


@pytest.mark.parametrize("target", [window(2), window(15)], ids=["forgotten", "of old"])
def test_what_spark_no_longer_keeps_is_refused_untouched(target: WindowId) -> None:
    disk, windows = make(range(3, 6))  # as after Spark cleaned up
    before = names(disk, "offsets")
    with pytest.raises(CorruptionError, match="from 3 on"):
        roll_back(disk, CHECKPOINT, windows, target)
    assert names(disk, "offsets") == before
