"""Headrace's own commands (codes from 9000), in classic framing with msgpack bodies.

A plain Iggy server answers them with INVALID_COMMAND, and only that answer means "plain Iggy".
Unknown map keys are ignored and missing ones have defaults, so both sides may grow.
"""

from __future__ import annotations

from typing import Self

import msgspec

from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import DecodeError, Status
from headrace.wire.iggy.fields import Buffer
from headrace.wire.iggy.primitives import Identifier


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """A msgpack map; the dialect makes no difference."""

    @classmethod
    def decode(cls, data: Buffer, dialect: Dialect = Dialect.B2) -> Self:
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DecodeError(Status.INVALID_COMMAND, f"undecodable {cls.__name__}") from error

    def encode(self, dialect: Dialect = Dialect.B2) -> bytes:
        return msgspec.msgpack.encode(self)


class ServerHello(Extension, frozen=True, kw_only=True):
    """What this server offers. `features` holds the names of served extension commands."""

    server: str = "headrace"
    version: str
    cluster: str
    """UUID of the cluster: the same answer means the same data."""
    node_id: int = 0
    features: tuple[str, ...] = ()


class ReadTicket(Extension, frozen=True, kw_only=True):
    """Ask for direct reads of these (stream, topic) pairs from the data nodes."""

    topics: tuple[tuple[Identifier, Identifier], ...]


class TicketPartition(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    generation: int
    """Grows when the partition is purged; offsets of two generations never compare."""
    sbp_stream: int
    start: int
    """The oldest retained offset."""
    next: int
    """The offset the next message will get."""


class TicketTopic(msgspec.Struct, frozen=True, kw_only=True):
    stream: str
    topic: str
    stream_id: int
    topic_id: int
    uid: int
    partitions: tuple[TicketPartition, ...]


class Ticket(Extension, frozen=True, kw_only=True):
    cluster: str
    ticket: bytes
    """The credential for HEARTBEAT on the SBP ports."""
    expires_ms: int
    """Unix time in milliseconds."""
    placement: str
    """`host:port` of the placement manager."""
    nodes: tuple[str, ...] = ()
    topics: tuple[TicketTopic, ...] = ()
