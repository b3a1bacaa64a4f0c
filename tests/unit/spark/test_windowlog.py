"""Windows of micro-batches: decided once, on disk before publishing, the same after a replay."""

from __future__ import annotations

import json

import pytest

from headrace.errors import CorruptionError, NotFoundError
from headrace.pipeline.windowlog import BATCHES_KEPT, WindowLog
from headrace.pipeline.windows import NO_WINDOW, WindowGrid
from headrace.runtime.interfaces import Disk

GRID = WindowGrid(1_700_000_000_000, 500)


class MemoryDisk:
    """The five calls that a window log makes."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def make_folder(self, path: str) -> None: ...

    def list(self, path: str) -> list[str]:
        return sorted(name[len(path) + 1 :] for name in self.files if name.startswith(f"{path}/"))

    def read(self, path: str) -> bytes:
        if path not in self.files:
            raise NotFoundError(path)
        return self.files[path]

    def write_atomic(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        self.files[path] = bytes(data)

    def remove(self, path: str) -> None:
        self.files.pop(path, None)

    def plan(self, batch_id: int, time_ms: int) -> None:
        """What Spark writes when it has planned a batch."""
        metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": time_ms, "conf": {}})
        self.files[f"c/offsets/{batch_id}"] = f"v1\n{metadata}\n{{}}".encode()


def make_log(disk: MemoryDisk) -> WindowLog:
    checked: Disk = disk  # type: ignore[assignment]  # it has the calls that are made
    return WindowLog(checked, "c", GRID)


def at(ordinal: int) -> int:
    return GRID.start_ms + ordinal * GRID.width_ms


def test_a_batch_gets_the_window_of_its_planning_time() -> None:
    disk = MemoryDisk()
    disk.plan(0, at(10) + 499)
    entered = make_log(disk).enter(0)
    assert GRID.ordinal(entered.window) == 10
    assert (entered.previous, entered.replay) == (NO_WINDOW, False)


def test_windows_always_grow() -> None:
    disk = MemoryDisk()
    log = make_log(disk)
    ordinals = []
    for batch_id, time_ms in enumerate((at(10), at(10), at(3), at(20))):
        disk.plan(batch_id, time_ms)
        ordinals.append(GRID.ordinal(log.enter(batch_id).window))
    assert ordinals == [10, 11, 12, 20]


def test_a_replay_gets_what_was_decided_whatever_came_since() -> None:
    disk = MemoryDisk()
    for batch_id, time_ms in ((0, at(1)), (1, at(5))):
        disk.plan(batch_id, time_ms)
        make_log(disk).enter(batch_id)
    again = make_log(disk).enter(1)
    assert (GRID.ordinal(again.window), again.replay) == (5, True)
    assert GRID.ordinal(again.previous) == 1
    assert GRID.ordinal(make_log(disk).last()) == 5


def test_old_windows_are_removed_but_enough_stay() -> None:
    disk = MemoryDisk()
    log = make_log(disk)
    for batch_id in range(BATCHES_KEPT + 101):
        disk.plan(batch_id, at(batch_id))
        log.enter(batch_id)
    kept = sorted(int(name) for name in disk.list("c/windows"))
    assert kept[-1] == BATCHES_KEPT + 100
    assert BATCHES_KEPT <= len(kept) <= BATCHES_KEPT + 50


def test_damage_is_an_error() -> None:
    disk = MemoryDisk()
    with pytest.raises(CorruptionError, match="offset log"):
        make_log(disk).enter(0)
    disk.files["c/windows/4"] = b"{"
    with pytest.raises(CorruptionError, match="not a window"):
        make_log(disk).last()
