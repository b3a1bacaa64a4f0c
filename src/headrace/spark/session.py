"""A Spark session with the settings that this project is measured with.

Launch-time settings matter: Unix sockets between the JVM and its Python workers take 40 ms off a
micro-batch, the rename-based checkpoint files another 50. That checkpoint manager does not guard
against two writers of one checkpoint; the container runtime holds a lock of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.spark.cache import cached_file
from headrace.spark.java import java_home, shim_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHECKPOINT_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

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

RECOMMENDED: Mapping[str, str] = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_FILES,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.python.filterPushdown.enabled": "true",
}


def session(
    app_name: str, *, master: str = "local[*]", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark, also on a machine without Java on its PATH. `conf` wins over RECOMMENDED."""
    prepare_environment()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in settings_for(conf or {}).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def settings_for(conf: Mapping[str, str]) -> dict[str, str]:
    """What a session is started with."""
    settings = {**RECOMMENDED, **conf}
    options = f"-Dlog4j2.configurationFile={_logging_file()}"
    key = "spark.driver.extraJavaOptions"
    settings[key] = f"{options} {settings.get(key, '')}".strip()
    return settings


def prepare_environment() -> None:
    """What the JVM and its Python workers inherit; it must stand before the JVM starts."""
    # Through the shim in any case: without the vector module Java starts without a warning.
    os.environ["JAVA_HOME"] = str(shim_home(Path(java_home())))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else it binds to an outside address


def _logging_file() -> str:
    return cached_file("log4j2", "log4j2.properties", _LOGGING).as_uri()
