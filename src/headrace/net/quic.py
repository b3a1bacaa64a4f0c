"""QUIC connections on the runtime's datagrams: routing, timers, flow. qh3 is the protocol machine.

One task drives each connection: it feeds what arrived in one batch, hands stream events on, and
sends what there is to send. Application protocols are not negotiated (no ALPN in either direction),
session tickets are not issued, so there is no 0-RTT data that could be replayed.

Strangers cost little. A datagram that belongs to nobody and opens nothing is dropped. While many
handshakes are under way a newcomer must first prove its address with a Retry token, which needs no
memory here; before that proof qh3 sends at most three times what it received. The token is

    u64 issued_ms, u8 length, original destination id, u8 length, our source id, HMAC-SHA256 (16)

where the HMAC also covers the address and its key dies with the process. All big endian.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from qh3._hazmat import Buffer as HeaderBuffer
from qh3.quic import events
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection, QuicConnectionError
from qh3.quic.packet import (
    QuicHeader,
    QuicPacketType,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)

from headrace.errors import ConfigError, UnavailableError
from headrace.net.addresses import format_address
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Address, Buffer, Clock, DatagramListener, Runtime

log = get_logger(__name__)

_CID_BYTES = 8
_INITIAL_BYTES_MIN = 1200  # RFC 9000 §14.1: shorter ones open nothing
_TIMER_SECONDS_MIN = 0.001  # the resolution of the loop's own timers
_TOKEN_MS = 10_000
_TAG_BYTES = 16
_ISSUED = struct.Struct(">Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuicLimits:
    connections_max: int = 1024
    """Newcomers above it are not answered."""
    handshakes_unvalidated_max: int = 32
    """Handshakes under way above which newcomers must prove their address first."""
    idle_seconds: float = 10.0
    window_bytes: int = 4 * 1024 * 1024
    """What a peer may send ahead of what was taken; half of it per stream."""
    send_bytes_max: int = 1024 * 1024
    """Queued and not yet sent on a connection: above it `wait_room` waits."""
    inbox_datagrams_max: int = 4096
    """Received and not yet looked at, per connection; more are dropped, as a full kernel would."""


class StreamHandler(Protocol):
    """Whoever speaks on a connection's streams. Called from the connection's own task."""

    def on_data(self, stream_id: int, data: bytes, *, end: bool) -> None: ...

    def on_reset(self, stream_id: int) -> None:
        """The peer sends no more on this stream."""

    async def on_closed(self) -> None:
        """The connection is over: finish what is in progress and let go of it."""


class QuicLink:
    """One connection. Streams are bytes in `send` and `StreamHandler.on_data`."""

    def __init__(
        self,
        quic: QuicConnection,
        peer: str,
        clock: Clock,
        listener: DatagramListener,
        limits: QuicLimits,
    ) -> None:
        self.peer = peer
        self.started = self.heard = clock.monotonic()
        """Monotonic time of the first and of the last datagram."""
        self.is_connected = False
        """The handshake is complete."""
        self.is_open = True
        self.cids: set[bytes] = set()
        self._quic = quic
        self._clock = clock
        self._listener = listener
        self._limits = limits
        self._inbox: list[tuple[bytes, Address]] = []
        self._wake = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._pings = 0

    # -- for the handler

    def send(self, stream_id: int, data: Buffer, *, end: bool = False) -> None:
        """Queue bytes. UnavailableError when the peer does not want the rest of this stream."""
        self._check()
        try:
            self._quic.send_stream_data(stream_id, data, end)
        except (QuicConnectionError, ValueError) as error:
            raise UnavailableError("stream is closed", peer=self.peer, stream=stream_id) from error
        self._wake.set()

    async def wait_room(self) -> None:
        """Wait until little enough is queued on this connection."""
        while self._queued(None) > self._limits.send_bytes_max:
            await self._wait_progress()

    async def wait_sent(self, stream_id: int) -> None:
        """Wait until everything of this stream is on its way."""
        while self._queued(stream_id):
            await self._wait_progress()

    async def wait_acknowledged(self, seconds: float) -> None:
        """Wait until the peer has all that was sent, or so long; `close` would overtake it."""
        try:
            async with asyncio.timeout(seconds):
                # Asked for a moment in the future, it tells of a single packet under way too.
                while self.is_open and self._quic.should_wait_for_ack(
                    self._clock.monotonic() + seconds
                ):
                    await self._wait_progress()
        except TimeoutError:
            log.debug("quic peer acknowledges nothing", peer=self.peer)

    def refuse(self, stream_id: int, error_code: int) -> None:
        """Take and give nothing more on this stream."""
        for give_up in (self._quic.stop_stream, self._quic.reset_stream):
            try:
                give_up(stream_id, error_code)
            except (QuicConnectionError, ValueError):
                continue  # that half is over already
        self._wake.set()

    def stop(self, stream_id: int, error_code: int) -> None:
        """Take nothing more on this stream; it can still be answered."""
        try:
            self._quic.stop_stream(stream_id, error_code)
        except (QuicConnectionError, ValueError):
            return
        self._wake.set()

    def ping(self) -> None:
        self._pings += 1
        self._quic.send_ping(self._pings)
        self._wake.set()

    def close(self, error_code: int = 0, reason: str = "") -> None:
        """Say goodbye and end; what is queued is dropped."""
        if self.is_open:
            self.is_open = False
            try:
                self._quic.close(error_code, None, reason)
            except QuicConnectionError:
                log.debug("quic connection was closed before", peer=self.peer)
            self._wake.set()

    def _check(self) -> None:
        if not self.is_open:
            raise UnavailableError("connection is closed", peer=self.peer)

    def _queued(self, stream_id: int | None) -> int:
        self._check()
        return self._quic.get_send_buffer_size(stream_id)

    async def _wait_progress(self) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting

    # -- for the endpoint

    def on_datagram(self, data: bytes, address: Address) -> None:
        if len(self._inbox) < self._limits.inbox_datagrams_max:
            self._inbox.append((data, address))
            self._wake.set()

    async def run(self, handler: StreamHandler, routes: dict[bytes, QuicLink]) -> None:
        try:
            while self.is_open:
                await self._wait()
                self._take()
                self._hand_on(handler, routes)
                self._transmit()
        finally:
            self.is_open = False
            self._wake_waiting()

    async def _wait(self) -> None:
        """For datagrams, for somebody who sends, or for qh3's next timer."""
        if not self._wake.is_set():
            timer = self._quic.get_timer()
            delay = None
            if timer is not None:
                delay = max(timer - self._clock.monotonic(), _TIMER_SECONDS_MIN)
            try:
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            except TimeoutError:
                return
        self._wake.clear()

    def _take(self) -> None:
        now = self._clock.monotonic()
        inbox, self._inbox = self._inbox, []
        if inbox:
            self.heard = now
        start = 0
        while start < len(inbox):  # runs of datagrams from one address
            address = inbox[start][1]
            end = start + 1
            while end < len(inbox) and inbox[end][1] == address:
                end += 1
            run = [data for data, _ in inbox[start:end]]
            self._quic.receive_many_datagrams(run, address, now)
            start = end
        timer = self._quic.get_timer()
        # After `close` qh3 counts from the last datagram, perhaps long ago: first the goodbye.
        if self.is_open and timer is not None and timer <= now:
            self._quic.handle_timer(now)

    def _hand_on(self, handler: StreamHandler, routes: dict[bytes, QuicLink]) -> None:
        while (event := self._quic.next_event()) is not None:
            match event:
                case events.StreamDataReceived():
                    handler.on_data(event.stream_id, event.data, end=event.end_stream)
                case events.StreamReset():
                    handler.on_reset(event.stream_id)
                case events.HandshakeCompleted():
                    self.is_connected = True
                case events.ConnectionIdIssued():
                    self.cids.add(event.connection_id)
                    routes[event.connection_id] = self
                case events.ConnectionIdRetired():
                    self.cids.discard(event.connection_id)
                    routes.pop(event.connection_id, None)
                case events.ConnectionTerminated():
                    self.is_open = False
                    log.debug("quic connection ended", peer=self.peer, reason=event.reason_phrase)

    def _transmit(self) -> None:
        for data, address in self._outgoing():
            self._listener.send(data, address)
        self._wake_waiting()

    def _outgoing(self) -> list[tuple[bytes, Address]]:
        try:
            return self._quic.datagrams_to_send(self._clock.monotonic())
        except QuicConnectionError:
            if self.is_connected:
                raise
            # A packet did not fit into what an unproven address may still be sent; qh3 means this
            # as an error. The peer's next datagram makes room, and silence ends it in time.
            return []

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)


