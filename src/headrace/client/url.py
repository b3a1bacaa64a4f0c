"""Where a client connects and as whom, out of one text: `headrace://user:password@host:8090`.

`headrace+tls://` connects over TLS; `?ca=/path/ca.pem&server_name=broker` say whom to trust, and
`?token=…` takes the place of user and password. What the text leaves out comes from the
environment that the command line reads too (HEADRACE_ADDRESS, HEADRACE_USERNAME, …), and after that
from what `headrace up --dev` serves.

All of it is plain values, which travel in options and pickles: the context of TLS is made where the
connection is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace.errors import ConfigError
from headrace.net.addresses import format_address, parse_address
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


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a client logs in as: by a token if there is one, else as a user with a password."""

    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


PORT = 8090
TOKEN_FILE_VARIABLE = "HEADRACE_TOKEN_FILE"
_SCHEMES = ("headrace", "headrace+tls", "iggy", "iggy+tls")
_OPTIONS = ("token", "ca", "server_name")
_FORM = "headrace://user:password@host:8090"


@dataclass(frozen=True, slots=True)
class ServerUrl:
    host: str = "127.0.0.1"
    port: int = PORT
    username: str = "iggy"
    password: str = field(default="iggy", repr=False)
    token: str = field(default="", repr=False)
    """If there is one, it is used instead of user and password."""
    token_file: str = ""
    """Read for every login, if nothing else is given: somebody renews what is in it."""
    tls: TlsOptions = field(default_factory=TlsOptions)

    def __str__(self) -> str:
        return format_address(self.host, self.port)


def from_environment(environment: Mapping[str, str]) -> ServerUrl:
    found = ServerUrl(tls=tls_from(environment))
    address = environment.get("HEADRACE_ADDRESS", "")
    if address:
        host, port = parse_address(address)
        found = replace(found, host=host, port=port)
    return replace(
        found,
        username=environment.get("HEADRACE_USERNAME") or found.username,
        password=environment.get("HEADRACE_PASSWORD") or found.password,
        token=environment.get("HEADRACE_TOKEN", ""),
        token_file=_token_file(environment),
    )


def _token_file(environment: Mapping[str, str]) -> str:
    """Containers of pipelines have one; whoever names a user means that user."""
    named = environment.get("HEADRACE_TOKEN") or environment.get("HEADRACE_USERNAME")
    return "" if named else environment.get(TOKEN_FILE_VARIABLE, "")


def parse_url(url: str, environment: Mapping[str, str]) -> ServerUrl:
    """ConfigError for a text that is not of the form above; it never repeats a password."""
    found = from_environment(environment)
    if not url:
        return found
    try:
        parts = urlsplit(url if "://" in url else f"headrace://{url}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"not an address of a server; it looks like {_FORM}") from error
    if parts.scheme not in _SCHEMES or not host or parts.path not in ("", "/"):
        raise ConfigError(f"not an address of a server; it looks like {_FORM}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = options.keys() - set(_OPTIONS)
    if unknown:
        raise ConfigError(
            f"unknown option {', '.join(sorted(unknown))} of the address; there are "
            f"{', '.join(_OPTIONS)}"
        )
    tls = found.tls
    if parts.scheme.endswith("+tls") or "ca" in options:
        tls = replace(tls, enabled=True, ca=options.get("ca", tls.ca))
    if "server_name" in options:
        tls = replace(tls, server_name=options["server_name"])
    found = replace(found, host=host, port=port or PORT, tls=tls)
    if parts.username:
        found = replace(
            found,
            username=unquote(parts.username),
            password=unquote(parts.password or ""),
            token="",
            token_file="",
        )
    return replace(found, token=options.get("token", found.token))
