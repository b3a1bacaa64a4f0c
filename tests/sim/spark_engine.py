"""Spark's micro-batch engine, as far as a source and a sink can tell, in plain Python.

What it keeps to (read in MicroBatchExecution of Spark 4.3, and seen in its calls):

* A run begins with the offset log: its last batch is run again, with the end that stands there,
  unless the commit log has it. The start of a batch is the end of the one before; a query's first
  batch has none, so the source is asked for its initial offset when the batch is planned, again
  when it is run, and again after a crash.
* A batch: latestOffset, the offset log, the source's commit of the batch *before*, partitions,
  tasks, the sink's commit, the commit log. A log entry is written once; a second writer fails.
* A task reads its partition and writes its rows in one go, in a worker process of its own. It is
  tried up to four times, possibly twice at the same time; the first that succeeds counts, and only
  its message reaches the sink's commit. Whatever else an attempt did, nobody tells the sink.
* Writers are made for the tasks and, in another process, for the commit; they share nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.types import StructType

from headrace.client.partition_reader import Access
from headrace.concurrency.retry import TRANSIENT
from headrace.errors import FencedError, HeadraceError, UnavailableError
from headrace.spark.server import Window
from headrace.spark.sink.sink import Delivered, begin, close, pieces, window_of
from headrace.spark.source.batch_plan import OffsetRange
from headrace.spark.source.following import Following, Limits
from headrace.spark.source.source import record_batches
from tests.sim.spark_world import DRIVER, EXECUTORS, RUNS_MAX, World, transformed

ATTEMPTS_MAX = 4


class TaskFailedError(HeadraceError):
    """A task failed too often: the query ends."""


class OtherWriterError(HeadraceError):
    """A second run of the query wrote to its checkpoint."""


@dataclass(frozen=True, slots=True)
class Properties:
    """What a task's context tells it."""

    query: str
    run: str
    batch: int

    def get(self, name: str) -> str | None:
        return {
            "sql.streaming.queryId": self.query,
            "spark.jobGroup.id": self.run,
            "streaming.sql.batchId": str(self.batch),
        }.get(name)


class Engine:
    """One run of the query, which ends when it has read what is there."""

    def __init__(self, world: World, run: str, host: str = DRIVER) -> None:
        self._world = world
        self._run = run
        self._host = host
        self._checkpoint = world.checkpoint
        clock = world.simulation.runtime(host).clock
        self._source = Following(world.remote(host, "source").reading, world.source, clock)
        self._limits = Limits(world.plan.batch)

    async def run(self) -> None:
        world, log = self._world, self._checkpoint
        if world.plan.available_now:
            await self._source.end_at_latest()
        batch = max(log.offsets, default=-1)
        if batch in log.commits or batch < 0:
            batch += 1
        while True:
            before = log.offsets.get(batch - 1)
            if batch not in log.offsets:
                await world.step("driver before latestOffset")
                start = json.loads(before) if before else await self._source.initial_offset()
                await world.step("driver before planning")
                end = await self._source.latest_offset(start, self._limits)
                if end == start:
                    return
                await world.step("driver before offset log")
                self._write(batch, json.dumps(end))
                await world.step("driver after offset log")
                if before:
                    await self._source.commit(json.loads(before))
                    await world.step("driver after source commit")
            await self._batch(batch)
            batch += 1

    def _write(self, batch: int, end: str) -> None:
        if batch in self._checkpoint.offsets:
            raise OtherWriterError("another run wrote this batch", batch=batch)
        self._checkpoint.offsets[batch] = end

    async def _batch(self, batch: int) -> None:
        world, log = self._world, self._checkpoint
        before = log.offsets.get(batch - 1)
        start = json.loads(before) if before else await self._source.initial_offset()
        planned = await self._source.plan(start, json.loads(log.offsets[batch]))
        await world.step("driver before tasks")
        properties = Properties(log.query, self._run, batch)
        delivered = await self._tasks(planned, window_of(world.sink.target, properties.get))
        await world.step("driver before close")
        if delivered:
            await close(world.remote(self._host, "sink"), delivered)
        await world.step("driver after close")
        if batch in log.commits:
            raise OtherWriterError("another run committed this batch", batch=batch)
        log.commits.append(batch)
        await world.step("driver after commit log")

    # -- tasks

    async def _tasks(
        self, planned: Sequence[tuple[OffsetRange, Access]], window: Window
    ) -> list[Delivered]:
        running = [
            asyncio.create_task(self._task(number, *each, window))
            for number, each in enumerate(planned)
        ]
        try:
            return await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _task(
        self, number: int, span: OffsetRange, access: Access, window: Window
    ) -> Delivered:
        """One task, until an attempt succeeds."""
        errors: list[str] = []
        while len(errors) < ATTEMPTS_MAX:
            hosts = [EXECUTORS[(number + len(errors)) % len(EXECUTORS)]]
            if self._world.plan.speculative and self._world.random.uniform() < 0.7:
                hosts.append(EXECUTORS[(number + len(errors) + 1) % len(EXECUTORS)])
            try:
                return await self._attempts(hosts, span, access, window)
            except HeadraceError as error:
                errors.append(repr(error))
                await asyncio.sleep(0.05)
        raise TaskFailedError("; ".join(errors))

    async def _attempts(
        self, hosts: Sequence[str], span: OffsetRange, access: Access, window: Window
    ) -> Delivered:
        """The first that succeeds. The other one is killed, or goes on until it ends by itself."""
        world = self._world
        # They run on their own hosts, so that a driver that dies leaves them behind.
        attempts = []
        for number, host in enumerate(hosts):
            work = attempt(world, host, span, access, window, 0.01 * number)
            attempts.append(world.simulation.start(host, work))
        errors: list[BaseException] = []
        for finished in asyncio.as_completed([_outcome(each) for each in attempts]):
            outcome = await finished
            if isinstance(outcome, Delivered):
                if world.random.uniform() < 0.5:
                    for each in attempts:
                        each.cancel()
                return outcome
            errors.append(outcome)
        raise errors[0]


