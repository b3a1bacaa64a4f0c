"""A development certificate for tests, made once per run."""

from __future__ import annotations

import functools
import ssl

from headrace.config.process import TlsSettings
from headrace.process.certificates import Certificate, load_certificate
from headrace.runtime.system.tls import server_context
from tests.simulator.runtime import Simulation


@functools.cache
def development() -> tuple[Certificate, bytes]:
    """The certificate, and the authority that clients trust, as PEM."""
    runtime = Simulation(1).runtime("host")
    made = load_certificate(runtime.disk, runtime.clock, TlsSettings(), "/data")
    return made, runtime.disk.read(made.authority_path)


@functools.cache
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """For the server, and for a client that trusts it."""
    certificate, authority = development()
    return (
        server_context(certificate.chain, certificate.key),
        ssl.create_default_context(cadata=authority.decode()),
    )
