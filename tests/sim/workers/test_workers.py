"""Several workers under faults, one run per seed: clients of any of them see one server."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.sim.survey import SUMMARY
from tests.sim.workers.mutants import MUTANTS, hunt
from tests.sim.workers.run import Outcome, Plan, run

SEEDS = 300
GROUP = 100
SOAK_SECONDS = float(os.environ.get("HEADRACE_SOAK_SECONDS", "1800"))
_CUT_OFF = Plan(
    seconds=3.0,
    faults=4,
    kinds=("cut_node",),
    machines=3,
    clients=("banned", "banned", "banned", "warden"),
)
REGRESSIONS: tuple[tuple[int, Plan], ...] = (
    (5, _CUT_OFF),  # a worker that learnt nothing new let a user in whose rights were gone
    (27, _CUT_OFF),
)
"""Seeds that once broke a promise, of plans that are not the usual one."""
LONG = Plan(seconds=6.0, faults=8)


@pytest.mark.parametrize("first", range(0, SEEDS, GROUP))
def test_no_seed_breaks_a_promise(first: int) -> None:
    """The same ones each time: what they find is found by everybody."""
    outcomes = [run(seed) for seed in range(first, first + GROUP)]
    failures = [outcome.report() for outcome in outcomes if outcome.violations]
    assert not failures, "\n".join(failures)
    check_everything_happens(outcomes)


def check_everything_happens(outcomes: list[Outcome]) -> None:
    """The runs would prove nothing if nobody did anything, or nothing went wrong."""
    struck = {name.split()[0] for outcome in outcomes for name in outcome.struck}
    done = {kind for outcome in outcomes for kind in outcome.notes.done}
    assert {"kill", "stop", "pause", "cut", "move", "lose_answer", "change_step"} <= struck
    assert {"plain", "numbered", "repeated", "consumer", "keeper", "member"} <= done
    assert {"banned", "warden", "architect", "publisher"} <= done
    assert all(outcome.world.moves >= 6 for outcome in outcomes)


@pytest.mark.parametrize(("seed", "plan"), REGRESSIONS, ids=lambda value: str(value)[:20])
def test_what_a_seed_once_found_stays_mended(seed: int, plan: Plan) -> None:
    outcome = run(seed, plan)
    assert not outcome.violations, outcome.report()


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 600)
def test_no_seed_breaks_a_promise_for_long() -> None:
    seed, failures, end = SEEDS, list[str](), time.monotonic() + SOAK_SECONDS
    while time.monotonic() < end:
        outcome = run(seed, LONG)
        if outcome.violations:
            failures.append(outcome.report())
        seed += 1
    SUMMARY.append(f"workers, soak: {seed - SEEDS} seeds, {len(failures)} failed")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    mutant.plant(monkeypatch)
    _, told = hunt(mutant)
    assert told, f"{name}: {mutant.seeds} seeds saw nothing"


def test_a_seed_repeats_its_run() -> None:
    first, second = run(3), run(3)
    assert len(first.world.simulation.trace) > 1000
    assert first.world.simulation.digest() == second.world.simulation.digest()
    assert first.notes.sent == second.notes.sent


@pytest.mark.parametrize("hash_seed", [0, 1])
def test_a_seed_repeats_its_run_in_another_process(hash_seed: int) -> None:
    """Where strings hash otherwise, and objects have other addresses."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.sim.workers.run", "5"],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"digest {run(5).world.simulation.digest()}," in told
