"""UDP between simulated hosts: each datagram is lost, doubled or late on its own account.

What a partition cuts is gone, not held back: nobody sends a datagram again but its sender. A
datagram to loopback shows a loopback address as its origin, as a kernel would choose one.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.runtime.interfaces import Address, OnDatagram
from tests.simulator.host import ANY, LOOPBACK, Boot, machine_of

if TYPE_CHECKING:
    from tests.simulator.network import SimulatedNetwork

DATAGRAM_BYTES_MAX = 65_507  # what fits behind an IPv4 and a UDP header


class SimulatedDatagrams:
    def __init__(self, network: SimulatedNetwork) -> None:
        self.loss = 0.01  # the share of datagrams that never arrive; may be changed while it runs
        self.doubling = 0.01  # the share that arrives twice
        self._network = network
        self._listeners: dict[tuple[str, int], list[SimulatedDatagramListener]] = {}

    def listen(
        self,
        boot: Boot,
        host: str,
        port: int,
        on_datagram: OnDatagram,
        *,
        reuse_port: bool = False,
    ) -> SimulatedDatagramListener:
        machine = machine_of(boot.host)
        if host not in (*LOOPBACK, *ANY, machine):
            raise ConfigError("cannot listen: not an address of this host", host=host, port=port)
        port = port or self._network.free_port(boot.host)
        others = self._listeners.setdefault((machine, port), [])
        if not all(reuse_port and other.reuse_port for other in others):
            raise ConfigError("cannot listen: address already in use", host=host, port=port)
        listener = SimulatedDatagramListener(self, boot, host, port, on_datagram)
        listener.reuse_port = reuse_port
        others.append(listener)
        self._network.record(boot.host, f"listens on datagram port {port}")
        return listener

    def is_taken(self, host: str, port: int) -> bool:
        return bool(self._listeners.get((machine_of(host), port)))

    def unlisten(self, listener: SimulatedDatagramListener) -> None:
        others = self._listeners.get((machine_of(listener.boot.host), listener.port), [])
        if listener in others:
            others.remove(listener)

    def crash(self, host: str) -> None:
        for others in self._listeners.values():
            others[:] = [other for other in others if other.boot.host != host]

    def stop(self) -> None:
        self._listeners.clear()

    def send(self, source: SimulatedDatagramListener, data: bytes, address: Address) -> None:
        random = self._network.random
        copies = int(random.uniform() >= self.loss) + int(random.uniform() < self.doubling)
        loop = asyncio.get_running_loop()
        for _ in range(copies):
            loop.call_later(
                self._network.delay(),
                self._arrive,
                source.boot.host,
                source.port,
                data,
                address,
                context=self._network.context,
            )

    def _arrive(self, host: str, port: int, data: bytes, address: Address) -> None:
        host = machine_of(host)
        is_local = address[0] in LOOPBACK
        target = host if is_local else address[0]
        others = self._listeners.get((target, address[1]))
        if not others or self._network.is_cut(host, target):
            return
        # Of those that share a port the same one for all that comes from one address and port.
        listener = others[zlib.crc32(f"{host}:{port}".encode()) % len(others)]
        if listener.host in LOOPBACK and target != host:
            return
        what = f"{len(data)} bytes, crc {zlib.crc32(data):08x}"
        self._network.record(target, f"datagram port {address[1]} receives {what}")
        listener.deliver(data, ("127.0.0.1" if is_local else host, port))


class SimulatedDatagramListener:
    def __init__(
        self,
        datagrams: SimulatedDatagrams,
        boot: Boot,
        host: str,
        port: int,
        on_datagram: OnDatagram,
    ) -> None:
        self.boot = boot
        self.reuse_port = False
        self.host = "127.0.0.1" if host == "localhost" else host
        self.port = port
        self._datagrams = datagrams
        self._on_datagram = on_datagram
        self._context = boot.context()
        self._closed = asyncio.Event()

    def deliver(self, data: bytes, address: Address) -> None:
        self._context.copy().run(self._on_datagram, data, address)

    def send(self, data: bytes, address: Address) -> None:
        self.boot.check()
        if not self._closed.is_set() and len(data) <= DATAGRAM_BYTES_MAX:
            self._datagrams.send(self, bytes(data), address)

    def close(self) -> None:
        self._datagrams.unlisten(self)
        self._closed.set()

    async def wait_closed(self) -> None:
        await self._closed.wait()
