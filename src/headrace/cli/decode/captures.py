"""TCP connections out of a capture file (pcap or pcapng): bytes in order, with who sent them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from headrace.cli.decode.explaining import Side
from headrace.errors import ConfigError

MAGICS = (b"\xd4\xc3\xb2\xa1", b"\xa1\xb2\xc3\xd4", b"\x4d\x3c\xb2\xa1", b"\x0a\x0d\x0d\x0a")
HELD_SEGMENTS_MAX = 1000  # out of order; then the gap is given up
_SEQUENCES = 1 << 32

Endpoint: TypeAlias = tuple[bytes, int]


def is_capture(data: bytes) -> bool:
    return data[:4] in MAGICS


@dataclass(slots=True)
class _Flow:
    """One direction of a connection."""

    next: int | None = None
    held: dict[int, bytes] = field(default_factory=dict)
    gaps: int = 0

    def take(self, sequence: int, data: bytes, *, syn: bool) -> bytes:
        """What follows on what came before, now that this segment has come too."""
        if syn:
            self.next = (sequence + 1) % _SEQUENCES
            return b""
        if self.next is None:
            self.next = sequence
        if data:
            self.held[sequence] = data
        if len(self.held) > HELD_SEGMENTS_MAX:
            self.next = min(self.held, key=lambda each: (each - sequence) % _SEQUENCES)
            self.gaps += 1
        return self._join()

    def _join(self) -> bytes:
        assert self.next is not None
        joined = bytearray()
        for at in sorted(self.held, key=lambda each: self._ahead(each)):
            ahead = self._ahead(at)
            if ahead > 0:
                break
            data = self.held.pop(at)
            fresh = data[-ahead:] if ahead else data  # a retransmission brings less, or nothing
            joined += fresh
            self.next = (self.next + len(fresh)) % _SEQUENCES
        return bytes(joined)

    def _ahead(self, sequence: int) -> int:
        assert self.next is not None
        return (sequence - self.next + _SEQUENCES // 2) % _SEQUENCES - _SEQUENCES // 2


@dataclass(slots=True)
class Connection:
    number: int
    client: Endpoint
    server: Endpoint
    flows: dict[Side, _Flow] = field(default_factory=lambda: {side: _Flow() for side in Side})


def read_capture(path: Path) -> Iterator[tuple[float, Connection, Side, bytes]]:
    """Time, connection, sender and bytes, in the order of the packets."""
    try:
        import dpkt
    except ImportError:
        raise ConfigError("captures need dpkt: pip install 'headrace[decode]'") from None
    connections: dict[frozenset[Endpoint], Connection] = {}
    with path.open("rb") as file:
        try:
            reader = dpkt.pcap.UniversalReader(file)
            for time, frame in reader:
                segment = _segment(dpkt, frame, reader.datalink())
                if segment is None:
                    continue
                source, target, tcp = segment
                found = _find(connections, source, target, tcp, dpkt)
                side = Side.CLIENT if source == found.client else Side.SERVER
                syn = bool(tcp.flags & dpkt.tcp.TH_SYN)
                data = found.flows[side].take(tcp.seq, bytes(tcp.data), syn=syn)
                if data:
                    yield time, found, side, data
        except (dpkt.Error, ValueError) as error:
            raise ConfigError(f"{path} is not a capture that can be read: {error}") from error


def _segment(dpkt: Any, frame: bytes, link: int) -> tuple[Endpoint, Endpoint, Any] | None:
    kinds = {
        dpkt.pcap.DLT_EN10MB: dpkt.ethernet.Ethernet,
        dpkt.pcap.DLT_LINUX_SLL: dpkt.sll.SLL,
        dpkt.pcap.DLT_LINUX_SLL2: dpkt.sll2.SLL2,
        dpkt.pcap.DLT_NULL: dpkt.loopback.Loopback,
    }
    kind = kinds.get(link)
    packet = kind(frame).data if kind is not None else dpkt.ip.IP(frame)
    tcp = getattr(packet, "data", None)
    if not isinstance(tcp, dpkt.tcp.TCP):
        return None
    return (packet.src, tcp.sport), (packet.dst, tcp.dport), tcp


def _find(
    connections: dict[frozenset[Endpoint], Connection],
    source: Endpoint,
    target: Endpoint,
    tcp: Any,
    dpkt: Any,
) -> Connection:
    key = frozenset((source, target))
    opens = tcp.flags & (dpkt.tcp.TH_SYN | dpkt.tcp.TH_ACK) == dpkt.tcp.TH_SYN
    if key not in connections or opens:
        # A capture that begins later does not say who connected; servers have the lower ports.
        ours = opens or source[1] > target[1]
        client, server = (source, target) if ours else (target, source)
        connections[key] = Connection(len(connections) + 1, client, server)
    return connections[key]
