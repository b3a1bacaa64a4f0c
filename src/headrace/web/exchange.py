"""Requests and answers of the JSON API: bodies with a limit, numbers in a query, JSON out."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import InvalidArgumentError

BODY_BYTES_MAX = 1024 * 1024
NUMBER_MAX = 2**63 - 1

T = TypeVar("T")


async def read_body(request: Request, kind: type[T], default: T | None = None) -> T:
    """What was sent, as `kind`; nothing at all is the default where there is one."""
    body = await _read(request)
    if not body and default is not None:
        return default
    # A form cannot send this type, so no foreign page can act with a browser's login.
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise InvalidArgumentError("send application/json")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"not what this path takes: {error}") from error


async def _read(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise InvalidArgumentError(f"a request is at most {BODY_BYTES_MAX} bytes")
    return bytes(body)


def query_number(
    request: Request, name: str, default: int, most: int = NUMBER_MAX, *, least: int = 0
) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit()) or not least <= int(text[:20]) <= most:
        raise InvalidArgumentError(f"{name} must be {least} to {most}")
    return int(text)


def json_answer(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
