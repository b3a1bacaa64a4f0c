"""Iggy over QUIC as its SDKs speak it: no ALPN, one stream per request. On qh3 and any runtime."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from qh3.quic import events
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection, QuicConnectionError

from headrace.errors import UnavailableError
from headrace.runtime.interfaces import Address, Buffer, DatagramListener, Runtime
from headrace.wire.iggy.classic_frames import ResponseDecoder, encode_request


class StreamRefused(Exception):
    """The server reset the stream."""


@dataclass(eq=False)
class _Exchange:
    done: asyncio.Future[bytes]
    received: bytearray = field(default_factory=bytearray)


class QuicClient:
    def __init__(self, runtime: Runtime, configuration: QuicConfiguration) -> None:
        self.quic = QuicConnection(configuration=configuration)
        self.events: list[events.QuicEvent] = []
        self.is_over = False
        self.is_muted = False  # nothing leaves any more: the process was killed
        self.received_datagrams = 0
        self._runtime = runtime
        self._now = runtime.clock.monotonic
        self._listener: DatagramListener
        self._task: asyncio.Task[None]
        self._inbox: list[tuple[bytes, Address]] = []
        self._wake = asyncio.Event()
        self._connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._exchanges: dict[int, _Exchange] = {}

    @classmethod
    async def connect(
        cls, runtime: Runtime, address: Address, *, authority: bytes = b"", idle: float = 10.0
    ) -> QuicClient:
        """Without `authority` the certificate is not verified, as the SDKs do by default."""
        configuration = QuicConfiguration(
            is_client=True,
            server_name="localhost",
            idle_timeout=idle,
            verify_mode=ssl.CERT_REQUIRED if authority else ssl.CERT_NONE,
            cadata=authority or None,
        )
        client = cls(runtime, configuration)
        client._listener = await runtime.transport.listen_datagrams(
            "0.0.0.0", 0, client._on_datagram
        )
        client.quic.connect(address, client._now())
        client._task = asyncio.create_task(client._drive())
        client._wake.set()
        try:
            async with asyncio.timeout(20):
                await client._connected
        except BaseException:
            await client.vanish()
            raise
        return client

    async def request(
        self, code: int, pieces: Sequence[Buffer] = (), *, seconds: float = 60
    ) -> tuple[int, bytes]:
        """(status, body)"""
        answer = await self.exchange(b"".join(encode_request(code, pieces)), seconds=seconds)
        (frame,) = ResponseDecoder().feed(answer)
        return frame.status, bytes(frame.payload)

    async def exchange(self, data: bytes, *, end: bool = True, seconds: float = 60) -> bytes:
        """All bytes that come back on a stream of its own, once the server lets it be opened: one
        that is answered counts until the last acknowledgement has come."""
        stream_id = self.quic.get_next_available_stream_id()
        async with asyncio.timeout(seconds):
            while True:
                try:
                    self.open(data, end=end, stream_id=stream_id)
                    break
                except ValueError as error:
                    if "stream limit" not in str(error):
                        raise
                await asyncio.sleep(0.01)
            return await self._exchanges[stream_id].done

    def open(self, data: bytes, *, end: bool, stream_id: int | None = None) -> int:
        if self.is_over:
            raise UnavailableError("connection is over")
        if stream_id is None:
            stream_id = self.quic.get_next_available_stream_id()
        self.quic.send_stream_data(stream_id, data, end)
        done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._exchanges[stream_id] = _Exchange(done)
        self._wake.set()
        return stream_id

    async def answer(self, stream_id: int) -> bytes:
        return await self._exchanges[stream_id].done

    def touch(self) -> None:
        """Something was done to `quic` directly."""
        self._wake.set()

    def ping(self) -> None:
        with suppress(QuicConnectionError):  # it is ending
            self.quic.send_ping(1)
        self.touch()

    async def close(self) -> None:
        self.quic.close(0, None, "bye")
        self._wake.set()
        await asyncio.sleep(0.01)
        await self.vanish()

    async def vanish(self) -> None:
        """Without a word."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self._listener.close()
        await self._listener.wait_closed()

    async def wait_over(self, seconds: float = 30) -> None:
        async with asyncio.timeout(seconds):
            await asyncio.wait([self._task])

    async def __aenter__(self) -> QuicClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _on_datagram(self, data: bytes, address: Address) -> None:
        self.received_datagrams += 1
        self._inbox.append((data, address))
        self._wake.set()

    async def _drive(self) -> None:
        while not self.is_over:
            timer = self.quic.get_timer()
            delay = None if timer is None else max(timer - self._now(), 0.001)
            try:
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            except TimeoutError:
                self.quic.handle_timer(self._now())
            self._wake.clear()
            inbox, self._inbox = self._inbox, []
            for data, address in inbox:
                self.quic.receive_datagram(data, address, self._now())
            while (event := self.quic.next_event()) is not None:
                self._on_event(event)
            for data, address in self.quic.datagrams_to_send(self._now()):
                if not self.is_muted:
                    self._listener.send(data, address)

    def _on_event(self, event: events.QuicEvent) -> None:
        self.events.append(event)
        match event:
            case events.HandshakeCompleted():
                self._connected.set_result(None)
            case events.StreamDataReceived():
                exchange = self._exchanges[event.stream_id]
                exchange.received += event.data
                if event.end_stream and not exchange.done.done():
                    exchange.done.set_result(bytes(exchange.received))
            case events.StreamReset():
                _fail(self._exchanges[event.stream_id].done, StreamRefused(event.error_code))
            case events.ConnectionTerminated():
                self.is_over = True
                over = UnavailableError(f"{event.error_code} {event.reason_phrase}")
                for exchange in self._exchanges.values():
                    _fail(exchange.done, over)
                _fail(self._connected, over)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # nobody may be waiting
