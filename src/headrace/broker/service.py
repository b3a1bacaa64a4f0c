"""The broker as a service: it leads, or stands by until it may.

Alone (`stands_by` false) it waits for the lease, listens, and is over when another broker was given
the lease; one that only ran out is asked for again. In a cluster it listens at once: while another
broker leads, connections go on to that one; when the leader's lease runs out, one of those that
stand by takes it, replays the logs and serves. A broker that loses its lease, for whatever reason,
stands by again with nothing of its state kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.broker.core import Broker, Identity, ProcessFigures
from headrace.broker.shards.leases import WORKER_PREFIX
from headrace.broker.term.broker_registry import LEADER_LEASE, BrokerAddress, stay_listed
from headrace.broker.term.root_user import RootCredentials
from headrace.broker.term.snapshot import Diagnostics
from headrace.broker.term.standby_listener import StandbyListener
from headrace.broker.term.term import Setup, Term
from headrace.broker.term.transports import Encryption
from headrace.concurrency.tasks import TaskSet
from headrace.config.broker import BrokerSettings
from headrace.errors import (
    ConfigError,
    FencedError,
    HeadraceError,
    LocalProtocolError,
    NotLeaderError,
)
from headrace.net.addresses import advertised, format_address, parse_address
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Runtime
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.leadership import HolderFile
from headrace.wire.sbp.messages import LeaseResponse

__all__ = ["BrokerService", "RootCredentials"]

log = get_logger(__name__)

VERSION = "0.1.0"
_RETRY_SECONDS = 1.0


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
        version: str = VERSION,
        figures: Callable[[], ProcessFigures] = ProcessFigures,
        diagnostics: Diagnostics | None = None,
        on_root: Callable[[RootCredentials], None] | None = None,
        encryption: Encryption | None = None,
        stands_by: bool = False,
        advertise: str = "",
    ) -> None:
        """`cluster_uuid` is for a catalogue that has none yet; empty = a new one. `advertise` is
        where clients reach us, when that is not where we listen."""
        self._runtime = runtime
        self._settings = settings
        self._client = client
        self._stands_by = stands_by
        self._advertise = advertise
        self._executor = runtime.executor("broker", 1)
        self._holder_file = HolderFile(runtime, folder, self._executor)
        self._tasks = TaskSet("broker service")
        self._closed = False
        self.lost = asyncio.Event()
        """Set when this service is over: leadership was lost and it does not stand by, or
        `failure`."""
        self.failure: HeadraceError | None = None
        """Why it can never lead, if so."""
        self._setup = Setup(
            runtime=runtime,
            settings=settings,
            client=client,
            identity=Identity(
                cluster_uuid=cluster_uuid,
                cluster_name=settings.cluster_name,
                placement_address=placement_address,
                version=version,
                secret=secret,
                started_us=runtime.clock.now_us(),
            ),
            figures=figures,
            diagnostics=diagnostics,
            on_root=on_root,
            encryption=encryption,
        )
        self.term: Term | None = None
        """The one that began last; `leads` says whether it still is."""
        self._standby: StandbyListener | None = None
        self._quic_port = 0

    # -- starting and stopping

    async def start(self, host: str, port: int, quic_port: int | None = None) -> None:
        """Returns once clients are served; alone it waits while another broker leads.

        QUIC is served when it has a port (0 = any free one) and `encryption` was given; a broker
        that stands by serves it only while it leads.
        """
        try:
            self._holder = await self._holder_file.load()
            if self._stands_by:
                await self._start_standby(host, port, quic_port)
            else:
                await self._lead_alone(host, port, quic_port)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._tasks.close()
        if self.term is not None:
            await self._end_term(self.term)
        if self._standby is not None:
            await self._standby.close()
        self._executor.close()

    # -- terms

    async def _begin_term(self) -> Term:
        """Wait for the lease, then replay."""
        term = self.term = Term(
            self._setup,
            self._holder.holder,
            alone=not self._stands_by,
            on_refused=self._on_refused,
        )
        epoch = await term.acquire()
        clean = self._holder.continues(epoch)
        self._holder.clean_epoch = -1
        await self._holder_file.save(self._holder)
        await term.open(clean=clean)
        log.info("broker leads", epoch=epoch, clean=clean)
        return term

    async def _end_term(self, term: Term) -> None:
        if await term.close():
            self._holder.clean_epoch = term.leadership.epoch
            await self._holder_file.save(self._holder)
        await term.leave()

    async def _announce(self, term: Term, host: str, port: int) -> None:
        address = self._advertised_address(host, port)
        term.broker.address = (address.host, address.port)
        quic = None if term.transports is None else term.transports.quic
        term.broker.quic_port = 0 if quic is None else quic.port
        await term.leadership.announce(format_address(address.host, address.port))

    def _advertised_address(self, host: str, port: int) -> BrokerAddress:
        return BrokerAddress(
            *parse_address(advertised(self._advertise, format_address(host, port)))
        )

    # -- alone

    async def _lead_alone(self, host: str, port: int, quic_port: int | None) -> None:
        term = await self._begin_term()
        assert term.transports is not None, "it was opened"
        await term.transports.start(host, port, quic_port)
        listener = term.transports.tcp.listener
        await self._announce(term, listener.host, listener.port)
        self._tasks.start(self._tell_lost(term), name="lost")

    async def _tell_lost(self, term: Term) -> None:
        await term.over.wait()
        self.lost.set()

    # -- in a cluster

    async def _start_standby(self, host: str, port: int, quic_port: int | None) -> None:
        standby = self._standby = StandbyListener(
            self._runtime,
            find_leader=self.find_leader,
            wait_seconds=self._settings.leader_wait_ms / 1000,
            guests_max=self._settings.connections_max,
        )
        await standby.start(host, port)
        address = self._advertised_address(standby.listener.host, standby.listener.port)
        if quic_port:
            address = BrokerAddress(address.host, address.port, quic_port)
        self._tasks.start(
            stay_listed(
                self._runtime,
                self._client,
                holder=self._holder.holder,
                address=address,
                duration_ms=self._settings.lease_ms,
            ),
            name="listed",
        )
        self._tasks.start(self._lead_in_turns(standby, host, quic_port), name="lead")

    async def _lead_in_turns(
        self, standby: StandbyListener, host: str, quic_port: int | None
    ) -> None:
        try:
            while True:
                pause = await self._lead_once(standby, host, quic_port)
                assert self.term is not None, "it was begun"
                await self._end_term(self.term)
                log.info("broker stands by")
                await self._runtime.clock.sleep(pause)
        except Exception as error:
            broke = LocalProtocolError("the broker broke; see its log")
            self.failure = error if isinstance(error, HeadraceError) else broke
            self.lost.set()
            raise

    async def _lead_once(self, standby: StandbyListener, host: str, quic_port: int | None) -> float:
        """Lead until the term is over; gives the seconds to wait before the next try."""
        try:
            await self._check_no_workers()
            term = await self._begin_term()
            await self._serve_term(term, standby, host, quic_port)
        except ConfigError:
            raise  # a person has to look at it
        except (FencedError, NotLeaderError) as error:
            log.warning("another broker took over meanwhile", reason=str(error))
        except HeadraceError as error:
            log.error("could not take over", reason=str(error))
            return _RETRY_SECONDS  # whoever stands by too may be luckier
        finally:
            standby.send_away()
        return 0.0

    async def _check_no_workers(self) -> None:
        """Workers that each lead a part and a broker that leads everything would take the
        leadership from each other for ever."""
        workers = (await self._client.list_leases(WORKER_PREFIX)).leases
        if any(one.holder for one in workers):
            raise ConfigError(
                "the brokers of this cluster lead a part of it each: start this one with --workers"
            )

    async def _serve_term(
        self, term: Term, standby: StandbyListener, host: str, quic_port: int | None
    ) -> None:
        assert term.transports is not None, "it was opened"
        if quic_port is not None:
            await term.transports.start_quic(host, self._quic_port or quic_port)
            assert term.transports.quic is not None, "it was started"
            self._quic_port = term.transports.quic.port  # the same one in the next term
        await self._announce(term, standby.listener.host, standby.listener.port)
        if not term.over.is_set():
            standby.serve_here(term.transports.tcp.serve)
        await term.over.wait()

    async def find_leader(self) -> str:
        """Another broker that leads; nothing while it is taking over, or it is us."""
        answer = await self._client.query_lease(LEADER_LEASE)
        return "" if answer.holder == self._holder.holder else answer.address

    def _on_refused(self, answer: LeaseResponse) -> None:
        if self._standby is not None:
            self._standby.end_relays(but_to=answer.address)

    # -- figures

    @property
    def broker(self) -> Broker:
        assert self.term is not None, "not started"
        return self.term.broker

    @property
    def address(self) -> str:
        if self._standby is not None:
            return self._standby.address
        assert self.term is not None, "not started"
        assert self.term.transports is not None, "not started"
        return self.term.transports.tcp.address

    @property
    def quic_address(self) -> str:
        """Empty when QUIC is not served."""
        transports = None if self.term is None else self.term.transports
        quic = None if transports is None else transports.quic
        return "" if quic is None else quic.address

    @property
    def leads(self) -> bool:
        return self.term is not None and self.term.leadership.holds

    @property
    def serves(self) -> bool:
        """Whether clients are answered here: it leads, and its logs are replayed."""
        return self.leads and self.term is not None and self.term.transports is not None

    def statistics(self) -> dict[str, object]:
        figures: dict[str, object] = {
            "leads": self.leads,
            "epoch": -1 if self.term is None else self.term.leadership.epoch,
            **({} if self._standby is None else self._standby.statistics()),
        }
        if self.term is None or self.term.transports is None or not self.leads:
            return figures  # nobody, or one that has yet to replay its logs
        broker, transports = self.term.broker, self.term.transports
        return {
            **figures,
            "coordinates": True,
            "shards": broker.catalogue.shards,
            "streams": len(broker.catalogue.streams),
            "topics": sum(1 for _ in broker.catalogue.topics()),
            "users": len(broker.catalogue.users),
            "groups": broker.catalogue.groups_count(),
            "clients": len(broker.sessions),
            "partitions_open": len(broker.open_logs()),
            "doomed_streams": len(broker.catalogue.doomed),
            **broker.publishing.statistics(),
            **broker.traffic.totals(),
            **broker.held_polls.statistics(),
            **transports.statistics(),
        }
