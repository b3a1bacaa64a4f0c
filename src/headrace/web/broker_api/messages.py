"""Messages of a topic for a person: read, searched, shown and sent, as the user who asks.

One request looks at a bounded number of messages and bytes: `next_offset` says where to go on. A
payload is shown as JSON, text or hexadecimal bytes; what is shown of one message is bounded, and
`truncated` says that there is more. Decoding is done away from the event loop, and of Arrow tables
away from this process (`arrow_reader`), as they may kill who reads them.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import msgspec
from starlette.requests import Request

from headrace.client.iggy import IggyClient
from headrace.errors import InvalidArgumentError, NotFoundError, WireError
from headrace.runtime import Executor
from headrace.web.broker_api import types as t
from headrace.web.broker_api.arrow_reader import ArrowReader, Table
from headrace.web.broker_api.arrow_worker import looks_like_arrow
from headrace.web.server.endpoints import Endpoint, NumberParameter, TextParameter
from headrace.web.server.logins import Broker
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.messages.topics import PartitionInfo
from headrace.wire.iggy.primitives import Partitioning, Strategy
from headrace.wire.iggy.user_headers import UserHeader, encode_headers, key_header, split_key

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


TOPIC = "/api/v1/streams/{stream}/topics/{topic}"
MESSAGES_MAX = 500
SCANNED_MAX = 10_000
POLLED_BYTES_MAX = 4 * 1024 * 1024
PAGE_BYTES_MAX = 8 * 1024 * 1024  # of the messages in an answer; one that is larger comes alone
SCANNED_BYTES_MAX = 64 * 1024 * 1024
BROWSED_AT_ONCE_MAX = 4
_PARTITION = NumberParameter("partition", "Of this partition.", most=2**32 - 1)
_OFFSET = NumberParameter("offset", "From this offset on.")
_TIME = NumberParameter("time_ms", "From this time on; before `offset`.", most=2**53)
_LIMIT = NumberParameter("limit", "At most so many.", default=50, most=MESSAGES_MAX, least=1)
_SEARCH = TextParameter(
    "search", "Only those with this in payload, key or headers.", characters_max=200
)
_FORMAT = TextParameter("format", "How to show payloads.", choices=get_args(Format))


@dataclass(frozen=True, slots=True)
class Search:
    """`start`: an offset, a time, or None for the newest."""

    stream: str
    topic: str
    partition: PartitionInfo
    limit: int
    offset: int | None
    time_ms: int | None
    words: bytes
    wanted: Format

    def strategy(self) -> Strategy:
        if self.time_ms is not None:
            return Strategy.timestamp(self.time_ms * 1000)
        if self.offset is not None:
            return Strategy.offset(self.offset)
        if self.words:
            back = min(SCANNED_MAX, SCANNED_BYTES_MAX // self._size)
        else:
            back = min(self.limit, PAGE_BYTES_MAX // self._size)
        return Strategy.offset(max(0, self.partition.next_offset - max(1, back)))

    @property
    def _size(self) -> int:
        """Of a message, on the whole."""
        return self.partition.size_bytes // max(1, self.partition.messages_count) + 64

    def batch(self) -> int:
        """How many to poll at once, so that an answer stays small."""
        most = SCANNED_MAX if self.words else self.limit
        return max(1, min(1000, most, POLLED_BYTES_MAX // self._size))


def endpoints(broker: Broker, executor: Executor, arrow: ArrowReader) -> list[Endpoint]:
    browsing = asyncio.Semaphore(BROWSED_AT_ONCE_MAX)

    async def browse(request: Request) -> t.Messages:
        async with browsing:
            return await answer(request)

    async def answer(request: Request) -> t.Messages:
        async with broker.as_user(request.state.credentials) as client:
            search = await _search(client, request)
            found, scanned, next_offset = await _collect(client, search)
        seem = [n for n, one in enumerate(found) if may_be_arrow(one.payload, search.wanted)]
        read = await arrow.read([found[n].payload for n in seem])
        rows = await executor.run(_rows, search, found, dict(zip(seem, read, strict=True)))
        return t.Messages(
            messages=rows,
            partition=search.partition.id,
            start_offset=search.partition.start_offset,
            end_offset=search.partition.next_offset,
            next_offset=next_offset,
            scanned=scanned,
        )

    async def send(request: Request, wanted: t.SendMessage) -> t.Done:
        message, partitioning = _message(wanted)
        names = request.path_params["stream"], request.path_params["topic"]
        async with broker.as_user(request.state.credentials) as client:
            await client.send(*names, [message], partitioning=partitioning)
        return t.Done(detail=f"{len(message.payload)} bytes")

    return [
        Endpoint(
            "GET",
            f"{TOPIC}/messages",
            browse,
            "Messages from an offset or a time on, or the newest.",
            query=(_PARTITION, _OFFSET, _TIME, _LIMIT, _SEARCH, _FORMAT),
        ),
        Endpoint("POST", f"{TOPIC}/messages", send, "Send a message.", status=201),
    ]


async def _search(client: IggyClient, request: Request) -> Search:
    stream, topic = request.path_params["stream"], request.path_params["topic"]
    wanted, words = _FORMAT.read(request, "auto"), _SEARCH.read(request)
    number, limit = _PARTITION.read(request), _LIMIT.read(request)
    offset, time_ms = _OFFSET.find(request), _TIME.find(request)
    details = await client.get_topic(stream, topic)
    if details is None:
        raise NotFoundError(f"there is no topic {stream}/{topic}")
    partition = next((one for one in details.partitions if one.id == number), None)
    if partition is None:
        raise NotFoundError(f"{stream}/{topic} has no partition {number}")
    return Search(
        stream=stream,
        topic=topic,
        partition=partition,
        limit=limit,
        offset=offset,
        time_ms=time_ms,
        words=words.lower().encode(),
        wanted=cast(Format, wanted),
    )


async def _collect(client: IggyClient, search: Search) -> tuple[list[Message], int, int]:
    """Messages that match, how many were looked at, and the offset to go on from.

    From a point on: the first ones. The newest: the last ones before the end. Either way as many as
    fit a page, and one at least.
    """
    page = _Page(search)
    scanned = scanned_bytes = 0
    position, strategy = search.offset or 0, search.strategy()
    while scanned < SCANNED_MAX and scanned_bytes < SCANNED_BYTES_MAX and not page.is_full:
        polled = await client.poll(
            search.stream,
            search.topic,
            partition=search.partition.id,
            strategy=strategy,
            count=search.batch(),
        )
        messages = polled.messages()
        for message in messages:
            matching = not search.words or matches(message.payload, message, search.words)
            if matching and not page.put(message):
                break
            scanned += 1
            scanned_bytes += len(message.payload)
            position = message.offset + 1
        if not messages or position >= search.partition.next_offset:
            break
        strategy = Strategy.offset(position)
    return list(page.found), scanned, position


class _Page:
    def __init__(self, search: Search) -> None:
        self.found: deque[Message] = deque()
        self.is_full = False
        self._limit = search.limit
        self._newest = search.offset is None and search.time_ms is None
        self._bytes = 0

    def put(self, message: Message) -> bool:
        """False when there is no room; for the newest what came first makes it."""
        size = len(message.payload) + len(message.headers)
        while self.found and (
            len(self.found) >= self._limit or self._bytes + size > PAGE_BYTES_MAX
        ):
            if not self._newest:
                self.is_full = True
                return False
            oldest = self.found.popleft()
            self._bytes -= len(oldest.payload) + len(oldest.headers)
        self.found.append(message)
        self._bytes += size
        self.is_full = not self._newest and len(self.found) >= self._limit
        return True


def _rows(
    search: Search, found: Sequence[Message], arrow: Mapping[int, Table | str]
) -> list[t.MessageRow]:
    return [
        message_row(search.partition.id, one, search.wanted, arrow.get(number))
        for number, one in enumerate(found)
    ]


def _message(wanted: t.SendMessage) -> tuple[Message, Partitioning]:
    if wanted.encoding == "base64":
        try:
            payload = base64.b64decode(wanted.value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidArgumentError("value is not base64") from error
    else:
        payload = wanted.value.encode()
    key = (wanted.key or "").encode()
    headers = encode_headers(UserHeader.of(name, value) for name, value in wanted.headers.items())
    message = Message(payload=payload, headers=key_header(key) + headers)
    if wanted.partition is not None:
        return message, Partitioning.to_partition(wanted.partition)
    return message, Partitioning.by_key(key) if key else Partitioning.balanced()
