"""kill -9 under a real query: the target holds what a batch computation gives, row for row."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.spark.storm import KINDS, storm

KILLS = 20  # in each of the long storms


@pytest.mark.timeout(600)  # two starts of Spark, on whatever the machine has left
def test_kills_of_every_kind_leave_every_row_once(tmp_path: Path) -> None:
    wrong = storm(tmp_path, list(KINDS), seed=1)
    assert not wrong, "\n".join(wrong)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5))
def test_a_hundred_kills(tmp_path: Path, seed: int) -> None:
    kills = [KINDS[i % len(KINDS)] for i in range(KILLS)]
    Random(seed).shuffle(kills)
    print(f"seed {seed}: {' '.join(kills)}")
    wrong = storm(tmp_path, kills, seed)
    assert not wrong, f"seed {seed}\n" + "\n".join(wrong)
