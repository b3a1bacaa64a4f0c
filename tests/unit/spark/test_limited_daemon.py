"""A worker that asks for more memory than it may have is told so, and nobody else is hurt."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.spark.limited_daemon import MEMORY_VARIABLE, mapped_mb

ASK = """
import resource, sys
from headrace.spark.limited_daemon import limit_memory

limit_memory({variables})
print(resource.getrlimit(resource.RLIMIT_AS)[0] >> 20)
try:
    bytearray({megabytes} << 20)
    print("given")
except MemoryError:
    print("refused")
"""


@pytest.mark.parametrize(
    ("given", "megabytes", "says"),
    [
        ("500", mapped_mb() + 500, [str(mapped_mb() + 500), "refused"]),
        ("500", 400, [str(mapped_mb() + 500), "given"]),
        ("", 400, ["given"]),
        ("0", 400, ["given"]),
    ],
)
def test_a_limit_on_memory(given: str, megabytes: int, says: list[str]) -> None:
    script = ASK.format(variables={MEMORY_VARIABLE: given}, megabytes=megabytes)
    printed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert printed[-len(says) :] == says
