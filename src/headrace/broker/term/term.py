"""One time of leading, from the lease to its loss: lease, state, listeners, and their order.

Opening: acquire the lease, fence and replay the logs, make root if there is nobody. Closing: end
the sessions, finish appends, close the logs, give the lease back. A lost lease ends the sessions at
once and nothing is answered any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from headrace.broker.core import Broker, Identity, ProcessFigures
from headrace.broker.dispatch import Dispatcher
from headrace.broker.partitions import retention
from headrace.broker.sessions.sessions import Session
from headrace.broker.term.broker_registry import LEADER_LEASE
from headrace.broker.term.root_user import RootCredentials, make_root
from headrace.broker.term.snapshot import Diagnostics
from headrace.broker.term.transports import Encryption, Transports
from headrace.concurrency.tasks import TaskSet
from headrace.config.broker import BrokerSettings
from headrace.errors import HeadraceError
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Runtime
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.leadership import Leadership
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.messages.system import TransportKind
from headrace.wire.sbp.messages import LeaseResponse

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What every term of one broker has in common."""

    runtime: Runtime
    settings: BrokerSettings
    client: SbpClient
    identity: Identity
    figures: Callable[[], ProcessFigures] = ProcessFigures
    diagnostics: Diagnostics | None = None
    on_root: Callable[[RootCredentials], None] | None = None
    encryption: Encryption | None = None


class Term:
    def __init__(
        self,
        setup: Setup,
        holder: str,
        *,
        alone: bool = False,
        on_refused: Callable[[LeaseResponse], None] | None = None,
    ) -> None:
        """`on_refused` hears who leads instead while the lease is waited for; `alone`: nobody
        does."""
        self._setup = setup
        self._runtime = setup.runtime
        self._settings = setup.settings
        self._tasks = TaskSet("broker term")
        self._closed = False
        self.over = asyncio.Event()
        """Set when leadership was lost: nothing is served any more."""
        self.broker = Broker(
            setup.runtime,
            setup.settings,
            setup.client,
            setup.identity,
            figures=setup.figures,
            diagnostics=setup.diagnostics,
        )
        self.broker.name = holder
        self.leadership = Leadership(
            setup.runtime,
            setup.client,
            name=LEADER_LEASE,
            holder=holder,
            duration_ms=setup.settings.lease_ms,
            on_lost=self.end,
            on_refused=on_refused,
            alone=alone,
        )
        self.transports: Transports | None = None

    async def acquire(self) -> int:
        """Wait until the lease is ours; returns its epoch."""
        return await self.leadership.acquire()

    async def open(self, *, clean: bool) -> Transports:
        """Replay; returns the transports, which do not listen yet."""
        await self.broker.open(epoch=self.leadership.epoch, clean=clean, on_fenced=self.end)
        await make_root(self.broker, self._setup.on_root)
        self.transports = Transports(
            self._runtime,
            self._settings,
            Dispatcher(self.broker, self.leadership),
            open_session=self._open_session,
            close_session=self._close_session,
            encryption=self._setup.encryption,
        )
        self._tasks.start(self._enforce_retention(), name="retention")
        return self.transports

    def end(self) -> None:
        """Another broker may lead already: say nothing more to anybody."""
        if self.over.is_set() or self._closed:
            return
        self.over.set()
        log.error("leadership lost", epoch=self.leadership.epoch)
        self.leadership.give_up()
        if self.transports is not None:
            self._tasks.start(self.transports.close(), name="leave")

    async def close(self) -> bool:
        """True when every append was acknowledged and the lease was held to the end."""
        self._closed = True
        if self.transports is not None:
            await self.transports.close()
        await self._tasks.close()
        clean = await self.broker.close(finish=self.leadership.holds)
        return clean and self.leadership.holds

    async def leave(self) -> None:
        """Give the lease back; after `close`, when its outcome is on disk."""
        await self.leadership.close()

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
                await self.broker.publishing.sweep(self._settings.staged_ms_max)
            except HeadraceError as error:
                log.warning("retention round failed", reason=str(error))
