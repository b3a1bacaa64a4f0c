"""Messages as lines of text: a line is a payload, or a JSON object with key and headers too."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import InvalidArgumentError

if TYPE_CHECKING:
    from headrace.wire.iggy.messages.messages import Message


def message_of(payload: bytes, key: bytes, headers: Mapping[str, str]) -> Message:
    from headrace.wire.iggy.messages.messages import Message
    from headrace.wire.iggy.userheaders import HeaderKind, UserHeader, encode_headers, key_header

    named = [
        UserHeader(name.encode(), value.encode(), HeaderKind.STRING)
        for name, value in headers.items()
    ]
    return Message(payload=payload, headers=key_header(key) + encode_headers(named))


def parse_line(line: bytes, number: int) -> tuple[bytes, bytes, dict[str, str]]:
    """Payload, key and headers of a JSON line as `consume --json` prints them. A payload that is
    not a string is sent as JSON."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise InvalidArgumentError(f"line {number} is not JSON: {error}") from error
    if not isinstance(found, dict) or not found.keys() & {"payload", "payload_base64"}:
        raise InvalidArgumentError(
            f'line {number} has no payload; it looks like {{"key": "k", "payload": "text"}}'
        )
    key = found.get("key") or ""
    headers = found.get("headers") or {}
    if not isinstance(key, str) or not isinstance(headers, dict):
        raise InvalidArgumentError(f"line {number}: the key is a string, the headers an object")
    texts = {str(name): value if isinstance(value, str) else json.dumps(value)
             for name, value in headers.items()}  # fmt: skip
    return _payload(found, number), key.encode(), texts


def _payload(found: Mapping[str, Any], number: int) -> bytes:
    if "payload_base64" in found:
        try:
            return base64.b64decode(found["payload_base64"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"line {number}: payload_base64 is not base64") from error
    payload = found["payload"]
    text = payload if isinstance(payload, str) else json.dumps(payload, separators=(",", ":"))
    return text.encode()


def parse_headers(given: Iterable[str]) -> dict[str, str]:
    """From `NAME=VALUE`s."""
    headers = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals or not value:
            raise InvalidArgumentError(f"{each!r} is not of the form NAME=VALUE")
        headers[name] = value
    return headers


def as_json(partition: int, message: Message) -> dict[str, Any]:
    from headrace.wire.iggy.userheaders import split_key

    key, headers = split_key(message.headers)
    value: dict[str, Any] = {
        "partition": partition,
        "offset": message.offset,
        "timestamp_us": message.timestamp_us,
        "id": f"{message.id:032x}",
        "key": None if key is None else key.decode("utf-8", "replace"),
    }
    if headers:
        value["headers"] = {
            each.key.decode("utf-8", "replace"): each.value.decode("utf-8", "replace")
            for each in headers
        }
    try:
        value["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        value["payload_base64"] = base64.b64encode(message.payload).decode()
    return value
