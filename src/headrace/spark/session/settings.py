"""The Spark settings that this project runs and is measured with: the one table of them.

`session` starts with them, and so does every container of a pipeline; `headrace spark-conf` prints
them for people who start Spark themselves.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.spark.session.java import java_home, shim_home

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
