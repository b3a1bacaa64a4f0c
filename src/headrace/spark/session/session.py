"""A Spark session with the settings that this project is measured with, and our own Python.

Spark puts `pyspark.zip` before everything else on its workers' path. What comes from a zip has no
compiled form that could be kept, so each worker that starts compiles all of it again: 0.7 s of the
processor every time, five times before a first batch, and more than Spark's patience of ten seconds
on a busy machine. The same modules stand compiled in the environment that Spark was installed in,
so workers on this machine run our Python without Spark's zipped copy of itself.

`SETTINGS` is the one table of settings. A session starts with them, and so does every container of
a pipeline; `headrace spark-conf` prints them for people who start Spark themselves.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.spark.session.java import cached_file, java_home, shim_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_CHECKPOINT_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    value: str
    why: str


SETTINGS = (
    Setting(
        "spark.python.unix.domain.socket.enabled",
        "true",
        "JVM and Python workers talk over Unix sockets: 40 ms less for a micro-batch.",
    ),
    Setting(
        "spark.sql.streaming.checkpointFileManagerClass",
        _CHECKPOINT_FILES,
        "Checkpoints by rename: 50 ms less. For file systems, not object stores; it does not keep "
        "two queries off one checkpoint (the pipeline containers hold a lock of their own).",
    ),
    Setting(
        "spark.sql.shuffle.partitions",
        "2",
        "State is kept per shuffle partition, and each costs time in every micro-batch: as many as "
        "cores. A stateful query keeps the number it began with.",
    ),
    Setting(
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "10000",
        "Rows in an Arrow batch on its way to a Python sink or function.",
    ),
    Setting("spark.sql.session.timeZone", "UTC", "Times mean the same on every machine."),
    Setting("spark.ui.enabled", "false", "No web server in every driver; true to look inside."),
    Setting("spark.ui.showConsoleProgress", "false", "No progress bars among the logs."),
)
# A local session's own ports (driver, block manager) are for itself: on loopback, and only for who
# has the secret that Spark makes for each session and keeps in memory, in no setting, environment
# or command line. A cluster's nodes must agree on theirs, so there it is the cluster's to say.
PRIVATE: Mapping[str, str] = {
    "spark.authenticate": "true",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
RECOMMENDED: Mapping[str, str] = {each.name: each.value for each in SETTINGS}


def environment() -> dict[str, str]:
    """What the JVM and its Python workers inherit; it must stand before the JVM starts."""
    return {
        # Through the shim in any case: without the vector module Java starts without a warning.
        "JAVA_HOME": str(shim_home(Path(java_home()))),
        "PYSPARK_PYTHON": sys.executable,  # else workers take the first python3 on the PATH
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def format_properties() -> str:
    """Lines of a `spark-defaults.conf`."""
    return "\n".join(f"# {each.why}\n{each.name} {each.value}" for each in SETTINGS)


def format_arguments() -> str:
    """Arguments of `spark-submit`; none needs quotes, so `$(...)` is enough."""
    return "\n".join(f"--conf {each.name}={each.value}" for each in SETTINGS)


def format_environment() -> str:
    """Lines for `eval` in a shell."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment().items())


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
