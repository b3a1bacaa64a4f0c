"""Reading and sending messages of a topic, as the user who asks.

One request looks at a bounded number of messages and bytes: `next_offset` says where to go on.
Decoding is done away from the event loop, and of Arrow tables away from this process.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast, get_args

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.client.iggy import IggyClient
from headrace.errors import InvalidArgumentError, NotFoundError
from headrace.runtime import Executor
from headrace.web import broker_types as t
from headrace.web.arrow_reader import ArrowReader, Table
from headrace.web.browsing import Format, matches, may_be_arrow, message_row
from headrace.web.exchange import json_answer, query_number, read_body
from headrace.web.logins import Broker
from headrace.web.stram import AddRoute
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.messages.topics import PartitionInfo
from headrace.wire.iggy.primitives import Partitioning, Strategy
from headrace.wire.iggy.userheaders import UserHeader, encode_headers, key_header

TOPIC = "/api/v1/streams/{stream}/topics/{topic}"
MESSAGES_MAX = 500
SCANNED_MAX = 10_000
POLLED_BYTES_MAX = 4 * 1024 * 1024
_WORDS_MAX = 200


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

    @property
    def end(self) -> int:
        return self.partition.current_offset + 1 if self.partition.messages_count else 0

    def strategy(self) -> Strategy:
        if self.time_ms is not None:
            return Strategy.timestamp(self.time_ms * 1000)
        if self.offset is not None:
            return Strategy.offset(self.offset)
        back = SCANNED_MAX if self.words else self.limit
        return Strategy.offset(max(0, self.end - back))

    def batch(self) -> int:
        """How many to poll at once, so that an answer stays small."""
        size = self.partition.size_bytes // max(1, self.partition.messages_count) + 64
        most = SCANNED_MAX if self.words else self.limit
        return max(1, min(1000, most, POLLED_BYTES_MAX // size))


def routes(add: AddRoute, broker: Broker, executor: Executor, arrow: ArrowReader) -> list[Route]:
    async def browse(request: Request) -> Response:
        async with broker.as_user(request.state.credentials) as client:
            search = await _search(client, request)
            found, scanned, next_offset = await _collect(client, search)
        seem = [n for n, one in enumerate(found) if may_be_arrow(one.payload, search.wanted)]
        read = await arrow.read([found[n].payload for n in seem])
        rows = await executor.run(_rows, search, found, dict(zip(seem, read, strict=True)))
        return json_answer(
            t.Messages(
                messages=rows,
                partition=search.partition.id,
                start_offset=max(0, search.end - search.partition.messages_count),
                end_offset=search.end,
                next_offset=next_offset,
                scanned=scanned,
            )
        )

    async def send(request: Request) -> Response:
        wanted = await read_body(request, t.SendMessage)
        message, partitioning = _message(wanted)
        names = request.path_params["stream"], request.path_params["topic"]
        async with broker.as_user(request.state.credentials) as client:
            await client.send(*names, [message], partitioning=partitioning)
        return json_answer(t.Done(detail=f"{len(message.payload)} bytes"), 201)

    return [add(f"{TOPIC}/messages", browse), add(f"{TOPIC}/messages", send, "POST")]


async def _search(client: IggyClient, request: Request) -> Search:
    stream, topic = request.path_params["stream"], request.path_params["topic"]
    query = request.query_params
    wanted = query.get("format", "auto")
    if wanted not in get_args(Format):
        raise InvalidArgumentError(f"format is one of {', '.join(get_args(Format))}")
    words = query.get("search", "")
    if len(words) > _WORDS_MAX:
        raise InvalidArgumentError(f"search has at most {_WORDS_MAX} characters")
    number = query_number(request, "partition", 0, 2**32 - 1)
    limit = query_number(request, "limit", 50, MESSAGES_MAX, least=1)
    offset = query_number(request, "offset", 0) if "offset" in query else None
    time_ms = query_number(request, "time_ms", 0, 2**53) if "time_ms" in query else None
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

    From a point on: the first ones. The newest: the last ones before the end.
    """
    newest = search.offset is None and search.time_ms is None
    found: list[Message] = []
    scanned, position, strategy = 0, search.offset or 0, search.strategy()
    while scanned < SCANNED_MAX and (newest or len(found) < search.limit):
        polled = await client.poll(
            search.stream,
            search.topic,
            partition=search.partition.id,
            strategy=strategy,
            count=search.batch(),
        )
        messages = polled.messages()
        for message in messages:
            if not newest and len(found) >= search.limit:
                break
            scanned += 1
            position = message.offset + 1
            if not search.words or matches(message.payload, message, search.words):
                found.append(message)
        if not messages or position >= search.end:
            break
        strategy = Strategy.offset(position)
    return found[-search.limit :], scanned, position


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
