"""What the source asks of a server: what topics hold, their messages, and group offsets.

Messages come straight from the data nodes, or from the broker when those are out of reach: both
read the same log. The broker is asked by name, so after the last message of a task it is asked
whether that name still means the partition that was planned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.client.connection import BrokerConnection
from headrace.client.tickets import Access, TicketReader
from headrace.concurrency.retry import OUTSIDE, retry
from headrace.errors import (
    AlreadyExistsError,
    ConfigError,
    DeadlineError,
    HeadraceError,
    LostRecordsError,
    NotFoundError,
    OffsetOutOfRangeError,
    UnavailableError,
)
from headrace.spark.options import ReadFrom, Target
from headrace.spark.source.losses import DataLossError, OtherTopicError
from headrace.spark.source.offsets import Key, PartitionState, SourceState, TopicState
from headrace.spark.source.positions import Topics
from headrace.spark.source.splits import Span
from headrace.wire.iggy.primitives import Consumer, Strategy

if TYPE_CHECKING:
    from headrace.client.raw_messages import Area
    from headrace.wire.iggy.messages.extensions import Ticket
    from headrace.wire.iggy.messages.topics import TopicDetails

POLL_MESSAGES_MAX = 20_000
RETRY_SECONDS = 30.0  # for data nodes, where nobody else may be asked
FETCH_SECONDS = 90.0  # for one run of messages, retries included
FALLBACK_SECONDS = 5.0  # for data nodes that do not answer, before the broker is asked instead
AVOID_SECONDS = 60.0  # until they are tried again
TICKET_SECONDS_LEFT_MIN = 120  # a task may be queued a while before it uses its ticket
TICKET_SECONDS_RENEWED = 30  # a task renews a ticket that lasts no longer
ASK_AGAIN_SECONDS = 0.03  # between two questions to a broker, which does not wait for messages

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Task:
    """One span on its way, with the ticket it holds now."""

    target: Target
    span: Span
    access: Access
    read_from: ReadFrom
    local: bool = True
    skips_lost: bool = False
    polled: bool = False


class Reading:
    """Reads the topics of one server, which others use the connection of as well."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection
        self._runtime = connection.runtime
        self._clock = connection.runtime.clock
        self._reader = TicketReader(connection.runtime, connection.tls)
        self._tickets: dict[tuple[str, ...], Access] = {}
        self._reached = False  # data nodes, from this process
        self._avoided_until = 0.0  # they are out of reach from here
        self._groups: set[tuple[str, str, str]] = set()

    async def close(self) -> None:
        await self._reader.close()

    # -- what topics hold

    async def describe(
        self, target: Target, topics: Topics, *, sizes: bool = False
    ) -> tuple[SourceState, Access]:
        """What the topics hold now, and what tasks need to read them. NotFoundError, too."""
        if await self._cluster_uuid() == "":
            return await self._plain_state(target, topics), Access()
        held: dict[str, float] = {}
        names: Sequence[str] = topics.names
        if topics.pattern or sizes:
            listed = await self._connection.call(lambda client: client.get_topics(target.stream))
            held = {each.name: each.size_bytes / max(1, each.messages_count) for each in listed}
            names = names or topics.matching(held)
        ticket = await self._ticket(target, names, topics)
        state = _state(ticket, held)
        streams = {
            (str(topic.uid), each.partition): each.sbp_stream
            for topic in ticket.topics
            for each in topic.partitions
        }
        access = Access(ticket.ticket, ticket.expires_ms, ticket.placement, streams)
        return state, self._kept((target.stream, *names), access)

    async def _cluster_uuid(self) -> str:
        hello = await self._connection.hello()
        return "" if hello is None else hello.cluster

    async def _ticket(self, target: Target, names: Sequence[str], topics: Topics) -> Ticket:
        if not names:
            raise NotFoundError(f"no topic of {target.stream} matches {topics.pattern}")
        try:
            return await self._connection.call(
                lambda client: client.read_ticket([(target.stream, name) for name in names])
            )
        except NotFoundError:
            for name in names:
                await self._details(target.stream, name)  # says which
            raise

    async def _details(self, stream: str, topic: str) -> TopicDetails:
        details = await self._connection.call(lambda client: client.get_topic(stream, topic))
        if details is None:
            raise NotFoundError(f"there is no topic {stream}/{topic}")
        return details

    async def _plain_state(self, target: Target, topics: Topics) -> SourceState:
        names: Sequence[str] = topics.names
        if topics.pattern:
            listed = await self._connection.call(lambda client: client.get_topics(target.stream))
            names = topics.matching(each.name for each in listed)
            if not names:
                raise NotFoundError(f"no topic of {target.stream} matches {topics.pattern}")
        details = [await self._details(target.stream, name) for name in names]
        return SourceState("", tuple(plain_topic(target.stream, each) for each in details))

    def _kept(self, names: tuple[str, ...], fresh: Access) -> Access:
        """The ticket in use while it lasts: workers keep their connections to the data nodes."""
        kept = self._tickets.get(names)
        if (
            kept is None
            or replace(kept, ticket=b"", expires_ms=0) != replace(fresh, ticket=b"", expires_ms=0)
            or kept.expires_within(TICKET_SECONDS_LEFT_MIN, self._clock.now_ms())
        ):
            kept = self._tickets[names] = fresh
        return kept

    async def offsets_at(
        self, target: Target, state: SourceState, timestamp_us: int
    ) -> dict[Key, int]:
        """The first message of each partition that is not older; absent where there is none."""
        from headrace.wire.iggy.batch import locate
        from headrace.wire.iggy.columns import columns

        found = {}
        for key, topic, each in state.partitions():
            if each.start == each.end:
                continue
            polled = await self._connection.call(
                lambda client, topic=topic, each=each: client.poll(  # type: ignore[misc]  # defaults bind the loop's values
                    target.stream,
                    topic.topic,
                    partition=each.partition,
                    strategy=Strategy.timestamp(timestamp_us),
                    count=1,
                )
            )
            for piece in polled.slices[:1]:
                area = memoryview(piece)
                found[key] = int(columns(area, locate(area)).offset[0])
        return found

    async def wait(self, access: Access, ends: Mapping[Key, int], seconds: float) -> None:
        """Until a partition may have grown past its end, or that long."""
        begun = self._clock.monotonic()
        wanted = {key: end for key, end in ends.items() if key in access.streams}
        if access.ticket and wanted and begun >= self._avoided_until:
            try:
                async with asyncio.timeout(seconds + 1.0):
                    if await self._reader.wait(access, wanted, seconds):
                        return
            except (HeadraceError, TimeoutError) as error:
                self._avoid(error)
        left = seconds - (self._clock.monotonic() - begun)
        if left > 0:
            await self._clock.sleep(min(left, ASK_AGAIN_SECONDS))

    def _avoid(self, error: Exception) -> None:
        now = self._clock.monotonic()
        if now >= self._avoided_until:
            log.warning(
                "data nodes are out of reach, asking the broker instead: %s",
                error or "no answer in time",
            )
        self._avoided_until = now + AVOID_SECONDS

    # -- messages

    async def read(
        self,
        target: Target,
        access: Access,
        span: Span,
        read_from: ReadFrom = "auto",
        *,
        local: bool = True,
        skips_lost: bool = False,
    ) -> AsyncGenerator[list[Area], None]:
        """The messages of a span in runs, the next one fetched ahead of its use.

        `skips_lost`: reading goes on behind messages that were lost and given up by an operator,
        and is an error without.
        """
        task = _Task(target, span, access, read_from, local, skips_lost)
        at = span.start
        ahead = asyncio.ensure_future(self._fetch(task, at))
        try:
            while at < span.end:
                async with asyncio.timeout(FETCH_SECONDS):
                    areas, at = await ahead
                if at < span.end:
                    ahead = asyncio.ensure_future(self._fetch(task, at))
                elif task.polled:
                    await self._verify(task)
                if areas:
                    yield areas
        except TimeoutError as error:
            raise DeadlineError("no messages in time", topic=span.topic, offset=at) from error
        finally:
            ahead.cancel()

    async def _fetch(self, task: _Task, start: int) -> tuple[list[Area], int]:
        span = task.span
        avoided = self._clock.monotonic() < self._avoided_until
        if not task.access.ticket or (task.read_from == "auto" and avoided):
            return await self._poll(task, start)
        await self._renew(task)
        # Where they answered once, a slow answer is no reason to leave them.
        doubted = task.read_from == "auto" and not self._reached
        try:
            async with asyncio.timeout(FALLBACK_SECONDS if doubted else None):
                fetched = await retry(
                    self._runtime,
                    lambda _: self._reader.fetch(
                        task.access, span.key, start, span.end, local=task.local
                    ),
                    FALLBACK_SECONDS if task.read_from == "auto" else RETRY_SECONDS,
                    OUTSIDE,
                )
            self._reached = True
            return fetched
        except LostRecordsError as error:
            if not task.skips_lost:
                raise DataLossError(
                    f"data loss: messages {start} to {error.resumed - 1} of partition"
                    f" {span.partition} of topic {span.topic} were lost, and given up by an"
                    " operator; set onDataLoss=skip to go on behind them"
                ) from error
            log.warning("data loss skipped what=%r position=%d %s", span.topic, start, error)
            return [], min(error.resumed, span.end)
        except (UnavailableError, DeadlineError, TimeoutError) as error:
            if task.read_from != "auto":
                raise
            self._reached = False
            self._avoid(error)
        return await self._poll(task, start)

    async def _renew(self, task: _Task) -> None:
        """A ticket that soon ends for a fresh one; the same partition must still be there."""
        if not task.access.expires_within(TICKET_SECONDS_RENEWED, self._clock.now_ms()):
            return
        target, span = task.target, task.span
        try:
            state, access = await self.describe(target, Topics((span.topic,)))
        except (ConfigError, UnavailableError, DeadlineError) as error:
            log.warning("a read ticket ends and cannot be renewed from here: %s", error)
            return
        _check_same(state, span)
        task.access = access.only(span.key)

    async def _poll(self, task: _Task, start: int) -> tuple[list[Area], int]:
        from headrace.client.raw_messages import cut
        from headrace.wire.iggy.batch import locate
        from headrace.wire.iggy.columns import columns

        task.polled = True
        span = task.span
        polled = await self._connection.call(
            lambda client: client.poll(
                task.target.stream,
                span.topic,
                partition=span.partition,
                strategy=Strategy.offset(start),
                count=min(span.end - start, POLL_MESSAGES_MAX),
            )
        )
        areas = []
        at = start
        for piece in polled.slices:
            area = memoryview(piece)
            starts = locate(area)
            if not len(starts):
                continue
            ends = columns(*cut(area, starts, 0, 1)).offset[0]
            if int(ends) != at:
                break  # retention was faster, or the partition is another one by now
            areas.append(cut(area, starts, 0, min(len(starts), span.end - at)))
            at += len(starts)
        if at == start:
            raise OffsetOutOfRangeError(
                "the server no longer has these messages",
                topic=span.topic,
                partition=span.partition,
                offset=start,
            )
        return areas, min(at, span.end)

    async def _verify(self, task: _Task) -> None:
        state, _ = await self.describe(task.target, Topics((task.span.topic,)))
        _check_same(state, task.span)

    # -- group offsets

    async def store(
        self, target: Target, group: str, offsets: Mapping[tuple[str, int], int]
    ) -> None:
        """The last message that was read, by (topic, partition), as offsets of a group."""
        for (topic, partition), offset in sorted(offsets.items()):
            place = (target.stream, topic, group)
            if place not in self._groups:
                with suppress(AlreadyExistsError):
                    await self._connection.call(
                        lambda client, place=place: client.create_group(*place)  # type: ignore[misc]  # as above
                    )
                self._groups.add(place)
            try:
                await self._connection.call(
                    lambda client, topic=topic, partition=partition, offset=offset: (  # type: ignore[misc]  # as above
                        client.store_consumer_offset(
                            Consumer.group(group),
                            target.stream,
                            topic,
                            offset=offset,
                            partition=partition,
                        )
                    )
                )
            except HeadraceError:
                self._groups.discard(place)  # it may have been deleted
                raise


