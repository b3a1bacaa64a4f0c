"""Settings as others than their operator may see them, in a snapshot for who may read the server.

What is shown is said here by name. Text that is not named is hidden, because nobody can list all
names that a secret may have: Spark's settings alone carry keys of S3, Azure and databases under
dozens of them. Numbers and switches are shown; no secret is one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.config.settings import Settings

HIDDEN = "<hidden>"
SHOWN = frozenset(
    {
        "data_dir", "host", "iggy_host", "http_names", "placement_managers", "metadata",
        "advertise",
        "tls.mode", "tls.certificate", "tls.key", "tls.ca",  # files, not what is in them
        "broker.cluster_name", "broker.root_username", "broker.durability",
        "broker.default_dialect",
        "placement.etcd.prefix", "placement.etcd.username", "placement.etcd.ca",
        "placement.etcd.certificate", "placement.etcd.key",
        "controller.umbilical_host",
        "observability.metrics_host", "observability.lineage_namespace",
    }
)  # fmt: skip
SPARK_SHOWN = frozenset(
    {
        "spark.app.name", "spark.cores.max", "spark.default.parallelism", "spark.driver.cores",
        "spark.driver.maxResultSize", "spark.driver.memory", "spark.driver.memoryOverhead",
        "spark.executor.cores", "spark.executor.instances", "spark.executor.memory",
        "spark.executor.memoryOverhead", "spark.executor.pyspark.memory", "spark.local.dir",
        "spark.memory.fraction", "spark.memory.storageFraction", "spark.scheduler.mode",
        "spark.serializer", "spark.sql.session.timeZone", "spark.sql.shuffle.partitions",
        "spark.submit.deployMode", "spark.task.cpus", "spark.task.maxFailures",
    }
)  # fmt: skip
SPARK_SHOWN_FAMILIES = (
    "spark.dynamicAllocation.",
    "spark.sql.adaptive.",
    "spark.sql.execution.arrow.",
    "spark.sql.streaming.",
)
_SPARK = "controller.spark_conf"


def shown_settings(settings: Settings) -> dict[str, Any]:
    return _section(settings, "")


def _section(section: msgspec.Struct, prefix: str) -> dict[str, Any]:
    return {
        name: _value(getattr(section, name), f"{prefix}{name}")
        for name in section.__struct_fields__
    }


def _value(value: Any, path: str) -> Any:
    if isinstance(value, msgspec.Struct):
        return _section(value, f"{path}.")
    if value is None or isinstance(value, bool | int | float) or not value:
        return value
    if isinstance(value, dict):
        return {
            name: each if path == _SPARK and _is_shown(name) else HIDDEN
            for name, each in value.items()
        }
    return value if path in SHOWN else HIDDEN


def _is_shown(name: str) -> bool:
    return name in SPARK_SHOWN or name.startswith(SPARK_SHOWN_FAMILIES)
