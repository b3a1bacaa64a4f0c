"""The logs that keep consumers' offsets, by shard.

Offsets live with their partition: whoever leads a shard keeps the offsets of its partitions. A
directory of before there were shards has one log, the first shard's, for all of them. It stays so
while one process leads everything, because offsets that are stored together are then one append.
Before another process leads a shard for the first time the offsets are *divided*: what the first
log knows of other shards is copied to logs of their own, and then the catalogue says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from headrace.broker.catalogue.state import Catalogue
from headrace.broker.partitions.offsets import (
    EVENT,
    VERSION,
    LoggedOffsets,
    Offsets,
    OffsetWriter,
    Place,
    StoredOffset,
    pack,
)
from headrace.errors import NotFoundError, NotLeaderError
from headrace.runtime.interfaces import Runtime
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.state_log import StateLog

FIRST = 0
_COPIED_ENTRIES_MAX = 4096


def offsets_log_name(shard: int) -> str:
    return "s/offsets" if shard == FIRST else f"s/offsets/{shard}"


class OffsetLogs:
    """Those of the shards that this process leads. `catalogue` is asked for, because a process that
    takes over from another reads it anew."""

    def __init__(
        self,
        runtime: Runtime,
        client: SbpClient,
        offsets: Offsets,
        catalogue: Callable[[], Catalogue],
    ) -> None:
        self._runtime = runtime
        self._client = client
        self._offsets = offsets
        self._catalogue = catalogue
        self._logs: dict[int, StateLog] = {}
        self._writers: dict[int, OffsetWriter] = {}

    def logs(self) -> list[StateLog]:
        return list(self._logs.values())

    def by_shard(self) -> list[tuple[int, StateLog]]:
        return list(self._logs.items())

    def led(self) -> list[int]:
        """The shards whose logs are open."""
        return list(self._logs)

    def log_of(self, place: Place) -> int | None:
        """The shard in whose log the offsets of this place are; None of a place that is gone."""
        catalogue = self._catalogue()
        partition = catalogue.find_partition(*place)
        if partition is None:
            return None
        return partition.shard if partition.shard in catalogue.divided else FIRST

    async def open(self, shard: int, *, epoch: int, clean: bool, replicas: int) -> None:
        """Replay the shard's log, unless it has none of its own."""
        if shard != FIRST and shard not in self._catalogue().divided:
            return
        self._logs[shard] = log = await self._open(shard, epoch, clean, replicas)
        self._writers[shard] = OffsetWriter(log)

    async def _open(self, shard: int, epoch: int, clean: bool, replicas: int) -> StateLog:
        def kept_elsewhere(place: Place) -> bool:
            return self.log_of(place) not in (shard, None)

        kept = LoggedOffsets(self._offsets, kept_elsewhere)
        return await StateLog.open(
            self._client,
            name=offsets_log_name(shard),
            epoch=epoch,
            clean=clean,
            apply=kept.apply,
            snapshot=kept.snapshot,
            restore=kept.restore,
            runtime=self._runtime,
            replica_nums=replicas,
        )

    async def store(self, entries: list[StoredOffset]) -> None:
        """Returns when they are durable and visible: all or none of those of one log."""
        by_log: dict[int, list[StoredOffset]] = {}
        for entry in entries:
            shard = self.log_of(entry.place)
            by_log.setdefault(FIRST if shard is None else shard, []).append(entry)
        for shard, group in by_log.items():
            writer = self._writers.get(shard)
            if writer is None:
                raise NotLeaderError("another broker leads the partition", shard=shard)
            await writer.store(group)

    async def copy(self, shards: Iterable[int], *, epoch: int, replicas: int) -> None:
        """Write what is known of these shards to logs of their own, which nobody reads before the
        catalogue has `OffsetsDivided`. Done again after a failure it leaves nothing of the first
        time: what was deleted since then stays deleted."""
        wanted = set(shards)
        catalogue = self._catalogue()
        by_shard: dict[int, list[StoredOffset]] = {}
        for entry in self._offsets.entries():
            partition = catalogue.find_partition(*entry.place)
            if partition is not None and partition.shard in wanted:
                by_shard.setdefault(partition.shard, []).append(entry)
        for shard in sorted(wanted):
            entries = by_shard.get(shard, [])
            if not entries and not await self._exists(shard):
                continue
            log = await self._open(shard, epoch, False, replicas)
            try:
                if log.applied_offset:
                    await log.write_snapshot()  # of nothing: its places are kept elsewhere as yet
                for some in _cut(entries, _COPIED_ENTRIES_MAX):
                    await log.append(EVENT, [pack(entry) for entry in some], VERSION)
            finally:
                await log.close()

    async def _exists(self, shard: int) -> bool:
        try:
            await self._client.find_stream(offsets_log_name(shard))
        except NotFoundError:
            return False
        return True

    async def drop(self, shard: int) -> None:
        """Another process may lead the shard already: appends in flight are left to their fate."""
        log = self._logs.get(shard)
        if log is not None:
            await log.stream.close()
        await self.release(shard)

    async def release(self, shard: int) -> bool:
        """Finish what was asked for and let go of the shard. True when nothing is left whose
        outcome is unknown."""
        writer, log = self._writers.pop(shard, None), self._logs.pop(shard, None)
        if writer is not None:
            await writer.close()
        clean = log is None or log.failure is None
        if log is not None:
            await log.close()
        self._offsets.forget(lambda place: self.log_of(place) == shard)
        return clean


def _cut(entries: Sequence[StoredOffset], size: int) -> Iterable[Sequence[StoredOffset]]:
    return (entries[at : at + size] for at in range(0, len(entries), size))
