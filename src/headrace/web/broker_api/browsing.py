"""Messages as a person reads them: JSON, text, bytes in hexadecimal. Pure.

Arrow tables are read elsewhere (`arrow_reader`), as they may kill who reads them. What is shown of
one message is bounded; `truncated` says that there is more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from headrace.errors import WireError
from headrace.web.broker_api import types as t
from headrace.web.broker_api.arrow_reader import Table
from headrace.web.broker_api.arrow_worker import looks_like_arrow
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.user_headers import UserHeader, split_key

VALUE_BYTES_MAX = 64 * 1024
HEX_BYTES_MAX = 4 * 1024
_FORMATTED_BYTES_MAX = 1024 * 1024
_BRACKETS = b"[]{}"
_OTHERS = bytes(set(range(256)) - set(_BRACKETS))
_CONTROL = frozenset(range(32)) - {9, 10, 13}

Format = Literal["auto", "json", "text", "arrow", "hex"]


def message_row(
    partition: int, message: Message, wanted: Format = "auto", arrow: Table | str | None = None
) -> t.MessageRow:
    """`arrow` is what the payload is as Arrow, or why it could not be read so."""
    key, headers = _split(message)
    payload = message.payload
    row = t.MessageRow(
        partition=partition,
        offset=message.offset,
        timestamp_ms=message.timestamp_us // 1000,
        origin_timestamp_ms=message.origin_timestamp_us // 1000,
        id=f"{message.id:032x}",
        key=None if key is None else _plain(key),
        headers=[_header(one) for one in headers],
        bytes=len(payload),
        format="empty",
        value="",
        truncated=False,
    )
    if not payload:
        return row
    if isinstance(arrow, Table):
        return msgspec.structs.replace(row, format="arrow", table=arrow.table, truncated=arrow.more)
    row = msgspec.structs.replace(row, note=arrow or "")
    for read in _readers(wanted):
        found = read(payload)
        if found is not None:
            return msgspec.structs.replace(row, **found)
    return msgspec.structs.replace(row, **_hexadecimal(payload))


def matches(row_payload: bytes, message: Message, words: bytes) -> bool:
    """Whether `words` (lower case) stand in the payload, the key or a header."""
    return words in row_payload.lower() or words in bytes(message.headers).lower()


def may_be_arrow(payload: bytes, wanted: Format) -> bool:
    """Whether to try to read it so."""
    return wanted in ("auto", "arrow") and looks_like_arrow(payload)


def _readers(wanted: Format) -> Iterable[Any]:
    return {
        "auto": (_json, _text),
        "json": (_json, _text),
        "text": (_forced_text,),
        "arrow": (),
        "hex": (),
    }[wanted]


def _split(message: Message) -> tuple[bytes | None, tuple[UserHeader, ...]]:
    try:
        return split_key(message.headers)
    except WireError:
        return None, ()  # they are the producer's, and opaque to the server


def _header(header: UserHeader) -> t.MessageHeader:
    value = header.python_value()
    shown = _plain(value) if isinstance(value, bytes) else str(value)
    return t.MessageHeader(name=_plain(header.key), kind=header.kind.name.lower(), value=shown)


def _plain(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def _json(payload: bytes) -> dict[str, Any] | None:
    """Numbers are not read as such, so none is rounded on its way to a browser."""
    if len(payload) > VALUE_BYTES_MAX or payload.lstrip()[:1] not in b'{["-0123456789tfn':
        return None
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        msgspec.json.decode(payload)
        indent = 2 if _indented_bytes(payload) <= _FORMATTED_BYTES_MAX else 0
        return {"format": "json", "value": msgspec.json.format(payload, indent=indent).decode()}
    return None


def _indented_bytes(payload: bytes) -> int:
    """At most so long is it with indents: thousands of brackets in each other make a kilobyte of
    every comma. Brackets in strings count as well, which only ever makes it less pretty."""
    brackets = payload.translate(None, _OTHERS)
    depth = deepest = 0
    for one in brackets:
        depth += 1 if one in b"[{" else -1
        deepest = max(deepest, depth)
    return len(payload) + (len(brackets) + payload.count(b",")) * (2 * deepest + 1)


def _text(payload: bytes) -> dict[str, Any] | None:
    head = payload[:VALUE_BYTES_MAX]
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if len(head) == len(payload) or error.start < len(head) - 3:
            return None
        text = head[: error.start].decode()  # the cut went through a character
    if any(ord(one) in _CONTROL for one in text[:2048]):
        return None
    return {"format": "text", "value": text, "truncated": len(payload) > len(head)}


def _forced_text(payload: bytes) -> dict[str, Any]:
    text = payload[:VALUE_BYTES_MAX].decode("utf-8", "replace")
    return {"format": "text", "value": text, "truncated": len(payload) > VALUE_BYTES_MAX}


def _hexadecimal(payload: bytes) -> dict[str, Any]:
    shown = payload[:HEX_BYTES_MAX]
    return {"format": "hex", "value": shown.hex(), "truncated": len(payload) > len(shown)}
