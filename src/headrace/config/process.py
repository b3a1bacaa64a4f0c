"""Settings of TLS, for all TCP ports but the umbilical, and for QUIC."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mode: Annotated[
        str,
        Meta(
            pattern="^(off|optional|required)$",
            description="TLS on the Iggy and SBP ports: `off`, `optional` (plain and TLS clients"
            " on one port, told by their first bytes) or `required` (also from this machine, and"
            " the HTTP port speaks HTTPS). QUIC is encrypted in every mode.",
        ),
    ] = "optional"
    certificate: Annotated[
        str,
        Meta(
            description="File with the server's certificate and its chain, PEM; empty = a"
            " development certificate for localhost, made once under `secrets/tls`."
        ),
    ] = ""
    key: Annotated[
        str, Meta(description="File with the certificate's private key, PEM, no passphrase.")
    ] = ""
    ca: Annotated[
        str,
        Meta(
            description="File with the authorities by which this process trusts the other servers"
            " of the cluster, PEM; empty = they have the same certificate as this one."
        ),
    ] = ""
    handshake_ms: Annotated[
        int, Meta(ge=100, description="How long a TLS or QUIC handshake may take.")
    ] = 10_000
    handshake_bytes_max: Annotated[
        int, Meta(ge=16 * 1024, description="What a TLS client may send before it is complete.")
    ] = 64 * 1024

    @property
    def has_files(self) -> bool:
        return bool(self.certificate and self.key)
