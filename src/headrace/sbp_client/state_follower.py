"""A second reader of a StateLog: another process's state, kept up to date as its writer changes it.

A follower writes nothing, takes no epoch and fences nobody. FETCH serves what is committed, never
the doubtful tail of a sealed range (ADR 0005), so no failover takes back what a follower applied.
One long poll is under way at a time; a commit ends it.

The state is always the one that the writer had behind some event, whole batches at a time. While
nobody can be reached it stays as it is, and `current_at` says how old that is. A log that was
trimmed past the follower is started over from its newest snapshot, and so is one whose operator
accepted a loss, since the next writer goes on without what was lost.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any

from headrace.concurrency.retry import RetryPolicy, retry
from headrace.concurrency.tasks import TaskSet
from headrace.errors import (
    CorruptionError,
    DeadlineError,
    HeadraceError,
    NotFoundError,
    OffsetOutOfRangeError,
    StateError,
    UnavailableError,
)
from headrace.runtime.interfaces import Runtime
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.state_replay import (
    LOST,
    OWN_KINDS,
    Apply,
    Restore,
    StateReader,
    apply_event,
    decode_event,
    replay,
)
from headrace.storage.range.progress import OffsetWaiters
from headrace.wire.sbp.messages import Range

POLL_WAIT_MS = 250
"""An idle follower learns this often that nothing is new. `current_at` is at most twice as old."""
OPEN_SECONDS = 30.0

_PATIENT = RetryPolicy((StateError,), 0.2, cut_off=False)
_EVERYBODY = 1 << 63
_log = logging.getLogger(__name__)

OnFailed = Callable[[HeadraceError], None]


class StateFollower:
    """Made by `open`, which catches up; goes on until `close`, or until `failure` is set."""

    def __init__(
        self,
        client: SbpClient,
        stream_id: int,
        *,
        name: str,
        apply: Apply,
        restore: Restore,
        runtime: Runtime,
        version_max: int,
        on_failed: OnFailed,
    ) -> None:
        self.stream_id = stream_id
        self.applied_offset = 0
        """Events below it are part of the state."""
        self.current_at = -math.inf
        """The latest time, on the monotonic clock, of which it is known that the state has
        everything that was committed by then."""
        self.failure: HeadraceError | None = None
        """Why nothing is applied any more, if so. The state stays as it was."""
        self._client = client
        self._name = name
        self._apply = apply
        self._restore = restore
        self._runtime = runtime
        self._version_max = version_max
        self._on_failed = on_failed
        self._reader: StateReader | None = None
        self._gap: int | None = None
        self._touched = False  # whether the state holds anything
        self._busy = False  # whether the last fetch found something
        self._in_trouble = False
        self._closed = False
        self._waiters = OffsetWaiters()
        self._lookup: asyncio.Task[list[Range]] | None = None
        self._tasks = TaskSet(f"follower of {name}")

    @classmethod
    async def open(
        cls,
        client: SbpClient,
        *,
        name: str,
        apply: Apply,
        restore: Restore,
        runtime: Runtime,
        on_failed: OnFailed,
        version_max: int = 1,
        timeout: float = OPEN_SECONDS,
    ) -> StateFollower:
        """Wait until the log exists, restore and apply what is committed by now, then go on.

        `restore` replaces the whole state and may be called again at any time, after any `apply`;
        without chunks it means the empty state. Both are called between two turns of the loop and
        must not wait. UnavailableError or DeadlineError when the log is not there, or cannot be
        read, within `timeout` seconds. FormatError of what newer code wrote and CorruptionError of
        damage without a copy are raised here, and told to `on_failed` when they come later.
        """

        async def find(_: float) -> int:
            try:
                return (await client.find_stream(name)).stream_id
            except NotFoundError:
                raise UnavailableError("no such state log yet", name=name) from None

        follower = cls(
            client,
            await retry(runtime, find, timeout),
            name=name,
            apply=apply,
            restore=restore,
            runtime=runtime,
            version_max=version_max,
            on_failed=on_failed,
        )
        try:
            await retry(runtime, follower._start_over, timeout, _PATIENT)
        except CorruptionError as error:
            error.data["log"] = name
            raise
        follower._tasks.start(follower._follow(), name="read")
        return follower

    @property
    def lag_seconds(self) -> float:
        """How long ago the state was known to have everything."""
        return self._runtime.clock.monotonic() - self.current_at

    async def wait_applied(self, offset: int, timeout: float) -> None:
        """Return when every event below `offset` is part of the state.

        DeadlineError after `timeout` seconds; `failure`, or UnavailableError after `close`, when
        that will never be.
        """
        try:
            async with asyncio.timeout(timeout):
                while self.applied_offset < offset:
                    self._check()
                    await self._waiters.wait(offset - 1)
        except TimeoutError:
            raise DeadlineError(
                "not applied in time", log=self._name, offset=offset, applied=self.applied_offset
            ) from None

    async def close(self) -> None:
        """Stop. The state stays as it is."""
        self._closed = True
        await self._tasks.close()
        self._waiters.wake(_EVERYBODY)

    def _check(self) -> None:
        if self.failure is not None:
            raise type(self.failure)(self.failure.message, **self.failure.data)
        if self._closed:
            raise UnavailableError("follower closed", log=self._name)

    # Following

    async def _follow(self) -> None:
        try:
            while True:
                await retry(
                    self._runtime, self._step, math.inf, _PATIENT, on_failure=self._on_trouble
                )
                self._in_trouble = False
        except HeadraceError as error:
            self._fail(error)
        except Exception as error:
            # State and log differ from here on, so nothing more is applied.
            _log.exception("state event could not be applied")
            self._fail(CorruptionError("an event could not be applied", cause=repr(error)))

    def _fail(self, error: HeadraceError) -> None:
        error.data["log"] = self._name
        _log.error("%s is followed no more: %s", self._name, error)
        self.failure = error
        self._waiters.wake(_EVERYBODY)
        self._on_failed(error)

    def _on_trouble(self, error: HeadraceError) -> None:
        if not self._in_trouble:
            self._in_trouble = True
            _log.warning("%s cannot be followed for now: %s", self._name, error)

    async def _step(self, seconds_left: float) -> None:
        if self._reader is None:
            await self._start_over(seconds_left)
        else:
            await self._read(self._reader)

    async def _start_over(self, _: float) -> None:
        """From the newest snapshot to what is committed now."""
        self._reader = None
        asked = self._runtime.clock.monotonic()
        try:
            _start, end = await self._client.bounds(self.stream_id)
            done = await replay(
                self._client,
                self.stream_id,
                end,
                apply=self._take,
                restore=self._replace,
                version_max=self._version_max,
                again=self._touched,
            )
        except OffsetOutOfRangeError as error:
            raise UnavailableError("the log was trimmed while it was read") from error
        self._gap = done.gap
        self._reader = StateReader(self._client, self.stream_id, done.end)
        self.current_at = asked
        self._advance(done.end)

    async def _read(self, reader: StateReader) -> None:
        """One fetch, and what it returned is applied."""
        asked = self._runtime.clock.monotonic()
        range_before = self._range_at(reader.offset)
        self._look_up_ranges(asked)
        # A writer that never pauses would answer every long poll: now and then one does not wait.
        look = self._busy and asked - self.current_at > 2 * POLL_WAIT_MS / 1000
        try:
            found = await reader.read(max_wait_ms=0 if look else POLL_WAIT_MS, check_end=False)
        except OffsetOutOfRangeError:
            self._reader = None  # trimmed past us
            return
        self._busy = found is not None
        if found is None:
            if reader.read_to == reader.offset:
                self._on_end(reader.offset, range_before, asked)
            return
        if reader.held_by_copy:
            _log.warning("%s is damaged at %s, read from its copy", self._name, reader.held_by_copy)
            reader.held_by_copy.clear()
        if reader.lost or not self._take_all(found):
            self._reader = None
            return
        self._advance(reader.read_to)

    def _take_all(self, found: list[tuple[int, memoryview]]) -> bool:
        """False where the log says that something else must be forgotten first."""
        for offset, record in found:
            event = decode_event(record, self._version_max)
            if event[1] == LOST:
                return False
            if event[1] not in OWN_KINDS:
                apply_event(self._take, event, offset, self._gap)
        return True

    def _take(self, version: int, kind: str, body: Any) -> None:
        self._touched = True
        self._apply(version, kind, body)

    def _replace(self, version: int, chunks: Any) -> None:
        self._touched = True
        self._restore(version, chunks)

    def _advance(self, offset: int) -> None:
        self.applied_offset = offset
        self._waiters.wake(offset)

    # What is known of the end

    def _on_end(self, offset: int, range_before: Range | None, asked: float) -> None:
        """The primary of `range_before` had nothing more at `asked`, or later.

        A primary that was cut off says so too while the log goes on elsewhere: then it counts up
        to the time when the placement manager last knew of no later range.
        """
        ranges = self._client.known_ranges.get(self.stream_id)
        range_ = ranges.containing(offset) if ranges is not None else None
        if ranges is None or range_ is None or range_before is None:
            return
        if range_.range_index == range_before.range_index and range_.end_offset < 0:
            alone = len(range_.replica_nodes) < 2
            self.current_at = max(self.current_at, asked if alone else min(asked, ranges.known_at))

    def _range_at(self, offset: int) -> Range | None:
        ranges = self._client.known_ranges.get(self.stream_id)
        return ranges.containing(offset) if ranges is not None else None

    def _look_up_ranges(self, now: float) -> None:
        """Beside the long poll, which must not wait for a placement manager."""
        ranges = self._client.known_ranges.get(self.stream_id)
        open_range = ranges.writable() if ranges is not None else None
        if ranges is None or open_range is None or len(open_range.replica_nodes) < 2:
            return
        if self._lookup is not None and not self._lookup.done():
            return
        if now - ranges.known_at > POLL_WAIT_MS / 2000:
            work = self._client.list_ranges(self.stream_id)
            self._lookup = self._tasks.start(work, name="ranges")
