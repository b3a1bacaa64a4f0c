"""Settings of Iggy over QUIC."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MIB = 1024 * 1024


class QuicSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What TCP and QUIC share (frame sizes, login, idle and transfer times) is the broker's."""

    connections_max: Annotated[
        int, Meta(ge=1, description="Connections at a time; newcomers above it get no answer.")
    ] = 1024
    handshakes_unvalidated_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Handshakes under way above which newcomers must first prove their address"
            " (Retry); 0 = always.",
        ),
    ] = 32
    idle_ms: Annotated[
        int, Meta(ge=1000, description="Silence after which a connection is over.")
    ] = 10_000
    keep_alive_ms: Annotated[
        int, Meta(ge=0, description="Silence after which a logged-in peer is pinged; 0 = never.")
    ] = 5_000
    requests_max: Annotated[
        int,
        Meta(ge=1, le=100, description="Requests of one connection handled at a time; more wait."),
    ] = 16
    window_bytes: Annotated[
        int,
        Meta(
            ge=64 * 1024,
            description="What a peer may send ahead on one connection; half of it per stream.",
        ),
    ] = 4 * MIB
    connection_bytes_max: Annotated[
        int,
        Meta(
            ge=MIB,
            description="Requests and answers of one connection in memory; a stream that would"
            " pass it is refused.",
        ),
    ] = 128 * MIB
    held_bytes_max: Annotated[int, Meta(ge=MIB, description="The same over all connections.")] = (
        256 * MIB
    )
