"""Spark's Python workers with a limit on their memory, quiet when Spark lets go of them, and
spared the search for garbage in what lasts: `spark.python.daemon.module`.

The JVM starts one daemon per executor, which forks the workers; a limit that it sets for itself is
theirs. Spark's own setting for it, `spark.executor.pyspark.memory`, does the same, but says so on
the standard error of every task, and a cluster's manager adds it to what it reserves.

What is limited is address space: the only thing that the system refuses rather than kills for. So
a worker is given what its libraries map beside the memory that it may use.

A worker that was idle for a minute, or whose task was cut off, finds the JVM's socket closed. It
ends, as it should, but the daemon would print a traceback of it. (The daemons that Spark plans with
are its own, whatever this setting says.)

Spark's daemon collects garbage whenever a task is over. Most of what it looks at are modules: 70 ms
of the processor each time, as long as it takes to read half a million messages. So after its first
task a worker sets aside what it has then; what later tasks leave behind is collected as before.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any

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


def end_quietly(worker: Callable[..., int]) -> Callable[..., int]:
    """A worker that just ends, with the status it has anyway, when nobody listens any more."""

    @wraps(worker)
    def call(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        except BrokenPipeError:
            os._exit(1)  # it is a fork: no handler of the daemon's may run in it

    return call


def main() -> None:
    limit_memory(os.environ)
    from pyspark import daemon

    daemon.worker = end_quietly(daemon.worker)
    daemon.manager()


_DAEMONS = ("pyspark.daemon", MODULE)


@cache
def freeze_long_lived() -> bool:
    """Once per process, and only in one that Spark's daemon has forked."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if getattr(spec, "name", "") not in _DAEMONS:
        return False
    gc.collect()
    gc.freeze()
    return True


if __name__ == "__main__":
    main()
