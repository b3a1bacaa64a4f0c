"""Buffers that are freed and made again cost no page faults."""

from __future__ import annotations

import subprocess
import sys

_FAULTS = """
import resource, sys, threading
from headrace.runtime.system import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def work(rounds):
    for _ in range(rounds):
        frames = [bytearray(6 << 20) for _ in range(6)]
        del frames
def measure():
    work(3)
    before = faults()
    work(20)
    print((faults() - before) // 20)
thread = threading.Thread(target=measure)
thread.start()
thread.join()
"""


def faults_per_round(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS, how], check=True, capture_output=True, text=True
    )
    return int(done.stdout)


def test_freed_memory_is_used_again_without_faults() -> None:
    assert faults_per_round("by default") > 1000, "this says nothing where the default keeps it"
    assert faults_per_round("kept") < 10
