"""Reading messages straight from the data nodes, with a ticket that the broker signed.

A ticket names streams, allows reading them and nothing else, and lasts minutes; it is all an
executor ever gets. A connection belongs to the ticket it was made with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from headrace.client.raw_messages import Area, unpack
from headrace.errors import HeadraceError, NotFoundError, OffsetOverflowError
from headrace.net.addresses import parse_address
from headrace.net.sbp_channel import Channel, TcpChannel
from headrace.net.tls import ClientTls
from headrace.runtime.interfaces import Runtime
from headrace.sbp_client.channels import PlacementLinks
from headrace.sbp_client.client import Fetched, SbpClient, Want
from headrace.wire.sbp.messages import ClientRole

if TYPE_CHECKING:
    from headrace.sbp_client.channels import Connect

FETCH_BYTES_MAX = 8 << 20  # per request; a frame has at most 16 MiB
Key: TypeAlias = tuple[str, int]
"""A topic's uid and the partition."""

TICKETS_MAX = 4  # in use at the same time in one process; the oldest is let go


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


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of a partition: offsets [base, end)."""

    base: int
    end: int
    bytes: int
    max_timestamp: int
    """Of its newest message, in milliseconds."""
    open: bool
    """It is still written to."""


class TicketReader:
    """Clients by ticket, oldest first."""

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
    ) -> tuple[list[Area], int]:
        """Messages from `start` on, at most up to `end`, and the offset after them.

        `local`: out of the data node's files, where this process can read them.
        """
        if key not in access.streams:
            raise NotFoundError("the ticket does not cover this partition", partition=key[1])
        client = await self._client(access)
        fetched = await client.fetch(
            access.streams[key], start, max_bytes=FETCH_BYTES_MAX, local=local
        )
        if not fetched.pieces:
            raise OffsetOverflowError(
                "the log ends before it should", partition=key[1], offset=start
            )
        areas = list(unpack(fetched.pieces, start, end, verified=fetched.verified))
        return areas, min(fetched.next_offset, end)

    async def segments(self, access: Access, key: Key) -> list[Segment]:
        """The files of a partition, oldest first, as the data nodes that lead its ranges know
        them; without those that the topic's retention has passed."""
        client = await self._client(access)
        ranges = await client.list_ranges(access.streams[key])
        found = []
        for range_, told in zip(ranges, await client.describe_ranges(ranges), strict=True):
            known = told.segments if told is not None else ()
            for number, one in enumerate(known, 1):
                written = range_.end_offset < 0 and number == len(known)
                found.append(Segment(one.base, one.end, one.bytes, one.max_timestamp, written))
        return found

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
                placement=PlacementLinks(
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
