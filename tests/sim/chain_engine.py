"""One run of one container of the chain: Spark's micro-batch loop over our edges, in plain Python.

As in `spark_engine`, with what a container adds: the side log of windows, publishers with the epoch
that the controller gave the run, and windows that pass while there is nothing to do. Spark's logs
are files in Spark's own form on storage that outlives everything, because the side log reads them.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
import xxhash
from pyspark.sql.types import StructType

from headrace.client.partition_reader import Access
from headrace.ids import WindowId
from headrace.pipeline.container.window_log import WindowLog
from headrace.runtime.interfaces import Clock, Disk
from headrace.spark.edges.options import EdgeOptions
from headrace.spark.edges.sink import HASH_COLUMN, HASH_MASK, EdgeSink, EdgeStaging, close_window
from headrace.spark.edges.source import EdgeFollowing, edge_rows, quiet_through
from headrace.spark.options import SinkOptions, SourceOptions, Target
from headrace.spark.server import Remote, Window
from headrace.spark.sink.sink import Delivered, begin, close, pieces
from headrace.spark.source.batch_plan import OffsetRange
from headrace.spark.source.following import Following, Limits
from headrace.spark.source.source import record_batches
from headrace.wire.umbilical.windows import WindowGrid
from tests.sim.spark_engine import OtherWriterError

SCHEMA = pa.schema([("key", pa.binary()), ("n", pa.int64())])
Step = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Part:
    """What a container does: where its rows come from, what becomes of them, where they go."""

    role: str
    sources: tuple[SourceOptions | EdgeOptions, ...]
    sink: EdgeSink | SinkOptions
    """The sink's epoch is the run's."""
    transform: Callable[[pa.Table], pa.Table]
    batch: int | None = None


class _Source(Protocol):
    async def initial_offset(self) -> dict[str, Any]: ...
    async def plan(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> list[tuple[OffsetRange, Access]]: ...


class Run:
    def __init__(
        self,
        part: Part,
        epoch: int,
        *,
        remote: Remote,
        disk: Disk,
        clock: Clock,
        grid: WindowGrid,
        step: Step,
        report: Callable[[WindowId], None],
    ) -> None:
        self._part = part
        self._epoch = epoch
        self._remote = remote
        self._disk = disk
        self._clock = clock
        self._grid = grid
        self._step = step
        self._report = report
        self._folder = f"/checkpoints/{part.role}"
        for name in ("offsets", "commits"):
            disk.make_folder(f"{self._folder}/{name}")
        self._windows = WindowLog(disk, self._folder, grid)
        self._sink = (
            replace(part.sink, epoch=epoch) if isinstance(part.sink, EdgeSink) else part.sink
        )
        self._sources = [
            EdgeFollowing(remote, each, clock)
            if isinstance(each, EdgeOptions)
            else Following(remote.reading, each, clock)
            for each in part.sources
        ]

    async def run(self) -> None:
        """Until it fails or is killed."""
        batch = self._newest("offsets")
        if batch < 0 or self._exists("commits", batch):
            batch += 1
        while True:
            if not self._exists("offsets", batch) and not await self._plan(batch):
                await self._pass_idle()
                continue
            await self._run_batch(batch)
            batch += 1

    # -- Spark's logs

    def _path(self, folder: str, batch: int) -> str:
        return f"{self._folder}/{folder}/{batch}"

    def _exists(self, folder: str, batch: int) -> bool:
        return self._disk.exists(self._path(folder, batch))

    def _newest(self, folder: str) -> int:
        names = self._disk.list(f"{self._folder}/{folder}")
        return max((int(name) for name in names), default=-1)

    def _write(self, folder: str, batch: int, text: str) -> None:
        if self._exists(folder, batch):
            raise OtherWriterError("another run wrote this batch", batch=batch)
        self._disk.write_atomic(self._path(folder, batch), text.encode())

    async def _ends(self, batch: int) -> list[dict[str, Any]]:
        """Where a batch ended, by source; before the first one: where the query begins."""
        if batch < 0:
            return [await source.initial_offset() for source in self._sources]
        lines = self._disk.read(self._path("offsets", batch)).decode().split("\n")
        return [json.loads(line) for line in lines[2:]]

    # -- a batch

    async def _plan(self, batch: int) -> bool:
        starts = await self._ends(batch - 1)
        ends = []
        for source, start in zip(self._sources, starts, strict=True):
            if isinstance(source, EdgeFollowing):
                ends.append(await source.latest_offset(start) or start)
            else:
                ends.append(await source.latest_offset(start, Limits(self._part.batch)))
        if ends == starts:
            return False
        await self._step("before offset log")
        metadata = json.dumps({"batchTimestampMs": self._clock.now_ms()})
        self._write("offsets", batch, "\n".join(("v1", metadata, *map(json.dumps, ends))))
        await self._step("after offset log")
        for source, start in zip(self._sources, starts, strict=True):
            if batch and isinstance(source, Following):
                await source.commit(start)
        await self._step("after source commit")
        return True

    async def _run_batch(self, batch: int) -> None:
        before, ends = await self._ends(batch - 1), await self._ends(batch)
        planned = []
        for number, source in enumerate(self._sources):
            for span, access in await source.plan(before[number], ends[number]):
                planned.append((self._part.sources[number], span, access))
        window = await self._enter(batch)
        await self._step("before stage")
        parts = [await self._task(*each, window) for each in planned]
        await self._step("after stage")
        if isinstance(self._sink, EdgeSink):
            await close_window(self._remote, self._sink, window, parts)
        elif parts:
            await close(self._remote, parts)
        await self._step("after close")
        self._write("commits", batch, "v1\n{}")
        self._report(self._windows.enter(batch).complete)
        await self._step("after commit log")

    async def _enter(self, batch: int) -> Window:
        if isinstance(self._sink, EdgeSink):
            last = await self._remote.last_closed(self._sink.window(0))
            entered = self._windows.enter(batch, [last])
            return self._sink.window(entered.window, last)
        entered = self._windows.enter(batch)
        read = min(window for end in await self._ends(batch) for window in end["w"].values())
        assert entered.complete == min(read, entered.window), "what is not read is not reported"
        return Window(f"chain/{self._part.role}", str(self._epoch), batch, epoch=self._epoch)

    async def _task(
        self, source: SourceOptions | EdgeOptions, span: OffsetRange, access: Access, window: Window
    ) -> Delivered:
        read_from = "auto" if isinstance(source, EdgeOptions) else source.read_from
        runs = [
            run async for run in self._remote.reading.read(source.target, access, span, read_from)
        ]
        if isinstance(source, EdgeOptions):
            batches = list(edge_rows(SCHEMA, source.share, span, runs))
        else:
            batches = list(record_batches(source, StructType(), span, runs))
        table = self._part.transform(pa.Table.from_batches(batches)) if batches else None
        if isinstance(self._sink, EdgeSink):
            staging = EdgeStaging(self._remote, self._sink, window)
            for each in table.to_batches() if table is not None else ():
                for piece in staging.pieces(each):
                    await staging.delivering.add(piece)
            return await staging.finish()
        delivering = await begin(self._remote, self._sink, window)
        for piece in pieces(self._sink, table.to_batches() if table is not None else (), _one):
            await delivering.add(piece)
        return await delivering.finish()

    # -- nothing to do

    async def _pass_idle(self) -> None:
        """What `pipeline.idle_windows` does in blocking calls."""
        if not isinstance(self._sink, EdgeSink):
            return
        window = self._grid.previous(self._grid.window_at(self._clock.now_ms()))
        edges = [each.target for each in self._part.sources if isinstance(each, EdgeOptions)]
        if edges:
            through = await quiet_through(self._remote, edges, self._windows.inputs())
            if through is None:
                return
            window = WindowId(through)
        last = await self._remote.last_closed(self._sink.window(0))
        if self._windows.pass_idle(window):
            await self._step("before idle close")
            if window > last:
                await close_window(self._remote, self._sink, self._sink.window(window, last), ())
            self._report(window)
            await self._step("after idle close")


def _one() -> int:
    return 1


def hashed(table: pa.Table) -> pa.Table:
    """With the hash by which the instances of a reader share rows."""
    hashes = [xxhash.xxh64_intdigest(key) & HASH_MASK for key in table.column("key").to_pylist()]
    return table.append_column(HASH_COLUMN, pa.array(hashes, pa.int32()))


def edge_target(target: Target, stream: str, topic: str) -> Target:
    return replace(target, stream=stream, topic=topic)
