"""Settings of SBP clients: brokers, the controller, Spark tasks, producers of plain streams."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    request_timeout_ms: Annotated[
        int,
        Meta(
            ge=10,
            description="How long a data node may take to answer; one that hangs is noticed then.",
        ),
    ] = 3_000
    metadata_timeout_ms: Annotated[
        int,
        Meta(ge=10, description="How long a call to the placement managers is tried."),
    ] = 5_000
    recovery_timeout_ms: Annotated[
        int,
        Meta(ge=10, description="How long a writer tries to go on in a new range."),
    ] = 30_000
    window: Annotated[int, Meta(ge=1, le=64, description="Batches in flight per range.")] = 64
    pending_bytes_max: Annotated[
        int, Meta(ge=1, description="Bytes a writer holds that are not acknowledged.")
    ] = 64 << 20
    hedge_after_ms: Annotated[
        int,
        Meta(ge=0, description="A fetch that takes longer asks another replica too; 0 = never."),
    ] = 500
    suspect_ms: Annotated[
        int,
        Meta(ge=0, description="How long a data node that failed us is asked last."),
    ] = 5_000
    ranges_age_ms_max: Annotated[
        int,
        Meta(
            ge=0,
            description="An empty answer at the end of a replicated stream is believed only if the "
            "stream's ranges were looked up this recently.",
        ),
    ] = 5_000
    linger_ms: Annotated[
        int, Meta(ge=0, le=1000, description="How long a producer waits to fill a batch.")
    ] = 2
    batch_bytes: Annotated[
        int, Meta(ge=1, le=8 << 20, description="A producer's batch of this size waits no longer.")
    ] = 64 << 10
    frame_bytes: Annotated[
        int,
        Meta(ge=1, le=8 << 20, description="Batches sent together to one data node, about."),
    ] = 1 << 20
    delivery_timeout_ms: Annotated[
        int, Meta(ge=10, description="How long a producer tries to deliver a batch.")
    ] = 30_000
