"""Reading messages straight from the data nodes, with a ticket that the broker signed.

A ticket names streams, allows reading them and nothing else, and lasts minutes; it is all an
executor ever gets. A connection belongs to the ticket it was made with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.client.placement_links import PlacementLinks
from headrace.client.sbp import SbpClient
from headrace.errors import NotFoundError, OffsetOverflowError
from headrace.net.addresses import parse_address
from headrace.net.sbp_channel import Channel, TcpChannel
from headrace.net.tls import ClientTls
from headrace.runtime.interfaces import Runtime
from headrace.wire.sbp.messages import ClientRole

if TYPE_CHECKING:
    from headrace.client.channels import Connect
    from headrace.spark.arrow import Area

FETCH_BYTES_MAX = 8 << 20  # per request; a frame has at most 16 MiB
TICKETS_MAX = 4  # in use at the same time in one process; the oldest is let go


@dataclass(frozen=True, slots=True)
class Access:
    """How a task reads: from the data nodes with a ticket, or without one from the broker."""

    ticket: bytes = field(default=b"", repr=False)
    expires_ms: int = 0
    placement: str = ""
    streams: Mapping[int, int] = field(default_factory=dict)  # partition: its SBP stream


class TicketReader:
    """Clients by ticket, oldest first."""

    def __init__(self, runtime: Runtime, tls: ClientTls | None = None) -> None:
        """A broker that is reached over TLS has data nodes that are, too."""
        self._runtime = runtime
        self._tls = tls
        self._clients: dict[bytes, SbpClient] = {}

    async def fetch(
        self, access: Access, partition: int, start: int, end: int
    ) -> tuple[list[Area], int]:
        """Messages from `start` on, at most up to `end`, and the offset after them."""
        from headrace.spark.arrow import unpack

        if partition not in access.streams:
            raise NotFoundError("the ticket does not cover this partition", partition=partition)
        client = await self._client(access)
        fetched = await client.fetch(access.streams[partition], start, max_bytes=FETCH_BYTES_MAX)
        if not fetched.pieces:
            raise OffsetOverflowError(
                "the log ends before it should", partition=partition, offset=start
            )
        return list(unpack(fetched.pieces, start, end)), min(fetched.next_offset, end)

    async def _client(self, access: Access) -> SbpClient:
        client = self._clients.get(access.ticket)
        if client is None:
            client = self._clients[access.ticket] = SbpClient(
                self._runtime,
                placement=PlacementLinks(
                    access.placement.split(","),
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
