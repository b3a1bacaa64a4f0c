"""Which brokers there are: each keeps a lease of its own, named after it, beside the leader's one.

Its address tells where clients reach the broker: `host:port`, and `;quic=port` when it serves QUIC.
Whoever wants to know asks the placement manager, at most once a second.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.net.addresses import format_address, parse_address
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Runtime
from headrace.sbp_client.client import SbpClient
from headrace.wire.sbp import messages as m

log = get_logger(__name__)

LEADER_LEASE = "broker"
PREFIX = "broker/"
_FRESH_SECONDS = 1.0
_RETRY_SECONDS = 1.0
_RELEASE_SECONDS = 1.0  # it runs out by itself


@dataclass(frozen=True, slots=True)
class Place:
    """Where clients reach a broker."""

    host: str
    port: int
    quic_port: int = 0

    def __str__(self) -> str:
        address = format_address(self.host, self.port)
        return f"{address};quic={self.quic_port}" if self.quic_port else address


def parse_place(text: str) -> Place:
    address, _, quic = text.partition(";quic=")
    host, port = parse_address(address)
    return Place(host, port, int(quic) if quic.isdecimal() else 0)


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    place: Place
    leads: bool


def members_of(description: m.DescribeClusterResponse) -> list[Member]:
    """The brokers that live, in the order of their ids."""
    leader = next((x.holder for x in description.leases if x.name == LEADER_LEASE), "")
    found = []
    for lease in description.leases:
        if lease.name.startswith(PREFIX) and lease.address:
            try:
                place = parse_place(lease.address)
            except HeadraceError:
                continue  # of a version that writes it otherwise
            found.append(Member(lease.holder, place, lease.holder == leader))
    return found


def hosts_alive(description: m.DescribeClusterResponse) -> int:
    """How many replicas of a log there can be: each is on another host."""
    alive = [node for node in description.nodes if node.is_alive]
    return len({node.host for node in alive if node.host}) + sum(not node.host for node in alive)


class BrokerRegistry:
    """What the placement manager says about the cluster, a second old at most."""

    def __init__(self, runtime: Runtime, client: SbpClient) -> None:
        self._clock = runtime.clock
        self._client = client
        self._asking = asyncio.Lock()
        self._known: m.DescribeClusterResponse | None = None
        self._asked = float("-inf")

    async def describe(self) -> m.DescribeClusterResponse:
        """What was known last when the placement manager does not answer; its error at first."""
        async with self._asking:
            if self._known is None or self._clock.monotonic() - self._asked > _FRESH_SECONDS:
                try:
                    self._known = await self._client.describe_cluster()
                except HeadraceError as error:
                    if self._known is None:
                        raise
                    log.warning("cluster not described", reason=str(error))
                self._asked = self._clock.monotonic()
            return self._known


async def stay_listed(
    runtime: Runtime, client: SbpClient, *, holder: str, place: Place, duration_ms: int
) -> None:
    """Keep this broker's own lease until cancelled; then give it back."""
    name = f"{PREFIX}{holder}"
    epoch = -1
    try:
        while True:
            pause = duration_ms / 3000
            try:
                answer = await client.lease(name, holder, duration_ms, str(place), epoch)
                epoch = answer.epoch if answer.granted else -1
            except HeadraceError as error:
                log.info("broker not listed", reason=str(error))
                pause = min(pause, _RETRY_SECONDS)
            await runtime.clock.sleep(pause)
    finally:
        with suppress(HeadraceError, TimeoutError):
            async with asyncio.timeout(_RELEASE_SECONDS):
                await client.release(name, holder, epoch)
