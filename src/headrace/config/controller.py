"""Settings of the pipeline controller.

What an application can set for itself (window width, heartbeat times, recovery attempts) is an
attribute of its plan and no setting.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class ControllerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    applications_max: Annotated[
        int, Meta(ge=1, description="Applications kept, finished ones included.")
    ] = 1_000
    events_max: Annotated[
        int, Meta(ge=1, description="Events kept per application; older ones are forgotten.")
    ] = 1_000
    lease_ms: Annotated[
        int, Meta(ge=500, description="Length of the leadership lease; renewed at a third of it.")
    ] = 10_000
    tick_interval_ms: Annotated[
        int,
        Meta(
            ge=10,
            description="How often time-outs, restarts and the committed window are looked at.",
        ),
    ] = 1_000
    lag_interval_ms: Annotated[
        int,
        Meta(
            ge=100,
            description="How often the broker is asked what waits for applications; more seldom"
            " where many partitions make that take long.",
        ),
    ] = 2_000
    restart_delay_ms_min: Annotated[
        int, Meta(ge=0, description="Wait before the first restart after a failure.")
    ] = 1_000
    restart_delay_ms_max: Annotated[
        int,
        Meta(
            ge=0, description="Longest wait between restarts; each failure doubles it up to here."
        ),
    ] = 60_000
    stop_timeout_ms: Annotated[
        int, Meta(ge=0, description="How long a container may take to stop before it is killed.")
    ] = 30_000
    umbilical_frame_bytes_max: Annotated[
        int,
        Meta(
            ge=64 * 1024,
            le=64 * 1024 * 1024,
            description="Largest umbilical request; a longer one ends its connection.",
        ),
    ] = 4 * 1024 * 1024
    umbilical_host: Annotated[
        str,
        Meta(
            description="Address the umbilical listens on, as containers on other machines reach"
            " it; empty: loopback. They log in with their tokens, but nothing is encrypted: another"
            " address than loopback needs `--insecure`."
        ),
    ] = ""
    umbilical_path: Annotated[
        str,
        Meta(
            description="Folder or fsspec address (s3://..., hdfs://...) for the files that tell"
            " containers where the controller is, one folder per application. Empty: in the data"
            " directory, which containers on other machines cannot read."
        ),
    ] = ""
    rpc_timeout_ms: Annotated[
        int, Meta(ge=1, description="Told to containers: how long one umbilical call may take.")
    ] = 5_000
    retry_delay_ms: Annotated[
        int, Meta(ge=0, description="Told to containers: wait between attempts of a call.")
    ] = 10_000
    retry_timeout_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="Told to containers: how long they go on without a controller, then exit.",
        ),
    ] = 300_000
    token_lifetime_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="How long a container's umbilical token is good; it ends with the container"
            " anyway.",
        ),
    ] = 10 * 365 * 24 * 60 * 60 * 1000
    compare_timeout_ms: Annotated[
        int,
        Meta(
            ge=1, description="How long a version's queries may take to be built, to be compared."
        ),
    ] = 300_000
    describe_timeout_ms: Annotated[
        int, Meta(ge=1, description="How long a submitted script may take to state its plan.")
    ] = 60_000
    requirements_timeout_ms: Annotated[
        int, Meta(ge=1, description="How long installing a package's requirements may take.")
    ] = 600_000
    package_bytes_max: Annotated[
        int, Meta(ge=1, description="Largest package, all files together.")
    ] = 32 * 1024 * 1024
    log_tail_bytes_max: Annotated[
        int, Meta(ge=1, description="How much of a log's end is read to show its last lines.")
    ] = 1024 * 1024
    first_heartbeat_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="How long a container may take to report for the first time; never less "
            "than two heartbeat time-outs.",
        ),
    ] = 60_000
    rollback_retention_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="How long topics between containers keep committed windows, to roll back.",
        ),
    ] = 3_600_000
    master: Annotated[
        str,
        Meta(
            description="Where containers run Spark: local (a process here with its cores), "
            "spark://host:port, yarn or k8s://address, through spark-submit."
        ),
    ] = "local"
    shared_path: Annotated[
        str,
        Meta(
            description="Folder that every node of a Spark cluster sees (a mount). Checkpoints "
            "and packages lie there; without it only local containers are started."
        ),
    ] = ""
    spark_conf: Annotated[
        dict[str, str],
        Meta(description="Spark settings of every container, such as spark.executor.memory."),
    ] = {}
    container_heap_mb: Annotated[
        int,
        Meta(ge=256, description="Java heap of a container whose operators state no MEMORY_MB."),
    ] = 1_024
    container_workers_mb: Annotated[
        int,
        Meta(
            ge=0,
            description="Memory of a container's Python workers: counted when a plan is checked "
            "against the machine's, and what a single worker may take beyond its libraries "
            "before its allocations fail (not on yarn and k8s, whose limits are their own).",
        ),
    ] = 512
    container_cores: Annotated[
        int,
        Meta(
            ge=0,
            description="Cores of a container whose operators state no VCORES; 0: all there are.",
        ),
    ] = 0
    committed_interval_ms: Annotated[
        int, Meta(ge=0, description="How often an advanced committed window is journalled.")
    ] = 10_000
    snapshot_events: Annotated[
        int, Meta(ge=1, description="Journal events between two snapshots.")
    ] = 1_000
