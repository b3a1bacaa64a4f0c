"""Bugs planted in the way of rows through a query, each a mistake that would be easy to make.

A mutant is a function that patches the connector or the broker, and the run whose strike gives the
mistake a chance. `test_spark_mutants.py` demands that each run finds its mistake, and that the same
run finds nothing when nothing is planted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.broker.windows import publishers as p
from headrace.broker.windows import staging
from headrace.broker.windows.publishing import Publishing
from headrace.spark.source import following
from headrace.spark.source.batch_plan import Offsets
from headrace.spark.source.following import Following
from headrace.spark.source.positions import resolve
from headrace.wire.sbp.messages import Durability
from tests.sim.spark_engine import drive
from tests.sim.spark_world import Plan, World

Patch = pytest.MonkeyPatch


@dataclass(frozen=True, slots=True)
class Mutant:
    plant: Callable[[Patch], None]
    finds: str
    """What the run says about it."""
    plan: Plan
    main: Callable[[World], Awaitable[None]] = drive


def close_without_compare_and_set(patch: Patch) -> None:
    """A window that is closed is closed again, with what is staged for it now."""

    def check_close(self: p.Publishers, publisher: p.Publisher, *, epoch: int, **_: object) -> bool:
        publisher.check_epoch(epoch)
        return True

    patch.setattr(p.Publishers, "check_close", check_close)


def everything_staged_is_published(patch: Patch) -> None:
    """The manifest is not asked: whatever attempts staged for the window counts."""
    staged: dict[tuple[int, int], list[p.StagedBatch]] = {}
    stage, close = Publishing.stage, Publishing.close_window

    async def remember(self: Publishing, uid: int, *, window: int, **options: Any) -> p.StagedBatch:
        span = await stage(self, uid, window=window, **options)
        staged.setdefault((uid, window), []).append(span)
        return span

    async def close_all(
        self: Publishing, uid: int, *, window: int, manifest: object, **options: Any
    ) -> tuple[p.Closed, bool]:
        return await close(
            self, uid, window=window, manifest=staged.get((uid, window), []), **options
        )

    patch.setattr(Publishing, "stage", remember)
    patch.setattr(Publishing, "close_window", close_all)


def a_repeated_batch_reads_what_is_there_now(patch: Patch) -> None:
    """The end that stands in the offset log is not asked."""
    plan = Following.plan

    async def plan_anew(
        self: Following, start: dict[str, Any], end: dict[str, Any]
    ) -> list[tuple[Any, Any]]:
        state = await self._describe()
        return await plan(self, start, resolve(state, "latest").to_json())

    patch.setattr(Following, "plan", plan_anew)


def the_first_batch_forgets_its_beginning(patch: Patch) -> None:
    patch.setattr(following, "begun", lambda first, end: end)


def the_group_is_told_of_planned_batches(patch: Patch) -> None:
    latest_offset = Following.latest_offset

    async def eager(self: Following, start: dict[str, Any], *limits: Any) -> dict[str, Any]:
        end = await latest_offset(self, start, *limits)
        assert self._seen is not None
        await self._group.on_finished(Offsets.from_json(end), self._seen)
        await self._group.on_idle()
        return end

    patch.setattr(Following, "latest_offset", eager)


def an_interrupted_window_is_appended_again(patch: Patch) -> None:
    """What the partitions hold of it already is not looked for."""

    async def find(self: Publishing, *_: object) -> list[p.OffsetRun]:
        return []

    patch.setattr(Publishing, "_find", find)


def an_interrupted_window_counts_as_done(patch: Patch) -> None:
    carry_out = Publishing._carry_out

    async def skip(
        self: Publishing, publisher: p.Publisher, intent: p.Intent, *, fresh: bool
    ) -> p.Closed:
        if fresh:
            return await carry_out(self, publisher, intent, fresh=fresh)
        return await self._done(publisher, intent, ())

    patch.setattr(Publishing, "_carry_out", skip)


def staged_rows_are_only_written(patch: Patch) -> None:
    """Acknowledged from the page cache, which a power cut empties."""

    class Careless:
        SYNCED = Durability.WRITTEN

    patch.setattr(staging, "Durability", Careless)


LATEST = Plan(
    strikes={"driver before tasks#0": "driver"},
    starting="latest",
    available_now=False,
    messages=6,
)


async def follow_latest(world: World) -> None:
    """A query that starts at the latest message while messages come in."""
    world.first = (3, 3)
    world.reached["driver before planning#0"] = lambda: world.send(8)
    world.reached["driver before tasks#0"] = lambda: world.send(8)
    await drive(world)


MUTANTS = {
    "close without compare-and-set": Mutant(
        close_without_compare_and_set,
        "too many",
        Plan(strikes={"driver after close#0": "driver"}),
    ),
    "everything staged is published": Mutant(
        everything_staged_is_published,
        "too many",
        Plan(strikes={"task after stage#0": "task"}),
    ),
    "everything staged is published, duplicates": Mutant(
        everything_staged_is_published, "too many", Plan(speculative=True, messages=60)
    ),
    "a repeated batch reads what is there now": Mutant(
        a_repeated_batch_reads_what_is_there_now,
        "too many",
        Plan(strikes={"driver after offset log#0": "driver"}),
    ),
    "the first batch forgets its beginning": Mutant(
        the_first_batch_forgets_its_beginning,
        "lost",
        LATEST,
        follow_latest,
    ),
    "the group is told of planned batches": Mutant(
        the_group_is_told_of_planned_batches,
        "the group is at",
        Plan(strikes={"driver before close#0": "driver"}),
    ),
    "an interrupted window is appended again": Mutant(
        an_interrupted_window_is_appended_again,
        "too many",
        Plan(strikes={"broker before done#0": "broker"}),
    ),
    "an interrupted window counts as done": Mutant(
        an_interrupted_window_counts_as_done,
        "lost",
        Plan(strikes={"broker after intended#0": "broker"}),
    ),
    "staged rows are only written": Mutant(
        staged_rows_are_only_written,
        "the run ended",
        Plan(strikes={"driver before close#0": "node"}),
    ),
}
