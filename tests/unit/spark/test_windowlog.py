"""Windows of micro-batches: decided once, on disk before publishing, the same after a replay."""

from __future__ import annotations

import json

import pytest

from headrace.errors import CorruptionError, NotFoundError
from headrace.ids import WindowId
from headrace.pipeline.container.window_log import BATCHES_KEPT, BatchWindow, WindowLog
from headrace.runtime.interfaces import Disk
from headrace.wire.umbilical.windows import NO_WINDOW, WindowGrid

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

    def plan(self, batch_id: int, time_ms: int, *edges: int) -> None:
        """What Spark writes when it has planned a batch; `edges`: up to which window it reads."""
        metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": time_ms, "conf": {}})
        offsets = [
            json.dumps({"v": 1, "c": "x", "w": {f"{uid}": w}}) for uid, w in enumerate(edges)
        ]
        lines = ["v1", metadata, *(offsets or ["{}"])]
        self.files[f"c/offsets/{batch_id}"] = "\n".join(lines).encode()

    def commit(self, batch_id: int) -> None:
        self.files[f"c/commits/{batch_id}"] = b"v1"


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


def window(ordinal: int) -> WindowId:
    return GRID.window_at(at(ordinal))


def test_edges_that_were_asked_at_different_moments_complete_only_what_all_have_read() -> None:
    disk = MemoryDisk()
    log = make_log(disk)
    disk.plan(0, at(1), window(2), window(2))
    assert log.enter(0).complete == window(2)
    disk.plan(1, at(1), window(2), window(3))  # closed between the two questions
    entered = log.enter(1)
    assert (entered.window, entered.complete) == (window(3), window(2))
    assert log.enter(1).complete == window(2), "the same when it is replayed"


def test_a_batch_that_reads_edges_belongs_to_the_lowest_window_it_reads_up_to() -> None:
    disk = MemoryDisk()
    log = make_log(disk)
    disk.plan(0, at(50), window(7), window(5))
    entered = log.enter(0)
    assert (entered.window, entered.previous) == (window(5), NO_WINDOW)
    assert log.inputs() == {"0": window(7), "1": window(5)}
    disk.plan(1, at(51), window(7), window(5))  # Spark's own batch without data
    assert log.enter(1).window == window(6)


def test_a_source_without_an_offset_yet_names_no_window() -> None:
    disk = MemoryDisk()
    disk.plan(0, at(3))
    disk.files["c/offsets/0"] += b"\n-"
    assert make_log(disk).enter(0).window == window(3)


def test_windows_pass_while_nothing_is_under_way() -> None:
    disk = MemoryDisk()
    closed: list[WindowId] = []
    log = make_log(disk)
    assert log.advance(window(2), closed.append), "before the first batch"
    disk.plan(0, at(1))
    assert not log.advance(window(9), closed.append), "a batch is planned"
    entered = log.enter(0, closed=[window(2)])
    assert (entered.window, entered.previous) == (window(3), window(2)), "it comes after them"
    assert not log.advance(window(9), closed.append), "it is not committed"
    disk.commit(0)
    assert not log.advance(window(3), closed.append), "that one has passed"
    assert log.advance(window(9), closed.append)
    assert closed == [window(2), window(9)]
    assert log.passed() == make_log(disk).passed() == window(9)


def test_a_crash_before_idle_windows_are_closed_costs_nothing() -> None:
    """One publisher has closed them, the other has not: both are followed from where they are."""
    disk = MemoryDisk()
    log = make_log(disk)
    disk.plan(0, at(1))
    log.enter(0)
    disk.commit(0)

    def close(_: WindowId) -> None:
        raise NotFoundError("killed")

    with pytest.raises(NotFoundError):
        log.advance(window(5), close)
    disk.plan(1, at(2))
    entered = make_log(disk).enter(1, closed=[window(1), window(5)])
    assert entered.window == window(6)
    again = make_log(disk).enter(1, closed=lambda: [window(6), window(5)])
    assert again == BatchWindow(window(6), window(5), replay=True, closed=(window(6), window(5)))


@pytest.mark.parametrize("closed", [0, 4, 7])
def test_a_topic_that_does_not_belong_to_the_checkpoint_is_refused(closed: int) -> None:
    """It lacks what the last batch published, or has what no batch on record did."""
    disk = MemoryDisk()
    log = make_log(disk)
    disk.plan(0, at(1))
    log.enter(0, closed=[NO_WINDOW])
    disk.commit(0)
    disk.plan(1, at(6))
    with pytest.raises(CorruptionError, match="do not belong together"):
        log.enter(1, closed=[window(closed)])
    assert "c/windows/1" not in disk.files
    assert log.enter(1, closed=[window(1)]).window == window(6)


def test_rolling_back_forgets_later_windows_and_goes_on_after_all_that_were() -> None:
    disk = MemoryDisk()
    log = make_log(disk)
    for batch_id, ordinal in enumerate((1, 4, 8)):
        disk.plan(batch_id, at(ordinal))
        log.enter(batch_id)
        disk.commit(batch_id)
    log.advance(window(9), lambda _: None)
    assert log.rollback() == 0
    for _ in range(2):  # repeating it changes nothing
        assert log.roll_back(window(6), 3) == 1, "the batch of window 4 is the newest left"
        assert (log.last(), log.passed(), log.rollback()) == (window(4), window(9), 3)
    for folder in ("offsets", "commits"):
        del disk.files[f"c/{folder}/2"]
    disk.plan(2, at(5))
    entered = log.enter(2, closed=[window(4)])
    assert entered.window == window(10), "readers may have passed window 9, and stores have it"
    assert make_log(disk).rollback() == 3
    assert log.roll_back(NO_WINDOW, 4) == -1
    assert (log.last(), log.passed(), log.rollback()) == (NO_WINDOW, window(10), 4)


def test_a_rollback_that_was_cut_short_knows_what_there_was() -> None:
    disk = MemoryDisk()
    log = make_log(disk)
    for batch_id in range(3):
        disk.plan(batch_id, at(batch_id))
        log.enter(batch_id)
        disk.commit(batch_id)
    removed: list[str] = []

    def remove(path: str) -> None:
        removed.append(path)
        raise OSError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "remove", remove)
        with pytest.raises(OSError, match="killed"):
            log.roll_back(window(0), 1)
    assert removed == ["c/windows/1"]
    assert log.roll_back(window(0), 1) == 0
    assert (log.passed(), log.rollback()) == (window(2), 1)


def test_a_damaged_number_of_a_rollback_stops_the_query() -> None:
    disk = MemoryDisk()
    log = make_log(disk)
    log.roll_back(NO_WINDOW, 1)
    disk.files["c/windows/rollback"] = b"{}"
    with pytest.raises(CorruptionError, match="not a number"):
        log.rollback()


def test_a_fresh_checkpoint_in_the_middle_of_an_application_says_where_it_starts() -> None:
    disk = MemoryDisk()
    log = make_log(disk)
    log.start_after(window(20))
    disk.plan(0, at(3))
    assert log.enter(0, closed=[window(20)]).window == window(21)
