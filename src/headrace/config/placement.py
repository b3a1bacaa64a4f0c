"""Settings of the placement manager and of its connection to etcd."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class EtcdSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    endpoints: Annotated[
        tuple[str, ...],
        Meta(
            description="Addresses of the etcd servers, such as `http://10.0.0.1:2379`; the next"
            " one is asked when one does not answer. Needed where several placement managers run."
        ),
    ] = ()
    prefix: Annotated[
        str,
        Meta(
            min_length=1,
            description="Before every key: clusters that share an etcd have one each.",
        ),
    ] = "/headrace/"
    timeout_ms: Annotated[
        int, Meta(ge=50, description="How long one etcd server may take to answer.")
    ] = 1_000
    username: Annotated[str, Meta(description="User at etcd; empty = no authentication.")] = ""
    password: Annotated[
        str, Meta(description="Its password, as a reference: `env:NAME` or `file:PATH`.")
    ] = ""
    ca: Annotated[
        str,
        Meta(description="File with the authority that signed etcd's certificates, PEM; https."),
    ] = ""
    certificate: Annotated[
        str, Meta(description="File with our certificate for etcd, PEM; empty = none is shown.")
    ] = ""
    key: Annotated[str, Meta(description="File with its private key, PEM, no passphrase.")] = ""
    page_keys: Annotated[
        int, Meta(ge=1, description="Keys asked for at a time when everything is read.")
    ] = 1_000


class PlacementSettings(msgspec.Struct, frozen=True, kw_only=True):
    node_timeout_ms: Annotated[
        int,
        Meta(ge=100, description="A data node silent for this long gets no new ranges."),
    ] = 15_000
    tick_interval_ms: Annotated[
        int,
        Meta(ge=10, description="How often liveness, unfinished seals and notices are looked at."),
    ] = 1_000
    seal_timeout_ms: Annotated[
        int, Meta(ge=10, description="How long one data node may take to answer a seal.")
    ] = 1_000
    node_call_timeout_ms: Annotated[
        int, Meta(ge=10, description="How long a data node may take for anything else.")
    ] = 3_000
    stream_id_block: Annotated[
        int, Meta(ge=1, description="Stream ids reserved per write of the id counter.")
    ] = 100
    tombstone_ms: Annotated[
        int, Meta(ge=0, description="How long a deleted stream is remembered.")
    ] = 24 * 3600 * 1000
    replicas_max: Annotated[
        int, Meta(ge=1, le=127, description="The highest replica count a stream may ask for.")
    ] = 3
    plain_streams_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Streams that there may be when a peer without a credential makes one (see"
            " `plain_streams`); the cluster's own do not count.",
        ),
    ] = 1_000
    retention_interval_ms: Annotated[
        int,
        Meta(ge=100, description="How often streams with a retention period are trimmed."),
    ] = 60_000
    disk_free_bytes_min: Annotated[
        int,
        Meta(
            ge=0,
            description="A node with less free disk gets ranges only if no other can. About two"
            " segments.",
        ),
    ] = 512 << 20
    disk_free_percent_min: Annotated[
        int,
        Meta(ge=0, le=100, description="The same, in hundredths of its disk."),
    ] = 5
    replace_after_ms: Annotated[
        int,
        Meta(ge=100, description="A data node silent for this long is dead: its replicas move."),
    ] = 60_000
    settle_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="After one of several placement managers took over: how long it waits for"
            " data nodes to announce themselves before it says that there are too few. About one"
            " heartbeat interval.",
        ),
    ] = 5_000
    leader_ttl_ms: Annotated[
        int,
        Meta(
            ge=1_000,
            description="Lease of the leader of several placement managers: how long nobody leads"
            " after it died. etcd takes whole seconds, two at least.",
        ),
    ] = 3_000
    leader_margin_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="How much before the end of a lease that was not renewed the leader stops.",
        ),
    ] = 500
    election_poll_ms: Annotated[
        int, Meta(ge=10, description="How often the others look whether there is a leader.")
    ] = 250
    etcd: EtcdSettings = EtcdSettings()
