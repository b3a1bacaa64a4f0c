"""Windows over partitions that several workers lead: each is published whole, and once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.shards import messages as m
from headrace.broker.shards.service import WorkerService
from headrace.client.iggy import IggyClient
from headrace.errors import OutcomeUnknownError
from headrace.wire.iggy.messages.extensions import PublisherOpened, StagedSpan
from headrace.wire.iggy.messages.messages import Message, encode_send
from headrace.wire.iggy.primitives import Partitioning, Strategy
from tests.integration.test_workers_of_a_broker import spread, until
from tests.integration.worker_stack import WorkerStack

PARTITIONS = 6


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[WorkerStack]:
    stack = await WorkerStack(str(tmp_path)).start()
    try:
        await until(lambda: spread(stack))
        yield stack
    finally:
        await stack.stop()


async def stage(client: IggyClient, opened: PublisherOpened, window: int) -> list[StagedSpan]:
    return [
        await client.stage(
            opened,
            window,
            encode_send(
                "s",
                "t",
                Partitioning.to_partition(partition),
                [Message(b"%d/%d/%d" % (window, partition, n)) for n in range(5)],
            ),
        )
        for partition in range(PARTITIONS)
    ]


async def published(client: IggyClient) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for partition in range(PARTITIONS):
        polled = await client.poll(
            "s", "t", partition=partition, strategy=Strategy.first(), count=1000
        )
        found.update(bytes(message.payload) for message in polled.messages())
    return found


def expected(windows: int) -> Counter[bytes]:
    return Counter(
        b"%d/%d/%d" % (window, partition, n)
        for window in range(windows)
        for partition in range(PARTITIONS)
        for n in range(5)
    )


OnPublish = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]


def intercept(service: WorkerService, on_publish: OnPublish) -> None:
    """The next window that the worker is asked to publish goes through `on_publish`."""
    answers = service.requests.answers
    before = answers[m.Publish]

    async def publish(peer: str, message: m.Publish, body: memoryview) -> object:
        answers[m.Publish] = before
        kept = memoryview(bytearray(body))
        return await on_publish(lambda: before(peer, message, kept))

    answers[m.Publish] = publish


async def test_a_window_of_three_workers_is_published_once(stack: WorkerStack) -> None:
    async with AsyncExitStack() as closing:
        clients = [
            await closing.enter_async_context(await stack.connect(number)) for number in range(3)
        ]
        await clients[0].create_stream("s")
        await clients[0].create_topic("s", "t", partitions_count=PARTITIONS)
        opened = await clients[1].open_publisher("pub", "run")
        for window in range(3):
            spans = await stage(clients[window], opened, window)
            closed = await clients[window].close_window(
                opened, previous=window - 1, window=window, manifest=spans
            )
            assert sum(run.count for run in closed.runs) == 5 * PARTITIONS
            again = await clients[2 - window].close_window(
                opened, previous=window - 1, window=window, manifest=spans
            )
            assert again.already
        assert await published(clients[2]) == expected(3)


@pytest.mark.parametrize("late", [False, True])
async def test_an_answer_is_lost_and_what_was_asked_comes_late(
    stack: WorkerStack, late: bool
) -> None:
    """The leader did it, or will do it later, when others were told of a failure."""
    tasks = []

    async def lose(go_on: Callable[[], Awaitable[Any]]) -> Any:
        async def delayed() -> None:
            await asyncio.sleep(0.5)
            await go_on()

        if late:
            tasks.append(asyncio.create_task(delayed()))
        else:
            await go_on()
        raise OutcomeUnknownError("planted")

    async with AsyncExitStack() as closing:
        client = await closing.enter_async_context(await stack.connect(0))
        await client.create_stream("s")
        await client.create_topic("s", "t", partitions_count=PARTITIONS)
        opened = await client.open_publisher("pub", "run")
        for service in stack.workers.values():
            intercept(service, lose)
        spans = await stage(client, opened, 0)
        await client.close_window(opened, previous=-1, window=0, manifest=spans)
        await asyncio.sleep(0.6 if late else 0)
        assert len(tasks) >= late
        assert await published(client) == expected(1)


async def test_shards_move_while_windows_are_closed(stack: WorkerStack) -> None:
    async with AsyncExitStack() as closing:
        client = await closing.enter_async_context(await stack.connect(0))
        await client.create_stream("s")
        await client.create_topic("s", "t", partitions_count=PARTITIONS)
        opened = await client.open_publisher("pub", "run")
        stopping = None
        for window in range(10):
            spans = await stage(client, opened, window)
            if window == 2:
                stopping = asyncio.create_task(stack.stop_worker(2))
            await client.close_window(opened, previous=window - 1, window=window, manifest=spans)
            if window == 5:
                assert stopping is not None
                await stopping
                await stack.start_worker(2)
        assert await published(client) == expected(10)


async def test_a_shard_comes_to_who_asks_for_it(stack: WorkerStack) -> None:
    """The coordinator asks another worker for a partition that it is given itself meanwhile."""
    async with AsyncExitStack() as closing:
        (coordinator,) = [n for n, w in stack.workers.items() if w.broker.workers.coordinates]
        client = await closing.enter_async_context(await stack.connect(coordinator))
        await client.create_stream("s")
        await client.create_topic("s", "t", partitions_count=PARTITIONS)
        service = stack.workers[coordinator]
        assert service.worker is not None
        catalogue, workers, me = service.broker.catalogue, service.worker, service.holder
        ((topic, partition),) = [
            (topic, partition)
            for topic in catalogue.topics()
            for partition in topic.partitions
            if not workers.shards.leads(partition.shard)
        ][:1]
        (other,) = [
            each for each in stack.workers.values() if each.broker.shards.leads(partition.shard)
        ]
        assert other.worker is not None
        await other.worker.hand_over(partition.shard)
        asking = asyncio.create_task(service.broker.open_partition(topic, partition))
        await asyncio.sleep(0)
        await client.move_shard(partition.shard, me)
        opened = await asyncio.wait_for(asking, 5)
        assert opened.committed == 0
        assert workers.shards.leads(partition.shard)


async def test_the_coordinator_is_lost_between_intent_and_done(stack: WorkerStack) -> None:
    hanging = asyncio.Event()

    async def hang(go_on: Callable[[], Awaitable[Any]]) -> Any:
        hanging.set()
        await asyncio.sleep(1)
        return await go_on()

    async with AsyncExitStack() as closing:
        (coordinator,) = [n for n, w in stack.workers.items() if w.broker.workers.coordinates]
        others = [number for number in stack.workers if number != coordinator]
        client = await closing.enter_async_context(await stack.connect(others[0]))
        await client.create_stream("s")
        await client.create_topic("s", "t", partitions_count=PARTITIONS)
        opened = await client.open_publisher("pub", "run")
        spans = await stage(client, opened, 0)
        for number in others:
            intercept(stack.workers[number], hang)
        work = asyncio.create_task(
            client.close_window(opened, previous=-1, window=0, manifest=spans)
        )
        await asyncio.wait_for(hanging.wait(), 10)
        await stack.stop_worker(coordinator)
        await asyncio.gather(work, return_exceptions=True)
        again = await closing.enter_async_context(await stack.connect(others[1]))
        closed = await again.close_window(opened, previous=-1, window=0, manifest=spans)
        assert closed.last_window == 0
        await asyncio.sleep(0.5)
        assert await published(again) == expected(1)
