"""The checker's own test: every planted bug is found within a bounded number of seeds."""

from __future__ import annotations

import pytest

from tests.sim.mutants import MUTANTS, hunt


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    mutant.plant(monkeypatch)
    seed, told = hunt(mutant)
    assert told, f"{name}: {mutant.seeds} seeds saw nothing"
    assert 0 <= seed < mutant.seeds
