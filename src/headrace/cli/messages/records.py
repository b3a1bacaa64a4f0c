"""Messages as lines of text: a line is a payload, or a JSON object with key and headers too."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import HeadraceError, InvalidArgumentError

if TYPE_CHECKING:
    from headrace.wire.iggy.messages.messages import Message


def message_of(payload: bytes, key: bytes, headers: Mapping[str, str]) -> Message:
    from headrace.wire.iggy.messages.messages import Message
    from headrace.wire.iggy.user_headers import HeaderKind, UserHeader, encode_headers, key_header

    named = [
        UserHeader(name.encode(), value.encode(), HeaderKind.STRING)
        for name, value in headers.items()
    ]
    return Message(payload=payload, headers=key_header(key) + encode_headers(named))


def parse_line(line: bytes, number: int | str) -> tuple[bytes, bytes, dict[str, str]]:
    """Payload, key and headers of a JSON line as `consume --json` prints them. A payload that is
    not a string is sent as JSON."""
    return _parse_object(_object(line, number), number)


def _object(line: bytes, number: int | str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"line {number} is not JSON: {error}") from error
    if not isinstance(found, dict) or not found.keys() & {"payload", "payload_base64"}:
        raise InvalidArgumentError(
            f'line {number} has no payload; it looks like {{"key": "k", "payload": "text"}}'
        )
    return found


def _parse_object(
    found: Mapping[str, Any], number: int | str
) -> tuple[bytes, bytes, dict[str, str]]:
    key = found.get("key") or ""
    headers = found.get("headers") or {}
    if not isinstance(key, str) or not isinstance(headers, dict):
        raise InvalidArgumentError(f"line {number}: the key is a string, the headers an object")
    texts = {str(name): value if isinstance(value, str) else json.dumps(value)
             for name, value in headers.items()}  # fmt: skip
    return _payload(found, number), key.encode(), texts


def _payload(found: Mapping[str, Any], number: int | str) -> bytes:
    if "payload_base64" in found:
        try:
            return base64.b64decode(found["payload_base64"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"line {number}: payload_base64 is not base64") from error
    payload = found["payload"]
    text = payload if isinstance(payload, str) else json.dumps(payload, separators=(",", ":"))
    return text.encode()


def parse_headers(given: Iterable[str]) -> dict[str, str]:
    """Make headers from texts like `NAME=VALUE`."""
    headers = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals or not value:
            raise InvalidArgumentError(f"{each!r} is not of the form NAME=VALUE")
        headers[name] = value
    return headers


def as_json(partition: int, message: Message) -> dict[str, Any]:
    from headrace.wire.iggy.user_headers import split_key

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


# --- lines that lose nothing ----------------------------------------------------------------------


def to_line(partition: int, message: Message) -> dict[str, Any]:
    """Write a message as `as_json` does, so that `from_line` gives the same message: what is
    not text is base64."""
    from headrace.wire.iggy.user_headers import HeaderKind, split_key

    key, headers = split_key(message.headers)
    value: dict[str, Any] = {
        "partition": partition,
        "offset": message.offset,
        "timestamp_us": message.timestamp_us,
        "origin_timestamp_us": message.origin_timestamp_us,
        "id": f"{message.id:032x}",
    }
    if key is not None:
        value |= _text_or_base64("key", key)
    plain: dict[str, str] = {}
    for each in headers:
        name, text = _text(each.key), _text(each.value)
        typed = each.kind is not HeaderKind.STRING or each.key_kind is not HeaderKind.STRING
        if not typed and name is not None and text is not None:
            plain[name] = text
    if plain:
        value["headers"] = plain
    if len(plain) < len(headers):  # then all of them stand here, in their order
        value["typed_headers"] = [
            [_base64(each.key), each.key_kind.name, _base64(each.value), each.kind.name]
            for each in headers
        ]
    return value | _text_or_base64("payload", message.payload)


def from_line(line: bytes, number: int | str) -> tuple[Message, int | None]:
    """The message and the partition that a line of `to_line`, or any with a payload, speaks of.

    Its origin timestamp is the line's, else the time at which the message was stored.
    """
    from headrace.wire.iggy.messages.messages import Message
    from headrace.wire.iggy.user_headers import HeaderKind, UserHeader, encode_headers, key_header

    found = _object(line, number)
    payload, key, texts = _parse_object(found, number)
    try:
        if "key_base64" in found:
            key = base64.b64decode(found["key_base64"], validate=True)
        headers = [UserHeader.of(name, value) for name, value in texts.items() if value]
        if "typed_headers" in found:
            headers = [
                UserHeader(
                    base64.b64decode(name, validate=True),
                    base64.b64decode(value, validate=True),
                    HeaderKind[kind],
                    HeaderKind[name_kind],
                )
                for name, name_kind, value, kind in found["typed_headers"]
            ]
        partition = found.get("partition")
        message = Message(
            payload=payload,
            headers=key_header(key) + encode_headers(headers),
            id=int(found.get("id") or "0", 16),
            origin_timestamp_us=int(
                found.get("origin_timestamp_us") or found.get("timestamp_us") or 0
            ),
        )
        return message, None if partition is None else int(partition)
    except (KeyError, TypeError, ValueError, HeadraceError) as error:
        raise InvalidArgumentError(f"line {number}: {error}") from error


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _text_or_base64(name: str, data: bytes) -> dict[str, str]:
    text = _text(data)
    return {f"{name}_base64": _base64(data)} if text is None else {name: text}
