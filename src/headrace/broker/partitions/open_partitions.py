"""Open partitions, by place. A partition opens when it is first used and stays open.

Opening fences every older writer, clamps stored offsets to what the log still holds, and gives the
partition its SBP stream if it never had one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from headrace.broker.catalogue import events
from headrace.broker.catalogue.options import durability_of
from headrace.broker.catalogue.resources import UNASSIGNED, Partition, Topic, log_name
from headrace.broker.partitions.offsets import Offsets, Place, StoredOffset
from headrace.broker.partitions.partition import PartitionLog
from headrace.broker.partitions.stored_sizes import PartitionFigures, StoredPartition, describe
from headrace.broker.poll.held_polls import HeldPolls
from headrace.broker.poll.readahead import ReadAhead
from headrace.broker.shards.led import LeadsShards
from headrace.concurrency.tasks import TaskSet
from headrace.config.broker import BrokerSettings
from headrace.errors import FencedError, HeadraceError, NotLeaderError, UnavailableError
from headrace.runtime.interfaces import Runtime
from headrace.sbp_client.client import SbpClient
from headrace.wire.sbp.messages import SegmentInfo


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
        held_polls: HeldPolls,
        offsets: Offsets,
        store_offsets: Callable[[list[StoredOffset]], Awaitable[None]],
        record: Callable[[events.Event], Awaitable[None]],
        shards: LeadsShards,
    ) -> None:
        self._runtime = runtime
        self._client = client
        self._settings = settings
        self._offsets = offsets
        self._store_offsets = store_offsets
        self._record = record
        self._shards = shards
        self._ahead = read_ahead
        self._held_polls = held_polls
        self._logs: dict[Place, PartitionLog] = {}
        self._opening: dict[Place, asyncio.Task[PartitionLog]] = {}
        self._shard_of: dict[Place, int] = {}
        """Of those that are open."""
        self._known: set[Place] = set()
        """Opened before in this process: a clean stop of the last one says nothing any more."""
        self._figures: dict[Place, StoredPartition] = {}
        """What is stored in partitions that nobody has opened yet."""
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

    async def figures(
        self, pairs: Iterable[tuple[Topic, Partition]]
    ) -> list[PartitionFigures | None]:
        """What is stored in each, opened or not; None where nothing ever was."""
        wanted = list(pairs)
        found: list[PartitionFigures | None] = []
        unknown: dict[int, int] = {}  # stream id -> position
        for topic, partition in wanted:
            figures: PartitionFigures | None = None
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
                # What others write, and what we wrote before, changes without us looking.
                if place not in self._known and self._shards.leads(partition.shard):
                    self._figures[place] = stored
                found[unknown[stream_id]] = self.peek(topic, partition) or stored
        return found

    async def closed_segments(self, topic: Topic, partition: Partition) -> list[SegmentInfo]:
        """As the data nodes know them now, whoever leads the partition."""
        if partition.stream_id == UNASSIGNED:
            return []
        if self._shards.leads(partition.shard):
            log = await self.get(topic, partition)
            await log.refresh()
            return log.closed_segments
        stored = (await describe(self._client, [partition.stream_id])).get(partition.stream_id)
        if stored is None:
            raise UnavailableError("partition cannot be described", stream_id=partition.stream_id)
        return stored.closed_segments

    async def _open(self, topic: Topic, partition: Partition, place: Place) -> PartitionLog:
        failed = self._logs.pop(place, None)
        self._shard_of.pop(place, None)
        if failed is not None:
            if isinstance(failed.failure, FencedError):
                self._shards.on_fenced(partition.shard)
                raise NotLeaderError("another broker leads")
            await failed.close()
        led = self._shards.get(partition.shard)
        async with self._opens:
            stream_id = partition.stream_id
            clean = led.clean and place not in self._known
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
                    epoch=led.epoch,
                    clean=clean,
                    on_commit=partial(self._held_polls.on_commit, place),
                )
            except FencedError:
                self._shards.on_fenced(partition.shard)
                raise NotLeaderError("another broker leads") from None
        self._known.add(place)
        self._figures.pop(place, None)
        lost = self._offsets.beyond(place, log.committed)
        if lost:
            await self._store_offsets(lost)
        if not self._shards.leads(partition.shard) or self._shards.get(partition.shard) is not led:
            await log.close()
            raise NotLeaderError("another broker leads the partition by now")
        self._logs[place], self._shard_of[place] = log, partition.shard
        self._held_polls.on_commit(place, log.committed)  # by whoever led before
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

    def committed(self, place: object) -> int:
        """What polls may see at a place, if that is one of a partition in use."""
        log = self._logs.get(place) if isinstance(place, Place) else None
        return 0 if log is None else log.committed

    def opened(self) -> list[tuple[Place, PartitionLog]]:
        return list(self._logs.items())

    def retain(self, living: Callable[[Place], bool]) -> None:
        """Let go of partitions that were deleted or purged."""
        for place in [p for p in self._figures if not living(p)]:
            del self._figures[place]
        for place in [p for p in self._logs if not living(p)]:
            log = self._logs.pop(place)
            del self._shard_of[place]
            self._tasks.start(log.close(), name="close")

    async def release(self, shard: int) -> bool:
        """Finish what is under way in a shard's partitions and let go of them. True when every
        append was acknowledged."""
        return all(await asyncio.gather(*map(self._close_one, self._take_off(shard))))

    def drop(self, shard: int) -> None:
        """Another process may lead the shard: from now on nothing is read from its partitions, and
        appends in flight are left to their fate."""
        for log in self._take_off(shard):
            self._tasks.start(log.close(), name="close")

    def _take_off(self, shard: int) -> list[PartitionLog]:
        gone = [place for place, of in self._shard_of.items() if of == shard]
        logs = [self._logs.pop(place) for place in gone if place in self._logs]
        for place in gone:
            del self._shard_of[place]
            self._known.discard(place)
        self._figures.clear()  # of what another one writes by then
        for log in logs:
            log.disown()
        return logs

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
