"""One worker of several: it leads some shards, follows or changes the catalogue, and knows the
others.

Whoever gets the first shard's lease coordinates: it changes the catalogue, and gives shards to
workers. The others join it, follow the catalogue's log, and lead what they are given. When the
coordinator is lost, they go on with what they lead, and whichever gets the lease next coordinates.

A worker answers only while its copy of the catalogue is proven to be whole as of less than
`CURRENT_SECONDS` ago: it read the log's end since then, or asked the coordinator how far the log
goes. So a right that was taken away is in force everywhere within a second, also where nobody can
be told of it; requests wait meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import msgspec

from headrace.broker.catalogue import decisions, events
from headrace.broker.catalogue.state import Catalogue
from headrace.broker.core import CATALOGUE, Broker
from headrace.broker.partitions.offsets import Place
from headrace.broker.sessions.sessions import Session
from headrace.broker.shards import messages as m
from headrace.broker.shards.assignment import NOBODY
from headrace.broker.shards.coordinator import Coordinator
from headrace.broker.shards.figures import state_of
from headrace.broker.shards.leases import COORDINATOR, WorkerLeases, shard_lease, shard_of
from headrace.broker.shards.led import Led, SomeShards
from headrace.broker.shards.links import WorkerLinks
from headrace.broker.shards.offset_logs import FIRST
from headrace.broker.shards.others import OpenPartition
from headrace.broker.shards.peers import Peers
from headrace.broker.shards.remote import RemotePartition, lowest_offset
from headrace.broker.shards.serving import PeerRequests
from headrace.broker.windows.publishing import PUBLISHERS
from headrace.broker.windows.staging import Ownership
from headrace.concurrency.tasks import TaskSet
from headrace.errors import (
    HeadraceError,
    NotLeaderError,
    OutcomeUnknownError,
    UnavailableError,
)
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Runtime
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.state_follower import StateFollower

log = get_logger(__name__)

_RETRY_SECONDS = 0.05
CURRENT_SECONDS = 0.95
"""Below `coordinator.SETTLED_SECONDS`."""
_PULSE_SECONDS = 0.25
_PULSE_TIMEOUT = 1.5
_APPLY_SECONDS = 5.0
_TELL_SECONDS = 0.2
_ASSIGN_TRIES = 300
_ASK_ALL_SECONDS = 2.0
_LEAVE_SECONDS = 1.0


class Worker:
    """Used as the broker's `workers`; serves from `start` to `close`."""

    def __init__(
        self,
        runtime: Runtime,
        client: SbpClient,
        broker: Broker,
        leases: WorkerLeases,
        links: WorkerLinks,
        *,
        me: str,
        make_root: Callable[[], Awaitable[None]],
    ) -> None:
        self._runtime = runtime
        self._client = client
        self._broker = broker
        self._leases = leases
        self._links = links
        self._make_root = make_root
        self.shards = SomeShards(lambda shard: leases.lose(shard_lease(shard)))
        self.peers = Peers(me, links, self.shards.leads)
        self.coordinator: Coordinator | None = None
        self.ready = asyncio.Event()
        """Set once requests can be answered."""
        self._catalogue: StateFollower | None = None
        self._publishers: StateFollower | None = None
        self._following = asyncio.Event()
        """Set while the catalogue is another's, and this worker follows it."""
        self._role_over = asyncio.Event()
        self._current_at = float("-inf")
        """When the coordinator said last how far the catalogue goes, and that was known here."""
        self._members_version = -1
        self._member_workers: list[tuple[int, str]] = []
        self._taking = asyncio.Lock()
        self._closing = False
        self._retired = False
        self._tasks = TaskSet("worker")
        self._renewing = TaskSet("leases of a worker")
        """Apart, because what is handed over is led until it is done."""
        broker.workers = self
        broker.prepare(self.shards)

    def start(self, requests: PeerRequests) -> None:
        requests.answers.update(
            {
                m.Join: self._on_join,
                m.Leave: self._on_leave,
                m.Pulse: self._on_pulse,
                m.Applied: self._on_applied,
                m.Lead: self._on_lead,
                m.HandOver: self._on_hand_over,
                m.GroupMembers: self._on_group_members,
                m.Moved: self._on_moved,
                m.Gone: self._on_gone,
                m.Figures: self._on_figures,
            }
        )
        self._renewing.start(self._leases.keep())
        self._tasks.start(self._run(), name="roles")

    async def retire(self) -> None:
        """Take no more shards, and give none to others."""
        self._retired = True
        if self.coordinator is not None:
            self.coordinator.retired = True

    async def close(self) -> bool:
        """Hand everything over; whether nothing is left whose outcome is unknown."""
        self._closing = True
        leads_catalogue = self.coordinator is not None
        coordinator = self.peers.coordinator
        await self._tasks.close()
        if not leads_catalogue and coordinator != NOBODY:
            with suppress(HeadraceError):
                await self.peers.ask(coordinator, m.Leave(), seconds=_LEAVE_SECONDS)
        clean = True
        if shards := [shard for shard in self.shards.held if shard != FIRST]:
            try:
                clean = await self.hand_over(*shards)
            except HeadraceError as error:  # their leases end by themselves
                log.info("shards not handed over", shards=len(shards), reason=str(error))
                clean = False
        await self._renewing.close()
        await self._close_followers()
        return clean

    # -- roles

    async def _run(self) -> None:
        while True:
            try:
                granted = {} if self._retired else await self._leases.acquire([COORDINATOR])
                if COORDINATOR in granted:
                    await self._coordinate(granted[COORDINATOR])
                else:
                    await self._follow()
            except HeadraceError as error:
                log.info("worker looks for its role again", reason=str(error))
            await self._runtime.clock.sleep(_RETRY_SECONDS)

    async def _coordinate(self, epoch: int) -> None:
        self._role_over.clear()
        broker = self._broker
        log.info("worker coordinates", worker=self.peers.me, epoch=epoch)
        tasks = TaskSet("coordinator of workers")
        try:
            on_fenced = partial(self._leases.lose, COORDINATOR)
            ownership = Ownership(epoch, False, await broker.log_replicas(), on_fenced)
            await broker.lead_catalogue(ownership)
            coordinator = Coordinator(
                broker, self._client, self.peers, lead=self.lead, hand_over=self.hand_over
            )
            await coordinator.look_around()  # whoever serves must know of changes from now on
            self.coordinator = coordinator
            coordinator.take_clients(self._member_workers)
            await broker.offset_logs.open(
                FIRST, epoch=epoch, clean=False, replicas=ownership.replicas
            )
            await self._divide(ownership)
            self.shards.held[FIRST] = Led(epoch)
            await self._make_root()
            await broker.lead_publishing(ownership)
            await self._close_followers()
            self.peers.on_coordinator(self.peers.me)
            self._go_live()
            await broker.coordinate()
            tasks.start(coordinator.balance(), name="balance")
            await self._role_over.wait()
        finally:
            self.coordinator = None
            self.peers.on_coordinator(NOBODY)
            await tasks.close()
            await self._drop(FIRST)
            await broker.stop_coordinating()

    async def _divide(self, ownership: Ownership) -> None:
        """Consumers' offsets of every shard are with who leads it, from the first time on that
        there are several workers. Before that time nobody but this worker leads anything, and this
        worker nothing yet: so partitions of before there were shards can change theirs. The epochs
        that their new shards get are above all that wrote to them."""
        broker = self._broker
        assert FIRST not in self.shards.held, "what is stored meanwhile would be in neither log"
        if not broker.catalogue.divided:
            for event in decisions.spread_partitions(broker.catalogue):
                await broker.record(event)
        missing = sorted(set(range(1, broker.catalogue.shards)) - broker.catalogue.divided)
        if missing:
            await broker.offset_logs.copy(
                missing, epoch=ownership.epoch, replicas=ownership.replicas
            )
            await broker.record(events.OffsetsDivided(missing))

    async def _follow(self) -> None:
        self._role_over.clear()
        holder = (await self._client.query_lease(COORDINATOR)).holder
        if not holder or holder == self.peers.me:
            return
        welcome = await self._join(holder)
        if self._catalogue is None or self._publishers is None:
            await self._open_followers()
        assert self._catalogue is not None
        await self._catalogue.wait_applied(welcome.offset, _APPLY_SECONDS)
        self.peers.on_coordinator(holder)
        self._members_version = -1
        self._take(welcome)
        self._go_live()
        log.info("worker follows", worker=self.peers.me, coordinator=holder)
        try:
            while not self._role_over.is_set():
                await self._feel_pulse(holder)
                await self._wait_over(_PULSE_SECONDS)
        finally:
            self.peers.on_coordinator(NOBODY)

    async def _join(self, coordinator: str) -> m.Welcome:
        sessions, membership = self._broker.sessions, self._broker.membership
        members = [s.client_id for s in sessions if membership.groups_of(s.client_id)]
        data = await self.peers.ask(coordinator, m.Join(self.peers.me, members))
        return msgspec.msgpack.decode(data, type=m.Welcome)

    def _take(self, welcome: m.Welcome) -> None:
        self.peers.on_leaders(welcome.leaders)
        self._take_members(welcome.members)

    async def _feel_pulse(self, coordinator: str) -> None:
        """Learn how far the catalogue goes, and whether what was told is all there is to know."""
        asked = self._runtime.clock.monotonic()
        data = await self.peers.ask(coordinator, m.Pulse(), seconds=_PULSE_TIMEOUT)
        pulse = msgspec.msgpack.decode(data, type=m.PulseState)
        if self._catalogue is not None and self._catalogue.applied_offset >= pulse.offset:
            self._current_at = max(self._current_at, asked)
        if (pulse.leaders, pulse.members) != (self.peers.version, self._members_version):
            self._take(await self._join(coordinator))

    @property
    def is_current(self) -> bool:
        """Whether the catalogue here may be answered by."""
        if self.coordinator is not None:
            return self._leases.epoch(COORDINATOR) is not None
        follower = self._catalogue
        if follower is None or follower.failure is not None:
            return False
        at = max(self._current_at, follower.current_at)
        return self._runtime.clock.monotonic() - at < CURRENT_SECONDS

    async def _wait_over(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._role_over.wait()
        except TimeoutError:
            return

    def _go_live(self) -> None:
        if not self.ready.is_set():
            self._broker.go_live()
            self.ready.set()

    async def _open_followers(self) -> None:
        catalogue, publishing = Catalogue(), self._broker.make_publishing()
        self._catalogue = await self._open_follower(
            CATALOGUE, partial(self._broker.apply, catalogue), catalogue.restore
        )
        self._publishers = await self._open_follower(
            PUBLISHERS, publishing.apply, publishing.state.restore
        )
        self._broker.take_catalogue(catalogue)
        self._broker.publishing = publishing
        self._following.set()

    async def _open_follower(
        self,
        name: str,
        apply: Callable[[int, str, object], None],
        restore: Callable[..., None],
    ) -> StateFollower:
        return await StateFollower.open(
            self._client,
            name=name,
            apply=apply,
            restore=restore,
            runtime=self._runtime,
            on_failed=self._on_follower_failed,
        )

    def _on_follower_failed(self, error: HeadraceError) -> None:
        log.error("the catalogue can be followed no more", reason=str(error))
        self._tasks.start(self._follow_anew(), name="follow anew")

    async def _follow_anew(self) -> None:
        await self._close_followers()
        self._role_over.set()

    async def _close_followers(self) -> None:
        self._following.clear()
        for follower in (self._catalogue, self._publishers):
            if follower is not None:
                await follower.close()
        self._catalogue = self._publishers = None

    # -- what the links say

    def on_unlinked(self, worker: str) -> None:
        """The last link from or to a worker is over."""
        if self.coordinator is not None:
            self.coordinator.on_gone(worker)
        elif worker == self.peers.coordinator:
            self._role_over.set()

    def on_lost(self, name: str) -> None:
        """A lease is another's."""
        shard = shard_of(name)
        if name == COORDINATOR:
            self._role_over.set()
        if shard is not None and shard in self.shards.held:
            log.warning("shard lost", shard=shard, worker=self.peers.me)
            del self.shards.held[shard]
            self._broker.partitions.drop(shard)
            self._tasks.start(self._broker.offset_logs.drop(shard), name="drop")

    def on_notice(self, worker: str, head: bytes, body: memoryview) -> None:
        message = m.decode(head)
        if isinstance(message, m.Ended):
            self._broker.sessions.on_ended(message.client_id)
        if worker == self.peers.coordinator and isinstance(message, m.Leaders):
            self.peers.on_leaders(message)

    async def _on_join(self, peer: str, message: m.Join, body: memoryview) -> object:
        return self._coordinating().on_join(message.worker, message.members)

    async def _on_leave(self, peer: str, message: m.Leave, body: memoryview) -> object:
        self._coordinating().on_gone(peer)
        return None

    async def _on_pulse(self, peer: str, message: m.Pulse, body: memoryview) -> object:
        return self._coordinating().pulse()

    def _coordinating(self) -> Coordinator:
        self._leases.check()
        if self.coordinator is None:
            raise NotLeaderError("another worker coordinates")
        return self.coordinator

    async def _on_applied(self, peer: str, message: m.Applied, body: memoryview) -> object:
        await self._wait_catalogue(message.offset)
        return None

    async def _wait_catalogue(self, offset: int) -> None:
        """Of who has just come, or coordinated before, the catalogue may be none, or an old one."""
        if self.coordinator is not None:
            return
        try:
            async with asyncio.timeout(_APPLY_SECONDS):
                await self._following.wait()
        except TimeoutError as error:
            raise UnavailableError("the catalogue is not known yet") from error
        assert self._catalogue is not None
        await self._catalogue.wait_applied(offset, _APPLY_SECONDS)

    @property
    def known_offset(self) -> int:
        """The catalogue's events below it are known here; -1 while that is open."""
        if self.coordinator is not None:
            return self._broker.catalogue_end
        return -1 if self._catalogue is None else self._catalogue.applied_offset

    async def _on_group_members(
        self, peer: str, message: m.GroupMembers, body: memoryview
    ) -> object:
        if peer == self.peers.coordinator:
            self._take_members(message)
        return None

    def _take_members(self, message: m.GroupMembers) -> None:
        if message.version > self._members_version:
            self._members_version = message.version
            self._member_workers = message.workers
            self._broker.membership.take((g.uid, g.generation, g.members) for g in message.groups)

    # -- shards

    async def _on_lead(self, peer: str, message: m.Lead, body: memoryview) -> object:
        return await self.lead(message)

    async def lead(self, message: m.Lead) -> list[int]:
        """Take the leases of these shards and open what belongs to them."""
        async with self._taking:
            if self._closing or self._retired:
                raise NotLeaderError("the worker is about to end")
            await self._wait_catalogue(message.offset)
            wanted = [shard for shard in message.shards if shard not in self.shards.held]
            granted = await self._leases.acquire(shard_lease(shard) for shard in wanted)
            replicas = await self._broker.log_replicas()
            opened = await asyncio.gather(
                *(
                    self._open_shard(shard, granted[name], message.clean, replicas)
                    for shard in wanted
                    if (name := shard_lease(shard)) in granted
                ),
                return_exceptions=True,
            )
            for error in opened:
                if isinstance(error, BaseException):
                    log.warning("shard not opened", reason=str(error))
            return sorted(self.shards.held)

    async def _open_shard(self, shard: int, epoch: int, clean: bool, replicas: int) -> None:
        try:
            await self._broker.offset_logs.open(shard, epoch=epoch, clean=clean, replicas=replicas)
        except BaseException:  # a lease that is held and leads nothing would keep others from it
            await self._leases.release([shard_lease(shard)])
            raise
        if self._leases.epoch(shard_lease(shard)) != epoch:
            await self._broker.offset_logs.release(shard)
            raise NotLeaderError("the lease was lost meanwhile", shard=shard)
        self.shards.held[shard] = Led(epoch, clean)

    async def _on_hand_over(self, peer: str, message: m.HandOver, body: memoryview) -> object:
        return await self.hand_over(message.shard)

    async def hand_over(self, *shards: int) -> bool:
        """Finish what is under way and give the leases back, all at once: clients of each shard
        wait from its first moment to the last one's end."""
        async with self._taking:
            held = [shard for shard in shards if self.shards.held.pop(shard, None) is not None]
            if not held:
                return False
            released = await asyncio.gather(*map(self._release, held))
            await self._leases.release(shard_lease(shard) for shard in held)
            return all(released)

    async def _release(self, shard: int) -> bool:
        clean = await self._broker.partitions.release(shard)
        return await self._broker.offset_logs.release(shard) and clean

    async def _drop(self, shard: int) -> None:
        """Another worker may lead it already: nothing is finished."""
        self.shards.held.pop(shard, None)
        self._broker.partitions.drop(shard)
        await self._broker.offset_logs.drop(shard)

    # -- what the broker needs of the others (`others.Workers`)

    @property
    def coordinates(self) -> bool:
        return self.coordinator is not None

    async def wait_applied(self, offset: int) -> None:
        if self.coordinator is not None:
            await self.coordinator.settle(offset)

    async def assign(self, event: events.PartitionAssigned) -> None:
        place = Place(event.topic_uid, event.partition, event.generation)
        for _ in range(_ASSIGN_TRIES):
            try:
                data = await self.peers.ask_coordinator(m.Assign(place, event.stream_id))
            except (NotLeaderError, UnavailableError, OutcomeUnknownError):
                await self.peers.wait_changed(_RETRY_SECONDS)
            else:
                return await self._wait_catalogue(msgspec.msgpack.decode(data, type=int))
        raise UnavailableError("nobody coordinates")

    async def open_partition(self, place: Place, shard: int) -> OpenPartition:
        return await RemotePartition.open(self.peers, place, shard)

    async def lowest_offset(self, place: Place, shard: int) -> int | None:
        return await lowest_offset(self.peers, place, shard)

    async def clients(self) -> list[m.ClientState]:
        if self.coordinator is None:
            return []
        answers = await self.coordinator.gather(m.Clients())
        return [
            client
            for data in answers
            for client in msgspec.msgpack.decode(data, type=list[m.ClientState])
        ]

    async def states(self) -> list[m.WorkerState]:
        if self.coordinator is None:
            return []
        answers = await self.coordinator.gather(m.Figures())
        return [msgspec.msgpack.decode(data, type=m.WorkerState) for data in answers]

    async def _on_figures(self, peer: str, message: m.Figures, body: memoryview) -> object:
        return state_of(self._broker)

    def leader_of(self, shard: int) -> str:
        return self.peers.leader_of(shard)

    async def wait_led(self, shard: int, worker: str) -> None:
        if self.coordinator is not None:
            await self.coordinator.wait_led(shard, worker)

    async def wait_members(self) -> None:
        if self.coordinator is not None:
            await self.coordinator.tell_members()

    async def forget_session(self, number: int) -> None:
        await self._ask_all(m.ForgetSession(number))

    async def take_left(self, user_uid: int, fingerprint: bytes) -> bytes | None:
        for data in await self._ask_all(m.TakeLeft(user_uid, fingerprint)):
            answer = msgspec.msgpack.decode(data, type=bytes | None)
            if answer is not None:
                return answer
        return None

    async def _ask_all(self, message: m.Message) -> list[memoryview]:
        """What those others answer who do."""
        workers = sorted({*self.peers.leaders, self.peers.coordinator} - {NOBODY, self.peers.me})
        asked = (self.peers.ask(worker, message, seconds=_ASK_ALL_SECONDS) for worker in workers)
        found = await asyncio.gather(*asked, return_exceptions=True)
        return [each for each in found if isinstance(each, memoryview)]

    def on_members(self) -> None:
        if self.coordinator is not None and self.coordinator.joined:
            self._tasks.start(self.wait_members(), name="members")

    def on_joined(self, client_id: int, worker: str) -> None:
        if self.coordinator is not None:
            self.coordinator.on_client_joined(client_id, worker)

    async def _on_moved(self, peer: str, message: m.Moved, body: memoryview) -> object:
        if self.coordinator is None:
            raise NotLeaderError("another worker coordinates")
        self.coordinator.on_client_joined(message.client_id, peer)
        self.on_members()
        return None

    async def _on_gone(self, peer: str, message: m.Gone, body: memoryview) -> object:
        if self.coordinator is None:
            raise NotLeaderError("another worker coordinates")
        self.coordinator.on_client_gone(message.client_id)
        self._broker.on_client_gone(message.client_id)
        return None

    def tell_moved(self, session: Session) -> None:
        """A session is with this worker now, which the coordinator must know of members."""
        if self._broker.membership.groups_of(session.client_id):
            self._tasks.start(self._tell_moved(session), name="moved")

    async def _tell_moved(self, session: Session) -> None:
        client_id = session.client_id
        while self._broker.sessions.get(client_id) is session:
            try:
                if self.coordinator is not None:
                    self.coordinator.on_client_joined(client_id, "")
                    self.on_members()
                else:
                    await self.peers.ask_coordinator(m.Moved(client_id))
                return
            except HeadraceError as error:
                log.info("the coordinator was not told where a client is", reason=str(error))
            await self.peers.wait_changed(_TELL_SECONDS)

    def tell_gone(self, client_id: int) -> None:
        self._tasks.start(self._tell_gone(client_id), name="gone")

    async def _tell_gone(self, client_id: int) -> None:
        try:
            await self.peers.ask_coordinator(m.Gone(client_id))
        except HeadraceError as error:
            log.info("the coordinator was not told of a client that left", reason=str(error))
