"""Whole clusters under faults, one run per seed; every history must keep the invariants."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest

from tests.sim.run import Plan, run
from tests.sim.survey import first_seed, survey

PLAN = Plan()
SEEDS = 300
SECONDS_MAX = 100.0
SOAK_SECONDS = float(os.environ.get("HEADRACE_SOAK_SECONDS", "1800"))
FIRST = first_seed()

_ONE_WIPE = Plan(kinds=("wipe",), faults=1)
REGRESSIONS: tuple[tuple[int, Plan], ...] = (
    (0, _ONE_WIPE),  # the only copy of an acknowledged tail was lost with its disk
    (9, _ONE_WIPE),  # two replicas on one machine, under its old id and its new one
)
"""Seeds that once broke an invariant. Whoever mends what a survey found adds its seed."""


@pytest.mark.parametrize(("seed", "plan"), REGRESSIONS, ids=lambda value: str(value)[:20])
def test_what_a_seed_once_found_stays_mended(seed: int, plan: Plan) -> None:
    outcome = run(seed, plan)
    assert not outcome.violations, outcome.report()


def test_no_seed_breaks_an_invariant() -> None:
    """Other ones each day: those of today are the same for everybody who looks into a failure."""
    seeds = range(FIRST, FIRST + SEEDS)
    found = survey("cluster", PLAN, seeds, seconds_max=SECONDS_MAX)
    assert not found.failures, "\n".join(found.failures)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 600)
def test_no_seed_breaks_an_invariant_for_long() -> None:
    seeds = itertools.count(FIRST + SEEDS)
    found = survey("cluster, soak", PLAN, seeds, seconds_max=SOAK_SECONDS)
    assert not found.failures, "\n".join(found.failures)


@pytest.mark.parametrize("seed", [3, 8])
def test_a_seed_repeats_its_run(seed: int) -> None:
    first, second = run(seed, PLAN), run(seed, PLAN)
    assert len(first.cluster.simulation.trace) > 1000
    assert first.cluster.simulation.digest() == second.cluster.simulation.digest()
    assert [str(call) for call in first.cluster.history.calls] == [
        str(call) for call in second.cluster.history.calls
    ]
    assert run(seed + 1, PLAN).cluster.simulation.digest() != first.cluster.simulation.digest()


@pytest.mark.parametrize("hash_seed", [0, 1])
def test_a_seed_repeats_its_run_in_another_process(hash_seed: int) -> None:
    """Where strings hash otherwise, and objects have other addresses."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.sim.run", "5"],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"digest {run(5, PLAN).cluster.simulation.digest()}," in told
