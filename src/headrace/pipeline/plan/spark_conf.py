"""Spark settings of one application, and the state store that its queries need. Pure.

A query binds its checkpoint to the store that it began with: Spark keeps that setting, and some
others, beside the offsets of every batch, and goes on with it whatever the session says later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.errors import ConfigError

SPARK_CONF = "SPARK_CONF"  # attribute of an application
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_STATE = "org.apache.spark.sql.execution.streaming.state"
ROCKSDB = f"{_STATE}.RocksDBStateStoreProvider"
DEFAULT_STORE = f"{_STATE}.HDFSBackedStateStoreProvider"
TRANSFORMS = "TransformWithState"  # begins the name of what no other store than RocksDB supports

# Said elsewhere, by a name or by its beginning, and where.
_ELSEWHERE = {
    "spark.master": "controller.master in the server's settings",
    "spark.app.name": "the application's name",
    "spark.driver.memory": "MEMORY_MB of its operators",
    "spark.driver.cores": "VCORES of its operators",
    "spark.driver.host": "the server's settings (controller.spark_conf)",
    "spark.driver.bindAddress": "the server's settings (controller.spark_conf)",
    "spark.driver.extraJavaOptions": "the server's settings (controller.spark_conf)",
    "spark.authenticate": "the server's settings (controller.spark_conf)",
    "spark.sql.streaming.checkpointLocation": "the controller, which knows each query's",
}
_SECRET = re.compile(r"secret|password|passphrase|token|credential|access\.?key|account\.key", re.I)


def check_spark_conf(name: str, conf: Mapping[str, Any]) -> dict[str, str]:
    """As Spark takes it. ConfigError names the setting and where it belongs."""
    checked = {}
    for key, value in conf.items():
        place = next((where for one, where in _ELSEWHERE.items() if key.startswith(one)), None)
        if not isinstance(key, str) or not key.startswith("spark."):
            raise ConfigError(f"spark_conf of {name}: {key!r} is no setting of Spark's (spark.…)")
        if place is not None:
            raise ConfigError(f"spark_conf of {name}: {key} is said by {place}")
        if _SECRET.search(key):
            raise ConfigError(
                f"spark_conf of {name}: {key} looks like a secret, and a plan is read by many;"
                " put it into the server's settings (controller.spark_conf)"
            )
        if not isinstance(value, str | int | float | bool):
            raise ConfigError(f"spark_conf of {name}: {key} is a text or a number, not {value!r}")
        checked[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return checked


def store_of(operations: Iterable[str], provider: str | None) -> str:
    """The store that a query's state is kept in, out of the names of its operations (as Catalyst
    has them) and of what the session says: RocksDB where nothing else will do."""
    stated = provider or DEFAULT_STORE
    if "RocksDB" not in stated and any(one.startswith(TRANSFORMS) for one in operations):
        return ROCKSDB
    return stated


def read_pinned(offsets: bytes) -> dict[str, str]:
    """The settings that a batch in Spark's offset log is bound to; {} where none are told."""
    lines = offsets.decode(errors="replace").split("\n")
    try:
        conf = json.loads(lines[1]).get("conf", {})
    except (IndexError, ValueError, AttributeError):
        return {}
    return {str(key): str(value) for key, value in conf.items()}


def short(store: str) -> str:
    return store.rpartition(".")[2].removesuffix("StateStoreProvider") or store
