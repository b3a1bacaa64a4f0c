"""Spark's checkpoint of a query, taken back to an earlier batch.

Spark starts with the batch after the newest one in its logs, and its state stores find the version
that this batch left: so a rollback removes what came later from `offsets` and `commits` (and the
files beside them), and nothing else. Only batches that Spark still keeps can be gone back to.
"""

from __future__ import annotations

from headrace.errors import CorruptionError
from headrace.ids import WindowId
from headrace.pipeline.container.window_log import WindowLog
from headrace.pipeline.windows import format_window
from headrace.runtime.interfaces import Disk

LOGS = ("commits", "offsets")  # in this order: an offset without a commit is a batch to repeat


def roll_back(
    disk: Disk, checkpoint: str, windows: WindowLog, window: WindowId, number: int = 0
) -> int:
    """Forget every batch after a window; the newest that is left, -1 for none. Blocks.

    CorruptionError when that batch is not kept any more, before anything is removed. Repeating it
    changes nothing.
    """
    batches = _batches(disk, f"{checkpoint}/offsets")
    target = windows.newest_at(window)
    if batches and target >= 0 and target not in batches:
        raise CorruptionError(
            f"window {format_window(window)} was batch {target}, and {checkpoint} keeps "
            f"{min(batches)} to {max(batches)} only"
        )
    if batches and target < 0 and min(batches) > 0:
        raise CorruptionError(
            f"{checkpoint} keeps batches from {min(batches)} on only, all of them after window "
            f"{format_window(window)}"
        )
    for log in LOGS:
        folder = f"{checkpoint}/{log}"
        for name in disk.list(folder):
            batch = name.strip(".").split(".")[0]
            if batch.isdigit() and int(batch) > target:
                disk.remove(f"{folder}/{name}")
        if disk.exists(folder):
            disk.sync_folder(folder)
    return windows.roll_back(window, number)


def _batches(disk: Disk, folder: str) -> list[int]:
    return sorted(int(name) for name in disk.list(folder) if name.isdigit())
