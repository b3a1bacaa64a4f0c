"""The JSON API that anyone may call, and the page that reads it.

The API holds no state of its own: it asks the controller in this process and the broker over its
own protocol. Every path but `/health` asks for a broker user by HTTP Basic; running code needs a
user who may manage the server.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from headrace.errors import (
    AlreadyExistsError,
    ConfigError,
    HeadraceError,
    InvalidArgumentError,
    NotFoundError,
    RequestError,
    TooLargeError,
    UnauthenticatedError,
    UnauthorizedError,
)
from headrace.runtime import Runtime

PACKAGE_BYTES_MAX = 32 * 1024 * 1024
PACKAGE_FILES_MAX = 2_000
LOGIN_CACHE_SECONDS = 60.0
LOGIN_CACHE_ENTRIES_MAX = 256


class SubmittedPackage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pipeline as it arrives: the files of the project and which one to run."""

    entry: str
    files: dict[str, bytes]
    name: str = ""
    available_now: bool = False


@dataclass(frozen=True, slots=True)
class Login:
    """What the broker said about a user."""

    username: str
    may_manage: bool


class Pipelines(Protocol):
    """What this layer needs of the controller."""

    async def submit(self, package: SubmittedPackage) -> dict[str, Any]: ...

    def list(self) -> list[dict[str, Any]]: ...

    def show(self, name: str) -> dict[str, Any]: ...

    async def stop(self, name: str) -> None: ...

    async def kill_container(self, name: str, container_id: str) -> None: ...

    async def logs(self, name: str, lines: int) -> str: ...


class Broker(Protocol):
    """What this layer needs of the broker."""

    async def login(self, username: str, password: str) -> Login:
        """UnauthenticatedError when the broker refuses."""

    async def overview(self) -> dict[str, Any]: ...


@dataclass(slots=True)
class Logins:
    """Remembers good logins for a minute: Argon2 on every poll of a page would be a burden.

    Only a keyed digest of the credentials is kept.
    """

    runtime: Runtime
    broker: Broker
    _key: bytes = b""
    _known: dict[bytes, tuple[float, Login]] = field(default_factory=dict)

    async def check(self, request: Request) -> Login:
        username, password = _basic_credentials(request.headers.get("authorization", ""))
        if not self._key:
            self._key = self.runtime.random.bytes(32)
        digest = hmac.digest(self._key, f"{username}\0{password}".encode(), "sha256")
        now = self.runtime.clock.monotonic()
        known = self._known.get(digest)
        if known is not None and known[0] > now:
            return known[1]
        login = await self.broker.login(username, password)
        if len(self._known) >= LOGIN_CACHE_ENTRIES_MAX:
            self._known.clear()
        self._known[digest] = (now + LOGIN_CACHE_SECONDS, login)
        return login


def _basic_credentials(header: str) -> tuple[str, str]:
    scheme, _, encoded = header.partition(" ")
    try:
        text = base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise UnauthenticatedError("the Authorization header is not valid") from error
    username, colon, password = text.partition(":")
    if scheme.lower() != "basic" or not colon:
        raise UnauthenticatedError("log in with a user of the broker")
    return username, password


_STATUS: tuple[tuple[type[HeadraceError], int], ...] = (
    (UnauthenticatedError, 401),
    (UnauthorizedError, 403),
    (NotFoundError, 404),
    (AlreadyExistsError, 409),
    (TooLargeError, 413),
    (InvalidArgumentError, 400),
    (ConfigError, 400),
    (RequestError, 400),
    (HeadraceError, 503),
)


def _error_response(_request: Request, error: Exception) -> Response:
    code = next(status for kind, status in _STATUS if isinstance(error, kind))
    headers = {"WWW-Authenticate": 'Basic realm="headrace"'} if code == 401 else None
    return JSONResponse({"error": str(error)}, status_code=code, headers=headers)


def _decode_package(body: bytes) -> SubmittedPackage:
    try:
        package = msgspec.json.decode(body, type=SubmittedPackage)
    except msgspec.DecodeError as error:
        raise InvalidArgumentError(f"not a pipeline package: {error}") from error
    if len(package.files) > PACKAGE_FILES_MAX:
        raise TooLargeError(f"a package holds at most {PACKAGE_FILES_MAX} files")
    for path in (package.entry, *package.files):
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts or "\0" in path or "\\" in path:
            raise InvalidArgumentError(f"not a path inside the package: {path!r}")
    if package.entry not in package.files:
        raise InvalidArgumentError(f"the package has no file {package.entry!r}")
    return package


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > PACKAGE_BYTES_MAX:
            raise TooLargeError(f"a package is at most {PACKAGE_BYTES_MAX} bytes")
    return bytes(body)


def create_app(runtime: Runtime, pipelines: Pipelines, broker: Broker, page: str) -> Starlette:
    """The ASGI application. `page` is the dashboard's HTML."""
    logins = Logins(runtime, broker)

    def route(
        path: str,
        answer: Callable[[Request], Awaitable[Response]],
        method: str = "GET",
        *,
        manage: bool = False,
    ) -> Route:
        async def endpoint(request: Request) -> Response:
            login = await logins.check(request)
            if manage and not login.may_manage:
                raise UnauthorizedError(f"user {login.username} may not manage pipelines")
            return await answer(request)

        return Route(path, endpoint, methods=[method])

    async def health(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def dashboard(_request: Request) -> Response:
        return HTMLResponse(page)

    async def overview(_request: Request) -> Response:
        return JSONResponse({**await broker.overview(), "pipelines": pipelines.list()})

    async def list_pipelines(_request: Request) -> Response:
        return JSONResponse(pipelines.list())

    async def show_pipeline(request: Request) -> Response:
        return JSONResponse(pipelines.show(request.path_params["name"]))

    async def submit(request: Request) -> Response:
        # A form cannot send this type, so no foreign page can submit code with a browser's login.
        if request.headers.get("content-type") != "application/json":
            raise InvalidArgumentError("send the package as application/json")
        return JSONResponse(await pipelines.submit(_decode_package(await _read_body(request))), 201)

    async def stop(request: Request) -> Response:
        await pipelines.stop(request.path_params["name"])
        return JSONResponse(pipelines.show(request.path_params["name"]))

    async def kill(request: Request) -> Response:
        await pipelines.kill_container(
            request.path_params["name"], request.path_params["container"]
        )
        return JSONResponse({}, 202)

    async def logs(request: Request) -> Response:
        text = request.query_params.get("lines", "100")
        if not text.isdigit() or not 1 <= int(text) <= 10_000:
            raise InvalidArgumentError("lines must be 1 to 10000")
        return PlainTextResponse(await pipelines.logs(request.path_params["name"], int(text)))

    return Starlette(
        routes=[
            Route("/health", health),
            route("/", dashboard),
            route("/api/overview", overview),
            route("/api/pipelines", list_pipelines),
            route("/api/pipelines", submit, "POST", manage=True),
            route("/api/pipelines/{name}", show_pipeline),
            route("/api/pipelines/{name}/stop", stop, "POST", manage=True),
            route("/api/pipelines/{name}/containers/{container}/kill", kill, "POST", manage=True),
            route("/api/pipelines/{name}/logs", logs),
        ],
        exception_handlers={HeadraceError: _error_response},
    )
