"""Requests and answers of the JSON API: bodies with a limit, parameters of a query, JSON out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import msgspec
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import InvalidArgumentError, RequestError

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
class Text:
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
class Number:
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


Parameter: TypeAlias = Text | Number


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
