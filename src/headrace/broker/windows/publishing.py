"""Publishing windows atomically: staged first, then moved into their topics once and for all.

Staged batches lie in a stream of their publisher and are nobody's messages yet. CLOSE makes the
intent durable, then appends every batch of the manifest to its partition; each carries publisher
and window in its header. Whatever interrupts that, the intent is carried out later: what the
partitions already hold of the window is counted from where they ended before it, and only the rest
is appended. Partitions may show a window at different moments, but each shows all of it in the end,
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress

import msgspec

from headrace.broker.partitions.offsets import Place
from headrace.broker.partitions.stored_sizes import describe
from headrace.broker.shards.others import OpenPartition
from headrace.broker.windows import publishers as p
from headrace.broker.windows.staging import Ownership, Staging, StagingFigures, newest
from headrace.broker.windows.window_topics import TopicForgotten
from headrace.concurrency.locks import KeyedLock
from headrace.concurrency.tasks import TaskSet
from headrace.errors import FencedError, HeadraceError, NotLeaderError, OutcomeUnknownError
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Runtime
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.state_log import StateLog
from headrace.wire.iggy import batch
from headrace.wire.iggy.refusals import PublisherNotFoundError, StagedDataGoneError
from headrace.wire.sbp import records

log = get_logger(__name__)

PUBLISHERS = "s/publishers"
_SCAN_BYTES = 1 << 20
_RETRY_SECONDS = 1.0
_MOVE_SECONDS = 10.0
_MOVE_RETRY_SECONDS = 0.1
_TARGETS_MAX = 4  # filled at a time: one is written while another is read, stamped and summed

OpenPlace = Callable[[Place], Awaitable[OpenPartition | None]]
"""The open partition, None when it was deleted or purged."""


class Publishing:
    """Made before the state log is replayed, used after `start`."""

    def __init__(
        self,
        runtime: Runtime,
        client: SbpClient,
        *,
        open_place: OpenPlace,
        publishers_max: int,
        windows_kept: int,
        topic_windows_max: int,
        owned_max: int,
        synced: bool,
    ) -> None:
        self.state = p.Publishers(
            publishers_max=publishers_max,
            windows_kept=windows_kept,
            topic_windows_max=topic_windows_max,
            owned_max=owned_max,
        )
        self._changed = asyncio.Event()
        self._runtime = runtime
        self._client = client
        self._open_place = open_place
        self._synced = synced
        self._log: StateLog
        self._ownership: Ownership
        self._publisher_locks = KeyedLock()
        """By publisher: one window at a time, and no new run in the middle of it."""
        self._deciding = asyncio.Lock()
        self._staging = Staging(runtime, client)
        self._attempts = 0
        self._rolling: set[int] = set()
        self._forgetting: set[int] = set()
        self._tasks = TaskSet("publishing")
        self._seen_ms: dict[int, int] = {}  # publishers of which nobody knows when they came
        self.figures = StagingFigures()
        self.expired = 0

    async def start(self, ownership: Ownership) -> StateLog:
        """Replay, and carry out in the background what was interrupted."""
        self._ownership = ownership
        self._log = await StateLog.open(
            self._client,
            name=PUBLISHERS,
            epoch=ownership.epoch,
            clean=ownership.clean,
            apply=self.apply,
            snapshot=self.state.snapshot,
            restore=self.state.restore,
            runtime=self._runtime,
            replica_nums=ownership.replicas,
        )
        self._staging.start(ownership, self._record)
        for publisher in self.state.pending():
            self._tasks.start(self._roll_forward(publisher), name="roll forward")
        return self._log

    async def close(self) -> None:
        """What is interrupted now is carried out by the next start."""
        await self._tasks.close()
        await self._staging.close()

    def apply(self, version: int, kind: str, body: object) -> None:
        self.state.apply(version, kind, body)
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_changed(self) -> None:
        """Wait for the next event of any publisher."""
        await self._changed.wait()

    def statistics(self) -> dict[str, int]:
        return {
            "publishers": self.state.open_count,
            "staged_messages": self.figures.messages,
            "staged_bytes": self.figures.bytes,
            "staged_oldest_ms": self.figures.oldest_ms,
            "publishers_expired": self.expired,
        }

    # -- nothing under way

    @asynccontextmanager
    async def still(self, names: Iterable[str]) -> AsyncIterator[None]:
        """While nobody opens these publishers or closes a window of theirs; what was pending is
        published. Names are taken in one order everywhere, so that nobody waits in a circle."""
        async with AsyncExitStack() as held:
            for name in sorted(set(names)):
                await held.enter_async_context(self._publisher_locks.hold(name))
                known = self.state.named(name)
                await held.enter_async_context(
                    self._publisher_locks.hold(known.uid if known else name.encode())
                )
                if known is not None and known.intent is not None:
                    await self._finish(known, known.intent, fresh=False)
            yield

    async def decide(self, names: Iterable[str], decision: Callable[[], p.Event | None]) -> None:
        """Make a decision about these publishers certain. Goes on without its caller."""
        await asyncio.shield(self._tasks.start(self._decide(names, decision), name="decide"))

    async def _decide(self, names: Iterable[str], decision: Callable[[], p.Event | None]) -> None:
        async with self.still(names), self._deciding:
            event = decision()
            if event is not None:
                await self._record(event)
        if self.state.doomed:
            self._tasks.start(self._tidy(), name="tidy")

    async def _tidy(self) -> None:
        """Let go of what dismissed publishers staged; a failure leaves it to the next one."""
        try:
            await self._staging.retain(self.state.knows)
            self._seen_ms = {uid: at for uid, at in self._seen_ms.items() if self.state.knows(uid)}
            await self._reclaim()
        except HeadraceError as error:
            log.info("staging not cleaned up yet", reason=str(error))

    # -- the three commands

    async def open(
        self, name: str, run: str, owner: int, epoch: int = 0, *, heir_of: Container[int] = ()
    ) -> p.Publisher:
        """Goes on without its caller."""
        now_ms = self._runtime.clock.now_ms()

        def decision() -> p.Opened | None:
            return self.state.open(name, run, owner, epoch, heir_of=heir_of, now_ms=now_ms)

        await asyncio.shield(self._tasks.start(self._open(name, decision), name="open"))
        opened = self.state.named(name)
        if opened is None:
            raise PublisherNotFoundError("dismissed meanwhile", name=name)
        return opened

    async def _open(self, name: str, decision: Callable[[], p.Opened | None]) -> None:
        async with self.still([name]):
            # What earlier runs staged is of no use to the new one, nor to them: nobody can name it
            # any more. Looked up before the new run can stage.
            known, end = self.state.named(name), 0
            if known is not None and known.stream_id >= 0 and decision() is not None:
                with suppress(HeadraceError):
                    end = await self._staging.end(known)
            async with self._deciding:
                event = decision()
                if event is not None:
                    await self._record(event)
        if known is not None and event is not None and end:
            self._tasks.start(self._drop(known, end), name="drop")

    async def _drop(self, publisher: p.Publisher, end: int) -> None:
        try:
            if publisher.stream_id >= 0:
                await self._staging.trim_to(publisher, end)
        except HeadraceError as error:
            log.info("staging not cleaned up yet", reason=str(error))

    async def stage(
        self,
        uid: int,
        *,
        epoch: int,
        window: int,
        place: Place,
        area: memoryview,
        starts: batch.Positions,
    ) -> p.StagedBatch:
        """Keep messages for a window of this publisher; durable on return."""
        publisher = self.state.get(uid)
        publisher.check_open(epoch)
        if window > publisher.last:  # else it is closed, and what is staged never shows
            self.state.check_place(publisher, window, place)
        staged = await self._staging.append(publisher, window, area, starts)
        publisher.check_open(epoch)
        return p.StagedBatch(staged, len(starts), place)

    async def close_window(
        self,
        uid: int,
        *,
        epoch: int,
        previous: int,
        window: int,
        manifest: Sequence[p.StagedBatch],
        digest: bytes,
        last: bool = False,
        rows: int = 0,
        index: bytes = b"",
    ) -> tuple[p.Closed, bool]:
        """The closed window, and whether it was closed before. Goes on without its caller."""
        wanted = p.Intent(window, digest, tuple(manifest), (), last, rows, index)
        work = self._close_window(uid, epoch, previous, wanted)
        return await asyncio.shield(self._tasks.start(work, name="close"))

    async def _close_window(
        self,
        uid: int,
        epoch: int,
        previous: int,
        wanted: p.Intent,
    ) -> tuple[p.Closed, bool]:
        window, digest = wanted.window, wanted.digest
        async with self._publisher_locks.hold(uid):
            publisher = self.state.get(uid)
            publisher.check_epoch(epoch)
            if publisher.intent is not None:  # of a close whose answer nobody got
                await self._finish(publisher, publisher.intent, fresh=False)
            todo = self.state.check_close(
                publisher,
                epoch=epoch,
                previous=previous,
                window=window,
                places=[span.place for span in wanted.manifest],
            )
            if not todo:
                closed = publisher.find(window) or p.Closed(window, b"", ())
                if closed.digest and digest and closed.digest != digest:
                    log.warning(
                        "a window was closed again with other contents; the first ones hold",
                        publisher=publisher.name,
                        window=window,
                    )
                return closed, True
            if not wanted.manifest:
                closed = await self._done(publisher, wanted, ())
            else:
                intent = await self._intend(publisher, wanted)
                closed = await self._finish(publisher, intent, fresh=True)
            return closed, False

    # -- a window's way

    async def _intend(self, publisher: p.Publisher, wanted: p.Intent) -> p.Intent:
        """Look at everything that could be wrong, then make it certain."""
        await self._check_manifest(publisher, wanted.window, wanted.manifest)
        targets = []
        for place in dict.fromkeys(span.place for span in wanted.manifest):
            partition = await self._open_place(place)
            if partition is not None:
                targets.append(p.Target(place, partition.committed))
        intent = msgspec.structs.replace(wanted, targets=tuple(targets))
        await self._record(p.Intended(publisher.uid, intent))
        return intent

    async def _check_manifest(
        self, publisher: p.Publisher, window: int, manifest: tuple[p.StagedBatch, ...]
    ) -> None:
        if len({span.staged for span in manifest}) < len(manifest):
            raise StagedDataGoneError("a staged batch is named twice")
        for span in manifest:
            found = await self._staging.window_of(publisher, span)
            if found != window:
                raise StagedDataGoneError(
                    "staged for another window", staged=span.staged, window=found
                )

    async def _carry_out(
        self, publisher: p.Publisher, intent: p.Intent, *, fresh: bool
    ) -> p.Closed:
        """Append what is missing, sync, done. `fresh`: nothing of it can be there yet."""
        if not fresh:
            intent = await self._lowered(publisher, intent)
        attempt = self._next_attempt()
        room = asyncio.Semaphore(_TARGETS_MAX)

        async def fill(target: p.Target) -> list[p.OffsetRun]:
            async with room:
                partition = await self._open_place(target.place)
                if partition is None:
                    return []  # nobody will ever read it: done
                return await self._fill(publisher, intent, target, partition, attempt, fresh)

        # All of them end before the first failure is told: the next attempt looks at what is there.
        filled = await asyncio.gather(*map(fill, intent.targets), return_exceptions=True)
        runs: list[p.OffsetRun] = []
        for found in filled:
            if isinstance(found, BaseException):
                raise found
            runs += found
        return await self._done(publisher, intent, tuple(runs))

    def _next_attempt(self) -> int:
        """A number above those of all attempts before, also of whoever led before."""
        self._attempts += 1
        return self._ownership.epoch << 32 | self._attempts

    async def _done(
        self, publisher: p.Publisher, intent: p.Intent, runs: tuple[p.OffsetRun, ...]
    ) -> p.Closed:
        closed = p.Closed(intent.window, intent.digest, runs, intent.rows, intent.index)
        await self._record(p.Done(publisher.uid, closed, intent.last))
        self._tasks.start(self._clean_up(publisher), name="clean up")
        return closed

    async def _clean_up(self, publisher: p.Publisher) -> None:
        """What was staged for closed windows is of no use; a failure leaves it to the next one."""
        try:
            if publisher.stream_id >= 0:
                await self._staging.trim(publisher)
            else:
                await self._staging.forget(publisher.uid)
            await self._reclaim()
        except HeadraceError as error:
            log.info("staging not cleaned up yet", reason=str(error))

    async def _reclaim(self) -> None:
        doomed = sorted(self.state.doomed)
        for stream_id in doomed:
            await self._client.delete_stream(stream_id)
        if doomed:
            await self._record(p.Reclaimed(tuple(doomed)))

    def retain(self, living: Callable[[int], bool]) -> None:
        """Forget the window topics that were deleted, and their publishers."""
        for topic in self.state.topics:
            if not living(topic.uid) and topic.uid not in self._forgetting:
                self._forgetting.add(topic.uid)
                self._tasks.start(self._forget(topic.uid), name="forget")

    async def _forget(self, uid: int) -> None:
        try:
            await self._decide(
                self.state.topics.get(uid).names(),
                lambda: TopicForgotten(uid) if uid in self.state.topics else None,
            )
        except HeadraceError as error:
            log.info("a topic's publishers are not forgotten yet", reason=str(error))
        finally:
            self._forgetting.discard(uid)

    # -- what nobody closes

    async def sweep(self, silent_ms_max: int) -> None:
        """Count what is staged, and let go of what nobody was heard of for so long."""
        now_ms = self._runtime.clock.now_ms()
        staging = {each.stream_id: each.uid for each in self.state if each.stream_id >= 0}
        found = await describe(self._client, staging)
        held = {staging[stream_id]: stored for stream_id, stored in found.items()}
        self.figures = StagingFigures.of(held.values(), now_ms)
        if self.state.doomed:
            await self._tidy()
        for publisher in [each for each in self.state if self.state.may_expire(each)]:
            stored = held.get(publisher.uid)
            if publisher.stream_id >= 0 and stored is None:
                continue  # out of reach: nothing is known of it
            heard_ms = publisher.opened_ms or self._seen_ms.setdefault(publisher.uid, now_ms)
            newest_ms = 0 if stored is None else newest(stored)
            if now_ms - max(heard_ms, newest_ms) >= silent_ms_max:
                try:
                    await self._expire(publisher)
                except HeadraceError as error:
                    log.info("staging not cleaned up yet", reason=str(error))

    async def _expire(self, publisher: p.Publisher) -> None:
        """One that closed windows only loses what it did not close."""
        epoch, last = publisher.epoch, publisher.last
        if last != p.NO_WINDOW:
            if publisher.stream_id < 0:
                return
            await self._staging.trim(publisher)
            start, end = await self._client.bounds(publisher.stream_id)
            if start >= end:
                return
        await self._staging.forget(publisher.uid)
        await self._decide([publisher.name], lambda: self.state.expire(publisher.uid, epoch, last))
        if publisher.ended or publisher.epoch != epoch:
            self.expired += 1
            log.warning(
                "what a publisher staged and never closed is removed",
                publisher=publisher.name,
                forgotten=publisher.ended,
            )

    async def _lowered(self, publisher: p.Publisher, intent: p.Intent) -> p.Intent:
        """A power cut may have cost a `written` partition its end, and offsets before the recorded
        one are given out again: what is published from now on is looked for from there."""
        targets = []
        for target in intent.targets:
            partition = await self._open_place(target.place)
            if partition is not None and partition.committed < target.next_offset:
                target = p.Target(target.place, partition.committed)
            targets.append(target)
        if tuple(targets) == intent.targets:
            return intent
        lowered = msgspec.structs.replace(intent, targets=tuple(targets))
        await self._record(p.Intended(publisher.uid, lowered))
        return lowered

    async def _fill(
        self,
        publisher: p.Publisher,
        intent: p.Intent,
        target: p.Target,
        partition: OpenPartition,
        attempt: int,
        fresh: bool,
    ) -> list[p.OffsetRun]:
        place, found = target.place, []
        if not fresh:
            await partition.begin(publisher.uid, attempt)
            found = await self._find(publisher.uid, intent.window, target, partition)
        skip = sum(run.count for run in found)
        spans = [span for span in intent.manifest if span.place == place]
        while spans and skip >= spans[0].count:
            skip -= spans.pop(0).count
        waiting: list[asyncio.Future[int]] = []
        async with aclosing(self._staging.read_all(publisher, spans)) as staged:
            async for header, view in staged:
                body = bytearray(view[records.HEADER_BYTES :])  # it is stamped in place
                area, starts = batch.read_starts(body, header.record_count)
                if skip:
                    area, starts = batch.subset(area, starts, skip, len(starts) - skip)
                    skip = 0
                first, stored = await partition.publish(
                    area,
                    starts,
                    publisher=publisher.uid,
                    window=intent.window,
                    attempt=attempt,
                )
                found.append(p.OffsetRun(place, first, len(starts), len(area)))
                waiting += stored
        for answer in waiting:
            await answer
        if not self._synced:
            await partition.sync()
        return _merged(found)

    async def _find(
        self, uid: int, window: int, target: p.Target, partition: OpenPartition
    ) -> list[p.OffsetRun]:
        """What the partition holds of the window."""
        found = []
        offset = max(target.next_offset, partition.start_offset)
        while offset < partition.committed:
            fetched = await self._client.fetch(partition.stream_id, offset, max_bytes=_SCAN_BYTES)
            if not fetched.pieces:
                break
            for piece in fetched.pieces:
                for header, view in records.split(piece):
                    ours = header.attributes & records.PUBLISHED and header.producer_id == uid
                    if ours and header.sequence == window:
                        size = len(view) - records.HEADER_BYTES
                        found.append(
                            p.OffsetRun(target.place, header.base_offset, header.record_count, size)
                        )
            offset = fetched.next_offset
        return found

    async def _finish(self, publisher: p.Publisher, intent: p.Intent, *, fresh: bool) -> p.Closed:
        """Carry it out; what cannot be done now is done later, whoever asked for it."""
        try:
            return await self._carry_out_patiently(publisher, intent, fresh=fresh)
        except HeadraceError as error:
            log.warning(
                "a window is not published yet",
                publisher=publisher.name,
                window=intent.window,
                reason=str(error),
            )
            if publisher.uid not in self._rolling:
                self._tasks.start(self._roll_forward(publisher), name="roll forward")
            raise

    async def _carry_out_patiently(
        self, publisher: p.Publisher, intent: p.Intent, *, fresh: bool
    ) -> p.Closed:
        """A partition that moves to another worker meanwhile is looked at again there."""
        monotonic = self._runtime.clock.monotonic
        deadline = monotonic() + _MOVE_SECONDS
        while True:
            try:
                return await self._carry_out(publisher, intent, fresh=fresh)
            except (NotLeaderError, OutcomeUnknownError):
                if monotonic() > deadline or self._log.failure is not None:
                    raise
            intent, fresh = publisher.intent or intent, False
            await self._runtime.clock.sleep(_MOVE_RETRY_SECONDS)

    async def _roll_forward(self, publisher: p.Publisher) -> None:
        """Try to finish the publisher's window until it is done, or another broker writes the log
        of publishers. A partition that another worker leads by now is asked for there."""
        self._rolling.add(publisher.uid)
        try:
            while publisher.intent is not None:
                async with self._publisher_locks.hold(publisher.uid):
                    try:
                        if publisher.intent is not None:
                            await self._carry_out(publisher, publisher.intent, fresh=False)
                            log.info("an interrupted window is published", name=publisher.name)
                    except FencedError:
                        return
                    except HeadraceError as error:
                        log.info("a window is not published yet", reason=str(error))
                if publisher.intent is not None:
                    await self._runtime.clock.sleep(_RETRY_SECONDS)
        finally:
            self._rolling.discard(publisher.uid)

    async def _record(self, event: p.Event) -> None:
        kind, body = p.encode(event)
        try:
            await self._log.append(kind, body, p.VERSION)
        except HeadraceError:
            if self._log.failure is not None:
                self._ownership.on_fenced()
            raise


def _merged(runs: list[p.OffsetRun]) -> list[p.OffsetRun]:
    merged: list[p.OffsetRun] = []
    for run in runs:
        last = merged[-1] if merged else None
        if last is not None and last.first + last.count == run.first:
            merged[-1] = p.OffsetRun(
                last.place, last.first, last.count + run.count, last.bytes + run.bytes
            )
        else:
            merged.append(run)
    return merged
