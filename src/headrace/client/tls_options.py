"""Whether and how a client speaks TLS, as plain values: they travel in options and pickles; the
context is made where the connection is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.net.tls import ClientTls
from headrace.runtime.system.tls import client_context_of

_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off", "")


@dataclass(frozen=True, slots=True)
class TlsOptions:
    enabled: bool = False
    ca: str = ""
    """File with the authorities to trust, PEM; empty = the system's."""
    server_name: str = ""
    """The name that the server's certificate must have; empty = the host connected to."""
    insecure: bool = False
    """Trust any server: for development."""

    def client(self) -> ClientTls | None:
        """None = plain. Reads the file; ConfigError when it cannot be used."""
        if not self.enabled:
            return None
        context = client_context_of(self.ca, insecure=self.insecure)
        return ClientTls(context=context, server_name=self.server_name)


def tls_from(environment: Mapping[str, str]) -> TlsOptions:
    """What HEADRACE_TLS, HEADRACE_TLS_CA and HEADRACE_TLS_SERVER_NAME say; naming authorities asks
    for TLS."""
    ca = environment.get("HEADRACE_TLS_CA", "")
    return TlsOptions(
        enabled=parse_switch("HEADRACE_TLS", environment.get("HEADRACE_TLS", str(bool(ca)))),
        ca=ca,
        server_name=environment.get("HEADRACE_TLS_SERVER_NAME", ""),
    )


def parse_switch(name: str, text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ConfigError(f"{name} is true or false: {text}")
