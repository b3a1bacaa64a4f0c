"""The driver's half of a streaming source: where the next batch ends, and what its tasks read.

Spark's rules that matter here: it asks for the initial offset again whenever it has no other start
(planning and running a query's first batch, and once more after a crash); it writes an end offset
to its log before anything is read, and repeats a batch with the end that stands there; it commits
a batch only when it plans the next. What is done about messages that are gone is decided here and
recorded in the offset.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Literal

from headrace.client.partition_reader import Access, Key, SourceState
from headrace.client.topic_reader import AtTime
from headrace.errors import ConfigError, HeadraceError, NotFoundError
from headrace.runtime.interfaces import Clock
from headrace.spark.options import SourceOptions
from headrace.spark.source.batch_plan import (
    OffsetRange,
    Offsets,
    admit,
    after,
    begun,
    decide,
    ended,
    find_losses,
    limited,
    plan,
    split,
    surviving,
)
from headrace.spark.source.positions import Position, resolve
from headrace.spark.source.reading import Reading

WAIT_SECONDS_MIN = 0.05
WAIT_SECONDS_MAX = 0.8
GAP_SECONDS_MAX = 0.045  # Spark's own round takes 12 to 20 ms; below the shortest wait


@dataclass(slots=True)
class IdlePace:
    """How long `latestOffset` may wait for messages, by the times of a monotonic clock.

    Spark asks the sources of a query one after the other, and asks again at once when none has
    anything. A source that waits saves the idle query its loop, but it delays every other source of
    the query, and `query.stop()`. So a wait starts short and grows only while this source is asked
    again right after it answered: then nobody else waits in the same round. Two waiting sources see
    each other's waits as gaps and both stay short. A gap is also what a trigger interval or a batch
    leaves.
    """

    _wait: float = WAIT_SECONDS_MIN
    _answered: float | None = None

    def on_asked(self, now: float) -> float:
        """How long this call may wait."""
        if self._answered is None or now - self._answered > GAP_SECONDS_MAX:
            self._wait = WAIT_SECONDS_MIN
        return self._wait

    def on_answered(self, now: float, *, idle: bool) -> None:
        self._answered = now
        self._wait = min(2 * self._wait, WAIT_SECONDS_MAX) if idle else WAIT_SECONDS_MIN


STORE_SECONDS = 5.0  # how long an idle query waits for the broker to take its position

log = logging.getLogger(__name__)


def due(finished: Offsets, state: SourceState, stored: dict[Key, int]) -> dict[Key, int]:
    """The last messages read, where they are not stored yet.

    A group's offset is that of the last message that was read; where none was, there is none.
    """
    found = {}
    for key, _, each in state.partitions():
        generation, next_offset = finished.positions.get(key, (each.generation, 0))
        same = finished.cluster == state.cluster and generation == each.generation
        if same and 0 < next_offset <= each.end and stored.get(key) != next_offset - 1:
            found[key] = next_offset - 1
    return found


class GroupOffsets:
    """Stores positions of a query as offsets of a consumer group, so that every tool sees its lag.

    It stores in the background; a failure is told in the log once, and never ends a query. Spark's
    checkpoint stays the position: nothing is ever read from the group, so two queries on one group
    only overwrite what others see. Spark asks for `latestOffset(start)` only once the batch that
    ended at `start` is in its commit log, so that is when the batch counts as finished.
    """

    def __init__(self, options: SourceOptions, reading: Reading) -> None:
        self._options = options
        self._reading = reading
        self._stored: dict[Key, int] = {}
        self._pending: tuple[asyncio.Task[None], dict[Key, int]] | None = None
        self._latest: tuple[Offsets, SourceState] | None = None
        self._told = ""

    async def on_finished(self, finished: Offsets, state: SourceState) -> None:
        if self._options.consumer_group:
            self._latest = (finished, state)
            if self._pending is not None and self._pending[0].done():
                await self._settle()
            self._store()

    async def on_idle(self) -> None:
        """Spark may end this process as soon as it learns that there is nothing new."""
        if await self._settle():
            self._store()
            await self._settle()

    def _store(self) -> None:
        """One at a time, and then the latest."""
        if self._latest is None or self._pending is not None:
            return
        finished, state = self._latest
        wanted = due(finished, state, self._stored)
        if wanted:
            names = {topic.uid: topic.topic for topic in state.topics}
            offsets = {(names[uid], partition): at for (uid, partition), at in wanted.items()}
            target, group = self._options.target, self._options.consumer_group
            work = self._reading.store(target, group, offsets)
            self._pending = (asyncio.get_running_loop().create_task(work), wanted)

    async def _settle(self) -> bool:
        """Whether something was stored; what takes longer than one waits for goes on."""
        if self._pending is None:
            return False
        task, wanted = self._pending
        done, _ = await asyncio.wait({task}, timeout=STORE_SECONDS)
        if not done:
            return self._tell("no answer in time")
        self._pending = None
        try:
            task.result()
        except HeadraceError as error:
            return self._tell(str(error))
        self._stored.update(wanted)
        return True

    def _tell(self, reason: str) -> bool:
        if reason != self._told:
            self._told = reason
            log.warning(
                "offsets of group %s are not stored: %s", self._options.consumer_group, reason
            )
        return False


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one batch; None is no limit."""

    messages_max: int | None = None
    bytes_max: int | None = None


