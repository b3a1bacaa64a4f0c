"""What a process shows to those who connect to it, and whom it trusts when it connects."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.assembly.certificates import load_certificate, load_trust
from headrace.broker.transports import Encryption
from headrace.config.settings import Settings
from headrace.net.tls import ClientTls, TlsAcceptor
from headrace.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Tls:
    encryption: Encryption
    peers: ClientTls | None
    """For other servers of the cluster; None = they are plain to each other."""
    authority_path: str
    """What clients trust the development certificate by; empty with one of your own."""

    @property
    def acceptor(self) -> TlsAcceptor | None:
        return self.encryption.tls


async def load_tls(runtime: Runtime, settings: Settings) -> Tls:
    """The files are read now, so that a wrong path stops the start and not a client."""
    files = runtime.executor("assembly", 1)
    try:
        return await files.run(_load, runtime, settings)
    finally:
        files.close()


def _load(runtime: Runtime, settings: Settings) -> Tls:
    tls = settings.tls
    certificate = load_certificate(runtime.disk, runtime.clock, tls, settings.data_dir)
    trust = load_trust(runtime.disk, tls, certificate)
    return Tls(
        encryption=Encryption(
            certificate=certificate.chain,
            key=certificate.key,
            tls=certificate.acceptor(tls),
            quic=settings.quic,
            handshake_seconds=tls.handshake_ms / 1000,
        ),
        peers=None if trust is None else trust.client(),
        authority_path=certificate.authority_path,
    )
