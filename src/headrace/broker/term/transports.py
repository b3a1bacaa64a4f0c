"""How clients reach the broker: TCP, TLS on the same port, and QUIC, all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.broker.dispatch import Dispatcher
from headrace.broker.sessions.authorization import is_logged_in
from headrace.broker.sessions.sessions import Session
from headrace.config.broker import BrokerSettings, QuicSettings
from headrace.errors import ConfigError
from headrace.net.iggy_moving import Mover
from headrace.net.iggy_quic import IggyQuicLimits, IggyQuicServer
from headrace.net.iggy_server import IggyLimits, IggyServer
from headrace.net.quic import QuicLimits
from headrace.net.tls import TlsAcceptor
from headrace.runtime.interfaces import Runtime
from headrace.wire.iggy.messages.system import TransportKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Encryption:
    """What TLS and QUIC need; without it the broker speaks plain TCP only."""

    certificate: bytes
    """PEM, with its chain."""
    key: bytes
    tls: TlsAcceptor | None = None
    """None = no TLS on the TCP port."""
    quic: QuicSettings = field(default_factory=QuicSettings)
    handshake_seconds: float = 10.0


class Transports:
    """The listeners of one broker, from `start` to `close`."""

    def __init__(
        self,
        runtime: Runtime,
        settings: BrokerSettings,
        dispatcher: Dispatcher,
        *,
        open_session: Callable[[str, TransportKind], Session],
        close_session: Callable[[Session], None],
        encryption: Encryption | None = None,
        mover: Mover[Session] | None = None,
    ) -> None:
        self._runtime = runtime
        self._dispatcher = dispatcher
        self._open_session = open_session
        self._close_session = close_session
        self._encryption = encryption
        self._limits = _limits(settings)
        self.tcp: IggyServer[Session] = IggyServer(
            runtime,
            open_session=lambda connection: open_session(connection.peer, TransportKind.TCP),
            answer_at_once=dispatcher.answer_at_once,
            on_behind=dispatcher.on_behind,
            is_writing=dispatcher.is_writing,
            on_request=dispatcher.on_request,
            close_session=close_session,
            is_trusted=is_logged_in,
            keeps_frames=dispatcher.poll_caches.replies.keeps_frames,
            frame_pool=dispatcher.poll_caches.frame_pool,
            tls=None if encryption is None else encryption.tls,
            limits=self._limits,
            mover=mover,
        )
        self.quic: IggyQuicServer[Session] | None = None

    async def start(
        self, host: str, port: int, quic_port: int | None, *, reuse_port: bool = False
    ) -> None:
        """`quic_port` None = no QUIC; 0 = any free port, as for `port`. `reuse_port`: other
        processes listen on the same port."""
        if quic_port is not None:
            await self.start_quic(host, quic_port)
        await self.tcp.start(host, port, reuse_port=reuse_port)

    async def start_quic(self, host: str, port: int) -> None:
        self.quic = self._make_quic()
        await self.quic.start(host, port)

    def _make_quic(self) -> IggyQuicServer[Session]:
        encryption = self._encryption
        if encryption is None:
            raise ConfigError("QUIC needs a certificate")
        quic = encryption.quic
        return IggyQuicServer(
            self._runtime,
            certificate=encryption.certificate,
            key=encryption.key,
            open_session=lambda peer: self._open_session(peer, TransportKind.QUIC),
            on_request=self._dispatcher.on_request,
            close_session=self._close_session,
            is_trusted=is_logged_in,
            on_behind=self._dispatcher.on_behind,
            limits=IggyQuicLimits(
                frames=self._limits,
                requests_max=quic.requests_max,
                connection_bytes_max=quic.connection_bytes_max,
                held_bytes_max=quic.held_bytes_max,
                keep_alive_seconds=quic.keep_alive_ms / 1000,
                handshake_seconds=encryption.handshake_seconds,
            ),
            quic_limits=QuicLimits(
                connections_max=quic.connections_max,
                handshakes_unvalidated_max=quic.handshakes_unvalidated_max,
                idle_seconds=quic.idle_ms / 1000,
                window_bytes=quic.window_bytes,
            ),
        )

    def statistics(self) -> dict[str, int]:
        return {
            **self.tcp.statistics(),
            **({} if self.quic is None else self.quic.statistics()),
        }

    async def close(self) -> None:
        """Each lets its requests in progress be answered."""
        closing = [self.tcp.close()]
        if self.quic is not None:
            closing.append(self.quic.close())
        await asyncio.gather(*closing)


def _limits(settings: BrokerSettings) -> IggyLimits:
    return IggyLimits(
        connections_max=settings.connections_max,
        send_frame_bytes_max=settings.frame_bytes_max,
        login_frame_bytes_max=settings.login_frame_bytes_max,
        held_bytes_max=settings.held_bytes_max,
        login_idle_seconds=settings.login_idle_ms / 1000,
        login_seconds=settings.login_ms / 1000,
        idle_seconds=settings.idle_ms / 1000,
        transfer_seconds=settings.transfer_ms / 1000,
    )
