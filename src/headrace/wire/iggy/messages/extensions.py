"""Headrace's own commands (codes from 9000), in classic framing with msgpack bodies.

A plain Iggy server answers them with INVALID_COMMAND, and only that answer means "plain Iggy".
Unknown map keys are ignored and missing ones have defaults, so both sides may grow.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Self

import msgspec

from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import DecodeError, Status
from headrace.wire.iggy.fields import Buffer
from headrace.wire.iggy.messages.messages import SendMessages
from headrace.wire.iggy.primitives import Identifier

_LENGTH = struct.Struct("<I")
_HEAD_BYTES_MAX = 1024


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


class PublishingFigures(Extension, frozen=True, kw_only=True):
    """How many publishers there are, and what they staged and did not close; staging is looked at
    now and then, not for the question."""

    publishers: int = 0
    """Publishers that did not end."""
    publishers_max: int = 0
    staged_messages: int = 0
    staged_bytes: int = 0
    """The size of the files that hold the staged messages."""
    staged_oldest_ms: int = 0
    """How long the publisher that was silent longest has staged nothing."""
    staged_ms_max: int = 0
    """When it is removed."""
    publishers_expired: int = 0
    """Since this broker leads."""


class ShardLeader(msgspec.Struct, frozen=True, kw_only=True):
    """Who leads one shard."""

    shard: int
    worker: str = ""
    """The leader's name; empty while nobody leads."""
    epoch: int = -1
    """Of the leader's lease; -1 when it is not known."""
    partitions: int = 0
    pinned: str = ""
    """The name of the worker that an operator gave the shard to; empty: balance decides."""


class WorkerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One worker: a process that leads shards. Counts are of the time since it started."""

    name: str
    """What its leases know it by; the same for ever."""
    number: int = 0
    """Its number in the cluster."""
    host: str = ""
    address: str = ""
    """`host:port` where clients reach it."""
    coordinates: bool = False
    """Whether it changes the catalogue and decides who leads what."""
    shards: int = 0
    partitions: int = 0
    """Partitions of the shards that it leads."""
    connections: int = 0
    requests: int = 0
    """Answered to clients that are connected to it."""
    requests_passed_on: int = 0
    """Of those: answered by another worker."""
    requests_taken_in: int = 0
    """Answered for clients of other workers."""
    loop_delay_ms: float = 0.0
    """How late its event loop was: 99 of 100 ticks of the last minute were no later."""
    memory_bytes: int = 0
    cpu_percent: float = 0.0


class ShardMap(Extension, frozen=True, kw_only=True):
    """Who leads which shard, and how the workers do."""

    shards: tuple[ShardLeader, ...] = ()
    workers: tuple[WorkerFigures, ...] = ()


class MoveShard(Extension, frozen=True, kw_only=True):
    """Give a shard to a worker for good; an empty name: balance decides again."""

    shard: int
    worker: str = ""
    """A worker's name or number."""


class ShardMoved(Extension, frozen=True, kw_only=True):
    shard: int
    worker: str = ""
    """Who leads it now."""
    pinned: str = ""
    """Who it was given to. Another than who leads: it goes there as soon as it can."""


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
    """`host:port` of the data nodes that hold the topics now."""
    topics: tuple[TicketTopic, ...] = ()


class PresentGrant(Extension, frozen=True, kw_only=True):
    """Show what a container of a pipeline may do; the login that follows names it by its prefix."""

    grant: bytes


class SpeakFor(Extension, frozen=True, kw_only=True):
    """The control plane says whose login the next one on this connection is."""

    host: str
    token: str
    """The service's, as proof that it is the control plane."""


class OpenPublisher(Extension, frozen=True, kw_only=True, omit_defaults=True):
    """Become the one run of a publisher that may write; the same run may ask again."""

    name: str
    run: str
    epoch: int = 0
    """The run's own number, where somebody counts them: lower ones are fenced, and one that comes
    too late is refused. 0: the next one."""


class PublisherOpened(Extension, frozen=True, kw_only=True):
    publisher: int
    epoch: int
    last_window: int = -1
    """The last window closed; -1: none."""


class StagedSpan(msgspec.Struct, frozen=True, array_like=True):
    """One staged batch, to be handed back in a manifest as it is."""

    staged: int
    count: int
    topic_uid: int
    partition: int
    generation: int


class StageHead(Extension, frozen=True, kw_only=True):
    publisher: int
    epoch: int
    window: int


class Staged(Extension, frozen=True, kw_only=True):
    span: StagedSpan


