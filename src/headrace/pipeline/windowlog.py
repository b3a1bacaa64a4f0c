"""Which window a micro-batch belongs to, remembered beside Spark's checkpoint.

    <checkpoint>/windows/<batch id>       {"window": "<hex>", "previous": "<hex>"}

The window of a batch is the one its planning time falls into, or the one after the previous batch's
if that is later. The planning time stands in Spark's offset log and survives a replay; "previous"
does not, so the outcome is written, and synced, before anything of the batch is published. A batch
that is already written down is a replay.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from headrace.errors import CorruptionError, NotFoundError
from headrace.ids import WindowId
from headrace.pipeline.windows import NO_WINDOW, WindowGrid, format_window, parse_window
from headrace.runtime.interfaces import Disk

BATCHES_KEPT = 200  # Spark keeps 100 batches to roll back to
_PRUNE_EVERY = 50


@dataclass(frozen=True, slots=True)
class BatchWindow:
    window: WindowId
    previous: WindowId
    replay: bool


class WindowLog:
    """One per query; blocking."""

    def __init__(self, disk: Disk, checkpoint: str, grid: WindowGrid) -> None:
        self._disk = disk
        self._checkpoint = checkpoint
        self._folder = f"{checkpoint}/windows"
        self._grid = grid
        disk.make_folder(self._folder)

    def last(self) -> WindowId:
        """Of the newest batch on record."""
        batches = self._batches()
        return self._read(batches[-1])[0] if batches else NO_WINDOW

    def enter(self, batch_id: int) -> BatchWindow:
        """The batch's window, decided now unless it was decided before."""
        batches = self._batches()
        if batch_id in batches:
            window, previous = self._read(batch_id)
            return BatchWindow(window, previous, replay=True)
        earlier = [batch for batch in batches if batch < batch_id]
        previous = self._read(earlier[-1])[0] if earlier else NO_WINDOW
        window = max(self._grid.next(previous), self._grid.window_at(self._planned_ms(batch_id)))
        self._write(batch_id, window, previous)
        if batch_id % _PRUNE_EVERY == 0:
            for old in earlier[:-BATCHES_KEPT]:
                self._disk.remove(f"{self._folder}/{old}")
        return BatchWindow(window, previous, replay=False)

    def _planned_ms(self, batch_id: int) -> int:
        """From Spark's offset log: a version line, a JSON line, an offset line per source."""
        path = f"{self._checkpoint}/offsets/{batch_id}"
        try:
            lines = self._disk.read(path).decode().split("\n")
            return int(json.loads(lines[1])["batchTimestampMs"])
        except (NotFoundError, ValueError, KeyError, IndexError, TypeError) as error:
            raise CorruptionError(f"Spark's offset log has no time in {path}") from error

    def _batches(self) -> list[int]:
        return sorted(int(name) for name in self._disk.list(self._folder) if name.isdigit())

    def _read(self, batch_id: int) -> tuple[WindowId, WindowId]:
        path = f"{self._folder}/{batch_id}"
        try:
            value = json.loads(self._disk.read(path))
            return parse_window(value["window"]), parse_window(value["previous"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"{path} is not a window") from error

    def _write(self, batch_id: int, window: WindowId, previous: WindowId) -> None:
        value = {"window": format_window(window), "previous": format_window(previous)}
        self._disk.write_atomic(f"{self._folder}/{batch_id}", json.dumps(value).encode())
