"""Which Python runs Spark's workers on this machine: ours, without Spark's zipped copy of itself.

Spark puts `pyspark.zip` before everything else on its workers' path. What comes from a zip has no
compiled form that could be kept, so each worker that starts compiles all of it again: 0.7 s of the
processor every time, five times before a first batch, and more than Spark's patience of ten seconds
on a busy machine. The same modules stand compiled in the environment that Spark was installed in.
"""

from __future__ import annotations

import os
import shlex
import sys

from headrace.spark.session.cache import cached_file

_SHIM = """\
#!/bin/sh
# Runs {python} with its own pyspark, not with the zip that Spark puts before it.
set -f  # no file names instead of patterns
path=
IFS=:
for each in $PYTHONPATH; do
  case $each in
    */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
    *) path=$path${{path:+:}}$each ;;
  esac
done
unset IFS
PYTHONPATH=$path exec {python} "$@"
"""


def worker_python() -> str:
    """For PYSPARK_PYTHON where workers run on this machine."""
    if "SPARK_HOME" in os.environ:
        return sys.executable  # a Spark of somebody else's, whose Python half may be another one
    script = _SHIM.format(python=shlex.quote(sys.executable))
    return str(cached_file("python", "bin/python", script, executable=True))
