"""Settings of the broker and of its QUIC port."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MIB = 1024 * 1024
REPLICAS_MAX = 3


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cluster_name: Annotated[str, Meta(description="Told to clients in the cluster metadata.")] = (
        "headrace"
    )
    root_username: Annotated[
        str, Meta(description="Root user made at the first start; empty = `iggy`.")
    ] = ""
    root_password: Annotated[
        str, Meta(description="Its password; empty = a random one, shown once.")
    ] = ""
    replicas: Annotated[
        int,
        Meta(
            ge=0,
            le=REPLICAS_MAX,
            description="Replication factor of topics whose creator names none; 0 = one replica per"
            " live data node, up to 3.",
        ),
    ] = 0
    log_replicas: Annotated[
        int,
        Meta(
            ge=0,
            le=REPLICAS_MAX,
            description="Replicas of the broker's own logs (catalogue, offsets); 0 = one per live"
            " data node, up to 3, when they are made and when more nodes come.",
        ),
    ] = 0
    workers: Annotated[
        int,
        Meta(
            ge=0,
            le=16,
            description="Processes of `headrace broker` that serve clients on one port, each of"
            " which leads a part of the cluster's partitions; the same kind for all brokers of a"
            " cluster. 0 = one broker leads everything, the others stand by.",
        ),
    ] = 0
    durability: Annotated[
        str,
        Meta(
            pattern="^(synced|written)$",
            description="What an acknowledged SEND promises: `synced` to disk, or `written` to the"
            " page cache, which survives the process but not a power cut.",
        ),
    ] = "synced"
    lease_ms: Annotated[
        int, Meta(ge=500, description="Length of the leadership lease; renewed at a third of it.")
    ] = 10_000
    leader_wait_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="How long a connection to a broker that stands by waits for somebody to"
            " lead.",
        ),
    ] = 15_000
    message_expiry_us: Annotated[
        int, Meta(ge=0, description="Expiry of topics created with 0 (server default); 0 = never.")
    ] = 0
    topic_bytes_max: Annotated[
        int, Meta(ge=0, description="Size cap of topics created with 0; 0 = unlimited.")
    ] = 0
    deduplication: Annotated[
        bool,
        Meta(
            description="Drop messages whose id their partition saw a short time ago; ids of 0"
            " never count."
        ),
    ] = False
    deduplication_entries_max: Annotated[
        int, Meta(ge=1, description="Ids remembered per partition.")
    ] = 10_000
    deduplication_ms: Annotated[
        int, Meta(ge=1, description="How long; a restart of the broker forgets them.")
    ] = 60_000
    retention_waits_for_consumers: Annotated[
        bool,
        Meta(
            description="Keep segments that a consumer or group with a stored offset has not read"
            " yet, whatever expiry and size say; DELETE_SEGMENTS removes them all the same."
        ),
    ] = True
    retention_hold_ms_max: Annotated[
        int,
        Meta(
            ge=0,
            description="How long after its time a segment is kept for them at most; a reader that"
            " is further behind, a pipeline too, meets a gap. 0 = for good.",
        ),
    ] = 7 * 24 * 3600 * 1000
    retention_interval_ms: Annotated[
        int, Meta(ge=100, description="How often expired and surplus segments are removed.")
    ] = 60_000
    frame_bytes_max: Annotated[
        int, Meta(ge=MIB, description="Largest request; longer ones end the connection.")
    ] = 64 * MIB
    batch_bytes_max: Annotated[
        int,
        Meta(ge=64 * 1024, le=8 * MIB, description="A SEND above this becomes several batches."),
    ] = 8 * MIB
    poll_bytes_max: Annotated[
        int, Meta(ge=64 * 1024, description="A poll reply stops growing past this.")
    ] = 16 * MIB
    poll_wait_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="How long a poll that finds nothing waits for messages before it is"
            " answered without; 0 = not at all.",
        ),
    ] = 5
    read_ahead_bytes: Annotated[
        int, Meta(ge=4096, description="Fetched for a poll at least, when there is as much.")
    ] = MIB
    poll_cache_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Kept in memory for later polls, over all partitions: what was fetched"
            " beyond a poll, and batches in the form of apache-iggy 0.9.0 that were sent last or"
            " are read again.",
        ),
    ] = 128 * MIB
    pending_bytes_max: Annotated[
        int, Meta(ge=MIB, description="Bytes of one partition on their way to disk at a time.")
    ] = 32 * MIB
    default_dialect: Annotated[
        str,
        Meta(
            pattern="^(A|B1|B2)$",
            description="Protocol dialect assumed of clients that neither say nor show which they"
            " speak: `A` (SDKs of apache-iggy 0.5.0), `B1` (0.6.0), `B2` (0.7.0 and 0.8.0).",
        ),
    ] = "B2"
    session_token_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="How long the access token in a login's reply (dialect A) lasts; 0 = none.",
        ),
    ] = 3_600_000
    answers_sessions_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Sessions (clients of apache-iggy 0.9.0) whose last requests and their"
            " answers are remembered, so that one that is sent again is applied once.",
        ),
    ] = 10_000
    answers_bytes_max: Annotated[
        int, Meta(ge=64 * 1024, description="Bytes of those answers, over all sessions.")
    ] = 16 * MIB
    connections_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Client connections at a time, as far as the process may have so many open"
            " (`ulimit -n`); when all are taken, whoever has not logged in makes room.",
        ),
    ] = 4096
    held_bytes_max: Annotated[
        int,
        Meta(
            ge=MIB,
            description="Requests and answers held in memory, over all connections; past it"
            " connections wait their turn and those that are stuck are cut off.",
        ),
    ] = 256 * MIB
    login_frame_bytes_max: Annotated[
        int,
        Meta(
            ge=8 * 1024,  # a pipeline's grant has up to 7 KiB
            description="Largest request of a connection that has not logged in.",
        ),
    ] = 8 * 1024
    login_idle_ms: Annotated[
        int, Meta(ge=100, description="Silence after which one that has not logged in is closed.")
    ] = 30_000
    login_ms: Annotated[
        int,
        Meta(ge=100, description="How long one has for its login, whatever else it sends."),
    ] = 60_000
    idle_ms: Annotated[
        int, Meta(ge=0, description="Silence after which any other one is closed; 0 = never.")
    ] = 0
    transfer_ms: Annotated[
        int,
        Meta(
            ge=100,
            description="How long a half-sent request or an answer that is not taken may stay;"
            " a second more per 64 KiB.",
        ),
    ] = 30_000
    opens_max: Annotated[
        int, Meta(ge=1, description="Partitions opened at a time after a restart.")
    ] = 16
    snapshot_bytes: Annotated[
        int,
        Meta(
            ge=1024,
            description="Log of catalogue or offsets between two snapshots; as much as the last"
            " one took, if that is more.",
        ),
    ] = 4 * MIB
    heartbeat_interval_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="A client that sends no PING for 1.2 times as long leaves its groups and"
            " is told so (error 30); 0 = never. Iggy's SDKs ping every 5 s.",
        ),
    ] = 0
    login_failures_free: Annotated[
        int, Meta(ge=0, description="Failed logins of one name from one host before delays start.")
    ] = 3
    login_delay_ms_max: Annotated[
        int, Meta(ge=0, description="Longest delay of an answer to a login after failures.")
    ] = 5_000
    logins_per_host_max: Annotated[
        int, Meta(ge=1, description="Passwords of one host's logins checked at a time.")
    ] = 4
    logins_waiting_per_host_max: Annotated[
        int, Meta(ge=1, description="Logins of one host that are checked or wait at a time.")
    ] = 64
    login_waiting_max: Annotated[
        int, Meta(ge=1, description="Logins of one name from one host that may wait at a time.")
    ] = 16
    ticket_ms: Annotated[int, Meta(ge=1_000, description="How long a read ticket lasts.")] = 300_000
    extensions: Annotated[
        bool,
        Meta(description="Serve Headrace's own commands; without them it is a plain Iggy server."),
    ] = True
    publishers_max: Annotated[
        int, Meta(ge=1, description="Names under which windows are published, over all users.")
    ] = 10_000
    publishers_per_user_max: Annotated[
        int, Meta(ge=1, description="Of one user or pipeline, edges of pipelines not counted.")
    ] = 1_000
    staged_ms_max: Annotated[
        int,
        Meta(
            ge=1_000,
            description="What a publisher staged and did not close is removed when nothing was "
            "heard of it for so long, and the publisher is forgotten if it never closed a window. "
            "More than any batch takes.",
        ),
    ] = 24 * 3600 * 1000
    windows_kept: Annotated[
        int, Meta(ge=1, description="Closed windows listed per publisher, newest first.")
    ] = 1_000
    topic_windows_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="Windows with messages that a publisher of a topic between queries may have"
            " closed and nobody purged; past it its windows are refused until somebody does.",
        ),
    ] = 50_000
    windows_wait_ms_max: Annotated[
        int, Meta(ge=0, description="Longest wait of a LIST_WINDOWS for a window to be closed.")
    ] = 30_000
    windows_listed_max: Annotated[
        int, Meta(ge=1, description="Windows in one answer to LIST_WINDOWS, at most.")
    ] = 1_000


class QuicSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of QUIC alone; TCP and QUIC share the broker's frame sizes, login, idle and
    transfer times."""

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
