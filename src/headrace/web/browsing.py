"""Messages as a person reads them: JSON, text, Arrow tables, bytes in hexadecimal. Pure.

What is shown of one message is bounded; `truncated` says that there is more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from headrace.errors import WireError
from headrace.web import broker_types as t
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.userheaders import UserHeader, split_key

VALUE_BYTES_MAX = 64 * 1024
HEX_BYTES_MAX = 4 * 1024
ARROW_ROWS_MAX = 50
ARROW_BYTES_MAX = 16 * 1024 * 1024
_CELL_MAX = 500
_ARROW_STREAM = b"\xff\xff\xff\xff"  # continuation marker of the IPC stream format
_ARROW_FILE = b"ARROW1"
_CONTROL = frozenset(range(32)) - {9, 10, 13}

Format = Literal["auto", "json", "text", "arrow", "hex"]


def message_row(partition: int, message: Message, wanted: Format = "auto") -> t.MessageRow:
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
    for read in _readers(wanted):
        found = read(payload)
        if found is not None:
            return msgspec.structs.replace(row, **found)
    return msgspec.structs.replace(row, **_hexadecimal(payload))


def matches(row_payload: bytes, message: Message, words: bytes) -> bool:
    """Whether `words` (lower case) stand in the payload, the key or a header."""
    return words in row_payload.lower() or words in bytes(message.headers).lower()


def _readers(wanted: Format) -> Iterable[Any]:
    return {
        "auto": (_arrow, _json, _text),
        "json": (_json, _text),
        "text": (_forced_text,),
        "arrow": (_arrow,),
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
        return {"format": "json", "value": msgspec.json.format(payload, indent=2).decode()}
    return None


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


def _arrow(payload: bytes) -> dict[str, Any] | None:
    """Arrow IPC, stream or file. Without pyarrow (it comes with the extra `spark`): nothing."""
    if not payload.startswith((_ARROW_STREAM, _ARROW_FILE)) or len(payload) > ARROW_BYTES_MAX:
        return None
    try:
        import pyarrow as pa
    except ImportError:
        return None
    try:
        opens = pa.ipc.open_file if payload.startswith(_ARROW_FILE) else pa.ipc.open_stream
        table = opens(payload).read_all()
        head = table.slice(0, ARROW_ROWS_MAX).to_pylist()
    except (pa.ArrowException, ValueError, OSError):
        return None
    names = table.schema.names
    shown = t.ArrowTable(
        columns=[t.ArrowColumn(name=one.name, type=str(one.type)) for one in table.schema],
        rows=[[_cell(row[name]) for name in names] for row in head],
        count=table.num_rows,
    )
    return {"format": "arrow", "table": shown, "truncated": table.num_rows > len(head)}


def _cell(value: Any) -> str | None:
    if value is None:
        return None
    text = _plain(value) if isinstance(value, bytes) else str(value)
    return text if len(text) <= _CELL_MAX else f"{text[:_CELL_MAX]}…"
