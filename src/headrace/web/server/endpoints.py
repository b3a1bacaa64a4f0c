"""Paths of the HTTP interface, each declared once.

An `Endpoint` says what a path takes, what it gives, who may ask and what it is for; the types of
body and answer are those of its handler. `Entrance` makes the routes that Starlette serves, each
behind the login that it asks for, and `headrace.web.openapi` describes the same endpoints.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, get_type_hints

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.errors import UnauthorizedError
from headrace.web.server.exchange import Parameter, json_answer, read_body
from headrace.web.server.logins import TOKEN_HEADER, CodeToken, Login, Logins, check_origin

JSON = "application/json"
_READING = ("GET", "HEAD")

Handler: TypeAlias = Callable[..., Awaitable[Any]]
"""Takes the request, and the body as a second argument where the path has one; a body with a
default may be left out. What it returns becomes JSON, unless it is a whole response."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    method: str
    path: str
    handler: Handler
    summary: str
    query: tuple[Parameter, ...] = ()
    status: int = 200
    """Of an answer that is no whole response."""
    login: bool = True
    """Whether it asks for a user of the broker."""
    manage: bool = False
    """Whether that user must be one who may manage the server."""
    runs_code: bool = False
    """Whether it runs what it is given, so that a password that everybody knows is not enough."""
    first: Callable[[Request], object] | None = None
    """Raises what the path itself is wrong about, before anybody looks at the body."""
    body: Any = None
    """For a handler that reads the body itself."""
    answer: Any = None
    """For a handler whose own type does not say it: one that makes the whole response, or an
    object that is laid out by hand."""
    media_type: str = JSON
    former_path: str = ""
    """Served as well, and described nowhere: where the path was before `/api/v1`."""

    @property
    def body_type(self) -> Any:
        """None: it takes none."""
        return self.body or _body_parameter(self.handler)[0]

    @property
    def body_required(self) -> bool:
        return _body_parameter(self.handler)[1] is None

    @property
    def answer_type(self) -> Any:
        """None: nothing, or a response that is not described."""
        if self.answer is not None:
            return self.answer
        found = get_type_hints(self.handler)["return"]
        return None if found is Response else found


def _body_parameter(handler: Handler) -> tuple[Any, Any]:
    """The type of a handler's second argument and its default; None each where there is none."""
    parameters = list(inspect.signature(handler).parameters.values())
    if len(parameters) < 2:
        return None, None
    default = parameters[1].default
    kind = get_type_hints(handler)[parameters[1].name]
    return kind, None if default is inspect.Parameter.empty else default


Guard: TypeAlias = Callable[[Login, Request], None]
"""Raises where this user may not ask for what the path names."""


@dataclass(frozen=True, slots=True)
class Entrance:
    """Lets in who may ask, and no others."""

    logins: Logins
    code_token: CodeToken
    guard_of: Callable[[str], Guard | None]
    """By path."""

    def routes(self, endpoints: Iterable[Endpoint]) -> list[Route]:
        return [
            Route(path, Served(self, one).serve, methods=[one.method], name=path)
            for one in endpoints
            for path in filter(None, (one.path, one.former_path))
        ]

    async def admit(self, request: Request, endpoint: Endpoint, guard: Guard | None) -> None:
        login = await self.logins.check(request)
        if endpoint.manage and not login.may_manage:
            raise UnauthorizedError(f"user {login.username} may not manage pipelines")
        if request.method not in _READING:
            check_origin(request)
        if guard is not None:
            guard(login, request)
        if endpoint.runs_code:
            given = request.headers.get(TOKEN_HEADER, "")
            self.code_token.check(request.state.credentials, given)


class Served:
    """One endpoint behind the entrance. Its `serve` is what the router gets."""

    def __init__(self, entrance: Entrance, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._entrance = entrance
        self._guard = entrance.guard_of(endpoint.path)
        self._body, self._default = _body_parameter(endpoint.handler)

    async def serve(self, request: Request) -> Response:
        endpoint = self.endpoint
        if endpoint.login:
            await self._entrance.admit(request, endpoint, self._guard)
        if endpoint.first is not None:
            endpoint.first(request)
        if self._body is None:
            value = await endpoint.handler(request)
        else:
            body = await read_body(request, self._body, self._default)
            value = await endpoint.handler(request, body)
        return value if isinstance(value, Response) else json_answer(value, endpoint.status)
