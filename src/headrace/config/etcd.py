"""Settings of the connection to etcd."""

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
