"""The chain's own test: bugs planted in the way of windows are found by the strike that shows them.

Each is a mistake that would be easy to make; the same run finds nothing when none is planted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from headrace.broker.windows import publishers as p
from headrace.broker.windows import window_topics as w
from headrace.broker.windows.publishing import Publishing
from headrace.ids import WindowId
from headrace.pipeline.container.window_log import BatchWindow, WindowLog
from headrace.spark.edges import source
from headrace.spark.edges.offsets import Share, spans_between
from tests.sim import chain_world
from tests.sim.chain_world import ChainPlan, run_chain

Patch = pytest.MonkeyPatch


@dataclass(frozen=True, slots=True)
class Mutant:
    plant: Callable[[Patch], None]
    finds: str
    strikes: dict[str, str]
    instances: int = 1
    roll_back_at: str = ""

    @property
    def plan(self) -> ChainPlan:
        return ChainPlan(
            strikes=self.strikes,
            messages=18,
            later=6,
            batch=6,
            instances=self.instances,
            roll_back_at=self.roll_back_at,
        )


def closed_by_the_fastest(patch: Patch) -> None:
    """Readers go on when one publisher has closed a window, not all of them."""

    def closed(self: w.WindowTopic, last: w.Last) -> int:
        return max(last(name) for name in self.names())

    patch.setattr(w.WindowTopic, "closed", closed)


def a_replay_gets_a_new_window(patch: Patch) -> None:
    """The side log is not asked when a batch is run again."""
    enter = WindowLog.enter

    def anew(self: WindowLog, batch_id: int, closed: object = ()) -> BatchWindow:
        if (name := f"{self._folder}/{batch_id}") and self._disk.exists(name):
            self._disk.remove(name)
            self._write("idle", window=self._grid.next(self.passed()))
        return enter(self, batch_id, [])

    patch.setattr(WindowLog, "enter", anew)


def nothing_is_looked_for(patch: Patch) -> None:
    """A window that was interrupted is published from its beginning again."""

    async def find(self: Publishing, *_: object) -> list[p.OffsetRun]:
        return []

    patch.setattr(Publishing, "_find", find)


def a_reset_voids_nothing(patch: Patch) -> None:
    def void(self: p.Publisher, window: int) -> None:
        self.last = max((each.window for each in self.closed if each.window <= window), default=-1)

    patch.setattr(p.Publisher, "void", void)


def purged_up_to_what_the_first_has_read(patch: Patch) -> None:
    def furthest(self: chain_world.ChainWorld) -> WindowId:
        return WindowId(max((max(each) for each in self.checkpoints.values() if each), default=-1))

    patch.setattr(chain_world.ChainWorld, "_compute_committed", furthest)
    patch.setattr(chain_world, "RETENTION_MS", 0)


def everyone_reads_every_row(patch: Patch) -> None:
    patch.setattr(chain_world, "Share", lambda mask, keys: Share(mask, (0, 1)))


def later_windows_count_too(patch: Patch) -> None:
    """The spans of windows that the batch does not read are read as well."""
    between = spans_between

    def more(listed: object, topic: str, *, start: int, end: int, **rest: object) -> object:
        return between(listed, topic, start=start, end=(1 << 63) - 1, **rest)  # type: ignore[arg-type]  # as it came

    patch.setattr(source, "spans_between", more)


MUTANTS = {
    "closed by the fastest": Mutant(
        closed_by_the_fastest, "lost", {"middle1 before stage#0": "self"}, instances=2
    ),
    "a replay gets a new window": Mutant(
        a_replay_gets_a_new_window, "too many", {"input after close#1": "self"}
    ),
    "nothing is looked for": Mutant(
        nothing_is_looked_for,
        "too many",
        {f"broker before done#{number}": "broker" for number in range(1, 12, 2)},
    ),
    "a reset voids nothing": Mutant(
        a_reset_voids_nothing, "too many", {}, roll_back_at="middle0 after commit log#2"
    ),
    "purged too far": Mutant(
        purged_up_to_what_the_first_has_read, "purged", {"output before offset log#0": "self"}
    ),
    "everyone reads every row": Mutant(everyone_reads_every_row, "too many", {}, instances=2),
    "later windows count too": Mutant(
        later_windows_count_too, "too many", {"output before offset log#0": "self"}
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str, monkeypatch: Patch) -> None:
    mutant = MUTANTS[name]
    assert not run_chain(1, mutant.plan).violations
    mutant.plant(monkeypatch)
    found = run_chain(1, mutant.plan).violations
    assert any(mutant.finds in text for text in found), found
