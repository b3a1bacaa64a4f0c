"""Many seeds on all processors, as many as fit into a time; the summary is shown by conftest.py."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from tests.sim.run import Plan, run

SEEDS_PER_DAY = 100_000

SUMMARY: list[str] = []
"""Lines for the end of the test run."""


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    seconds: float
    """Simulated."""
    report: str = ""
    """What went wrong, and how to see it again; empty when all is well."""


@dataclass(slots=True)
class Survey:
    results: list[Result] = field(default_factory=list)
    elapsed: float = 0.0

    @property
    def failures(self) -> list[str]:
        return [result.report for result in self.results if result.report]

    def summary(self, name: str) -> str:
        hours = sum(result.seconds for result in self.results) / 3600
        first = min((result.seed for result in self.results), default=0)
        last = max((result.seed for result in self.results), default=0)
        return (
            f"{name}: {len(self.results)} seeds ({first} to {last}; HEADRACE_SEED={first} begins"
            f" there again), {hours:.2f} simulated hours in {self.elapsed:.0f} s,"
            f" {len(self.failures)} failed"
        )


def first_seed() -> int:
    """Where today's survey begins: HEADRACE_SEED, or a number of the day (UTC)."""
    given = os.environ.get("HEADRACE_SEED", "")
    return int(given) if given else int(time.time() // 86_400) * SEEDS_PER_DAY


def survey(name: str, plan: Plan, seeds: Iterable[int], *, seconds_max: float) -> Survey:
    """Run seeds in their order until they or the time are over; the summary is noted."""
    found = Survey()
    started = time.monotonic()
    workers = os.cpu_count() or 1
    waiting = iter(seeds)
    # Children are spawned: a fork would copy whatever threads the tests before left behind.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        running: set[Future[Result]] = set()
        while True:
            if time.monotonic() - started < seconds_max:
                room = workers + 2 - len(running)
                for seed in itertools.islice(waiting, room):
                    running.add(pool.submit(survey_one, seed, plan))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            found.results += [future.result() for future in done]
    found.results.sort(key=lambda result: result.seed)
    found.elapsed = time.monotonic() - started
    SUMMARY.append(found.summary(name))
    return found


def survey_one(seed: int, plan: Plan) -> Result:
    try:
        outcome = run(seed, plan)
    except Exception as error:
        return Result(
            seed, 0.0, f"seed {seed} broke: {error!r}\nreplay: python -m tests.sim.run {seed}"
        )
    return Result(seed, outcome.seconds, outcome.report() if outcome.violations else "")
