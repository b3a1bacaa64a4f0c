"""What a process shows to those who connect to it, and whom it trusts when it connects."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config.settings import Settings
from headrace.net.tls import ClientTls, TlsAcceptor
from headrace.process.certificates import Certificate, load_certificate, load_trust
from headrace.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Tls:
    certificate: Certificate
    acceptor: TlsAcceptor | None
    """For our ports; None = no TLS."""
    peers: ClientTls | None
    """For other servers of the cluster; None = they are plain to each other."""


async def load_tls(runtime: Runtime, settings: Settings) -> Tls:
    """The files are read now, so that a wrong path stops the start and not a client."""
    files = runtime.executor("process", 1)
    try:
        return await files.run(_load, runtime, settings)
    finally:
        files.close()


def _load(runtime: Runtime, settings: Settings) -> Tls:
    certificate = load_certificate(runtime.disk, runtime.clock, settings.tls, settings.data_dir)
    trust = load_trust(runtime.disk, settings.tls, certificate)
    return Tls(
        certificate=certificate,
        acceptor=certificate.acceptor(settings.tls),
        peers=None if trust is None else trust.client(),
    )
