"""A worker of Spark's daemon sets aside what it has loaded; no other process does."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import gc, sys
from importlib.machinery import ModuleSpec
from headrace.spark.limited_daemon import freeze_long_lived
sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv[1], None)
done = freeze_long_lived()
kept = gc.get_freeze_count()
class Cycle:
    def __init__(self):
        self.own = self
Cycle()
found = gc.collect()
print(done, freeze_long_lived(), kept > 5_000, gc.get_freeze_count() == kept, found > 0)
"""


@pytest.mark.parametrize(
    ("main", "printed"),
    [
        ("pyspark.daemon", "True True True True True"),
        ("headrace.spark.limited_daemon", "True True True True True"),
        ("somebody.else", "False False False True True"),
    ],
)
def test_only_workers_set_aside_what_they_have(main: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, main], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == printed, done.stderr
