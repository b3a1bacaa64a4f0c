"""What partitions hold, and their messages: straight from the data nodes, or from the broker.

A ticket that the broker signed names streams, allows reading them and nothing else, and lasts
minutes; it is all an executor ever gets. A connection to data nodes belongs to the ticket it was
made with. Where the data nodes are out of reach, and of a plain Iggy server, the broker is asked
instead: both read the same log.

The client (`topic_reader.py`) and Spark's source (`spark/source/reading.py`) read through
`PartitionReader`; each decides by itself what a lost message or another life of a topic means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from headrace.client.connection import BrokerConnection
from headrace.concurrency.retry import OUTSIDE, retry
from headrace.errors import (
    CorruptionError,
    DeadlineError,
    HeadraceError,
    NotFoundError,
    OffsetOutOfRangeError,
    OffsetOverflowError,
    UnavailableError,
)
from headrace.net.addresses import parse_address
from headrace.net.sbp_channel import Channel, TcpChannel
from headrace.net.tls import ClientTls
from headrace.runtime.interfaces import Runtime
from headrace.sbp_client.channels import PlacementChannel
from headrace.sbp_client.client import Fetched, SbpClient, Want
from headrace.sbp_client.describe import Segment
from headrace.wire.iggy.batch import locate, read_starts
from headrace.wire.iggy.columns import MessageBuffer, cut, first_offset
from headrace.wire.iggy.primitives import Strategy
from headrace.wire.sbp import records
from headrace.wire.sbp.messages import ClientRole

if TYPE_CHECKING:
    from headrace.sbp_client.channels import Connect
    from headrace.wire.iggy.messages.extensions import Ticket
    from headrace.wire.iggy.messages.topics import TopicDetails


Key: TypeAlias = tuple[str, int]
"""A topic's uid and a partition."""


