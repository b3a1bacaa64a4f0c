"""Open partitions, by place. A partition opens when it is first used and stays open.

Opening fences every older writer, clamps stored offsets to what the log still holds, and gives the
partition its SBP stream if it never had one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from headrace.broker.catalogue import events
from headrace.broker.catalogue.options import durability_of
from headrace.broker.catalogue.resources import UNASSIGNED, Partition, Topic, log_name
from headrace.broker.partitions.offsets import Offsets, OffsetWriter, Place
from headrace.broker.partitions.partition import PartitionLog
from headrace.broker.partitions.stored_sizes import Figures, StoredPartition, describe
from headrace.broker.poll.readahead import ReadAhead
from headrace.concurrency.tasks import TaskSet
from headrace.config.broker import BrokerSettings
from headrace.errors import FencedError, HeadraceError, NotLeaderError, UnavailableError
from headrace.runtime.interfaces import Runtime
from headrace.sbp_client.client import SbpClient


def place_of(topic: Topic, partition: Partition) -> Place:
    return Place(topic.uid, partition.id, partition.generation)


class Partitions:
    def __init__(
        self,
        runtime: Runtime,
        client: SbpClient,
        settings: BrokerSettings,
        *,
        read_ahead: ReadAhead,
        offsets: Offsets,
        writer: OffsetWriter,
        record: Callable[[events.Event], Awaitable[None]],
        on_fenced: Callable[[], None],
        epoch: int,
        clean: bool,
    ) -> None:
        self._runtime = runtime
        self._client = client
        self._settings = settings
        self._offsets = offsets
        self._writer = writer
        self._record = record
        self._on_fenced = on_fenced
        self._ahead = read_ahead
        self._epoch = epoch
        self._clean = clean
        self._logs: dict[Place, PartitionLog] = {}
        self._opening: dict[Place, asyncio.Task[PartitionLog]] = {}
        self._known: set[Place] = set()
        """Opened before in this process: a clean stop of the last one says nothing any more."""
        self._figures: dict[Place, StoredPartition] = {}
        """Of partitions that nobody has opened yet."""
        self._opens = asyncio.Semaphore(settings.opens_max)
        self._tasks = TaskSet("partitions")
        self._closed = False

    def peek(self, topic: Topic, partition: Partition) -> PartitionLog | None:
        """The log if it is open and sound."""
        log = self._logs.get(place_of(topic, partition))
        return None if log is None or log.failed else log

    async def find(self, topic: Topic, partition: Partition) -> PartitionLog | None:
        """The log, opened if need be; None while nothing was ever written there."""
        log = self.peek(topic, partition)
        if log is None and partition.stream_id != UNASSIGNED:
            log = await self.get(topic, partition)
        return log

    async def get(self, topic: Topic, partition: Partition) -> PartitionLog:
        """The log, opened or made if need be. Callers that come meanwhile share one opening."""
        log = self.peek(topic, partition)
        if log is not None:
            return log
        if self._closed:
            raise UnavailableError("the broker is stopping")
        place = place_of(topic, partition)
        opening = self._opening.get(place)
        if opening is None:
            opening = self._tasks.start(self._open(topic, partition, place), name="open")
            self._opening[place] = opening
            opening.add_done_callback(lambda _: self._opening.pop(place, None))
        return await asyncio.shield(opening)

    async def find_all(self, pairs: Iterable[tuple[Topic, Partition]]) -> list[PartitionLog | None]:
        return list(await asyncio.gather(*(self.find(*pair) for pair in pairs)))

    async def figures(self, pairs: Iterable[tuple[Topic, Partition]]) -> list[Figures | None]:
        """What is stored in each, opened or not; None where nothing ever was."""
        wanted = list(pairs)
        found: list[Figures | None] = []
        unknown: dict[int, int] = {}  # stream id -> position
        for topic, partition in wanted:
            figures: Figures | None = None
            if partition.stream_id != UNASSIGNED:
                figures = self.peek(topic, partition) or self._figures.get(
                    place_of(topic, partition)
                )
                if figures is None:
                    unknown[partition.stream_id] = len(found)
            found.append(figures)
        if unknown:
            for stream_id, stored in (await describe(self._client, unknown)).items():
                topic, partition = wanted[unknown[stream_id]]
                if partition.stream_id != stream_id:
                    continue  # purged or deleted meanwhile
                place = place_of(topic, partition)
                if place not in self._known:  # else it changes without us looking
                    self._figures[place] = stored
                found[unknown[stream_id]] = self.peek(topic, partition) or stored
        return found

    async def _open(self, topic: Topic, partition: Partition, place: Place) -> PartitionLog:
        failed = self._logs.pop(place, None)
        if failed is not None:
            if isinstance(failed.failure, FencedError):
                self._on_fenced()
                raise NotLeaderError("another broker leads")
            await failed.close()
        async with self._opens:
            stream_id = partition.stream_id
            clean = self._clean and place not in self._known
            if stream_id == UNASSIGNED:
                stream_id = await self._assign(place, topic)
                clean = True  # nobody wrote before it was assigned: there is nothing to seal
            try:
                log = await PartitionLog.open(
                    self._runtime,
                    self._client,
                    self._settings,
                    self._ahead,
                    stream_id=stream_id,
                    epoch=self._epoch,
                    clean=clean,
                )
            except FencedError:
                self._on_fenced()
                raise NotLeaderError("another broker leads") from None
        self._known.add(place)
        self._figures.pop(place, None)
        lost = self._offsets.beyond(place, log.committed)
        if lost:
            await self._writer.store(lost)
        self._logs[place] = log
        return log

    async def _assign(self, place: Place, topic: Topic) -> int:
        stream = await self._client.create_stream(
            name=log_name(*place),
            replica_nums=max(1, topic.replication),
            durability=durability_of(topic, self._settings),
        )
        await self._record(
            events.PartitionAssigned(
                topic_uid=place.topic_uid,
                partition=place.partition,
                generation=place.generation,
                stream_id=stream.stream_id,
            )
        )
        return stream.stream_id

    def opened(self) -> list[tuple[Place, PartitionLog]]:
        return list(self._logs.items())

    def retain(self, living: Callable[[Place], bool]) -> None:
        """Let go of partitions that were deleted or purged."""
        for place in [p for p in self._figures if not living(p)]:
            del self._figures[place]
        for place in [p for p in self._logs if not living(p)]:
            log = self._logs.pop(place)
            self._tasks.start(log.close(), name="close")

    async def close(self, *, finish: bool = True) -> bool:
        """Wait for appends in flight, then let go. True when every one of them was acknowledged."""
        self._closed = True
        clean = finish
        if finish:
            await self._tasks.finish()
        else:
            await self._tasks.close()
        for log in self._logs.values():
            if finish:
                clean = await self._close_one(log) and clean
            else:
                await log.close()
        self._logs.clear()
        return clean

    async def _close_one(self, log: PartitionLog) -> bool:
        try:
            async with asyncio.timeout(5):
                await log.flush()
        except (HeadraceError, TimeoutError):  # not all acknowledged: the stop is not a clean one
            await log.close()
            return False
        await log.close()
        return True