class QuicEndpoint:
    """A UDP port on which connections arrive, from `start` to `close`."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        certificate: bytes,
        key: bytes,
        make_handler: Callable[[QuicLink], StreamHandler],
        make_room: Callable[[], bool] = lambda: False,
        limits: QuicLimits | None = None,
    ) -> None:
        """`certificate` and `key` are PEM. `make_handler` is called for each newcomer, `make_room`
        when all connections are taken: whether it ended one."""
        self._runtime = runtime
        self._make_handler = make_handler
        self._make_room = make_room
        self._limits = limits or QuicLimits()
        self._configuration = _configure(certificate, key, self._limits)
        self._tokens = _RetryTokens(runtime.random.bytes(32))
        self._routes: dict[bytes, QuicLink] = {}
        self._tasks: dict[QuicLink, asyncio.Task[None]] = {}
        self._listener: DatagramListener | None = None
        self._closing = False
        self.refused = 0
        self.retries = 0

    @property
    def listener(self) -> DatagramListener:
        assert self._listener is not None, "not started"
        return self._listener

    @property
    def links(self) -> list[QuicLink]:
        return list(self._tasks)

    async def start(self, host: str, port: int) -> None:
        # qh3 warns of every connection that its peer closes, which is how they all end.
        logging.getLogger("quic").setLevel(logging.ERROR)
        self._listener = await self._runtime.transport.listen_datagrams(
            host, port, self._on_datagram
        )

    def stop_accepting(self) -> None:
        self._closing = True

    async def close(self) -> None:
        """End all connections at once; whoever wants to finish something does so before."""
        self._closing = True
        for link in self._tasks:
            link.close(reason="server stops")
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        if self._listener is not None:
            self._listener.close()
            await self._listener.wait_closed()

    def _on_datagram(self, data: bytes, address: Address) -> None:
        if not data:
            return
        if data[0] & 0x80:
            link = self._on_long_header(data, address)
        else:
            link = self._routes.get(data[1 : 1 + _CID_BYTES])
        if link is not None:
            link.on_datagram(data, address)

    def _on_long_header(self, data: bytes, address: Address) -> QuicLink | None:
        """The connection it belongs to, which may be new; None for what opens nothing."""
        try:
            header = pull_quic_header(HeaderBuffer(data=data), _CID_BYTES)
        except ValueError:
            return None
        link = self._routes.get(header.destination_cid)
        if link is not None or self._closing or len(data) < _INITIAL_BYTES_MIN:
            return link
        if header.version not in self._configuration.supported_versions:
            if header.version:  # 0 is a negotiation packet itself
                self._negotiate_version(header, address)
            return None
        if header.packet_type is not QuicPacketType.INITIAL:
            return None
        return self._admit(header, address)

    def _negotiate_version(self, header: QuicHeader, address: Address) -> None:
        answer = encode_quic_version_negotiation(
            source_cid=header.destination_cid,
            destination_cid=header.source_cid,
            supported_versions=self._configuration.supported_versions,
        )
        self.listener.send(answer, address)

    def _admit(self, header: QuicHeader, address: Address) -> QuicLink | None:
        if len(self._tasks) >= self._limits.connections_max and not self._make_room():
            self.refused += 1
            return None
        now_ms = self._runtime.clock.now_ms()
        original, retried = header.destination_cid, None
        if header.token:
            proven = self._tokens.verify(header.token, address, now_ms)
            if proven is None or proven[1] != header.destination_cid:
                self.refused += 1
                return None
            original, retried = proven
        elif self._handshakes() >= self._limits.handshakes_unvalidated_max:
            self._send_retry(header, address, now_ms)
            return None
        quic = QuicConnection(
            configuration=self._configuration,
            original_destination_connection_id=original,
            retry_source_connection_id=retried,
        )
        link = QuicLink(
            quic, format_address(*address), self._runtime.clock, self.listener, self._limits
        )
        link.cids = {header.destination_cid, quic.host_cid}
        for cid in link.cids:
            self._routes[cid] = link
        self._tasks[link] = asyncio.create_task(self._drive(link), name=f"quic {link.peer}")
        return link

    def _handshakes(self) -> int:
        return sum(1 for link in self._tasks if not link.is_connected)

    def _send_retry(self, header: QuicHeader, address: Address, now_ms: int) -> None:
        self.retries += 1
        source_cid = self._runtime.random.bytes(_CID_BYTES)
        assert header.version is not None, "an Initial packet has one"
        retry = encode_quic_retry(
            version=header.version,
            source_cid=source_cid,
            destination_cid=header.source_cid,
            original_destination_cid=header.destination_cid,
            retry_token=self._tokens.make(header.destination_cid, source_cid, address, now_ms),
        )
        self.listener.send(retry, address)

    async def _drive(self, link: QuicLink) -> None:
        handler = self._make_handler(link)
        try:
            await link.run(handler, self._routes)
        except Exception as error:
            # What a peer sends inside its handshake can trip the parser: its own loss alone.
            log.warning("quic connection failed", peer=link.peer, exc_info=error)
        finally:
            for cid in link.cids:
                if self._routes.get(cid) is link:
                    del self._routes[cid]
            try:
                await handler.on_closed()
            finally:
                del self._tasks[link]


def _configure(certificate: bytes, key: bytes, limits: QuicLimits) -> QuicConfiguration:
    configuration = QuicConfiguration(
        is_client=False,
        alpn_protocols=None,
        connection_id_length=_CID_BYTES,
        idle_timeout=limits.idle_seconds,
        max_data=limits.window_bytes,
        max_stream_data=limits.window_bytes // 2,
    )
    try:
        configuration.load_cert_chain(certificate, key)
    except Exception as error:  # qh3 raises what its parsers raise
        raise ConfigError(f"certificate and key cannot be used for QUIC: {error}") from error
    return configuration


class _RetryTokens:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def make(self, original: bytes, source: bytes, address: Address, now_ms: int) -> bytes:
        body = _ISSUED.pack(now_ms) + bytes([len(original)]) + original
        body += bytes([len(source)]) + source
        return body + self._tag(body, address)

    def verify(self, token: bytes, address: Address, now_ms: int) -> tuple[bytes, bytes] | None:
        """The two connection ids; None for a token that is not ours, not theirs or too old."""
        body, tag = token[:-_TAG_BYTES], token[-_TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(body, address)):
            return None
        (issued_ms,) = _ISSUED.unpack_from(body)
        if not 0 <= now_ms - issued_ms <= _TOKEN_MS:
            return None
        middle = _ISSUED.size + 1 + body[_ISSUED.size]
        return body[_ISSUED.size + 1 : middle], body[middle + 1 :]

    def _tag(self, body: bytes, address: Address) -> bytes:
        whole = format_address(*address).encode() + b" " + body
        return hmac.digest(self._key, whole, hashlib.sha256)[:_TAG_BYTES]
