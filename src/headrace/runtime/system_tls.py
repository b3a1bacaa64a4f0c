"""OpenSSL's server context from bytes. It loads keys from files only, so it is given one that
exists in memory alone: the key of a running server never lies in a temporary folder."""

from __future__ import annotations

import os
import ssl
import tempfile
from typing import IO

from headrace.errors import ConfigError


def server_context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """TLS 1.2 and newer. `certificate` is PEM, the server's own first, then its chain; `key` is
    its private key as PEM without a passphrase. ConfigError when they do not fit."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    with _memory_file() as file:
        file.write(certificate.rstrip() + b"\n" + key)
        file.flush()
        name = f"/proc/self/fd/{file.fileno()}" if _HAS_MEMFD else file.name
        try:
            # Without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(name, password="")
        except (ssl.SSLError, OSError) as error:
            reason = getattr(error, "reason", None) or str(error)
            raise ConfigError(f"certificate and key cannot be used: {reason}") from error
    return context


_HAS_MEMFD = hasattr(os, "memfd_create") and os.path.exists("/proc/self/fd")


def _memory_file() -> IO[bytes]:
    if _HAS_MEMFD:
        return os.fdopen(os.memfd_create("headrace-tls"), "wb")
    return tempfile.NamedTemporaryFile()  # mode 0600, gone when closed
