"""Which names this server goes by, so that no other site's page can speak to it.

A page of another site reaches a server on this machine by giving its own name our address (DNS
rebinding): the browser then takes us for that site, and lets the page send and read what it likes.
Its requests still say the name, in `Host`. So a request is served under our own names alone, and
what changes something is not taken from a page that came from elsewhere (`Origin`). The port in
`Host` proves nothing and is not looked at: people reach us through tunnels and published ports.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_READING = ("GET", "HEAD", "OPTIONS")
_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:@/\[\]]+))(?::[0-9]{1,5})?")
_LOCAL_NAME = "localhost"
ANY = "*"  # among an operator's names: whatever leads here may


def host_name(header: str) -> str:
    """The name or address in a `Host` header, without its port; empty if it is not one."""
    found = _HOST.fullmatch(header)
    return "" if found is None else (found["six"] or found["name"]).lower()


class OwnNames:
    """What a server that listens on `host` is called.

    On loopback: loopback's names and addresses. Elsewhere any address as well, since only a name
    can be made to lead here, and the names of the machine. `others` are what an operator adds.
    """

    def __init__(self, host: str, others: Iterable[str] = (), machine: str = "") -> None:
        self._local = _is_loopback(host.lower())
        self._others = frozenset(name.lower() for name in others)
        self._names = {_LOCAL_NAME, host.lower(), *self._others}
        if not self._local and machine:
            self._names |= {machine.lower(), machine.lower().partition(".")[0]}

    def has(self, header: str) -> bool:
        name = host_name(header)
        if not name or name in self._names or ANY in self._others:
            return bool(name)
        try:
            return ip_address(name).is_loopback if self._local else bool(ip_address(name))
        except ValueError:
            return False

    def is_own_page(self, origin: str, host: str) -> bool:
        """Whether a page of `origin` came from here, or from a name that an operator gave us."""
        scheme, separator, place = origin.lower().partition("://")
        if not separator or scheme not in ("http", "https"):
            return False
        return place == host.lower() or host_name(place) in self._others


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == _LOCAL_NAME


class OwnHost:
    """Answers what was meant for another name, or sent by another site's page, with a refusal."""

    def __init__(self, app: ASGIApp, names: OwnNames) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refusal(scope, receive, send)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        # Every browser names a host; probes that speak HTTP/1.0 do not.
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        for host in hosts:
            if not self._names.has(host):
                return JSONResponse(
                    {
                        "error": f"this server does not go by the name {host!r}; use its address, "
                        "or add the name to `http_names` in its settings"
                    },
                    421,
                )
        if scope["method"] in _READING:
            return None
        for name, value in scope["headers"]:
            origin = value.decode("latin-1")
            if name == b"origin" and not self._names.is_own_page(origin, "".join(hosts[:1])):
                return JSONResponse(
                    {"error": f"this cannot be done from a page of {origin!r}"}, 403
                )
        return None
