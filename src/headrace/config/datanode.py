"""Settings of a data node."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class DataNodeSettings(msgspec.Struct, frozen=True, kw_only=True):
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
