"""Paths of the HTTP interface, each declared once, served, and described as OpenAPI 3.1.

An `Endpoint` says what a path takes, what it gives, who may ask and what it is for; the types of
body and answer are those of its handler. `Entrance` makes the routes that Starlette serves, each
behind the login that it asks for, and `openapi_document` describes the same endpoints.

Handlers read requests and write answers with the functions here: bodies with a limit, parameters of
a query, JSON out.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, get_type_hints

import msgspec
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.errors import InvalidArgumentError, RequestError, UnauthorizedError
from headrace.web.server.logins import TOKEN_HEADER, CodeToken, Login, Logins, check_origin

BODY_BYTES_MAX = 1024 * 1024
NUMBER_MAX = 2**63 - 1
_DIGITS_MAX = 20

T = TypeVar("T")


async def read_body(request: Request, kind: type[T], default: T | None = None) -> T:
    """What was sent, as `kind`; nothing at all is the default where there is one."""
    most = BODY_BYTES_MAX
    refusal = InvalidArgumentError(f"a request is at most {most} bytes")
    body = await read_bytes(request, most, refusal)
    if not body and default is not None:
        return default
    # A form cannot send this type, so no foreign page can act with a browser's login.
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise InvalidArgumentError("send application/json")
    return decode_json(body, kind, "what this path takes")


def decode_json(body: bytes, kind: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgumentError(f"not {what}: {error}") from error


async def read_values(request: Request) -> dict[str, Any]:
    """An object of whatever the path's owner takes, with numbers that can be kept."""
    values = await read_body(request, dict[str, Any])
    check_numbers(values)
    return values


def check_numbers(value: Any) -> None:
    """JSON has integers of any length; journals, and Spark, have 64 bits."""
    if isinstance(value, dict):
        for each in value.values():
            check_numbers(each)
    elif isinstance(value, list):
        for each in value:
            check_numbers(each)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidArgumentError("a whole number is at least -2^63 and less than 2^63")


async def read_bytes(request: Request, most: int, refusal: RequestError) -> bytes:
    """The body; `refusal` is raised as soon as more than `most` bytes have come."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise refusal
    return bytes(body)


@dataclass(frozen=True, slots=True)
class TextParameter:
    """A parameter of a query that is text; `choices` and `characters_max` bound it."""

    name: str
    description: str
    choices: tuple[str, ...] = ()
    characters_max: int | None = None
    pattern: str = ""
    """Described, not checked: whoever reads the parameter knows more."""
    required: bool = False
    upper: bool = False
    """Whether small letters stand for capitals."""

    @property
    def schema(self) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "string"}
        if self.choices:
            found["enum"] = list(self.choices)
        if self.characters_max is not None:
            found["maxLength"] = self.characters_max
        if self.pattern:
            found["pattern"] = self.pattern
        return found

    def read(self, request: Request, default: str = "") -> str:
        given = request.query_params.get(self.name, default)
        text = given.upper() if self.upper else given
        if self.choices and text not in (*self.choices, default):
            raise InvalidArgumentError(f"{self.name} is one of {', '.join(self.choices)}")
        if self.characters_max is not None and len(text) > self.characters_max:
            raise InvalidArgumentError(f"{self.name} has at most {self.characters_max} characters")
        return text


@dataclass(frozen=True, slots=True)
class NumberParameter:
    """A parameter of a query that is a whole number, `least` to `most`."""

    name: str
    description: str
    default: int = 0
    most: int = NUMBER_MAX
    least: int = 0
    required: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}

    def read(self, request: Request) -> int:
        text = request.query_params.get(self.name, str(self.default))
        # Not every digit is one of ours, and Python reads no number of thousands of them.
        digits = text.lstrip("0") or "0"
        right = text.isascii() and text.isdigit() and len(digits) <= _DIGITS_MAX
        if not right or not self.least <= int(digits) <= self.most:
            raise InvalidArgumentError(f"{self.name} must be {self.least} to {self.most}")
        return int(digits)

    def find(self, request: Request) -> int | None:
        """The number, or None where the query does not have it."""
        return self.read(request) if self.name in request.query_params else None


Parameter: TypeAlias = TextParameter | NumberParameter


def json_answer(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


class _NumberConvertor(Convertor[int]):
    """`{id:number}` in a path: as Starlette's `int`, of a length that Python reads."""

    regex = "[0-9]{1,18}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("number", _NumberConvertor())


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
            Route(path, ServedEndpoint(self, one).serve, methods=[one.method], name=path)
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


class ServedEndpoint:
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


VERSION = "3.1.0"
_PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}")
_ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
}


def openapi_document(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    kinds = [
        kind for one in endpoints for kind in (one.body_type, one.answer_type) if kind is not None
    ]
    found, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    schemas = dict(zip(map(repr, kinds), found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        row = paths.setdefault(plain_path(one.path), {})
        row[one.method.lower()] = _operation(one, schemas)
    return {
        "openapi": VERSION,
        "info": {"title": "Headrace", "version": version},
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {"user": {"type": "http", "scheme": "basic"}},
        },
    }


def plain_path(path: str) -> str:
    """A path without the types that the router puts into its parameters."""
    return _PARAMETER.sub(r"{\1}", path)


def _operation(one: Endpoint, schemas: Mapping[str, Any]) -> dict[str, Any]:
    path = plain_path(one.path)
    operation: dict[str, Any] = {
        "operationId": f"{one.method.lower()}{re.sub(r'[^A-Za-z0-9]+', '_', path)}".rstrip("_"),
        "summary": one.summary,
        "parameters": [*_path_parameters(one.path), *_query_parameters(one)],
        "responses": _responses(one, schemas),
        "security": [{"user": []}] if one.login else [],
    }
    if one.manage:
        operation["description"] = "Needs a user who may manage the server."
    if one.body_type is not None:
        schema = schemas[repr(one.body_type)]
        content = {JSON: {"schema": schema}}
        operation["requestBody"] = {"required": one.body_required, "content": content}
    return operation


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "integer" if kind == "number" else "string"},
        }
        for name, kind in _PARAMETER.findall(path)
    ]


def _query_parameters(one: Endpoint) -> list[dict[str, Any]]:
    return [
        {
            "name": parameter.name,
            "in": "query",
            "description": parameter.description,
            "schema": parameter.schema,
            "required": parameter.required,
        }
        for parameter in one.query
    ]


def _responses(one: Endpoint, schemas: Mapping[str, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "Found." if one.method == "GET" else "Done."}
    kind = one.answer_type
    if one.media_type != JSON:
        good["content"] = {one.media_type: {"schema": {"type": "string"}}}
    elif kind is not None:
        good["content"] = {JSON: {"schema": schemas[repr(kind)]}}
    if one.path == "/ready":
        return {"2XX": good, "503": {**good, "description": "Not now, and why."}}
    error = {
        "description": "Why not.",
        "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    return {"2XX": good, **dict.fromkeys(_refusals(one), error)}


def _refusals(one: Endpoint) -> list[str]:
    """Statuses of what may be wrong with a request to it, or with the broker behind it."""
    changes = one.method != "GET"
    codes = ["400"]
    codes += ["401"] if one.login or one.body_type is not None else []
    codes += ["403"] if one.login or changes else []
    codes += ["404"] if "{" in one.path else []
    codes += ["409", "413"] if changes else []
    codes += ["503"] if one.login or changes else []
    return codes
