"""A Spark session with the settings that this project is measured with, and our own Python.

Spark puts `pyspark.zip` before everything else on its workers' path. What comes from a zip has no
compiled form that could be kept, so each worker that starts compiles all of it again: 0.7 s of the
processor every time, five times before a first batch, and more than Spark's patience of ten seconds
on a busy machine. The same modules stand compiled in the environment that Spark was installed in,
so workers on this machine run our Python without Spark's zipped copy of itself.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.spark.session.java import cached_file
from headrace.spark.session.settings import PRIVATE, RECOMMENDED, environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


# Errors alone reach the console. Spark's own warnings are about its internals (native libraries,
# host names, plans cut short in a log line) and drown what a pipeline has to say. The gateway's
# logger names its level because Spark compares the two and prints advice when they differ.
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


def session(
    app_name: str, *, master: str = "local[*]", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark, also on a machine without Java on its PATH. `conf` wins over RECOMMENDED."""
    prepare_environment(master)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in settings_for(conf or {}, master).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def settings_for(conf: Mapping[str, str], master: str) -> dict[str, str]:
    """What a session is started with."""
    private = PRIVATE if master.startswith("local") else {}
    settings = {**RECOMMENDED, **private, **conf}
    options = f"-Dlog4j2.configurationFile={_logging_file()}"
    key = "spark.driver.extraJavaOptions"
    settings[key] = f"{options} {settings.get(key, '')}".strip()
    return settings


def prepare_environment(master: str) -> None:
    """What the JVM and its Python workers inherit; it must stand before the JVM starts."""
    os.environ.update(environment())
    if master.startswith("local"):
        # Else it binds to an outside address; on a cluster the executors must reach the driver.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Those of data sources take the driver's.
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = worker_python()


def _logging_file() -> str:
    return cached_file("log4j2", "log4j2.properties", _LOGGING).as_uri()