ReadFrom = Literal["auto", "data-nodes", "broker"]


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What the broker says about a partition now: offsets [start, end) can be read."""

    partition: int
    generation: int
    start: int
    end: int
    bytes: int = 0  # of the messages it holds, for limits by size; 0 when nobody asked


@dataclass(frozen=True, slots=True)
class TopicState:
    uid: str
    stream: str
    topic: str
    partitions: tuple[PartitionState, ...]

    @property
    def name(self) -> str:
        return f"{self.stream}/{self.topic}"


@dataclass(frozen=True, slots=True)
class SourceState:
    """All topics that somebody reads, as they are now."""

    cluster: str
    """A uid means nothing without it. "" for a plain Iggy server."""
    topics: tuple[TopicState, ...]

    def partitions(self) -> Iterator[tuple[Key, TopicState, PartitionState]]:
        for topic in self.topics:
            for each in topic.partitions:
                yield (topic.uid, each.partition), topic, each


def ticket_state(ticket: Ticket, mean_bytes: Mapping[str, float]) -> SourceState:
    """What a ticket says of its topics; `mean_bytes` is of a message, by topic."""
    return SourceState(
        ticket.cluster,
        tuple(
            TopicState(
                str(topic.uid),
                topic.stream,
                topic.topic,
                tuple(
                    PartitionState(
                        each.partition,
                        each.generation,
                        each.start,
                        each.next,
                        int(mean_bytes.get(topic.topic, 0) * (each.next - each.start)),
                    )
                    for each in topic.partitions
                ),
            )
            for topic in ticket.topics
        ),
    )


def plain_topic(stream: str, details: TopicDetails) -> TopicState:
    """A plain Iggy server has no uids: the name with the time of creation stands for one."""
    partitions = tuple(
        PartitionState(each.id, 0, each.start_offset, each.next_offset, each.size_bytes)
        for each in details.partitions
    )
    topic = details.topic
    uid = f"{topic.name}@{topic.created_at_us}"
    return TopicState(uid, stream, topic.name, partitions)


FETCH_BYTES_MAX = 8 << 20  # per request; a frame has at most 16 MiB
TICKETS_MAX = 4  # in use at the same time in one process; the oldest is let go
POLL_MESSAGES_MAX = 20_000
RETRY_SECONDS = 30.0  # for data nodes, where nobody else may be asked
FALLBACK_SECONDS = 5.0  # for data nodes that do not answer, before the broker is asked instead
AVOID_SECONDS = 60.0  # until they are tried again
ASK_AGAIN_SECONDS = 0.03  # between two questions to a broker, which does not wait for messages


@dataclass(frozen=True, slots=True)
class Access:
    """How a task reads: from the data nodes with a ticket, or without one from the broker."""

    ticket: bytes = field(default=b"", repr=False)
    expires_ms: int = 0
    placement: str = ""
    """Addresses of the placement managers, separated by commas."""
    streams: Mapping[Key, int] = field(default_factory=dict)
    """The SBP stream of each partition."""

    def only(self, key: Key) -> Access:
        """What one task needs of it."""
        return replace(self, streams={key: self.streams[key]}) if self.ticket else self

    def expires_within(self, seconds: float, now_ms: float) -> bool:
        return bool(self.ticket) and self.expires_ms - now_ms < seconds * 1000


class TicketReader:
    """Reads from the data nodes, with a client for each ticket, oldest first."""

    def __init__(self, runtime: Runtime, tls: ClientTls | None = None) -> None:
        """A broker that is reached over TLS has data nodes that are, too."""
        self._runtime = runtime
        self._tls = tls
        self._clients: dict[bytes, SbpClient] = {}

    async def close(self) -> None:
        while self._clients:
            _, client = self._clients.popitem()
            await client.close()

    async def fetch(
        self, access: Access, key: Key, start: int, end: int, *, local: bool = True
    ) -> tuple[list[MessageBuffer], int]:
        """Messages from `start` on, at most up to `end`, and the offset after them.

        `local`: out of the data node's files, where this process can read them.
        """
        if key not in access.streams:
            raise NotFoundError("the ticket does not cover this partition", partition=key[1])
        client = await self._client(access)
        want = Want(access.streams[key], start, FETCH_BYTES_MAX, local)
        fetched = await client.fetcher.fetch(want)
        if not fetched.pieces:
            raise OffsetOverflowError(
                "the log ends before it should", partition=key[1], offset=start
            )
        areas = list(unpack(fetched.pieces, start, end, verified=fetched.verified))
        return areas, min(fetched.next_offset, end)

    async def segments(self, access: Access, key: Key) -> list[Segment]:
        """The files of a partition, oldest first, without those that retention has passed."""
        client = await self._client(access)
        return await client.segments(access.streams[key])

    async def wait(self, access: Access, ends: Mapping[Key, int], seconds: float) -> bool:
        """Whether a partition grew past its end, or may have; waits that long for it."""
        client = await self._client(access)
        wants = [Want(access.streams[key], end, 1) for key, end in sorted(ends.items())]
        found = await client.fetch_many(wants, max_wait_ms=int(seconds * 1000))
        return any(
            isinstance(each, HeadraceError) or (isinstance(each, Fetched) and each.pieces)
            for each in found
        )

    async def _client(self, access: Access) -> SbpClient:
        client = self._clients.get(access.ticket)
        if client is None:
            client = self._clients[access.ticket] = SbpClient(
                self._runtime,
                placement=PlacementChannel(
                    [each.strip() for each in access.placement.split(",")],
                    lambda address: self._connect_to(address, access.ticket),
                ),
                node=lambda address: self._connect_to(address, access.ticket),
                client_id="spark",
            )
            if len(self._clients) > TICKETS_MAX:
                oldest = next(iter(self._clients))
                await self._clients.pop(oldest).close()
        return client

    def _connect_to(self, address: str, ticket: bytes) -> Connect:
        async def connect() -> Channel:
            host, port = parse_address(address)
            return await TcpChannel.connect(
                self._runtime,
                host,
                port,
                client_id="spark",
                role=ClientRole.CUSTOMER,
                credential=ticket,
                tls=self._tls,
            )

        return connect


class Place(NamedTuple):
    """A partition by its names, which the broker takes, and by its key, which tickets have."""

    stream: str
    topic: str
    key: Key


class PartitionRead(NamedTuple):
    areas: list[MessageBuffer]
    next_offset: int
    polled: bool
    """From the broker, which is asked by name: whether that still means the same partition is for
    the caller to ask."""


class PartitionReader:
    """Reads any partition of one server, through the connection of its owner."""

    def __init__(
        self,
        connection: BrokerConnection,
        *,
        ticket_seconds_min: float,
        on_out_of_reach: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        """A ticket that lasts no longer than `ticket_seconds_min` is replaced when it is asked for.

        `on_out_of_reach` hears why the broker is asked in place of the data nodes.
        """
        self.connection = connection
        self.data_nodes = TicketReader(connection.runtime, connection.tls)
        self._runtime = connection.runtime
        self._clock = connection.runtime.clock
        self._ticket_seconds_min = ticket_seconds_min
        self._on_out_of_reach = on_out_of_reach
        self._accesses: dict[tuple[str, ...], Access] = {}
        self._reached = False  # data nodes, from this process
        self._avoided_until = 0.0  # they are out of reach from here

    async def close(self) -> None:
        await self.data_nodes.close()

    async def describe(
        self, stream: str, names: Sequence[str], mean_bytes: Mapping[str, float] | None = None
    ) -> tuple[SourceState, Access]:
        """What the topics hold now, and what it takes to read them.

        NotFoundError names a topic that does not exist. `mean_bytes` is of a message, by topic.
        """
        if await self.connection.hello() is None:
            details = [await self._details(stream, name) for name in names]
            return SourceState("", tuple(plain_topic(stream, each) for each in details)), Access()
        try:
            ticket = await self.connection.call(
                lambda client: client.read_ticket([(stream, name) for name in names])
            )
        except NotFoundError:
            for name in names:
                await self._details(stream, name)  # says which
            raise
        streams = {
            (str(topic.uid), each.partition): each.sbp_stream
            for topic in ticket.topics
            for each in topic.partitions
        }
        fresh = Access(ticket.ticket, ticket.expires_ms, ticket.placement, streams)
        return ticket_state(ticket, mean_bytes or {}), self._kept((stream, *names), fresh)

    async def _details(self, stream: str, topic: str) -> TopicDetails:
        details = await self.connection.call(lambda client: client.get_topic(stream, topic))
        if details is None:
            raise NotFoundError(f"there is no topic {stream}/{topic}")
        return details

    def _kept(self, names: tuple[str, ...], fresh: Access) -> Access:
        """The ticket in use while it lasts: connections to the data nodes belong to it."""
        kept = self._accesses.get(names)
        if (
            kept is None
            or replace(kept, ticket=b"", expires_ms=0) != replace(fresh, ticket=b"", expires_ms=0)
            or kept.expires_within(self._ticket_seconds_min, self._clock.now_ms())
        ):
            kept = self._accesses[names] = fresh
        return kept

    async def offset_at(self, place: Place, timestamp_us: int) -> int | None:
        """The first message that is not older; None where there is none."""
        return await self.connection.call(
            lambda client: client.first_offset(
                place.stream, place.topic, place.key[1], Strategy.timestamp(timestamp_us)
            )
        )

    async def fetch(
        self,
        place: Place,
        access: Access,
        start: int,
        end: int,
        *,
        read_from: ReadFrom = "auto",
        local: bool = True,
    ) -> PartitionRead:
        """Messages from `start` on, at most up to `end`, and the offset after them.

        LostRecordsError where some were lost and given up by an operator.
        """
        avoided = self._clock.monotonic() < self._avoided_until
        if not access.ticket or (read_from == "auto" and avoided):
            return await self._poll(place, start, end)
        # Where they answered once, a slow answer is no reason to leave them.
        doubted = read_from == "auto" and not self._reached
        try:
            async with asyncio.timeout(FALLBACK_SECONDS if doubted else None):
                areas, at = await retry(
                    self._runtime,
                    lambda _: self.data_nodes.fetch(access, place.key, start, end, local=local),
                    FALLBACK_SECONDS if read_from == "auto" else RETRY_SECONDS,
                    OUTSIDE,
                )
            self._reached = True
            return PartitionRead(areas, at, polled=False)
        except (UnavailableError, DeadlineError, TimeoutError) as error:
            if read_from != "auto":
                raise
            self._reached = False
            self._avoid(error)
        return await self._poll(place, start, end)

    async def _poll(self, place: Place, start: int, end: int) -> PartitionRead:
        partition = place.key[1]
        polled = await self.connection.call(
            lambda client: client.poll(
                place.stream,
                place.topic,
                partition=partition,
                strategy=Strategy.offset(start),
                count=min(end - start, POLL_MESSAGES_MAX),
            )
        )
        areas: list[MessageBuffer] = []
        at = start
        for piece in polled.slices:
            area = memoryview(piece)
            starts = locate(area)
            if not len(starts):
                continue
            if first_offset(area) != at:
                break  # retention was faster, or the partition is another one by now
            areas.append(cut(area, starts, 0, min(len(starts), end - at)))
            at += len(areas[-1][1])
        if not areas:
            raise OffsetOutOfRangeError(
                "the server no longer has these messages",
                topic=place.topic,
                partition=partition,
                offset=start,
            )
        return PartitionRead(areas, at, polled=True)

    async def wait(self, access: Access, ends: Mapping[Key, int], seconds: float) -> None:
        """Until a partition may have grown past its end, or that long."""
        begun = self._clock.monotonic()
        wanted = {key: end for key, end in ends.items() if key in access.streams}
        if wanted and begun >= self._avoided_until:
            try:
                async with asyncio.timeout(seconds + 1.0):
                    if await self.data_nodes.wait(access, wanted, seconds):
                        return
            except (HeadraceError, TimeoutError) as error:
                self._avoid(error)
        left = seconds - (self._clock.monotonic() - begun)
        if left > 0:
            await self._clock.sleep(min(left, ASK_AGAIN_SECONDS))

    def _avoid(self, error: Exception) -> None:
        now = self._clock.monotonic()
        if now >= self._avoided_until:
            self._on_out_of_reach(error)
        self._avoided_until = now + AVOID_SECONDS


def unpack(
    pieces: Sequence[memoryview], start: int, end: int, *, verified: bool = False
) -> Iterator[MessageBuffer]:
    """The messages with offsets [start, end) in whole record batches, which must not leave gaps.

    Checksums are tried here unless they were `verified` before.
    """
    expected = None
    for piece in pieces:
        for header, batch in records.split(piece):
            body = batch[records.HEADER_BYTES :]
            if not verified:
                records.verify(batch[: records.HEADER_BYTES], [body])
            if expected is not None and header.base_offset != expected:
                raise CorruptionError(
                    "a gap in the log", expected=expected, found=header.base_offset
                )
            expected = header.base_offset + header.record_count
            area, starts = _messages(header, body)
            first = max(0, start - header.base_offset)
            last = min(header.record_count, end - header.base_offset)
            if first < last:
                yield cut(area, starts, first, last)


def _messages(header: records.BatchHeader, body: memoryview) -> MessageBuffer:
    if header.records != records.RECORDS_IGGY:
        raise CorruptionError("a batch that holds no messages", offset=header.base_offset)
    if header.attributes & records.INDEXED:
        return read_starts(body, header.record_count)
    return body, locate(body)
