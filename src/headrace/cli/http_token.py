"""The token that running code takes beside the well-known password of `headrace up --dev`.

A server that asks for it says in which of its files it is. Whoever runs the command on the same
machine, as the same user, can read it there and need not be asked. Nothing else is read, whatever
a server says: only a file of that name, of ours, that holds a token, and only for loopback.
"""

from __future__ import annotations

import os
import re
from ipaddress import ip_address
from urllib.parse import urlsplit

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