def _state(ticket: Ticket, mean_bytes: Mapping[str, float]) -> SourceState:
    return SourceState(
        ticket.cluster,
        tuple(
            TopicState(
                str(topic.uid),
                topic.stream,
                topic.topic,
                tuple(
                    PartitionState(
                        each.partition,
                        each.generation,
                        each.start,
                        each.next,
                        int(mean_bytes.get(topic.topic, 0) * (each.next - each.start)),
                    )
                    for each in topic.partitions
                ),
            )
            for topic in ticket.topics
        ),
    )


def plain_topic(stream: str, details: TopicDetails) -> TopicState:
    """A plain Iggy server has no uids: the name with the time of creation stands for one."""
    partitions = tuple(
        PartitionState(each.id, 0, each.start_offset, each.next_offset, each.size_bytes)
        for each in details.partitions
    )
    topic = details.topic
    uid = f"{topic.name}@{topic.created_at_us}"
    return TopicState(uid, stream, topic.name, partitions)


def _check_same(state: SourceState, span: Span) -> None:
    """Whether the name still means the partition that was planned."""
    for key, _, each in state.partitions():
        found = (state.cluster, key, each.generation)
        if found == (span.cluster, span.key, span.generation):
            return
    raise OtherTopicError(
        f"partition {span.partition} of topic {span.topic} was deleted or purged while it was "
        "read, or another cluster answers now; run the batch again to see what is left"
    )
