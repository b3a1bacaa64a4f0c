"""Spark's Python workers with a limit on their memory: `spark.python.daemon.module`.

The JVM starts one daemon per executor, which forks the workers; a limit that it sets for itself is
theirs. Spark's own setting for it, `spark.executor.pyspark.memory`, does the same, but says so on
the standard error of every task, and a cluster's manager adds it to what it reserves.

What is limited is address space: the only thing that the system refuses rather than kills for. So
a worker is given what its libraries map beside the memory that it may use.
"""

from __future__ import annotations

import os
import resource
import runpy
from collections.abc import Mapping

MODULE = "headrace.spark.limited_daemon"
MEMORY_VARIABLE = "HEADRACE_WORKER_MEMORY_MB"
MAPPED_MB = 3_072  # interpreter, numpy, pyarrow and their threads' stacks: 1.4 GB were seen
MAPPED_PER_CORE_MB = 128  # arenas of allocators, which grow with the threads


def mapped_mb() -> int:
    return MAPPED_MB + MAPPED_PER_CORE_MB * (os.cpu_count() or 1)


def limit_memory(environment: Mapping[str, str]) -> None:
    """Of this process and all that it forks; without a number nothing is limited."""
    text = environment.get(MEMORY_VARIABLE, "")
    if not text.isdigit() or int(text) == 0:
        return
    wanted = (mapped_mb() + int(text)) << 20
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or wanted < hard:
        resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))


if __name__ == "__main__":
    limit_memory(os.environ)
    runpy.run_module("pyspark.daemon", run_name="__main__")
