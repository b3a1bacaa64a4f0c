"""Attributes: named settings of the application (DAG), its containers, operators and ports.

getInitContext hands the DAG's and the container's to the child; deploy info carries the
operator's and the port's. Names and defaults are the origin's. A name in two scopes
(CHECKPOINT_WINDOW_COUNT) has a default in each. None means "no default": the feature is off.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headrace.wire.umbilical.messages import Value, Values

_UNLIMITED: Final = 2**31 - 1
_HOUR_MS: Final = 60 * 60 * 1000
_DAY_MS: Final = 24 * _HOUR_MS

CONTAINER: Mapping[str, Value] = MappingProxyType(
    {
        "IDENTIFIER": "unknown_container_id",
        "BUFFER_SERVER_MB": 8 * 64,
        "BUFFER_SERVER_TOKEN": None,
        "REQUEST_FACTORY": None,
    }
)

DAG: Mapping[str, Value] = MappingProxyType(
    {
        "STREAMING_WINDOW_SIZE_MILLIS": 500,
        "CHECKPOINT_WINDOW_COUNT": 60,
        "HEARTBEAT_INTERVAL_MILLIS": 1000,
        "HEARTBEAT_TIMEOUT_MILLIS": 30_000,
        "HEARTBEAT_LISTENER_THREAD_COUNT": 30,
        "RESOURCE_ALLOCATION_TIMEOUT_MILLIS": _UNLIMITED,
        "STATS_MAX_ALLOWABLE_WINDOWS_LAG": 1000,
        "ENABLE_STATS_RECORDING": False,
        "THROUGHPUT_CALCULATION_INTERVAL": 10_000,
        "THROUGHPUT_CALCULATION_MAX_SAMPLES": 1000,
        "RPC_LATENCY_COMPENSATION_SAMPLES": 100,
        "BUFFER_SPOOLING": True,
        "MASTER_MEMORY_MB": 1024,
        "CONTAINERS_MAX_COUNT": _UNLIMITED,
        "TUPLE_RECORDING_PART_FILE_SIZE": 128 * 1024,
        "TUPLE_RECORDING_PART_FILE_TIME_MILLIS": 30 * _HOUR_MS,
        "MAX_CONSECUTIVE_CONTAINER_FAILURES_FOR_BLACKLIST": _UNLIMITED,
        "BLACKLISTED_NODE_REMOVAL_TIME_MILLIS": _HOUR_MS,
        "FAST_PUBLISHER_SUBSCRIBER": False,
        "APPLICATION_ATTEMPT_ID": 1,
        "HDFS_TOKEN_RENEWAL_INTERVAL": _DAY_MS,
        "HDFS_TOKEN_LIFE_TIME": 7 * _DAY_MS,
        "TOKEN_REFRESH_ANTICIPATORY_FACTOR": 0.7,
        "PUBSUB_CONNECT_TIMEOUT_MILLIS": 500,
        "STRAM_HTTP_AUTHENTICATION": "FOLLOW_HADOOP_AUTH",
        "DEBUG": False,
        "GATEWAY_USE_SSL": False,
        "APPLICATION_NAME": "unknown-application-name",
        **dict.fromkeys(
            (
                "APPLICATION_ID",
                "APPLICATION_PATH",
                "CONTAINER_JVM_OPTIONS",
                "LIBRARY_JARS",
                "ARCHIVES",
                "FILES",
                "GATEWAY_CONNECT_ADDRESS",
                "GATEWAY_USER_NAME",
                "GATEWAY_PASSWORD",
                "GATEWAY_STATIC_RESOURCE_DIRECTORY",
                "METRICS_TRANSPORT",
                "AFFINITY_RULES_SET",
                "SSL_CONFIG",
                "STRING_CODECS",
                "CONTAINER_OPTS_CONFIGURATOR",
                "LOGGER_APPENDER",
                "APPLICATION_DOC_LINK",
                "APPLICATION_DATA_LINK",
                "APP_PACKAGE_SOURCE",
                "PRINCIPAL",
                "KEY_TAB_FILE",
            )
        ),
    }
)

OPERATOR: Mapping[str, Value] = MappingProxyType(
    {
        "APPLICATION_WINDOW_COUNT": 1,
        "CHECKPOINT_WINDOW_COUNT": 1,
        "SLIDE_BY_WINDOW_COUNT": None,
        "TIMEOUT_WINDOW_COUNT": 120,
        "PROCESSING_MODE": "AT_LEAST_ONCE",
        "RECOVERY_MODE": "CHECKPOINT",
        "RECOVERY_ATTEMPTS": 10,  # the origin: none; -1: as often as it takes
        "STATELESS": False,
        "MEMORY_MB": 1024,
        "VCORES": 0,
        "SPIN_MILLIS": 10,
        "ACTIVATION_WINDOW_ID": -1,
        "AUTO_RECORD": False,
        "PARTITIONER": None,
        "PARTITION_KEY": None,  # ours: the columns by which instances share rows
        "IDLE_WINDOW_MILLIS": 0,  # ours: a batch without rows after so long without any; 0: none
        "STATS_LISTENERS": None,
        "STORAGE_AGENT": None,
        "METRICS_AGGREGATOR": None,
        "METRICS_DIMENSIONS_SCHEME": None,
        "COUNTERS_AGGREGATOR": None,
        "LOCALITY_HOST": None,
        "LOCALITY_RACK": None,
        "JVM_OPTIONS": None,
    }
)

PORT: Mapping[str, Value] = MappingProxyType(
    {
        "QUEUE_CAPACITY": 1024,
        "BUFFER_MEMORY_MB": 512,
        "SPIN_MILLIS": 10,
        "PARTITION_PARALLEL": False,
        "UNIFIER_LIMIT": _UNLIMITED,
        "UNIFIER_SINGLE_FINAL": False,
        "AUTO_RECORD": False,
        "IS_OUTPUT_UNIFIED": False,
        "STREAM_CODEC": None,
        "TUPLE_CLASS": None,
    }
)


def look_up(name: str, *scopes: Values, defaults: Mapping[str, Value]) -> Value:
    """The first scope that sets `name` wins: pass the port's, the operator's, the DAG's, in that
    order; then the default of the attribute's own scope."""
    for scope in scopes:
        if name in scope:
            return scope[name]
    return defaults.get(name)
