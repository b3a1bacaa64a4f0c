"""Settings of the log on a data node's disk."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

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
