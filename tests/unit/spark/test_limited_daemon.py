"""A worker that asks for more memory than it may have is told so, and nobody else is hurt; one
whose socket is closed ends without a word."""

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


LETS_GO = """
from headrace.spark.limited_daemon import end_quietly

def worker(sock, authenticated):
    raise {error}

try:
    end_quietly(worker)(None, True)
except ValueError:
    print("told")
"""


@pytest.mark.parametrize(
    ("error", "status", "printed"), [("BrokenPipeError()", 1, ""), ("ValueError()", 0, "told\n")]
)
def test_a_worker_that_nobody_listens_to_ends_quietly(
    error: str, status: int, printed: str
) -> None:
    script = LETS_GO.format(error=error)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (status, printed, "")
