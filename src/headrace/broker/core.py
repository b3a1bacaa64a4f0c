"""Everything a handler may touch: state, logs, sessions. No sockets, no leases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from headrace.broker.catalogue import events
from headrace.broker.catalogue.groups import Membership
from headrace.broker.catalogue.passwords import Guard, Passwords
from headrace.broker.catalogue.resources import (
    NEVER,
    OUTSIDE_UID,
    SERVER_DEFAULT,
    UNASSIGNED,
    UNLIMITED,
    Partition,
    Topic,
)
from headrace.broker.catalogue.state import Catalogue
from headrace.broker.loop_delay import LoopDelay
from headrace.broker.partitions.offsets import Kind, Offsets, Place, Reader
from headrace.broker.partitions.open_partitions import Partitions, place_of
from headrace.broker.partitions.partition import PartitionLog
from headrace.broker.poll.caches import PollCaches
from headrace.broker.poll.held_polls import HeldPolls
from headrace.broker.sessions.request_dedup import REQUEST, Answers, Effect, Request
from headrace.broker.sessions.sessions import Session, Sessions
from headrace.broker.shards.led import AllShards, LeadsShards, Led
from headrace.broker.shards.offset_logs import FIRST, OffsetLogs
from headrace.broker.shards.others import NoOthers, OpenPartition, Workers
from headrace.broker.term.broker_registry import BrokerRegistry, keep_log_replicas, log_replicas
from headrace.broker.term.snapshot import Diagnostics, Snapshots
from headrace.broker.traffic import Traffic
from headrace.broker.windows.publishing import Publishing
from headrace.broker.windows.staging import Ownership
from headrace.concurrency.locks import KeyedLock
from headrace.concurrency.tasks import TaskSet
from headrace.config.broker import BrokerSettings
from headrace.errors import HeadraceError, NotLeaderError
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Runtime
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.state_log import StateLog
from headrace.wire.iggy.dialects import Dialect

log = get_logger(__name__)

CATALOGUE = "s/catalogue"

_RECLAIM_RETRY_SECONDS = 5.0
_LOG_CHECK_SECONDS = 1.0
_REPLICAS_CHECK_SECONDS = 30.0
_HEARTBEATS_MISSED = 1.2

E = TypeVar("E", bound=events.Event)


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """What the machine says about this process, for GET_STATS. Zero where it is not known."""

    pid: int = 0
    cpu_percent: float = 0.0
    total_cpu_percent: float = 0.0
    memory: int = 0
    total_memory: int = 0
    available_memory: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    threads: int = 0
    free_disk: int = 0
    total_disk: int = 0
    hostname: str = ""
    os_name: str = ""
    os_version: str = ""
    kernel_version: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this broker is to its clients."""

    cluster_uuid: str
    """For a catalogue that names none yet; empty = a new one."""
    cluster_name: str
    placement_address: str
    version: str
    secret: bytes
    started_us: int


