"""The log store: one data directory, all its ranges.

store = await LogStore.open(runtime, folder, StorageSettings())
log = await store.create_range(RangeKey(7, 0), start_offset=0)
await log.append(header, body)           # resolves when the durability level holds
views = await log.read(0, max_bytes=1 << 20)
await store.close()
"""

from __future__ import annotations

import asyncio

from headrace.concurrency.tasks import TaskSet
from headrace.config.datanode import StorageSettings
from headrace.errors import (
    CorruptionError,
    DiskFullError,
    RangeNotFoundError,
    StorageError,
)
from headrace.observability.logging import get_logger
from headrace.runtime import Lock, Runtime
from headrace.storage.folder import (
    OpenedFolder,
    create_range_folder,
    open_folder,
    recover_all,
    remove_range,
    remove_stream,
)
from headrace.storage.group_commit import Committer, GroupNumbers
from headrace.storage.journal.replay import replay
from headrace.storage.journal.writer import Journal
from headrace.storage.layout import (
    CLEAN_STOP,
    CorruptSpan,
    RangeKey,
    RangeMetadata,
    RangeState,
    range_folder,
)
from headrace.storage.range.log import RangeLog
from headrace.storage.range.recovery import RecoveredRange
from headrace.storage.segments.open_files import FilePool, WrittenPages
from headrace.storage.segments.segment import SegmentWriter
from headrace.storage.shared import ActiveRanges, Shared, TailCache
from headrace.wire.sbp.messages import Durability

_log = get_logger(__name__)

_CONTROL_THREADS = 2
_GROUP_FILES_MAX = 128  # the first of a group waits for the last
_CLOSE_AT_ONCE = 16  # ranges whose files are finished at the same time during close
# Thousands of ranges go quiet together, after a generation of the journal for example: whoever
# appends meanwhile waits for a few of them and not for all.
_QUIET_AT_ONCE = 16
_QUIET_PAUSE_SECONDS = 0.005


