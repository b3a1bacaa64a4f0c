"""Topics between queries: publishers change at a window, and readers see what all have closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from headrace.broker.partitions import retention
from headrace.config.broker import BrokerSettings
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages import extensions as x
from headrace.wire.iggy.messages import users as u
from headrace.wire.iggy.messages.messages import Message, encode_send
from headrace.wire.iggy.messages.topics import CreatePartitions, DeleteTopic
from headrace.wire.iggy.primitives import Partitioning
from tests.unit.broker.fake_cluster import FakeCluster
from tests.unit.broker.harness import Client, Harness, code_of, opened
from tests.unit.broker.windows.test_publishing import (
    FENCED,
    OUT_OF_ORDER,
    DyingCluster,
    close,
    stage,
    stored,
    topic,
)

NOT_WINDOWED, TAKEN, TOO_MANY = 9105, 9106, 9107


async def set_(client: Client, *names: str, after: int = -1, epoch: int = 0) -> None:
    request = x.SetPublishers(stream="s", topic="t", publishers=names, after=after, epoch=epoch)
    await client.call(c.SET_PUBLISHERS, request)


async def list_(
    client: Client, after: int = -1, *, wait_ms: int = 0, limit: int = 0
) -> x.WindowsListed:
    request = x.ListWindows(stream="s", topic="t", after=after, wait_ms=wait_ms, limit=limit)
    return await client.call(c.LIST_WINDOWS, request)


async def reset(client: Client, window: int, epoch: int) -> None:
    request = x.ResetAfter(stream="s", topic="t", window=window, epoch=epoch)
    await client.call(c.RESET_AFTER, request)


async def purge(client: Client, window: int) -> None:
    await client.call(c.PURGE_TO, x.PurgeTo(stream="s", topic="t", window=window))


async def open_(client: Client, name: str = "a", epoch: int = 1) -> x.PublisherOpened:
    request = x.OpenPublisher(name=name, run=str(epoch), epoch=epoch)
    return await client.call(c.OPEN_PUBLISHER, request)


async def publish(
    client: Client,
    publisher: x.PublisherOpened,
    window: int,
    *payloads: bytes,
    previous: int | None = None,
    partition: int = 0,
) -> x.WindowClosed:
    spans = [await stage(client, publisher, window, partition, *payloads)] if payloads else []
    return await close(client, publisher, window, spans, previous=previous)


def listed(answer: x.WindowsListed) -> dict[str, list[tuple[int, int, int]]]:
    """(window, first offset, count) by publisher; those without any are left out."""
    return {
        each.name: [
            (window.window, span.first, span.count)
            for window in each.windows
            for span in window.spans
        ]
        for each in answer.publishers
        if each.windows
    }


@asynccontextmanager
async def edge(
    *names: str, cluster: FakeCluster | None = None, settings: BrokerSettings | None = None
) -> AsyncIterator[tuple[Harness, Client]]:
    async with opened(cluster, settings=settings or BrokerSettings()) as h:
        client = await h.root()
        await topic(client, partitions=max(2, len(names)))
        if names:
            await set_(client, *names)
        yield h, client


async def test_a_topic_is_closed_as_far_as_its_slowest_publisher() -> None:
    async with edge("a", "b") as (_, client):
        a, b = await open_(client, "a"), await open_(client, "b")
        assert (await list_(client)).closed == -1
        await publish(client, a, 3, b"x", b"y", previous=-1)
        assert (await list_(client)).closed == -1
        assert listed(await list_(client)) == {}, "what not everyone closed is not told"
        await publish(client, b, 2, b"z", previous=-1, partition=1)
        answer = await list_(client)
        assert (answer.closed, answer.complete, answer.purged) == (2, 2, -1)
        assert listed(answer) == {"b": [(2, 0, 1)]}
        await publish(client, b, 5, previous=2)
        answer = await list_(client, after=2)
        assert answer.closed == 3
        assert listed(answer) == {"a": [(3, 0, 2)]}
        assert [(p.name, p.partition, p.last_window) for p in answer.publishers] == [
            ("a", 0, 3),
            ("b", 1, 5),
        ]


async def test_listing_tells_rows_bytes_and_where_the_messages_are() -> None:
    async with edge("a") as (_, client):
        a = await open_(client)
        span = await stage(client, a, 0, 0, b"one", b"two")
        request = x.CloseWindow(
            publisher=a.publisher, epoch=1, previous=-1, window=0, manifest=(span,), rows=700,
            index=b"what is where",
        )  # fmt: skip
        long = msgspec.structs.replace(request, index=b"x" * 1025)
        assert await code_of(client.call(c.CLOSE, long)) == 3
        await client.call(c.CLOSE, request)
        (window,) = (await list_(client)).publishers[0].windows
        (found,) = window.spans
        assert (window.rows, window.index) == (700, b"what is where")
        assert (found.partition, found.generation) == (0, 0)
        assert (found.first, found.count) == (0, 2)
        assert found.bytes > len(b"onetwo")
        assert await stored(client) == [b"one", b"two"]


async def test_a_list_is_cut_at_whole_windows() -> None:
    async with edge("a", "b") as (_, client):
        a, b = await open_(client, "a"), await open_(client, "b")
        for window in range(4):
            await publish(client, a, window, b"x")
            await publish(client, b, window, b"y", partition=1)
        answer = await list_(client, limit=3)
        assert (answer.closed, answer.complete) == (3, 1)
        assert listed(answer) == {"a": [(0, 0, 1), (1, 1, 1)], "b": [(0, 0, 1), (1, 1, 1)]}
        rest = await list_(client, after=answer.complete)
        assert (rest.complete, len(rest.publishers[0].windows)) == (3, 2)


async def test_a_list_waits_until_everyone_closed_a_later_window() -> None:
    async with edge("a", "b") as (h, client):
        a, b = await open_(client, "a"), await open_(client, "b")
        reader = h.connect()
        await reader.login()
        waiting = asyncio.create_task(list_(reader, after=0, wait_ms=20_000))
        await publish(client, a, 1, b"x", previous=-1)
        await publish(client, b, 0)
        await asyncio.sleep(0.02)
        assert not waiting.done(), "b has closed 0, which is not after 0"
        await publish(client, b, 2, previous=0)
        assert (await asyncio.wait_for(waiting, 5)).closed == 1
        assert (await list_(reader, after=1, wait_ms=10)).closed == 1, "the wait is over"


async def test_windows_without_messages_leave_no_trace_but_the_last() -> None:
    async with edge("a") as (h, client):
        a = await open_(client)
        await publish(client, a, 0, b"x")
        for window in range(1, 50):
            await publish(client, a, window)
        await publish(client, a, 50, b"y")
        kept = h.broker.publishing.state.get(a.publisher).closed
        assert [each.window for each in kept] == [0, 50]
        assert listed(await list_(client)) == {"a": [(0, 0, 1), (50, 1, 1)]}
        assert (await publish(client, a, 7)).already
        late = await stage(client, a, 7, 0, b"late")
        assert await code_of(close(client, a, 7, [late])) == OUT_OF_ORDER


async def test_only_its_publishers_write_a_window_topic_each_its_partition() -> None:
    async with edge("a", "b") as (_, client):
        a, other = await open_(client, "a"), await open_(client, "c")
        assert await code_of(client.send(b"x")) == NOT_WINDOWED
        assert await code_of(stage(client, other, 0, 0, b"x")) == NOT_WINDOWED
        assert await code_of(stage(client, a, 0, 1, b"x")) == NOT_WINDOWED
        await client.topic(name="u")
        elsewhere = encode_send("s", "u", Partitioning.to_partition(0), [Message(b"x")])
        head = x.StageHead(publisher=a.publisher, epoch=1, window=0)
        assert await code_of(client.call(c.STAGE, x.Stage(head, elsewhere))) == NOT_WINDOWED
        await publish(client, a, 0, b"x")


async def test_a_users_topic_is_no_window_topic() -> None:
    async with edge() as (_, client):
        for call in (list_(client), reset(client, 0, 1), purge(client, 0)):
            assert await code_of(call) == NOT_WINDOWED
        await client.send(b"mine")
        assert await code_of(set_(client, "a")) == NOT_WINDOWED, "it would be purged"
        assert await stored(client) == [b"mine"]


async def test_publishers_change_at_a_window() -> None:
    async with edge("a", "b") as (_, client):
        a, b = await open_(client, "a"), await open_(client, "b")
        await publish(client, a, 4, b"a4", previous=-1)
        await publish(client, b, 3, b"b3", previous=-1, partition=1)
        assert await code_of(set_(client, "b", "d", after=3)) == OUT_OF_ORDER
        await set_(client, "b", "d", after=5)
        d = await open_(client, "d")
        assert await code_of(publish(client, a, 6, b"x", previous=4)) == OUT_OF_ORDER
        assert await code_of(publish(client, d, 5, b"x", previous=-1, partition=1)) == OUT_OF_ORDER
        await publish(client, b, 7, b"b7", previous=3)  # now in partition 0
        await publish(client, d, 8, b"d8", previous=-1, partition=1)
        assert (await list_(client)).closed == 4, "a has a part in windows up to 5"
        await publish(client, a, 5, b"a5", previous=4)
        answer = await list_(client)
        assert answer.closed == 7
        assert listed(answer) == {
            "a": [(4, 0, 1), (5, 2, 1)],
            "b": [(3, 0, 1), (7, 1, 1)],
        }
        assert await stored(client, 0) == [b"a4", b"b7", b"a5"]
        await set_(client, "b", "d", after=0)  # the same again, whatever the window
        assert (await list_(client)).closed == 7


async def test_who_may_be_set() -> None:
    async with edge("a") as (_, client):
        await client.topic(name="u")
        there = x.SetPublishers(stream="s", topic="u", publishers=("a",))
        assert await code_of(client.call(c.SET_PUBLISHERS, there)) == TAKEN
        assert await code_of(set_(client, "b", "b", after=1)) == 3
        assert await code_of(set_(client, after=1)) == 3
        assert await code_of(set_(client, "b", "c", "d", after=1)) == 3007, "two partitions"
        await client.call(c.CREATE_PARTITIONS, CreatePartitions("s", "t", 1))
        await set_(client, "b", "c", "d", after=1)
        assert await code_of(set_(client, "a", after=0)) == OUT_OF_ORDER, "before the last change"


async def test_epochs_decide_who_publishes_whoever_comes_last() -> None:
    async with edge("a") as (_, client):
        seven = await open_(client, epoch=7)
        assert seven.epoch == 7
        assert await code_of(open_(client, epoch=5)) == FENCED, "a zombie that starts late"
        assert await open_(client, epoch=7) == seven
        await publish(client, seven, 0, b"x")
        nine = await open_(client, epoch=9)
        assert (nine.epoch, nine.last_window) == (9, 0)
        assert await code_of(publish(client, seven, 1, b"y")) == FENCED
        await set_(client, "a", epoch=12)
        assert await code_of(publish(client, nine, 1, b"y")) == FENCED
        assert await code_of(open_(client, epoch=11)) == FENCED
        await publish(client, await open_(client, epoch=12), 1, b"y")
        assert await stored(client) == [b"x", b"y"]


async def test_a_reset_voids_windows_and_removes_no_bytes() -> None:
    async with edge("a", "b") as (_, client):
        a, b = await open_(client, "a"), await open_(client, "b")
        for window in (1, 4, 6):
            await publish(client, a, window, b"a%d" % window, previous=a_before(window))
        await publish(client, b, 5, b"b5", previous=-1, partition=1)
        await publish(client, b, 6, b"b6", previous=5, partition=1)
        assert await code_of(reset(client, 5, 1)) == FENCED, "a run of that epoch publishes"
        await reset(client, 5, 2)
        answer = await list_(client)
        assert (answer.closed, answer.resets) == (5, 1)
        assert listed(answer) == {"a": [(1, 0, 1), (4, 1, 1)], "b": [(5, 0, 1)]}
        assert await code_of(publish(client, a, 6, b"zombie", previous=4)) == FENCED
        assert await code_of(open_(client, "a", epoch=1)) == FENCED
        a, b = await open_(client, "a", epoch=2), await open_(client, "b", epoch=2)
        assert (a.last_window, b.last_window) == (4, 5)
        late = publish(client, a, 5, b"x", previous=4)
        assert await code_of(late) == OUT_OF_ORDER, "a reader may have passed window 5"
        await reset(client, 5, 2)  # repeated by a controller that did not hear the answer
        await publish(client, a, 6, b"a6 again", previous=4)
        await reset(client, 5, 2)
        await publish(client, b, 6, b"b6 again", previous=5, partition=1)
        answer = await list_(client)
        assert listed(answer) == {
            "a": [(1, 0, 1), (4, 1, 1), (6, 3, 1)],
            "b": [(5, 0, 1), (6, 2, 1)],
        }
        assert await stored(client, 0) == [b"a1", b"a4", b"a6", b"a6 again"]
        assert await code_of(reset(client, 4, 1)) == FENCED, "an older controller"


def a_before(window: int) -> int:
    return {1: -1, 4: 1, 6: 4}[window]


async def test_a_reset_takes_back_a_change_of_publishers() -> None:
    async with edge("a") as (_, client):
        a = await open_(client)
        await publish(client, a, 3, b"x", previous=-1)
        await set_(client, "a", "b", after=3)
        b = await open_(client, "b")
        await publish(client, a, 5, b"y", previous=3)
        await publish(client, b, 5, b"z", previous=-1, partition=1)
        assert (await list_(client)).closed == 5
        await reset(client, 2, 2)
        answer = await list_(client)
        assert [each.name for each in answer.publishers] == ["a"]
        assert (answer.closed, listed(answer)) == (2, {})
        await set_(client, "a", "b", after=2)
        assert (await open_(client, "b", epoch=2)).last_window == -1


async def test_a_purge_forgets_windows_and_trims() -> None:
    cluster = FakeCluster()
    async with edge("a", "b", cluster=cluster) as (h, client):
        a, b = await open_(client, "a"), await open_(client, "b")
        for window in range(6):
            await publish(client, a, window, b"a%d" % window)
            if window < 4:
                await publish(client, b, window, b"b", partition=1)
        assert await code_of(purge(client, 4)) == OUT_OF_ORDER, "b has not closed it"
        await purge(client, 2)
        await purge(client, 1)  # long done
        answer = await list_(client)
        assert (answer.purged, answer.closed) == (2, 3)
        assert listed(answer) == {"a": [(3, 3, 1)], "b": [(3, 3, 1)]}
        uid = h.broker.catalogue.topic("s", "t").uid
        assert cluster.named(f"p/{uid}/0/0").start == 3
        assert await code_of(reset(client, 1, 2)) == OUT_OF_ORDER, "it is gone"
        await purge(client, 3)
        assert cluster.named(f"p/{uid}/1/0").start == 4
        assert (await publish(client, b, 2, partition=1)).already
        await reset(client, 3, 2)
        assert (await open_(client, "a", 2)).last_window == 3


async def test_publishers_that_left_are_forgotten_with_their_last_window() -> None:
    cluster = FakeCluster()
    async with edge("a", "b", cluster=cluster) as (_, client):
        a, b = await open_(client, "a"), await open_(client, "b")
        await publish(client, a, 1, b"x", previous=-1)
        await publish(client, b, 1, b"y", previous=-1, partition=1)
        await set_(client, "a", after=1)
        await publish(client, a, 2, b"z")
        staging = f"p/staging/{b.publisher}"
        assert staging in cluster.names
        await purge(client, 1)
        assert [each.name for each in (await list_(client)).publishers] == ["a"]
        assert await code_of(publish(client, b, 2, b"w", partition=1)) == 9100
        for _ in range(100):
            if staging not in cluster.names:
                break
            await asyncio.sleep(0.01)
        assert staging not in cluster.names
        await set_(client, "a", "b", after=2)
        assert (await open_(client, "b")).last_window == -1, "it begins anew"


async def test_a_deleted_topic_takes_its_publishers_along() -> None:
    cluster = FakeCluster()
    async with edge("a", cluster=cluster) as (h, client):
        a = await open_(client)
        await publish(client, a, 0, b"x")
        await client.call(c.DELETE_TOPIC, DeleteTopic("s", "t"))
        for _ in range(100):
            if not len(h.broker.publishing.state.topics) and not h.broker.publishing.state.doomed:
                break
            await asyncio.sleep(0.01)
        assert f"p/staging/{a.publisher}" not in cluster.names
        await client.topic()
        await set_(client, "a")
        assert (await open_(client)).last_window == -1


async def test_an_ended_publisher_keeps_its_windows_and_may_go_on() -> None:
    cluster = FakeCluster()
    async with edge("a", cluster=cluster) as (_, client):
        a = await open_(client)
        await close(client, a, 0, [await stage(client, a, 0, 0, b"x")], last=True)
        answer = await list_(client)
        assert (answer.publishers[0].ended, listed(answer)) == (True, {"a": [(0, 0, 1)]})
        assert await code_of(stage(client, a, 1, 0, b"y")) == FENCED
    async with opened(cluster, epoch=2) as h:
        client = await h.root()
        assert (await list_(client)).publishers[0].ended
        a = await open_(client, epoch=2)
        await publish(client, a, 1, b"y")
        assert not (await list_(client)).publishers[0].ended
        assert await stored(client) == [b"x", b"y"]


async def test_publishers_that_ended_apart_go_on_behind_what_readers_were_told() -> None:
    async with edge("a", "b") as (_, client):
        a, b = await open_(client, "a"), await open_(client, "b")
        await publish(client, a, 5, b"x", previous=-1)
        await close(client, a, 6, previous=5, last=True)
        await close(client, b, 3, previous=-1, last=True)
        answer = await list_(client)
        assert (answer.closed, listed(answer)) == (6, {"a": [(5, 0, 1)]}), "nobody adds anything"
        b = await open_(client, "b", epoch=2)
        assert (b.last_window, (await list_(client)).closed) == (3, 6)
        late = publish(client, b, 6, b"late", previous=3, partition=1)
        assert await code_of(late) == OUT_OF_ORDER
        await publish(client, b, 7, b"y", previous=3, partition=1)
        assert (await list_(client)).closed == 6, "a has not closed 7, but may go on, too"


async def test_a_topic_that_begins_at_a_window_has_none_before_it() -> None:
    async with edge() as (_, client):
        await set_(client, "a", after=5)
        assert (await list_(client)).closed == 5
        a = await open_(client)
        assert await code_of(publish(client, a, 5, b"x", previous=-1)) == OUT_OF_ORDER
        await publish(client, a, 6, b"x", previous=-1)
        assert listed(await list_(client, after=5)) == {"a": [(6, 0, 1)]}


async def test_windows_nobody_purges_hold_their_publisher_up() -> None:
    settings = BrokerSettings(topic_windows_max=2)
    async with edge("a", settings=settings) as (_, client):
        a = await open_(client)
        await publish(client, a, 0, b"x")
        await publish(client, a, 1, b"y")
        assert await code_of(publish(client, a, 2, b"z")) == TOO_MANY
        await publish(client, a, 2)
        await purge(client, 0)
        await publish(client, a, 3, b"z")


async def test_everything_is_remembered_over_a_restart_with_and_without_a_snapshot() -> None:
    for snapshot_bytes in (1024, 1 << 22):
        cluster = FakeCluster()
        settings = BrokerSettings(snapshot_bytes=snapshot_bytes)
        async with edge("a", "b", cluster=cluster, settings=settings) as (h, client):
            a, b = await open_(client, "a", 3), await open_(client, "b", 3)
            for window in range(8):
                await publish(client, a, window, b"x")
                await publish(client, b, window, *([b"y"] * (window % 2)), partition=1)
            await reset(client, 5, 4)
            await set_(client, "a", after=6)
            await purge(client, 1)
            before = await list_(client)
            if snapshot_bytes == 1024:
                await h.broker._logs[-1].write_snapshot()
        async with opened(cluster, epoch=2, settings=settings) as h:
            client = await h.root()
            assert await list_(client) == before
            assert await code_of(open_(client, "a", 3)) == FENCED
            assert (await open_(client, "a", 4)).last_window == 5
            await set_(client, "a", after=6)
            assert await code_of(set_(client, "c", after=5)) == OUT_OF_ORDER


async def test_windows_are_kept_from_retention_and_from_strangers() -> None:
    async with edge("a") as (h, root):
        rights = u.Permissions(u.GlobalPermissions(poll_messages=True))
        await root.call(c.CREATE_USER, u.CreateUser("eve", "secret", u.UserStatus.ACTIVE, rights))
        eve = h.connect()
        await eve.login("eve", "secret")
        assert (await list_(eve)).closed == -1
        assert await code_of(open_(eve, "a", epoch=99)) == 41, "she may not send"
        for call in (set_(eve, "x", after=1), reset(eve, 0, 1), purge(eve, 0)):
            assert await code_of(call) == 41
        a = await open_(root)
        await publish(root, a, 0, b"x")
        assert await retention.enforce(h.broker) == 0


# --- stops


async def _change(client: Client) -> None:
    a = await open_(client, epoch=3)
    await publish(client, a, a.last_window + 1, b"w%d" % (a.last_window + 1))
    a = await open_(client, epoch=3)
    await publish(client, a, a.last_window + 1, b"w%d" % (a.last_window + 1))
    await reset(client, 0, 5)
    await set_(client, "a", "b", after=0)
    a, b = await open_(client, "a", 5), await open_(client, "b", 5)
    await publish(client, a, 1, b"again")
    await publish(client, b, 1, b"b", previous=-1, partition=1)
    await purge(client, 0)


@pytest.mark.parametrize("stored_unanswered", [False, True])
async def test_a_stop_at_any_append_leaves_every_change_whole_or_absent(
    stored_unanswered: bool,
) -> None:
    """Each of the changes is one event: after a stop the rest of them can be repeated in order."""
    interrupted = 0
    for appends in range(40):
        cluster = DyingCluster(appends, stored=stored_unanswered)
        async with edge("a", cluster=cluster) as (_, client):
            cluster.start_counting()
            changing = asyncio.create_task(_change(client))
            dying = asyncio.create_task(cluster.died.wait())
            await asyncio.wait([changing, dying], return_when=asyncio.FIRST_COMPLETED)
            if changing.done():
                dying.cancel()
                await changing
                assert listed(await list_(client)) == {"a": [(1, 2, 1)], "b": [(1, 0, 1)]}
                break
            interrupted += 1
            cluster.revived.set()
            async with opened(cluster, epoch=2) as second:
                client = await second.root()
                await _repeat(client)
            await asyncio.wait([changing])
            changing.exception()
    assert interrupted >= 15


async def _repeat(client: Client) -> None:
    """What the writers and the controller do after a restart: ask, then go on from there."""
    answer = await list_(client)
    if not answer.resets:
        a = await open_(client, epoch=3)  # waits for what is pending
        for window in range(a.last_window + 1, 2):
            await publish(client, a, window, b"w%d" % window)
    await reset(client, 0, 5)
    await set_(client, "a", "b", after=0)
    a, b = await open_(client, "a", 5), await open_(client, "b", 5)
    assert (await publish(client, a, 1, b"again", previous=0)).already == (a.last_window == 1)
    assert (await publish(client, b, 1, b"b", previous=-1, partition=1)).already == (
        b.last_window == 1
    )
    await purge(client, 0)
    answer = await list_(client)
    assert (answer.closed, answer.purged) == (1, 0)
    assert await stored(client, 1) == [b"b"]
    polled = (await client.poll()).messages()
    ((_, first, count),) = listed(answer)["a"]
    assert count == 1
    assert [each.payload for each in polled if each.offset == first] == [b"again"]
    assert [each.payload for each in polled].count(b"again") == 1
