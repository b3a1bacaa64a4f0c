"""One HTTP request to the control plane and its answer, by the standard library.

httpx takes longer to import than everything else a short command does. Proxies are not asked: they
have no business between us and our own server.

Running code takes a token beside the well-known password of `headrace up --dev`. A server that asks
for the token says in which of its files it is. Whoever runs the command on the same machine, as the
same user, can read the token there and need not be asked. Nothing else is read, whatever a server
says: only a file of that name, of ours, that holds a token, and only for loopback.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
from base64 import b64encode
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from headrace.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from headrace.net.tls import ClientTls

_KEPT = "/?&=%:,;+@!$'()*~#[]"  # of what people, and we, write into a path and its query


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        return json.loads(self.body)


class _Connection(http.client.HTTPConnection):
    def __init__(self, host: str, port: int, tls: ClientTls | None, seconds: float) -> None:
        super().__init__(host, port, timeout=seconds)
        self._tls = tls

    def connect(self) -> None:
        super().connect()
        if self._tls is not None:
            name = self._tls.server_name or self.host
            self.sock = self._tls.context.wrap_socket(self.sock, server_hostname=name)


def call(
    method: str,
    url: str,
    *,
    user: tuple[str, str],
    tls: ClientTls | None,
    seconds: float,
    body: object = None,
    token: str = "",
) -> Answer:
    """UnavailableError when there is no answer; its text begins with the error alone."""
    parts = urlsplit(url)
    try:
        port = parts.port or (80 if tls is None else 443)
    except ValueError as error:
        raise ConfigError(f"{parts.netloc} is not HOST:PORT: {error}") from error
    login = b64encode(":".join(user).encode()).decode()
    headers = {"Accept": "application/json, */*", "Authorization": f"Basic {login}"}
    if token:
        headers["X-Headrace-Token"] = token
    content = None
    if body is not None:
        content = json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    target = quote(parts.path + (f"?{parts.query}" if parts.query else ""), safe=_KEPT)
    connection = _Connection(parts.hostname or "", port, tls, seconds)
    try:
        connection.request(method, target, content, headers)
        response = connection.getresponse()
        return Answer(response.status, response.read())
    except TimeoutError as error:
        raise UnavailableError(f"no answer within {seconds:g} s") from error
    except OSError as error:
        raise UnavailableError(_reason(error)) from error
    except http.client.HTTPException as error:
        raise UnavailableError("what listens there is not the dashboard") from error
    finally:
        connection.close()


def _reason(error: OSError) -> str:
    """The system's own words. Those of TLS and of names that nobody knows have other numbers."""
    import ssl

    if isinstance(error, ssl.SSLError):
        return f"TLS handshake failed: {error.reason or error}"
    if error.errno is not None and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno).lower()
    return (error.strerror or str(error) or type(error).__name__).lower()


_NAME = "http-token"
_TOKEN = re.compile(r"[0-9a-f]{64}")
_BYTES_MAX = 100


def given_token() -> str:
    return os.environ.get("HEADRACE_HTTP_TOKEN", "")


def find_token(url: str, path: object) -> str:
    """What the file holds that the server at `url` named; empty if it is none of ours."""
    if not isinstance(path, str) or os.path.basename(path) != _NAME or not _is_local(url):
        return ""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return ""
            text = file.read(_BYTES_MAX).decode("ascii", "replace").strip()
    except OSError:
        return ""
    return text if _TOKEN.fullmatch(text) else ""


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
