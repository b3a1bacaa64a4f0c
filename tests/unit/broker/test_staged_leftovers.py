"""What is staged and never closed: it goes, at the latest after a time; no window goes with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.config.broker import BrokerSettings
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages import extensions as x
from tests.unit.broker.fake_cluster import FakeCluster
from tests.unit.broker.harness import Client, Harness, code_of, opened
from tests.unit.broker.windows.test_publishing import FENCED, close, open_, stage, stored, topic

NOT_FOUND, LIMIT = 9100, 9104
DAY_MS = 24 * 3600 * 1000


def staging(h: Harness) -> list[str]:
    return sorted(name for name in h.cluster.names if name.startswith("p/staging/"))


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come to pass")


async def wait_gone(h: Harness, name: str) -> None:
    await until(lambda: name not in h.cluster.names)


async def sweep(h: Harness, *, days: float = 0) -> None:
    h.clock.now_us_ += int(days * DAY_MS * 1000)
    await h.broker.publishing.sweep(DAY_MS)


async def reopened(client: Client, name: str = "query", run: str = "run 2") -> x.PublisherOpened:
    return await client.call(c.OPEN_PUBLISHER, x.OpenPublisher(name=name, run=run))


async def test_a_job_that_gives_up_leaves_nothing() -> None:
    """A last window without messages: what was staged goes, and so does the publisher."""
    async with opened(settings=BrokerSettings(publishers_max=1)) as h:
        client = await h.root()
        await topic(client)
        for number in range(3):
            publisher = await open_(client, name=f"job {number}")
            span = await stage(client, publisher, 0, 0, b"never seen")
            (name,) = staging(h)
            await close(client, publisher, 0, last=True)
            await wait_gone(h, name)
            # Tasks that still run, and a commit that comes too late, change nothing.
            assert await code_of(stage(client, publisher, 0, 0, b"late")) == FENCED
            assert (await close(client, publisher, 0, [span])).already
        assert await stored(client) == []
        assert h.broker.publishing.statistics()["publishers"] == 0


async def test_who_ends_while_a_task_begins_to_stage_leaves_nothing() -> None:
    async with opened() as h:
        client = await h.root()
        await topic(client)
        publisher = await open_(client)
        late = asyncio.ensure_future(stage(client, publisher, 0, 0, b"late"))
        for _ in range(1000):
            if staging(h):  # it is made; nobody has noted whose it is
                break
            await asyncio.sleep(0)
        await close(client, publisher, 0, last=True)
        await asyncio.wait([late])
        await sweep(h)
        async with asyncio.timeout(20):
            while staging(h):
                await sweep(h)


async def test_a_new_run_begins_with_an_empty_stage() -> None:
    async with opened() as h:
        client = await h.root()
        await topic(client)
        first = await open_(client)
        await close(client, first, 0, [await stage(client, first, 0, 0, b"0")])
        for number in range(3):  # a query that fails and is started again
            await stage(client, await reopened(client, run=f"attempt {number}"), 1, 0, b"1" * 100)
        second = await reopened(client, run="works")
        held = h.cluster.named(f"p/staging/{first.publisher}")
        await until(lambda: held.start >= 4)
        spans = [await stage(client, second, 1, 0, b"a"), await stage(client, second, 1, 0, b"b")]
        again = await reopened(client, run="works")
        assert again == second, "the same run keeps what it staged"
        await close(client, second, 1, spans)
        assert await stored(client) == [b"0", b"a", b"b"]


async def test_a_job_that_died_is_forgotten_after_a_day() -> None:
    async with opened(settings=BrokerSettings(publishers_max=2)) as h:
        client = await h.root()
        await topic(client)
        staged = await open_(client, name="died")
        await stage(client, staged, 0, 0, b"never seen")
        await open_(client, name="died at once")
        await sweep(h, days=0.9)
        assert h.broker.publishing.statistics() == {
            "publishers": 2, "staged_messages": 1, "staged_oldest_ms": int(0.9 * DAY_MS),
            "staged_bytes": h.broker.publishing.figures.bytes, "publishers_expired": 0,
        }  # fmt: skip
        assert h.broker.publishing.figures.bytes > 0
        assert await code_of(open_(client, name="another")) == LIMIT
        await sweep(h, days=0.2)
        await wait_gone(h, f"p/staging/{staged.publisher}")
        assert h.broker.publishing.statistics()["publishers"] == 0
        assert h.broker.publishing.expired == 2
        assert await code_of(stage(client, staged, 0, 0, b"a zombie")) == NOT_FOUND
        # Its name is free, and what it does then is done once.
        anew = await reopened(client, name="died")
        await close(client, anew, 0, [await stage(client, anew, 0, 0, b"now")])
        assert await stored(client) == [b"now"]
        async with asyncio.timeout(20):
            while h.broker.publishing.figures.messages:
                await sweep(h)


async def test_who_still_stages_is_let_be() -> None:
    """A batch of two days that stages now and then, and one whose publisher came long ago."""
    async with opened() as h:
        client = await h.root()
        await topic(client)
        publisher = await open_(client)
        spans = []
        for number in range(4):
            spans.append(await stage(client, publisher, 0, 0, b"%d" % number))
            await sweep(h, days=0.5)
        await close(client, publisher, 0, spans)
        assert await stored(client) == [b"0", b"1", b"2", b"3"]


async def test_a_query_that_stays_away_keeps_its_place() -> None:
    """Its checkpoint may come back: windows that it closed are never published again."""
    cluster = FakeCluster()
    async with opened(cluster) as h:
        client = await h.root()
        await topic(client)
        publisher = await open_(client)
        await close(client, publisher, 0, [await stage(client, publisher, 0, 0, b"0")])
        await sweep(h, days=9)
        assert (await reopened(client, run="run 1")).epoch == publisher.epoch, "idle, not over"
        span = await stage(client, publisher, 1, 0, b"died before its close")
        await sweep(h, days=2)
        await wait_gone(h, f"p/staging/{publisher.publisher}")
        assert await code_of(close(client, publisher, 1, [span])) == FENCED
        assert await code_of(stage(client, publisher, 1, 0, b"x")) == FENCED
    async with opened(cluster, epoch=2) as h:
        client = await h.root()
        back = await reopened(client, run="back")
        assert back.last_window == 0
        assert (await close(client, back, 0, [await stage(client, back, 0, 0, b"again")])).already
        await close(client, back, 1, [await stage(client, back, 1, 0, b"1")])
        assert await stored(client) == [b"0", b"1"]


async def test_publishers_of_an_earlier_version_get_their_day() -> None:
    """Nobody noted when they came: a leader counts from when it first saw them."""
    async with opened() as h:
        client = await h.root()
        await topic(client)
        await open_(client, name="old")
        known = h.broker.publishing.state.named("old")
        assert known is not None
        known.opened_ms = 0
        await sweep(h, days=30)
        assert h.broker.publishing.state.named("old") is known
        await sweep(h, days=1)
        assert h.broker.publishing.state.named("old") is None


async def test_publishers_of_window_topics_come_and_go_with_the_topic() -> None:
    async with opened() as h:
        client = await h.root()
        await topic(client, partitions=1)
        await client.call(
            c.SET_PUBLISHERS,
            x.SetPublishers(stream="s", topic="t", publishers=("query",), after=-1, epoch=1),
        )
        publisher = await open_(client)
        await stage(client, publisher, 0, 0, b"a")
        await sweep(h, days=9)
        assert h.broker.publishing.state.named("query") is not None
        await close(client, publisher, 0, [await stage(client, publisher, 0, 0, b"b")])
        assert await stored(client) == [b"b"]
