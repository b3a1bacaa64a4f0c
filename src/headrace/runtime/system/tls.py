"""OpenSSL's contexts from bytes. A server's loads keys from files only, so it is given one that
exists in memory alone: the key of a running server never lies in a temporary folder."""

from __future__ import annotations

import os
import ssl
import tempfile
from contextlib import nullcontext
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


def client_context(authorities: bytes = b"", *, insecure: bool = False) -> ssl.SSLContext:
    """TLS 1.2 and newer. `authorities` is PEM, trusted in place of the system's; a server's own
    certificate may stand there too. `insecure` trusts anybody: for development alone."""
    try:
        if authorities:
            context = ssl.create_default_context(cadata=authorities.decode("ascii"))
            # What the file lists is trusted, also when its issuer is not listed.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        else:
            context = ssl.create_default_context()
    except (ssl.SSLError, UnicodeDecodeError) as error:
        reason = getattr(error, "reason", None) or "not PEM"
        raise ConfigError(f"authorities cannot be used: {reason}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def client_context_of(path: str, *, insecure: bool = False) -> ssl.SSLContext:
    """The same with the authorities in a file; an empty path means the system's."""
    try:
        with open(path, "rb") if path else nullcontext() as file:
            authorities = b"" if file is None else file.read()
    except OSError as error:
        raise ConfigError(f"cannot read the TLS file {path}: {error.strerror}") from error
    if path and not authorities.strip():
        raise ConfigError(f"the TLS file {path} is empty")
    return client_context(authorities, insecure=insecure)


_HAS_MEMFD = hasattr(os, "memfd_create") and os.path.exists("/proc/self/fd")


def _memory_file() -> IO[bytes]:
    if _HAS_MEMFD:
        return os.fdopen(os.memfd_create("headrace-tls"), "wb")
    return tempfile.NamedTemporaryFile()  # mode 0600, gone when closed
