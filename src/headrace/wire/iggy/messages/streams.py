"""Streams (codes 200 to 205)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from headrace.wire.iggy.fields import U32, U64, Body, Id, RequestedId, Str8, nested, to_end
from headrace.wire.iggy.messages.topics import Topic
from headrace.wire.iggy.options import OptionsBlock, OptionsToEnd
from headrace.wire.iggy.primitives import Reference


@dataclass(frozen=True, slots=True)
class Stream(Body):
    id: Id
    created_at_us: U64
    topics_count: U32
    size_bytes: U64
    messages_count: U64
    name: Str8
    options: OptionsBlock = ()


@dataclass(frozen=True, slots=True)
class StreamDetails(Body):
    stream: Annotated[Stream, nested(Stream)]
    topics: Annotated[tuple[Topic, ...], to_end(nested(Topic))] = ()


@dataclass(frozen=True, slots=True)
class Streams(Body):
    streams: Annotated[tuple[Stream, ...], to_end(nested(Stream))]


@dataclass(frozen=True, slots=True)
class GetStream(Body):
    stream: Reference


@dataclass(frozen=True, slots=True)
class CreateStream(Body):
    stream_id: RequestedId = field(default=None, kw_only=True)
    name: Str8
    options: OptionsToEnd = ()


@dataclass(frozen=True, slots=True)
class DeleteStream(Body):
    stream: Reference


@dataclass(frozen=True, slots=True)
class UpdateStream(Body):
    stream: Reference
    name: Str8
    options: OptionsToEnd = ()


@dataclass(frozen=True, slots=True)
class PurgeStream(Body):
    stream: Reference
