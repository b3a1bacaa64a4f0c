"""Links to the other workers, opened when they are first needed.

Where a worker is reached stands in its lease: a unix socket, where all workers are on one machine;
a host and a port, and behind them, in a cluster, the machine's name and the unix socket that the
workers of that machine use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.broker.shards.leases import WORKER_PREFIX
from headrace.errors import UnavailableError
from headrace.net.addresses import parse_address
from headrace.net.peer_link import PeerLink, TcpAddress, UnixAddress
from headrace.net.tls import ClientTls
from headrace.runtime.interfaces import Buffer, Connection, MovableConnection, Runtime
from headrace.sbp_client.client import SbpClient

_UNIX = "unix:"
_MACHINE = ";machine="
_MOVE_SECONDS = 2.0


def unix_address(path: str) -> str:
    return f"{_UNIX}{path}"


def cluster_address(address: str, machine: str, path: str) -> str:
    """A host and a port for everybody, and a unix socket for workers of the same machine."""
    return f"{address}{_MACHINE}{machine};{_UNIX}{path}"


def parse_link_address(
    text: str, *, machine: str = "", tls: ClientTls | None = None
) -> UnixAddress | TcpAddress:
    """As a worker of this machine reaches it. InvalidArgumentError when it is none."""
    if text.startswith(_UNIX):
        return UnixAddress(text.removeprefix(_UNIX))
    address, _, behind = text.partition(_MACHINE)
    other, _, path = behind.partition(f";{_UNIX}")
    if machine and other == machine:
        return UnixAddress(path)
    return TcpAddress(*parse_address(address), tls)


class WorkerLinks:
    def __init__(
        self,
        runtime: Runtime,
        client: SbpClient,
        *,
        me: str,
        secret: bytes,
        on_unlinked: Callable[[str], None],
        machine: str = "",
        tls: ClientTls | None = None,
    ) -> None:
        self._runtime = runtime
        self._client = client
        self._me = me
        self._secret = secret
        self._on_unlinked = on_unlinked
        self._machine = machine
        self._tls = tls
        self._links: dict[str, tuple[str, PeerLink]] = {}
        """By worker: its address, and the link there."""

    async def call(
        self, worker: str, head: bytes, body: Sequence[Buffer], timeout: float
    ) -> tuple[bytes, memoryview]:
        link = self._links.get(worker)
        if link is None or not link[1].is_linked:
            await self.find()
            link = self._links.get(worker)
        if link is None:
            raise UnavailableError("the worker is not known", worker=worker)
        return await link[1].call(head, body, timeout=timeout)

    async def move(
        self, worker: str, connection: MovableConnection, head: bytes, first_bytes: bytes
    ) -> Connection | None:
        link = self._links.get(worker)
        if link is None or not isinstance(self._parse(link[0]), UnixAddress):
            raise UnavailableError("the worker is not on this machine", worker=worker)
        return await link[1].move(connection, head, first_bytes, timeout=_MOVE_SECONDS)

    def notify(self, worker: str, head: bytes) -> None:
        link = self._links.get(worker)
        if link is not None:
            link[1].notify(head)

    async def find(self) -> list[str]:
        """Ask the placement manager who lives; links to others are made anew where they moved."""
        found = (await self._client.list_leases(WORKER_PREFIX)).leases
        living = {lease.holder: lease.address for lease in found if lease.holder and lease.address}
        for worker, address in living.items():
            known = self._links.get(worker)
            if worker == self._me or (known is not None and known[0] == address):
                continue
            if known is not None:
                await known[1].close()
            self._links[worker] = (address, self._link(worker, address))
        return sorted(living)

    def _link(self, worker: str, address: str) -> PeerLink:
        return PeerLink(
            self._runtime,
            secret=self._secret,
            name=self._me,
            address=self._parse(address),
            expected=worker,
            on_unlinked=lambda: self._on_unlinked(worker),
        )

    def _parse(self, address: str) -> UnixAddress | TcpAddress:
        return parse_link_address(address, machine=self._machine, tls=self._tls)

    async def close(self) -> None:
        for _, link in self._links.values():
            await link.close()
