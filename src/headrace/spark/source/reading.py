"""What the source asks of a server: what topics hold, their messages, and group offsets.

Messages come straight from the data nodes, or from the broker when those are out of reach
(`client/partition_reader.py`). The broker is asked by name, so after the last message of a task it
is asked whether that name still means the partition that was planned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.client.connection import BrokerConnection
from headrace.client.partition_reader import (
    Access,
    Key,
    PartitionReader,
    Place,
    ReadFrom,
    SourceState,
)
from headrace.errors import (
    AlreadyExistsError,
    ConfigError,
    DeadlineError,
    HeadraceError,
    LostRecordsError,
    NotFoundError,
    UnavailableError,
)
from headrace.spark.options import Target
from headrace.spark.source.batch_plan import DataLossError, OffsetRange, OtherTopicError
from headrace.spark.source.positions import Topics
from headrace.wire.iggy.primitives import Consumer

if TYPE_CHECKING:
    from headrace.wire.iggy.columns import MessageBuffer

FETCH_SECONDS = 90.0  # for one run of messages, retries included
TICKET_SECONDS_LEFT_MIN = 120  # a task may be queued a while before it uses its ticket
TICKET_SECONDS_RENEWED = 30  # a task renews a ticket that lasts no longer

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Task:
    """One range of offsets on its way, with the ticket it holds now."""

    target: Target
    span: OffsetRange
    access: Access
    read_from: ReadFrom
    local: bool = True
    skips_lost: bool = False
    polled: bool = False


class Reading:
    """Reads the topics of one server, which others use the connection of as well."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection
        self._clock = connection.runtime.clock
        self._reader = PartitionReader(
            connection,
            ticket_seconds_min=TICKET_SECONDS_LEFT_MIN,
            on_out_of_reach=_warn_out_of_reach,
        )
        self._groups: set[tuple[str, str, str]] = set()

    async def close(self) -> None:
        await self._reader.close()

    # -- what topics hold

    async def describe(
        self, target: Target, topics: Topics, *, sizes: bool = False
    ) -> tuple[SourceState, Access]:
        """What the topics hold now, and what tasks need to read them. NotFoundError, too."""
        held: dict[str, float] = {}
        names: Sequence[str] = topics.names
        plain = await self._connection.hello() is None  # it tells the size of every partition
        if topics.pattern or (sizes and not plain):
            listed = await self._connection.call(lambda client: client.get_topics(target.stream))
            held = {each.name: each.size_bytes / max(1, each.messages_count) for each in listed}
            names = names or topics.matching(held)
        if not names:
            raise NotFoundError(f"no topic of {target.stream} matches {topics.pattern}")
        return await self._reader.describe(target.stream, names, held)

    async def offsets_at(
        self, target: Target, state: SourceState, timestamp_us: int
    ) -> dict[Key, int]:
        """The first message of each partition that is not older; absent where there is none."""
        found = {}
        for key, topic, each in state.partitions():
            if each.start < each.end:
                place = Place(target.stream, topic.topic, key)
                at = await self._reader.offset_at(place, timestamp_us)
                if at is not None:
                    found[key] = at
        return found

    async def wait(self, access: Access, ends: Mapping[Key, int], seconds: float) -> None:
        """Until a partition may have grown past its end, or that long."""
        await self._reader.wait(access, ends, seconds)

    # -- messages

    async def read(
        self,
        target: Target,
        access: Access,
        span: OffsetRange,
        read_from: ReadFrom = "auto",
        *,
        local: bool = True,
        skips_lost: bool = False,
    ) -> AsyncGenerator[list[MessageBuffer], None]:
        """The messages of a range in runs, the next one fetched ahead of its use.

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

    async def _fetch(self, task: _Task, start: int) -> tuple[list[MessageBuffer], int]:
        span = task.span
        await self._renew(task)
        try:
            read = await self._reader.fetch(
                Place(task.target.stream, span.topic, span.key),
                task.access,
                start,
                span.end,
                read_from=task.read_from,
                local=task.local,
            )
        except LostRecordsError as error:
            if not task.skips_lost:
                raise DataLossError(
                    f"data loss: messages {start} to {error.resumed - 1} of partition"
                    f" {span.partition} of topic {span.topic} were lost, and given up by an"
                    " operator; set onDataLoss=skip to go on behind them"
                ) from error
            log.warning("data loss skipped what=%r position=%d %s", span.topic, start, error)
            return [], min(error.resumed, span.end)
        task.polled = task.polled or read.polled
        return read.areas, read.next_offset

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


def _warn_out_of_reach(error: Exception) -> None:
    log.warning(
        "data nodes are out of reach, asking the broker instead: %s", error or "no answer in time"
    )


def _check_same(state: SourceState, span: OffsetRange) -> None:
    """Whether the name still means the partition that was planned."""
    for key, _, each in state.partitions():
        found = (state.cluster, key, each.generation)
        if found == (span.cluster, span.key, span.generation):
            return
    raise OtherTopicError(
        f"partition {span.partition} of topic {span.topic} was deleted or purged while it was "
        "read, or another cluster answers now; run the batch again to see what is left"
    )