NO_LIMITS = Limits()


class Following:
    """One query that follows topics, in one process."""

    def __init__(self, reading: Reading, options: SourceOptions, clock: Clock) -> None:
        self._reading = reading
        self._options = options
        self._clock = clock
        self._last: SourceState | None = None  # AvailableNow: where this run ends
        self._seen: SourceState | None = None
        self._access = Access()
        self._initial: dict[str, Any] | None = None
        self._begun = False  # a batch was run here: none that is planned now is the query's first
        self._group = GroupOffsets(options, reading)
        self._pace = IdlePace()
        self._backlog: dict[Key, int] | None = None  # ends when we came, if it is to be skipped

    async def initial_offset(self) -> dict[str, Any]:
        """The same for as long as this process runs."""
        if self._initial is None:
            state = await self._describe()
            starting = self._options.starting
            resolved = await resolve_position(self._reading, self._options, state, starting)
            self._initial = resolved.to_json()
        return self._initial

    async def end_at_latest(self) -> None:
        """AvailableNow: this run reads what is there now, or what lies before `endingOffsets`."""
        state, options = await self._describe(), self._options
        end = await resolve_position(
            self._reading, options, state, options.ending, rest="latest", clamp=True
        )
        self._last = ended(state, end)

    async def latest_offset(
        self, start: dict[str, Any], limits: Limits = NO_LIMITS
    ) -> dict[str, Any]:
        """The end of the next batch, or `start` when there was nothing for a while."""
        if self._last is None and self._options.ending != "latest":
            raise ConfigError("endingOffsets of a stream is for .trigger(availableNow=True)")
        begin = Offsets.from_json(start)
        now = self._clock.monotonic()
        deadline = now + self._pace.on_asked(now)
        first = start == self._initial and not self._begun
        finished = not first
        while True:
            state = await self._describe_again()
            if finished:
                finished = False
                await self._group.on_finished(begin, state)
            end = self._admit(begin, state, limits)
            left = deadline - self._clock.monotonic()
            if end is not begin or self._last is not None or left <= 0:
                break
            ends = {key: each.end for key, _, each in state.partitions()}
            await self._reading.wait(self._access, ends, left)
        if end is begin:
            await self._group.on_idle()
        self._pace.on_answered(self._clock.monotonic(), idle=end is begin)
        if end is begin:
            return start
        return (begun(begin, end) if first else end).to_json()

    def reported_offset(self) -> dict[str, Any] | None:
        """The end of every partition, as far as it is known."""
        return None if self._seen is None else resolve(self._seen, "latest").to_json()

    async def plan(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> list[tuple[OffsetRange, Access]]:
        """What the tasks of a batch read."""
        self._begun = True
        state = await self._describe_again(sizes=True)
        begin, finish = Offsets.from_json(start), Offsets.from_json(end)
        by_name = not self._options.topics.pattern
        spans = plan(begin, finish, state, self._options.on_data_loss, by_name=by_name)
        if self._backlog is not None:
            spans = list(after(spans, self._backlog))
        return tasks(spans, state, self._access, self._options)

    async def commit(self, end: dict[str, Any]) -> None:
        if self._seen is not None:
            await self._group.on_finished(Offsets.from_json(end), self._seen)

    async def _describe(self, *, sizes: bool = False) -> SourceState:
        options = self._options
        self._seen, self._access = await self._reading.describe(
            options.target, options.topics, sizes=sizes or options.bytes_max is not None
        )
        if options.skip_backlog and self._backlog is None:
            self._backlog = {key: each.end for key, _, each in self._seen.partitions()}
        return self._seen

    async def _describe_again(self, *, sizes: bool = False) -> SourceState:
        """Where a batch begins or ends already."""
        try:
            return await self._describe(sizes=sizes)
        except NotFoundError as error:
            raise NotFoundError(
                f"{error}, which the checkpoint reads: create it again and set onDataLoss=skip to "
                "go on with what is there, or start from a new checkpoint"
            ) from None

    def _admit(self, begin: Offsets, state: SourceState, limits: Limits) -> Offsets:
        """`begin` itself when there is nothing new."""
        by_name = not self._options.topics.pattern
        losses = find_losses(begin, state, by_name=by_name)
        resumed = decide(losses, self._options.on_data_loss)
        if self._last is not None:
            state = limited(state, self._last)
        start = surviving(begin, losses, state)
        return admit(
            start,
            state,
            resumed=resumed,
            messages_max=limits.messages_max,
            bytes_max=limits.bytes_max,
        )


async def resolve_position(
    reading: Reading,
    options: SourceOptions,
    state: SourceState,
    position: Position,
    *,
    rest: Literal["earliest", "latest"] = "earliest",
    clamp: bool = False,
) -> Offsets:
    times = None
    if isinstance(position, AtTime):
        times = await reading.offsets_at(options.target, state, position.timestamp_us)
    return resolve(state, position, rest=rest, times=times, clamp=clamp)


def tasks(
    spans: list[OffsetRange], state: SourceState, access: Access, options: SourceOptions
) -> list[tuple[OffsetRange, Access]]:
    """Ranges of a size that one task reads, each with what it needs for that and no more."""
    if options.read_from == "broker":
        access = Access()
    return [(span, access.only(span.key)) for span in split(spans, state, options.partition_bytes)]
