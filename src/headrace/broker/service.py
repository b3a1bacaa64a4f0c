"""The broker as a service: lease, replay, listener, and the order in which they start and stop.

Start: acquire the lease, remember that we run, fence and replay the logs, make root if there is
nobody, listen. Stop: end the sessions, finish appends, close the logs, remember that the stop was
clean, give the lease back. A lost lease ends the sessions at once and nothing is answered any more.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass

from headrace.broker import decisions, retention
from headrace.broker.core import Broker, Identity, ProcessFigures
from headrace.broker.dispatch import Dispatcher
from headrace.broker.passwords import check_password
from headrace.broker.sessions import Session
from headrace.broker.snapshot import Diagnostics
from headrace.broker.transports import Encryption, Transports
from headrace.client.leadership import HolderFile, Leadership
from headrace.client.sbp import SbpClient
from headrace.client.tasks import TaskSet
from headrace.config.broker import BrokerSettings
from headrace.errors import ConfigError, HeadraceError, RequestError
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Runtime
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.messages.system import TransportKind

log = get_logger(__name__)

LEASE_NAME = "broker"
ROOT_USERNAME = "iggy"
_PASSWORD_BYTES = 18


@dataclass(frozen=True, slots=True)
class RootCredentials:
    """Made at the first start; `generated` ones are shown once and stored nowhere."""

    username: str
    password: str
    generated: bool


class BrokerService:
    def __init__(
        self,
        runtime: Runtime,
        settings: BrokerSettings,
        client: SbpClient,
        *,
        secret: bytes,
        cluster_uuid: str,
        folder: str,
        placement_address: str = "",
        version: str = "0.1.0",
        figures: Callable[[], ProcessFigures] = ProcessFigures,
        diagnostics: Diagnostics | None = None,
        on_root: Callable[[RootCredentials], None] | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._client = client
        self._on_root = on_root
        self._encryption = encryption
        self._executor = runtime.executor("broker", 1)
        self._holder_file = HolderFile(runtime, folder, self._executor)
        self._tasks = TaskSet("broker service")
        self._closed = False
        self.lost = asyncio.Event()
        """Set when leadership was lost: this service no longer serves."""
        self.broker = Broker(
            runtime,
            settings,
            client,
            Identity(
                cluster_uuid=cluster_uuid,
                cluster_name=settings.cluster_name,
                placement_address=placement_address,
                version=version,
                secret=secret,
                started_us=runtime.clock.now_us(),
            ),
            figures=figures,
            diagnostics=diagnostics,
        )
        self._leadership: Leadership | None = None
        self._transports: Transports | None = None

    # -- starting and stopping

    async def start(self, host: str, port: int, quic_port: int | None = None) -> None:
        """Returns once clients are served. Waits while another broker leads.

        QUIC is served when it has a port (0 = any free one) and `encryption` was given.
        """
        try:
            await self._start(host, port, quic_port)
        except BaseException:
            await self.close()
            raise

    async def _start(self, host: str, port: int, quic_port: int | None) -> None:
        self._holder = await self._holder_file.load()
        leadership = Leadership(
            self._runtime,
            self._client,
            name=LEASE_NAME,
            holder=self._holder.holder,
            duration_ms=self._settings.lease_ms,
            on_lost=self._on_lost,
        )
        self._leadership = leadership
        epoch = await leadership.acquire()
        clean = self._holder.continues(epoch)
        self._holder.clean_epoch = -1
        await self._holder_file.save(self._holder)
        await self.broker.open(epoch=epoch, clean=clean, on_fenced=self._on_lost)
        await self._make_root()
        dispatcher = Dispatcher(self.broker, leadership.check)
        transports = self._transports = Transports(
            self._runtime,
            self._settings,
            dispatcher,
            open_session=self._open_session,
            close_session=self._close_session,
            encryption=self._encryption,
        )
        await transports.start(host, port, quic_port)
        listener = transports.tcp.listener
        self.broker.address = (listener.host, listener.port)
        if transports.quic is not None:
            self.broker.quic_port = transports.quic.port
        await leadership.announce(self.address)
        self._tasks.start(self._enforce_retention(), name="retention")
        log.info("broker leads", epoch=epoch, clean=clean, address=self.address)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._transports is not None:
            await self._transports.close()
        await self._tasks.close()
        clean = await self.broker.close()
        leadership = self._leadership
        if leadership is not None:
            if clean and leadership.holds:
                self._holder.clean_epoch = leadership.epoch
                await self._holder_file.save(self._holder)
            await leadership.close()
        self._executor.close()

    def _on_lost(self) -> None:
        """Another broker may lead already: say nothing more to anybody."""
        if self.lost.is_set() or self._closed:
            return
        self.lost.set()
        log.error("leadership lost")
        if self._leadership is not None:
            self._leadership.give_up()
        if self._transports is not None:
            self._tasks.start(self._transports.close(), name="leave")

    async def _make_root(self) -> None:
        if self.broker.catalogue.users:
            return
        name = self._settings.root_username or ROOT_USERNAME
        password = self._settings.root_password
        generated = not password
        if generated:
            random = self._runtime.random.bytes(_PASSWORD_BYTES)
            password = urlsafe_b64encode(random).decode()
        try:
            check_password(password)
            password_hash = await self.broker.passwords.hash(password)
            await self.broker.commit(
                lambda: decisions.create_root(
                    self.broker.catalogue,
                    name=name,
                    password_hash=password_hash,
                    now_us=self._runtime.clock.now_us(),
                )
            )
        except RequestError as error:
            raise ConfigError(f"root user: {error}") from error
        if self._on_root is not None:
            self._on_root(RootCredentials(name, password, generated))

    # -- sessions

    def _open_session(self, peer: str, transport: TransportKind) -> Session:
        dialect = Dialect(self._settings.default_dialect)
        now = self._runtime.clock.monotonic()
        return self.broker.sessions.open(peer, dialect, now, transport)

    def _close_session(self, session: Session) -> None:
        self.broker.logout(session)
        self.broker.sessions.close(session)

    async def _enforce_retention(self) -> None:
        while True:
            await self._runtime.clock.sleep(self._settings.retention_interval_ms / 1000)
            try:
                await retention.enforce(self.broker)
            except HeadraceError as error:
                log.warning("retention round failed", reason=str(error))

    # -- figures

    @property
    def address(self) -> str:
        assert self._transports is not None, "not started"
        return self._transports.tcp.address

    @property
    def quic_address(self) -> str:
        """Empty when QUIC is not served."""
        quic = None if self._transports is None else self._transports.quic
        return "" if quic is None else quic.address

    @property
    def leads(self) -> bool:
        return self._leadership is not None and self._leadership.holds

    def statistics(self) -> dict[str, object]:
        broker = self.broker
        return {
            "leads": self.leads,
            "epoch": -1 if self._leadership is None else self._leadership.epoch,
            "streams": len(broker.catalogue.streams),
            "topics": sum(1 for _ in broker.catalogue.topics()),
            "users": len(broker.catalogue.users),
            "groups": broker.catalogue.groups_count(),
            "clients": len(broker.sessions),
            "partitions_open": len(broker.open_logs()),
            "doomed_streams": len(broker.catalogue.doomed),
            **broker.counters,
            **({} if self._transports is None else self._transports.statistics()),
        }