async def _outcome(attempt: asyncio.Task[Delivered]) -> Delivered | HeadraceError:
    """Of an attempt that may be on another host, and die with it."""
    await asyncio.wait({attempt})
    if attempt.cancelled():
        return UnavailableError("the worker was lost")
    error = attempt.exception()
    if error is None:
        return attempt.result()
    if isinstance(error, HeadraceError):
        return error
    raise error


class Job(Engine):
    """A batch job: all that is there now, in one window of a publisher that nobody else is."""

    async def run(self) -> None:
        world = self._world
        start = await self._source.initial_offset()
        planned = await self._source.plan(start, await self._source.latest_offset(start))
        await world.step("driver before tasks")
        delivered = await self._tasks(planned, Window(f"spark/job/{self._run}", "1", 0, last=True))
        await world.step("driver before close")
        await close(world.remote(self._host, "sink"), delivered)
        await world.step("driver after close")


async def attempt(
    world: World, host: str, span: OffsetRange, access: Access, window: Window, delay: float
) -> Delivered:
    """What Spark runs in a worker process: the source's read, the query, the sink's write."""
    if delay:
        await asyncio.sleep(delay * world.random.uniform())
    await world.step("task before read", host)
    source, sink, remote = world.source, world.sink, world.remote(host)
    runs = [run async for run in remote.reading.read(source.target, access, span, source.read_from)]
    batches = [transformed(each) for each in record_batches(source, StructType(), span, runs)]
    partitions = await remote.partition_count(sink.target)
    await world.step("task before stage", host)
    delivering = await begin(remote, sink, window)
    try:
        for piece in pieces(sink, batches, lambda: partitions):
            await delivering.add(piece)
            await world.step("task between stages", host)
        delivered = await delivering.finish()
    except BaseException:
        await delivering.cancel()
        raise
    await world.step("task after stage", host)
    return delivered


# --- running a query to its end


async def drive(world: World) -> None:
    """Start the query, again after every end it comes to, until it has read everything."""
    sending = asyncio.create_task(world.send(world.plan.later))
    if world.plan.grow:
        world.reached["driver after commit log#0"] = lambda: grow(world)
    complete = False
    while not complete:
        world.runs += 1
        assert world.runs <= RUNS_MAX, f"the query never ends: {world.struck}"
        await world.check_group()
        struck, complete = len(world.struck), sending.done()
        try:
            await world.simulation.on(DRIVER, Engine(world, f"run{world.runs}").run())
        except (*TRANSIENT, TaskFailedError) as error:
            world.simulation.record(DRIVER, f"the query ended: {error}")
            complete = False
        except FencedError:
            # A task that outlived its driver, and first reached the broker after our own did.
            assert world.plan.zombies
            complete = False
        complete = complete and struck == len(world.struck)
        await asyncio.sleep(0.5 * world.random.uniform())
    await sending


async def grow(world: World) -> None:
    await world.ask(lambda client: client.create_partitions("s", "in", 1))
    await world.send(9)
