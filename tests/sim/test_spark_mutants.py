"""The matrix's own test: planted bugs are found, and by the very strike that makes them show."""

from __future__ import annotations

import pytest

from tests.sim.spark_mutants import MUTANTS
from tests.sim.spark_world import run


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    assert not run(0, mutant.plan, mutant.main).violations
    mutant.plant(monkeypatch)
    found = run(0, mutant.plan, mutant.main).violations
    assert any(mutant.finds in text for text in found), found