class LogStore:
    """Owns its directory from `open` to `close`. Used from one event loop."""

    def __init__(
        self, runtime: Runtime, folder: str, shared: Shared, *, lock: Lock, clean: bool
    ) -> None:
        self.clean = clean
        """Whether the previous stop was clean: nothing acknowledged can be missing."""
        self._runtime = runtime
        self._folder = folder
        self._shared = shared
        self._lock = lock
        self._logs: dict[RangeKey, RangeLog] = {}
        self._unreadable: dict[RangeKey, CorruptionError] = {}
        self._creating: dict[RangeKey, asyncio.Task[RangeLog]] = {}
        self._deleting: dict[int, asyncio.Task[None]] = {}
        self._removing: dict[RangeKey, asyncio.Task[None]] = {}
        self._workers: list[asyncio.Task[None]] = []
        self._closed = False

    @classmethod
    async def open(cls, runtime: Runtime, folder: str, settings: StorageSettings) -> LogStore:
        """Lock the directory, check its format and recover every range in it.

        LockedError, FormatError, or StorageError when the disk fails. A range whose metadata cannot
        be read does not stop the others: `range` and `create_range` report it.
        """
        control = runtime.executor("storage-control", _CONTROL_THREADS)
        commit = runtime.executor("storage-commit", settings.commit_threads)
        read = runtime.executor("storage-read", settings.read_threads)
        executors = (control, commit, read)
        opened: OpenedFolder | None = None
        try:
            opened = await control.run(open_folder, runtime.disk, folder, runtime.random)
            replayed = await replay(
                runtime.disk, commit, folder, opened.store_uuid, threads=settings.commit_threads
            )
            found = await recover_all(
                runtime.disk, commit, opened, folder, settings, known=replayed.known
            )
        except BaseException:
            for executor in executors:
                executor.close()
            if opened is not None:
                opened.lock.release()
            raise
        recovered = [each for each in found if isinstance(each, RecoveredRange)]
        last_group = max((s.group for each in recovered for s in each.segments), default=-1)
        groups = GroupNumbers(last_group)
        # The other half is for sockets, and for files while a group has them pinned.
        open_files_max = min(settings.open_files_max, runtime.disk.open_files_max() // 2)
        pool, tasks = FilePool(open_files_max), TaskSet("store", log_failures=False)
        active = ActiveRanges(settings)
        journal = Journal(
            runtime.disk,
            commit,
            pool,
            tasks,
            folder=folder,
            store_uuid=opened.store_uuid,
            settings=settings,
            replayed=replayed,
            on_unprotected=active.note,
        )
        shared = Shared(
            disk=runtime.disk,
            settings=settings,
            store_uuid=opened.store_uuid,
            commit_executor=commit,
            read_executor=read,
            control_executor=control,
            committers={
                level: Committer(
                    level,
                    runtime.disk,
                    commit,
                    journal,
                    groups,
                    threads=settings.commit_threads,
                    group_bytes_max=settings.group_bytes_max,
                    group_files_max=max(1, min(open_files_max // 4, _GROUP_FILES_MAX)),
                )
                for level in Durability
            },
            journal=journal,
            pool=pool,
            cache=TailCache(settings.tail_cache_bytes),
            pages=WrittenPages(runtime.disk, control, pool, tasks, settings.page_cache_bytes),
            tasks=tasks,
            active=active,
            loop=asyncio.get_running_loop(),
        )
        store = cls(runtime, folder, shared, lock=opened.lock, clean=opened.clean)
        for each in found:
            if isinstance(each, RecoveredRange):
                store._logs[each.key] = RangeLog(shared, each)
            elif each is not None:
                store._unreadable[each[0]] = each[1]
        store._start()
        return store

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        for committer in self._shared.committers.values():
            self._workers.append(loop.create_task(committer.run()))
        self._workers.append(loop.create_task(self._mark_quiet_ranges()))
        self._workers.append(loop.create_task(self._close_idle_files()))
        for worker in self._workers:
            worker.add_done_callback(self._on_worker_done)

    @property
    def store_uuid(self) -> str:
        return str(self._shared.store_uuid)

    @property
    def settings(self) -> StorageSettings:
        return self._shared.settings

    def ranges(self) -> list[RangeState]:
        return [log.state() for log in self._logs.values()]

    def damaged(self) -> list[tuple[RangeKey, CorruptSpan]]:
        """What `RangeLog.repair` can be given: the damage of each segment as one span.

        What is known of: by recovery, by reads, by `RangeLog.verify`. Damage in a range that is not
        final and complete is listed too, and has to wait until it is.
        """
        return [(key, span) for key, log in self._logs.items() for span in log.damaged()]

    def unreadable(self) -> list[RangeKey]:
        """Ranges whose metadata is damaged: nothing of them can be used, only deleted."""
        return list(self._unreadable)

    def range(self, key: RangeKey) -> RangeLog:
        log = self._logs.get(key)
        if log is not None:
            return log
        self._check_readable(key)
        raise RangeNotFoundError(stream_id=key.stream_id, range_index=key.range_index)

    async def create_range(
        self,
        key: RangeKey,
        *,
        start_offset: int,
        writer_epoch: int = -1,
        durability: Durability = Durability.SYNCED,
        reserved: bool = False,
        replicas: tuple[int, ...] = (),
        ack_quorum: int = 1,
        final_end: int = -1,
        doubtful: int = -1,
        attachment: bytes | None = None,
    ) -> RangeLog:
        """The range, made when it does not exist; its metadata is durable before this returns.

        An existing range comes back as it is. `reserved` is for control state: it may use the last
        `min_free_bytes` of the disk, so that deleting a topic still works when the disk is full.
        Above an `ack_quorum` of 1 only what `set_committed` was told of can be read. A range with a
        `final_end` is sealed there from the start and filled by `copy`; see `finish` for what is
        `doubtful` of it. The `attachment` is kept
        with the range, as durably as its metadata, and read only when `RangeLog.attachment` is
        asked for.
        """
        existing = self._logs.get(key)
        if existing is not None and key not in self._removing:
            return existing
        self._check_readable(key)
        if key in self._removing:
            raise RangeNotFoundError("the range is being deleted", **key._asdict())
        self._check_kept(key)
        creating = self._creating.get(key)
        if creating is None:
            metadata = RangeMetadata(
                start=start_offset,
                writer_epoch=writer_epoch,
                durability=durability,
                reserved=reserved,
                replicas=replicas,
                ack_quorum=ack_quorum,
                end=final_end,
                sealed=final_end >= 0,
                decided=final_end >= 0,
                incomplete=final_end > start_offset,
                doubtful=doubtful,
                attached_bytes=-1 if attachment is None else len(attachment),
            )
            creating = self._shared.tasks.start(self._create(key, metadata, attachment or b""))
            self._creating[key] = creating
        return await asyncio.shield(creating)

    async def _create(self, key: RangeKey, metadata: RangeMetadata, attachment: bytes) -> RangeLog:
        folder = range_folder(self._folder, key)
        try:
            await self._shared.control_executor.run(
                create_range_folder, self._shared.disk, self._folder, key, metadata, attachment
            )
            recovered = RecoveredRange(key, folder, metadata, next_offset=metadata.start)
            self._logs[key] = log = RangeLog(self._shared, recovered)
            return log
        finally:
            del self._creating[key]

    async def delete_range(self, key: RangeKey) -> None:
        """Remove the range and its files, durably, also one that cannot be read. Absent is fine.

        Cut short, the next open finishes it. The key may be used again afterwards.
        """
        removing = self._removing.get(key)
        if removing is None:
            self._check_kept(key)
            removing = self._shared.tasks.start(self._delete_range(key))
            self._removing[key] = removing
        await asyncio.shield(removing)

    async def _delete_range(self, key: RangeKey) -> None:
        try:
            creating = self._creating.get(key)
            if creating is not None:
                await asyncio.wait([creating])
            log = self._logs.get(key)
            if log is not None:
                await log.remove()
            await self._shared.journal.forget(*key)  # before anything else can have that key
            await self._shared.control_executor.run(
                remove_range, self._shared.disk, self._folder, key
            )
            self._logs.pop(key, None)
            self._unreadable.pop(key, None)
        finally:
            del self._removing[key]

    def _check_kept(self, key: RangeKey) -> None:
        if key.stream_id in self._deleting or self._closed:
            raise RangeNotFoundError(
                "the stream is being deleted, or the store closed", **key._asdict()
            )

    async def delete_stream(self, stream_id: int) -> None:
        """Remove all ranges of the stream and their files. Absent is fine; cut short, the next open
        finishes it."""
        deleting = self._deleting.get(stream_id)
        if deleting is None:  # else somebody asked for the same: one of them removes the files
            deleting = self._shared.tasks.start(self._delete_stream(stream_id))
            self._deleting[stream_id] = deleting
        await asyncio.shield(deleting)

    async def _delete_stream(self, stream_id: int) -> None:
        try:
            for key, task in [*self._creating.items(), *self._removing.items()]:
                if key.stream_id == stream_id:
                    await asyncio.wait([task])
            keys = [key for key in self._logs if key.stream_id == stream_id]
            await asyncio.gather(*(self._logs[key].remove() for key in keys))
            await self._shared.control_executor.run(
                remove_stream, self._shared.disk, self._folder, stream_id
            )
            for key in keys:
                self._logs.pop(key, None)  # somebody else may have asked for the same meanwhile
            for key in [key for key in self._unreadable if key.stream_id == stream_id]:
                del self._unreadable[key]
            await self._shared.journal.forget(stream_id)
        finally:
            del self._deleting[stream_id]

    async def close(self, *, clean: bool = True) -> None:
        """Refuse appends, write what is queued, sync, save indexes, leave the clean-stop marker.

        Not the marker where the caller says that the stop is not `clean`, or the disk is full.
        """
        if self._closed:
            return
        self._closed = self._shared.closing = True
        for log in self._logs.values():
            log.refuse_appends()
        for committer in self._shared.committers.values():
            committer.finish()
        for keeper in self._workers[-2:]:
            keeper.cancel()  # what it is in the middle of is joined below
        await asyncio.wait(self._workers)
        await self._shared.tasks.finish()
        try:
            await self._shared.journal.close()
            if await self._finish_ranges() and clean:
                path = f"{self._folder}/{CLEAN_STOP}"
                await self._shared.control_executor.run(self._shared.disk.write_atomic, path, b"")
        except DiskFullError as error:
            _log.warning("stopped without the clean-stop marker", error=str(error))
        finally:
            self._release()

    async def abort(self) -> None:
        """Stop without finishing anything, as a crash would; for tests and failed start-ups."""
        self._closed = self._shared.closing = True
        self._close_executors()  # first: nobody may give up a file that a thread still uses
        for worker in self._workers:
            worker.cancel()
        await asyncio.wait(self._workers)
        await self._shared.tasks.close()
        self._release()

    async def _finish_ranges(self) -> bool:
        logs = list(self._logs.values())
        clean = True
        for at in range(0, len(logs), _CLOSE_AT_ONCE):
            results = await asyncio.gather(
                *(log.close() for log in logs[at : at + _CLOSE_AT_ONCE]), return_exceptions=True
            )
            for result in results:
                if isinstance(result, StorageError):
                    _log.error("range not closed cleanly", error=str(result))
                elif isinstance(result, BaseException):
                    raise result
                clean = clean and result is True
        return clean

    def _close_executors(self) -> None:
        shared = self._shared
        for executor in (shared.commit_executor, shared.read_executor, shared.control_executor):
            executor.close()

    def _release(self) -> None:
        self._close_executors()
        self._shared.journal.release()
        self._shared.pool.close()
        self._lock.release()

    @property
    def fullness(self) -> float:
        """How much of what may wait for the disk does; at 1 appends are throttled."""
        return self._shared.queued_bytes / self._shared.settings.queued_bytes_max

    def statistics(self) -> dict[str, int]:
        """Everything that is counted; looks at every range."""
        logs = self._logs.values()
        return {
            "ranges": len(self._logs),
            "ranges_unreadable": len(self._unreadable),
            "ranges_failed": sum(log.failed for log in logs),
            "ranges_incomplete": sum(log.missing is not None for log in logs),
            "corrupt_spans": sum(len(log.corrupt()) for log in logs),
            **self.counters(),
            **self._shared.journal.statistics(),
        }

    def counters(self) -> dict[str, int]:
        """What is known without a look at the ranges."""
        shared = self._shared
        committers = shared.committers.values()
        return {
            "groups": sum(committer.groups_written for committer in committers),
            "file_writes": sum(committer.files_written for committer in committers),
            "written_bytes": sum(committer.bytes_written for committer in committers),
            "queued_bytes": shared.queued_bytes,
            "open_files": len(shared.pool),
            "tail_cache_bytes": shared.cache.bytes,
            "tail_cache_hits": shared.cache.hits,
            "tail_cache_misses": shared.cache.misses,
        }

    async def _mark_quiet_ranges(self) -> None:
        """Note in ranges that went quiet what is synced."""
        active, pause = self._shared.active, self._shared.settings.idle_ms / 1000
        while True:
            await active.wait()
            await self._runtime.clock.sleep(pause)
            quiet = [writer for writer in active.take_quiet() if not writer.journaled]
            for at in range(0, len(quiet), _QUIET_AT_ONCE):
                if at:
                    await self._runtime.clock.sleep(_QUIET_PAUSE_SECONDS)
                some = quiet[at : at + _QUIET_AT_ONCE]
                slow = [writer for writer in some if not writer.close_mark_nowait()]
                # Together: syncs at the same time share what the file system does for them.
                await asyncio.gather(*map(self._close_mark, slow))

    async def _close_mark(self, writer: SegmentWriter) -> None:
        try:
            await writer.close_mark()
        except StorageError as error:
            _log.error("closing mark not written", error=str(error))

    async def _close_idle_files(self) -> None:
        while True:
            await self._runtime.clock.sleep(self._shared.settings.idle_file_ms / 2000)
            idle = self._shared.pool.take_idle()
            for at in range(0, len(idle), _QUIET_AT_ONCE):
                self._shared.pool.close_idle(idle[at : at + _QUIET_AT_ONCE])
                await self._runtime.clock.sleep(_QUIET_PAUSE_SECONDS)
            await self._shared.journal.empty_if_idle()

    def _on_worker_done(self, worker: asyncio.Task[None]) -> None:
        if worker.cancelled() or worker.exception() is None:
            return
        _log.critical("storage worker ended", error=repr(worker.exception()))
        for each in self._logs.values():
            each.fail(StorageError(f"storage worker ended: {worker.exception()!r}"))

    def _check_readable(self, key: RangeKey) -> None:
        error = self._unreadable.get(key)
        if error is not None:
            raise CorruptionError(error.message, **error.data)
