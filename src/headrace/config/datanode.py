"""Settings of a data node and of the log on its disk."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class DataNodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    host: Annotated[
        str,
        Meta(
            max_length=255,
            description="What the node is lost together with: a machine, a rack. Replicas of a"
            " range are on different ones. Empty: the machine it runs on.",
        ),
    ] = ""
    host_id: Annotated[
        str,
        Meta(
            max_length=255,
            description="The same for all data nodes that run as one, as those of one machine do:"
            " a range never has two of them. Empty: the node runs by itself.",
        ),
    ] = ""
    heartbeat_interval_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=5_000,  # a third of the idle limit of the connection it goes over
            description="How often the node announces itself and reports metrics.",
        ),
    ] = 5_000
    reconcile_interval_ms: Annotated[
        int,
        Meta(
            ge=100,
            description="How often the node compares its ranges with the placement manager's.",
        ),
    ] = 300_000
    register_timeout_ms: Annotated[
        int,
        Meta(ge=100, description="How long a start waits for the placement manager."),
    ] = 10_000
    fetch_bytes_max: Annotated[
        int, Meta(ge=1, description="The most one fetch request may ask for, per stream.")
    ] = 16 << 20
    fetch_frame_bytes: Annotated[
        int, Meta(ge=1024, le=4 << 20, description="A fetch answer is split into such frames.")
    ] = 4 << 20
    fetch_streams_max: Annotated[
        int, Meta(ge=1, description="The most streams one fetch request may name.")
    ] = 4_096
    fetch_wait_ms_max: Annotated[int, Meta(ge=0, description="The longest long poll served.")] = (
        60_000
    )
    local_reads: Annotated[
        bool,
        Meta(
            description="Readers on the node's machine that ask for it are told where batches are"
            " and read the files themselves, if the system lets them."
        ),
    ] = True
    plain_streams_percent_max: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="How much of the disk plain streams of peers without a credential may take"
            " together, in hundredths (see `plain_streams`).",
        ),
    ] = 10
    producers_max: Annotated[
        int,
        Meta(ge=1, description="Producers remembered per plain stream for duplicate suppression."),
    ] = 1_000
    producer_batches_max: Annotated[
        int, Meta(ge=1, description="Batches remembered per producer.")
    ] = 64
    producer_scan_records: Annotated[
        int,
        Meta(ge=1, description="Records read back per plain stream at start to know producers."),
    ] = 4_096
    replica_timeout_ms: Annotated[
        int,
        Meta(
            ge=10,
            description="Appends fail when too few replicas are reachable for this long.",
        ),
    ] = 1_000
    replica_frame_bytes_max: Annotated[
        int, Meta(ge=1024, description="Batches for another data node go out in frames of this.")
    ] = 4 << 20
    replica_frames_max: Annotated[
        int, Meta(ge=1, description="Frames on their way to one data node.")
    ] = 8
    replica_queue_bytes_max: Annotated[
        int,
        Meta(
            ge=1024,
            description=(
                "Batches held in memory for one data node, and again as much on their way to it; "
                "what is beyond is read from the log when it is time."
            ),
        ),
    ] = 16 << 20
    replica_read_bytes: Annotated[
        int, Meta(ge=1024, description="Read from the log at a time for a replica that is behind.")
    ] = 1 << 20
    commit_notice_ms: Annotated[
        int,
        Meta(ge=1, description="After this pause replicas are told what has been committed."),
    ] = 50
    replica_lag_ms_max: Annotated[
        int,
        Meta(ge=10, description="A reachable replica this far behind makes its ranges move."),
    ] = 5_000
    replica_absent_ms_max: Annotated[
        int,
        Meta(ge=10, description="An unreachable replica this far behind makes its ranges move."),
    ] = 60_000
    unsettled_interval_ms: Annotated[
        int,
        Meta(
            ge=10,
            description="As reconcile_interval_ms, while some range waits for its final end.",
        ),
    ] = 1_000
    copy_ranges_max: Annotated[
        int, Meta(ge=1, description="Ranges copied from other replicas at a time.")
    ] = 4
    copy_bytes: Annotated[int, Meta(ge=1024, description="Asked of another replica at a time.")] = (
        1 << 20
    )
    scrub_interval_ms: Annotated[
        int,
        Meta(ge=0, description="Everything stored is read and checked this often; 0 = never."),
    ] = 7 * 24 * 3600 * 1000
    scrub_bytes_per_second: Annotated[
        int, Meta(ge=1024, description="How fast at most it is read for that.")
    ] = 4 << 20
    tombstone_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="How long a range or stream that this node gave up is not opened again.",
        ),
    ] = 24 * 3600 * 1000
    quarantine_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="How long a range that the placement manager does not know is kept aside"
            " before it is removed.",
        ),
    ] = 24 * 3600 * 1000
    drain_timeout_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="How long a stop waits for its open ranges to move to other data nodes.",
        ),
    ] = 10_000


KIB = 1024
MIB = 1024 * KIB


class StorageSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    segment_bytes_max: Annotated[
        int,
        Meta(ge=MIB, description="Roll to a new segment file before its batches pass this size."),
    ] = 256 * MIB
    preallocate_bytes_min: Annotated[
        int,
        Meta(ge=4 * KIB, description="First reservation of a segment file; it doubles from there."),
    ] = 64 * KIB
    index_interval_bytes: Annotated[
        int, Meta(ge=4 * KIB, description="Bytes of batches between two entries of the index.")
    ] = 64 * KIB
    group_bytes_max: Annotated[
        int, Meta(ge=MIB, description="Bytes that one group commit takes at most.")
    ] = 16 * MIB
    queued_bytes_max: Annotated[
        int, Meta(ge=MIB, description="Bytes waiting to be written; past it appends are throttled.")
    ] = 128 * MIB
    journal_files_min: Annotated[
        int,
        Meta(
            ge=0, description="Dirty files from which a group goes to the redo journal; 0 = never."
        ),
    ] = 1
    journal_file_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            description="A group with more bytes than this to a file, on average, is not written to"
            " the journal as well.",
        ),
    ] = 512 * KIB
    journal_single_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            description="A group of a single file with more bytes than this is not written to the"
            " journal as well: one sync is as good as the other.",
        ),
    ] = 32 * KIB
    journal_bytes: Annotated[
        int, Meta(ge=MIB, description="Size of the redo journal, which is used in two halves.")
    ] = 64 * MIB
    journal_start_writes: Annotated[
        int, Meta(ge=1, description="Synced writes of a store after which the journal is made.")
    ] = 100
    commit_threads: Annotated[
        int, Meta(ge=1, le=64, description="Files that a group commit syncs at the same time.")
    ] = 16
    read_threads: Annotated[
        int, Meta(ge=1, le=64, description="Reads from disk at the same time.")
    ] = 4
    read_bytes_max: Annotated[
        int, Meta(ge=64 * KIB, description="Bytes that one read returns at most.")
    ] = 16 * MIB
    tail_cache_bytes: Annotated[
        int, Meta(ge=0, description="Recent batches kept in memory, over all ranges.")
    ] = 64 * MIB
    page_cache_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="What was written last stays in the kernel's page cache, up to this; older"
            " bytes are read from the disk. 0 = the kernel decides.",
        ),
    ] = 512 * MIB
    open_files_max: Annotated[
        int,
        Meta(
            ge=16,
            description="Segment files kept open, over all ranges; at most half of what the system"
            " allows the process.",
        ),
    ] = 4096
    idle_file_ms: Annotated[
        int, Meta(ge=10, description="A segment file that is not used for this long is closed.")
    ] = 10_000
    idle_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="Quiet time after which a range notes in its log what is synced"
            " (a `written` one: idle_file_ms).",
        ),
    ] = 500
    checkpoint_bytes: Annotated[
        int, Meta(ge=MIB, description="Bytes of a busy range after which its index is saved.")
    ] = 64 * MIB
    idle_checkpoint_bytes: Annotated[
        int, Meta(ge=0, description="Bytes of an idle range from which its index is saved.")
    ] = MIB
    min_free_bytes: Annotated[
        int,
        Meta(ge=0, description="Disk space that only control state may still take."),
    ] = 64 * MIB
