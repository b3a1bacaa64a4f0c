"""Which window a micro-batch belongs to, remembered beside Spark's checkpoint.

    <checkpoint>/windows/<batch id>       {"window": "<hex>", "previous": "<hex>"}
    <checkpoint>/windows/idle             {"window": "<hex>"}
    <checkpoint>/windows/rollback         {"number": <the application's last one that meant it>}

A batch that reads edges between queries belongs to the window it reads up to, the lowest one if
there are several. Any other belongs to the window its planning time falls into. In both cases it
comes after every window that was passed before. What was read and when stands in Spark's offset log
and survives a replay; what was passed before does not, so the outcome is written, and synced,
before anything of the batch is published. A batch that is already written down is a replay.

While a query has nothing to do its windows pass without a batch (`advance`). The window up to which
they may have passed is written down first, so that whoever comes after a crash knows that nothing
but idle windows can lie between the last batch and it. A topic that is closed further than that
belongs to another checkpoint, and nothing is published to it.

Spark's checkpoint of a query, taken back to an earlier batch.

Spark starts with the batch after the newest one in its logs, and its state stores find the version
that this batch left: so a rollback removes what came later from `offsets` and `commits` (and the
files beside them), and nothing else. Only batches that Spark still keeps can be gone back to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.concurrency.locks import ThreadLock
from headrace.errors import CorruptionError, NotFoundError
from headrace.ids import WindowId
from headrace.runtime.interfaces import Disk
from headrace.wire.umbilical.windows import NO_WINDOW, WindowGrid, format_window, parse_window

BATCHES_KEPT = 200  # Spark keeps 100 batches to roll back to
_PRUNE_EVERY = 50
_IDLE = "idle"
_ROLLBACK = "rollback"


class CheckpointLostError(CorruptionError):
    """What stands in the checkpoint is damaged, or belongs to other rows than those published."""


@dataclass(frozen=True, slots=True)
class BatchWindow:
    window: WindowId
    previous: WindowId
    replay: bool
    closed: tuple[int, ...] = ()
    """The last window that each publisher of the query had closed."""
    read: WindowId | None = None
    """How far all edges are read with this batch, None without any. Lower than the batch's own
    window where Spark asked one edge before a window was closed and the next one after it."""

    @property
    def complete(self) -> WindowId:
        """Nothing up to this window will be read again."""
        return self.window if self.read is None else min(self.window, self.read)


Closed = Sequence[int] | Callable[[], Sequence[int]]


class WindowLog:
    """One per query; blocking. `enter` and `advance` may come from different threads."""

    def __init__(self, disk: Disk, checkpoint: str, grid: WindowGrid) -> None:
        self._disk = disk
        self._checkpoint = checkpoint
        self._folder = f"{checkpoint}/windows"
        self._grid = grid
        self._turn = ThreadLock()
        disk.make_folder(self._folder)

    def last(self) -> WindowId:
        """Of the newest batch on record."""
        batches = self._batches()
        return self._read(batches[-1])[0] if batches else NO_WINDOW

    def passed(self) -> WindowId:
        """The newest window that a batch or idleness has reached."""
        return max(self.last(), self._idle())

    def enter(self, batch_id: int, closed: Closed = ()) -> BatchWindow:
        """The batch's window, decided now unless it was decided before.

        `closed` tells the last window closed by each publisher that the batch writes to
        (`edge_sink.last_closed`): CheckpointLostError when one has closed what this checkpoint
        knows nothing of, or lacks what it should have. The caller publishes the window behind the
        one that each has closed. A function is asked when no idle window is being closed.
        """
        with self._turn:
            closed = tuple(closed() if callable(closed) else closed)
            batches = self._batches()
            earlier = [batch for batch in batches if batch < batch_id]
            before = self._read(earlier[-1])[0] if earlier else NO_WINDOW
            planned_ms, edges = self._offsets(batch_id)
            read = min(edges.values(), default=None)
            if batch_id in batches:
                entered = BatchWindow(*self._read(batch_id), replay=True, closed=closed, read=read)
            else:
                previous = max(before, self._idle())
                planned = self._grid.window_at(planned_ms) if read is None else read
                window = max(self._grid.next(previous), planned)
                entered = BatchWindow(window, previous, replay=False, closed=closed, read=read)
            self._check(entered, before)
            if not entered.replay:
                self._write(str(batch_id), window=entered.window, previous=entered.previous)
            if batch_id % _PRUNE_EVERY == 0:
                for old in earlier[:-BATCHES_KEPT]:
                    self._disk.remove(f"{self._folder}/{old}")
            return entered

    def advance(self, window: WindowId, close: Callable[[WindowId], None]) -> bool:
        """Let windows up to this one pass without a batch: `close` closes it for every publisher.

        False if they have passed, or a batch is under way: then it is that batch's to say. No batch
        enters before `close` is through.
        """
        with self._turn:
            if not self.pass_idle(window):
                return False
            close(window)
            return True

    def pass_idle(self, window: WindowId) -> bool:
        """The first half of `advance`; no batch may enter before the window is closed."""
        if window <= self.passed() or not self._settled():
            return False
        self._write(_IDLE, window=window)
        return True

    def start_after(self, window: WindowId) -> None:
        """For a query that begins with a fresh checkpoint in the middle of an application's life:
        its windows come after this one."""
        if window > self.passed():
            self._write(_IDLE, window=window)

    def newest_at(self, window: WindowId) -> int:
        """The newest batch of this window or an earlier one, -1 for none."""
        batches = [batch for batch in self._batches() if self._read(batch)[0] <= window]
        return batches[-1] if batches else -1

    def roll_back(self, window: WindowId, number: int = 0) -> int:
        """Forget every later window; returns the newest batch that is left, -1 for none.

        For a stopped query whose offset and commit logs are cut behind that same batch. Its
        publishers are reset after the same window. What comes next comes after every window that
        there was all the same: readers may have been there, and stores, which take a window once,
        have them. `number` tells the application's rollbacks apart; repeating one changes nothing.
        """
        with self._turn:
            self._write(_IDLE, window=max(window, self.passed()))  # first: it is known by batches
            if number:
                text = json.dumps({"number": number})
                self._disk.write_atomic(f"{self._folder}/{_ROLLBACK}", text.encode())
            kept = -1
            for batch in self._batches():
                if self._read(batch)[0] <= window:
                    kept = batch
                else:
                    self._disk.remove(f"{self._folder}/{batch}")
            return kept

    def rollback(self) -> int:
        """The number of the last rollback that this checkpoint was part of, 0 for none."""
        path = f"{self._folder}/{_ROLLBACK}"
        try:
            return int(json.loads(self._disk.read(path))["number"])
        except NotFoundError:
            return 0
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointLostError(f"{path} is not a number") from error

    def inputs(self) -> Mapping[str, WindowId]:
        """By the uid of each edge that the query reads, up to which window the newest planned batch
        reads it."""
        planned = self._newest("offsets")
        return {} if planned < 0 else self._offsets(planned)[1]

    def _check(self, entered: BatchWindow, before: WindowId) -> None:
        for each in entered.closed:
            if each != entered.window and not before <= each <= entered.previous:
                raise CheckpointLostError(
                    f"a publisher of this query has closed window {format_window(each)}, but the "
                    f"checkpoint {self._checkpoint} is at {format_window(entered.previous)}: they "
                    "do not belong together"
                )

    def _settled(self) -> bool:
        """Every batch that was planned is in the commit log: nothing waits to be published."""
        return self._newest("offsets") == self._newest("commits")

    def _newest(self, folder: str) -> int:
        names = self._disk.list(f"{self._checkpoint}/{folder}")
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def _offsets(self, batch_id: int) -> tuple[int, dict[str, WindowId]]:
        """From Spark's offset log: a version line, a JSON line, an offset line per source."""
        path = f"{self._checkpoint}/offsets/{batch_id}"
        try:
            lines = self._disk.read(path).decode().split("\n")
            edges: dict[str, WindowId] = {}
            for line in lines[2:]:
                edges |= _windows_in(line)
            return int(json.loads(lines[1])["batchTimestampMs"]), edges
        except (NotFoundError, ValueError, KeyError, IndexError, TypeError) as error:
            raise CheckpointLostError(f"Spark's offset log has no time in {path}") from error

    def _batches(self) -> list[int]:
        return sorted(int(name) for name in self._disk.list(self._folder) if name.isdigit())

    def _idle(self) -> WindowId:
        try:
            return parse_window(json.loads(self._disk.read(f"{self._folder}/{_IDLE}"))["window"])
        except NotFoundError:
            return NO_WINDOW
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointLostError(f"{self._folder}/{_IDLE} is not a window") from error

    def _read(self, batch_id: int) -> tuple[WindowId, WindowId]:
        path = f"{self._folder}/{batch_id}"
        try:
            value = json.loads(self._disk.read(path))
            return parse_window(value["window"]), parse_window(value["previous"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointLostError(f"{path} is not a window") from error

    def _write(self, name: str, **windows: WindowId) -> None:
        value = {key: format_window(window) for key, window in windows.items()}
        self._disk.write_atomic(f"{self._folder}/{name}", json.dumps(value).encode())


def _windows_in(line: str) -> dict[str, WindowId]:
    """Of an offset that names windows; other sources' offsets name none."""
    try:
        value: Any = json.loads(line)
    except ValueError:
        return {}  # a source that has no offset yet
    windows = value.get("w") if isinstance(value, dict) else None
    return {uid: WindowId(int(each)) for uid, each in (windows or {}).items()}


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