class Broker:
    def __init__(
        self,
        runtime: Runtime,
        settings: BrokerSettings,
        client: SbpClient,
        identity: Identity,
        *,
        figures: Callable[[], ProcessFigures],
        diagnostics: Diagnostics | None = None,
    ) -> None:
        self.runtime = runtime
        self.settings = settings
        self.client = client
        self.identity = identity
        self.figures = figures
        self.snapshots = Snapshots(runtime, diagnostics or Diagnostics())
        self.name = ""
        """What leases know this process by."""
        self.address = ("", 0)
        """Where clients reach us."""
        self.quic_port = 0
        """0 when QUIC is not served."""
        self.registry = BrokerRegistry(runtime, client)
        self.catalogue = Catalogue()
        self.offsets = Offsets()
        self.offset_logs = OffsetLogs(runtime, client, self.offsets, lambda: self.catalogue)
        self.membership = Membership()
        self.sessions = Sessions()
        self.answers = Answers(
            sessions_max=settings.answers_sessions_max, bytes_max=settings.answers_bytes_max
        )
        self.poll_caches = PollCaches(settings.poll_cache_bytes_max)
        self.held_polls = HeldPolls(settings.poll_wait_ms / 1000)
        self.membership.on_change = self.held_polls.on_change
        self.passwords = Passwords(runtime)
        self.committing = KeyedLock()
        """Polls that commit, by place and reader."""
        self.guard = Guard(runtime, settings)
        self.rotation: dict[int, int] = {}
        """Topic uid -> how many balanced batches it got."""
        self.traffic = Traffic()
        self.loop_delay = LoopDelay(runtime.clock)
        self._deciding = asyncio.Lock()
        self._logs: list[StateLog] = []
        self._tasks = TaskSet("broker")
        self._coordinating = TaskSet("coordinator")
        self.workers: Workers = NoOthers()
        """What other workers have to do with; none where one process leads everything."""
        self._reclaim = asyncio.Event()
        self._live = False  # False while replaying: there is nothing yet to keep in step

    # -- opening and closing

    async def open(self, *, epoch: int, clean: bool, on_fenced: Callable[[], None]) -> None:
        """Lead everything: replay catalogue, offsets and publishers."""
        self.prepare(AllShards(Led(epoch, clean), on_fenced))
        ownership = Ownership(epoch, clean, await self.log_replicas(), on_fenced)
        await self.lead_catalogue(ownership)
        for shard in (FIRST, *sorted(self.catalogue.divided)):
            await self.offset_logs.open(
                shard, epoch=epoch, clean=clean, replicas=ownership.replicas
            )
        await self.lead_publishing(ownership)
        self.go_live()
        await self.coordinate()

    def prepare(self, shards: LeadsShards) -> None:
        """Say which shards are led here, before anything is opened."""
        self.shards = shards
        self.partitions = Partitions(
            self.runtime,
            self.client,
            self.settings,
            read_ahead=self.poll_caches.read_ahead,
            held_polls=self.held_polls,
            offsets=self.offsets,
            store_offsets=self.offset_logs.store,
            record=self.record,
            shards=shards,
        )
        self.publishing = self.make_publishing()

    def make_publishing(self) -> Publishing:
        return Publishing(
            self.runtime,
            self.client,
            open_place=self._open_place,
            publishers_max=self.settings.publishers_max,
            owned_max=self.settings.publishers_per_user_max,
            windows_kept=self.settings.windows_kept,
            topic_windows_max=self.settings.topic_windows_max,
            synced=self.settings.durability == "synced",
        )

    async def log_replicas(self) -> int:
        return await log_replicas(self.settings, self.registry)

    async def lead_catalogue(self, ownership: Ownership) -> None:
        """Replay the catalogue, and change it from now on. What is there is used meanwhile."""
        catalogue = Catalogue()
        self.membership.begin(ownership.epoch)
        self._log = await StateLog.open(
            self.client,
            name=CATALOGUE,
            epoch=ownership.epoch,
            clean=ownership.clean,
            apply=partial(self.apply, catalogue),
            snapshot=catalogue.snapshot,
            restore=catalogue.restore,
            runtime=self.runtime,
            replica_nums=ownership.replicas,
        )
        self._logs.append(self._log)
        self._on_fenced = ownership.on_fenced
        self.take_catalogue(catalogue)

    def take_catalogue(self, catalogue: Catalogue) -> None:
        """Use another copy from now on, which is at least as new."""
        catalogue.version += self.catalogue.version + 1  # what was looked up before is void
        self.catalogue = catalogue
        if catalogue.doomed:
            self._reclaim.set()
        if self._live:
            self._reconcile()

    async def lead_publishing(self, ownership: Ownership) -> None:
        """Replay what publishers did, and carry out what was interrupted."""
        publishing = self.make_publishing()
        self._logs.append(await publishing.start(ownership))
        self.publishing = publishing

    async def coordinate(self) -> None:
        """Begin what only who changes the catalogue does."""
        await self._name_cluster()
        self._coordinating.start(self._reclaim_streams(), name="reclaim")

    async def stop_coordinating(self) -> None:
        """Another process changes the catalogue from now on."""
        await self._coordinating.close()
        self._coordinating = TaskSet("coordinator")
        await self.publishing.close()
        self.publishing = self.make_publishing()
        logs, self._logs = self._logs, []
        for state_log in logs:
            await state_log.stream.close()  # nobody waits for appends that may hang
            await state_log.close()

    def go_live(self) -> None:
        """Everything is replayed: what depends on it is kept in step from now on."""
        self._live = True
        self._reconcile()
        self._tasks.start(self._keep_replicas(), name="replicas")
        self._tasks.start(self._watch_logs(), name="logs")
        self._tasks.start(self._evict_silent(), name="evict")
        self._tasks.start(self.loop_delay.measure(), name="loop delay")

    async def close(self, *, finish: bool = True) -> bool:
        """Finish what is under way. True when nothing is left whose outcome is unknown.

        Without `finish` appends in flight are left to their fate: another broker leads by now.
        """
        await self._tasks.close()
        await self._coordinating.close()
        self.held_polls.close()
        for state_log in () if finish else self.state_logs():
            await state_log.stream.close()  # nobody waits for appends that may hang
        clean = self._live
        if self._live:
            await self.publishing.close()
            clean = await self.partitions.close(finish=finish)
        for shard in self.offset_logs.led():
            clean = await self.offset_logs.release(shard) and clean
        for state_log in self._logs:
            clean = clean and state_log.failure is None
            await state_log.close()
        self.passwords.close()
        return clean

    @property
    def is_live(self) -> bool:
        """Whether the catalogue is known."""
        return self._live

    @property
    def catalogue_end(self) -> int:
        """The offset behind the catalogue's last event, where it is changed here."""
        return self._log.applied_offset

    def state_logs(self) -> list[StateLog]:
        return [*self._logs, *self.offset_logs.logs()]

    @property
    def cluster_uuid(self) -> str:
        """What Spark's offsets name: another after the data was wiped."""
        return self.catalogue.cluster_uuid

    async def _name_cluster(self) -> None:
        if not self.catalogue.cluster_uuid:
            uuid = self.identity.cluster_uuid or str(self.runtime.random.uuid())
            shards = self.catalogue.shards
            await self.record(events.ClusterNamed(uuid=uuid, shards=shards))

    def open_logs(self) -> list[PartitionLog]:
        return [log for _, log in self.partitions.opened()] if self._live else []

    # -- changing the catalogue

    async def commit(self, decide: Callable[[], E]) -> E:
        """Decide on the state as it is, make the event durable, apply it.

        In a task of its own: a caller that goes away must not leave a decision whose event is
        still on its way while the next one is made.
        """
        return await asyncio.shield(self._tasks.start(self._commit(decide), name="commit"))

    async def _commit(self, decide: Callable[[], E]) -> E:
        async with self._deciding:
            event = decide()
            await self.record(event)
            end = self.catalogue_end
        await self.workers.wait_applied(end)
        return event

    async def record(self, event: events.Event) -> None:
        """Log and apply an event that depends on nothing another one could change."""
        if isinstance(event, events.PartitionAssigned) and not self.workers.coordinates:
            return await self.workers.assign(event)
        kind, body = events.encode(event)
        request = REQUEST.get()
        if request is not None and not isinstance(event, events.PartitionAssigned):
            body[events.BY] = [*request]
        try:
            await self._log.append(kind, body, events.VERSION)
        except HeadraceError:
            if self._log.failure is not None:
                self._on_fenced()
            raise

    def apply(self, catalogue: Catalogue, version: int, kind: str, body: object) -> None:
        """Apply a logged event to a copy of the catalogue, and keep in step what depends on it."""
        event = events.decode(version, kind, body)
        catalogue.apply(event)
        by = body.get(events.BY) if isinstance(body, dict) else None
        if by is not None:
            effect = Effect(kind, getattr(event, "uid", -1))
            catalogue.requests.note(Request(*by), effect)
        if catalogue is not self.catalogue:
            return  # it is being replayed
        if self._live and isinstance(event, _STRUCTURAL):
            self._reconcile()
        if isinstance(event, events.PasswordChanged):
            self._end_logins(event.uid)
        if catalogue.doomed:
            self._reclaim.set()

    def _end_logins(self, user_uid: int) -> None:
        """Whoever knew the password of before is out."""
        for session in self.sessions:
            if session.user_uid == user_uid and not session.keeps_login:
                self.logout(session)

    def _reconcile(self) -> None:
        """Let go of whatever depended on what is gone: members, offsets, logs, logins.

        Looks at the whole state instead of at one event, so no order of events can be missed.
        """
        for group_uid in self.membership.groups() if self.workers.coordinates else ():
            found = self.catalogue.group_by_uid(group_uid)
            if found is None:
                self.membership.drop_group(group_uid)
            else:
                self.membership.assign(group_uid, partitions=len(found[0].partitions))
        self.workers.on_members()
        self.offsets.retain(place=self._place_lives, reader=self._reader_lives)
        self.partitions.retain(self._place_lives)
        self.held_polls.retain(lambda key: not isinstance(key, Place) or self._place_lives(key))
        self.publishing.retain(lambda uid: self.catalogue.topic_by_uid(uid) is not None)
        for session in self.sessions:
            if session.user_uid is not None and session.user_uid < OUTSIDE_UID:
                user = self.catalogue.user_by_uid(session.user_uid)
                if user is None or not user.active:
                    self.logout(session)
        for uid in [uid for uid in self.rotation if self.catalogue.topic_by_uid(uid) is None]:
            del self.rotation[uid]

    def _place_lives(self, place: Place) -> bool:
        return self.catalogue.find_partition(*place) is not None

    async def _open_place(self, place: Place) -> OpenPartition | None:
        topic = self.catalogue.topic_by_uid(place.topic_uid)
        partition = self.catalogue.find_partition(*place)
        if topic is None or partition is None:
            return None
        return await self.open_partition(topic, partition)

    async def open_partition(self, topic: Topic, partition: Partition) -> OpenPartition:
        """The partition where it is led: here, or behind a link to another worker."""
        while not self.shards.leads(partition.shard):
            try:
                return await self.workers.open_partition(
                    place_of(topic, partition), partition.shard
                )
            except NotLeaderError:
                if not self.shards.leads(partition.shard):
                    raise
        return await self.partitions.get(topic, partition)

    async def trim(self, topic: Topic, partition: Partition, offset: int) -> None:
        """Forget whole segments below `offset`, but nothing an unfinished window needs."""
        if partition.stream_id == UNASSIGNED:
            return
        barrier = self.publishing.state.barrier(place_of(topic, partition))
        log = await self.open_partition(topic, partition)
        await log.trim(offset if barrier is None else min(offset, barrier))

    async def lowest_offset(self, topic: Topic, partition: Partition) -> int | None:
        """The lowest that a consumer stored for the partition."""
        place = place_of(topic, partition)
        if self.shards.leads(partition.shard):
            return self.offsets.lowest(place)
        return await self.workers.lowest_offset(place, partition.shard)

    def _reader_lives(self, reader: Reader) -> bool:
        return reader.kind != Kind.GROUP or self.catalogue.group_by_uid(reader.consumer) is not None

    # -- sessions

    def logout(self, session: Session) -> None:
        if session.last_send is not None and session.user_uid is not None:
            self.answers.leave(session.user_uid, session.last_send)
        session.user_uid, session.number, session.last_send = None, 0, None
        session.grant = None
        self.leave_groups(session)

    def leave_groups(self, session: Session) -> None:
        self.on_client_gone(session.client_id)

    def on_client_gone(self, client_id: int) -> None:
        """A client left all its groups, whichever worker it was connected to."""
        groups = self.membership.groups_of(client_id)
        if groups and not self.workers.coordinates:
            return self.workers.tell_gone(client_id)
        for group_uid in groups:
            found = self.catalogue.group_by_uid(group_uid)
            partitions = 0 if found is None else len(found[0].partitions)
            self.membership.leave(group_uid, client_id, partitions=partitions)
        if groups:
            self.workers.on_members()

    # -- in the background

    async def _reclaim_streams(self) -> None:
        """Delete the SBP streams nobody refers to; what fails is tried again later."""
        while True:
            await self._reclaim.wait()
            self._reclaim.clear()
            done = []
            for stream_id in sorted(self.catalogue.doomed):
                try:
                    await self.client.delete_stream(stream_id)
                    done.append(stream_id)
                except HeadraceError as error:
                    log.warning("stream not deleted yet", stream_id=stream_id, reason=str(error))
            if done:
                await self.record(events.StreamsReclaimed(stream_ids=done))
            if self.catalogue.doomed:
                self._reclaim.set()
                await self.runtime.clock.sleep(_RECLAIM_RETRY_SECONDS)

    async def _keep_replicas(self) -> None:
        """The logs were made when fewer data nodes lived, perhaps."""
        while not self.settings.log_replicas:
            try:
                ids = [state_log.stream.stream_id for state_log in self.state_logs()]
                await keep_log_replicas(self.settings, self.registry, self.client, ids)
            except HeadraceError as error:
                log.info("replicas of the logs not looked at", reason=str(error))
            await self.runtime.clock.sleep(_REPLICAS_CHECK_SECONDS)

    async def _watch_logs(self) -> None:
        """Write snapshots when it is time; notice a log that takes no more events."""
        while True:
            await self.runtime.clock.sleep(_LOG_CHECK_SECONDS)
            for shard, state_log in self.offset_logs.by_shard():
                if state_log.failure is not None:
                    self.shards.on_fenced(shard)
            for state_log in self.state_logs():
                if state_log.failure is not None:
                    if state_log in self._logs:
                        self._on_fenced()
                elif state_log.snapshot_due(self.settings.snapshot_bytes):
                    try:
                        await state_log.write_snapshot()
                    except HeadraceError as error:
                        log.warning("no snapshot written", reason=str(error))

    async def _evict_silent(self) -> None:
        """Clients that stopped pinging leave their groups, so that others get their partitions."""
        timeout = self.settings.heartbeat_interval_ms / 1000 * _HEARTBEATS_MISSED
        while timeout:
            await self.runtime.clock.sleep(timeout / 4)
            oldest = self.runtime.clock.monotonic() - timeout
            for session in self.sessions:
                if session.dialect is Dialect.C and not self.membership.groups_of(
                    session.client_id
                ):
                    continue  # as its server: nobody waits for what it holds
                if session.seen < oldest and not session.stale:
                    session.stale = True
                    self.logout(session)

    # -- figures

    def expiry_of(self, topic: Topic) -> int:
        """In microseconds; NEVER."""
        if topic.expiry == SERVER_DEFAULT:
            return self.settings.message_expiry_us or NEVER
        return topic.expiry

    def max_size_of(self, topic: Topic) -> int:
        """In bytes; UNLIMITED."""
        if topic.max_size == SERVER_DEFAULT:
            return self.settings.topic_bytes_max or UNLIMITED
        return topic.max_size


_STRUCTURAL = (
    events.StreamDeleted,
    events.TopicDeleted,
    events.TopicsPurged,
    events.PartitionsAdded,
    events.PartitionsRemoved,
    events.GroupDeleted,
    events.UserUpdated,
    events.UserDeleted,
)
