"""The dashboard's files: read once, served from memory, revalidated by their tag.

They are public, as they hold nothing but the program; what they show comes from the API, which
asks for a login. The policy lets a page load from this server alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.errors import NotFoundError

PAGE = "index.html"
_PRELOADS = b"<!-- modules -->"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "json": "application/json",
}
_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Asset:
    body: bytes
    media_type: str
    tag: str


def load_assets() -> dict[str, Asset]:
    """Load the files of the pages, by their path below `static`. Blocks: it reads files."""
    found = dict(_walk(files("headrace.web") / "static", ""))
    modules = sorted(name for name in found if name.endswith(".js") and name != "theme.js")
    # Without this a browser learns of a module only from the one that imports it.
    links = b"".join(
        b'<link rel="modulepreload" href="/static/%s">\n' % m.encode() for m in modules
    )
    found[PAGE] = found[PAGE].replace(_PRELOADS, links)
    return {name: _asset(name, body) for name, body in found.items()}


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for one in folder.iterdir():
        if one.is_dir():
            yield from _walk(one, f"{prefix}{one.name}/")
        elif one.name.rpartition(".")[2] in _TYPES:
            yield prefix + one.name, one.read_bytes()


def _asset(name: str, body: bytes) -> Asset:
    return Asset(
        body, _TYPES[name.rpartition(".")[2]], f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    )


def answer_asset(assets: Mapping[str, Asset]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        name = request.path_params.get("path", PAGE)
        asset = assets.get(name)
        if asset is None:
            raise NotFoundError("no such file", path=name)
        headers = {"etag": asset.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == asset.tag:
            return Response(status_code=304, headers=headers)
        return Response(asset.body, media_type=asset.media_type, headers=headers)

    return answer


class SecurityHeaders:
    """Puts the policy on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, send_with if scope["type"] == "http" else send)