class CloseWindow(Extension, frozen=True, kw_only=True):
    """Publish what the manifest names, in its order, all of it or nothing, once."""

    publisher: int
    epoch: int
    previous: int
    """The window closed before this one; -1: none."""
    window: int
    manifest: tuple[StagedSpan, ...] = ()
    digest: bytes = b""
    """A digest of the contents; a second close that differs is noted, the first one holds."""
    last: bool = False
    """The publisher ends with this window, and what it staged goes."""
    rows: int = 0
    """How many rows the messages hold, for who lists the windows of the topic."""
    index: bytes = b""
    """What the publisher tells readers about the messages, in their order; up to 1024 bytes."""


class PublishedRun(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive offsets of a partition."""

    topic_uid: int
    partition: int
    generation: int
    first: int
    count: int


class WindowClosed(Extension, frozen=True, kw_only=True):
    window: int
    last_window: int
    already: bool = False
    """Whether the window was closed before: nothing was published now."""
    runs: tuple[PublishedRun, ...] = ()
    """Where the window's messages are; empty for a window closed long ago."""


class ListWindows(Extension, frozen=True, kw_only=True, omit_defaults=True):
    """Which windows of a topic are closed; waits until every publisher closed one after `after`."""

    stream: Identifier
    topic: Identifier
    after: int = -1
    """Windows up to it are not listed."""
    wait_ms: int = 0
    limit: int = 0
    """How many windows to list at most, oldest first; 0: as many as the server likes."""


class WindowSpan(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive offsets of a partition, and how many bytes the messages take."""

    partition: int
    generation: int
    first: int
    count: int
    bytes: int


class ListedWindow(msgspec.Struct, frozen=True, array_like=True):
    """A closed window that has messages; windows without any are not listed."""

    window: int
    rows: int
    spans: tuple[WindowSpan, ...]
    index: bytes = b""


class ListedPublisher(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    partition: int
    """Where it publishes to, now or last."""
    last_window: int
    """The last window it closed, with or without messages."""
    ended: bool = False
    """Whether the publisher said that there are no more windows."""
    windows: tuple[ListedWindow, ...] = ()


class WindowsListed(Extension, frozen=True, kw_only=True):
    cluster: str
    uid: int
    """The uid of the topic."""
    closed: int
    """Up to this window, inclusive, every publisher has closed and none can add anything."""
    complete: int
    """Up to this window everything is listed: `closed`, or less where `limit` cut the list."""
    purged: int
    """Windows up to it are not kept any more."""
    resets: int
    """How often windows were voided: then what was listed before may be published again."""
    publishers: tuple[ListedPublisher, ...]


class SetPublishers(Extension, frozen=True, kw_only=True, omit_defaults=True):
    """From the window after `after` on, these publish the topic, the n-th to its partition n.

    The first time it makes the topic one that is published in windows and no other way.
    """

    stream: Identifier
    topic: Identifier
    publishers: tuple[str, ...]
    after: int = -1
    epoch: int = 0
    """Runs below it are refused."""


class ResetAfter(Extension, frozen=True, kw_only=True):
    """Void every window after this one, to be published again by runs from this epoch on."""

    stream: Identifier
    topic: Identifier
    window: int
    epoch: int


class PurgeTo(Extension, frozen=True, kw_only=True):
    """Nobody needs windows up to this one any more."""

    stream: Identifier
    topic: Identifier
    window: int


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """`u32 length, StageHead`, then the body of a SEND_MESSAGES.

    Keeps its messages where they are, as SEND does.
    """

    head: StageHead
    messages: SendMessages

    @property
    def stream(self) -> Identifier:
        return self.messages.stream

    @property
    def topic(self) -> Identifier:
        return self.messages.topic

    @classmethod
    def decode(cls, data: Buffer, dialect: Dialect = Dialect.B2) -> Stage:
        view = memoryview(data)
        if len(view) < _LENGTH.size:
            raise DecodeError(Status.INVALID_COMMAND, "a stage without its head")
        (length,) = _LENGTH.unpack_from(view)
        end = _LENGTH.size + length
        if length > _HEAD_BYTES_MAX or end > len(view):
            raise DecodeError(Status.INVALID_COMMAND, "a stage without its head", length=length)
        head = StageHead.decode(view[_LENGTH.size : end])
        return cls(head, SendMessages.decode(view[end:], dialect))

    def pieces(self, dialect: Dialect = Dialect.B2) -> list[Buffer]:
        head = self.head.encode()
        return [_LENGTH.pack(len(head)) + head, *self.messages.pieces(dialect)]

    def encode(self, dialect: Dialect = Dialect.B2) -> bytes:
        return b"".join(self.pieces(dialect))
