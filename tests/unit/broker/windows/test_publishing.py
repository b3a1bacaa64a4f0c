"""Windows are published whole, in order and once, whatever is interrupted where."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from headrace.config.broker import BrokerSettings
from headrace.errors import FencedError
from headrace.net.sbp_routes import Payload, Reply
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages import extensions as x
from headrace.wire.iggy.messages import users as u
from headrace.wire.iggy.messages.messages import Message, SendMessages, encode_send
from headrace.wire.iggy.messages.topics import DeleteTopic, PurgeTopic
from headrace.wire.iggy.primitives import Partitioning
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.opcodes import Code
from tests.unit.broker.fake_cluster import FakeCluster
from tests.unit.broker.harness import Client, Harness, code_of, opened

FENCED, OUT_OF_ORDER, GONE = 9101, 9102, 9103


def messages(partition: int, *payloads: bytes) -> SendMessages:
    return encode_send(
        "s", "t", Partitioning.to_partition(partition), [Message(each) for each in payloads]
    )


async def topic(client: Client, partitions: int = 2) -> None:
    await client.stream()
    await client.topic(partitions=partitions)


async def open_(client: Client, run: str = "run 1", name: str = "query") -> x.PublisherOpened:
    return await client.call(c.OPEN_PUBLISHER, x.OpenPublisher(name=name, run=run))


async def stage(
    client: Client, publisher: x.PublisherOpened, window: int, partition: int, *payloads: bytes
) -> x.StagedSpan:
    head = x.StageHead(publisher=publisher.publisher, epoch=publisher.epoch, window=window)
    request = x.Stage(head, messages(partition, *payloads))
    return (await client.call(c.STAGE, request)).span


async def close(
    client: Client,
    publisher: x.PublisherOpened,
    window: int,
    manifest: Sequence[x.StagedSpan] = (),
    *,
    previous: int | None = None,
    digest: bytes = b"",
    last: bool = False,
) -> x.WindowClosed:
    return await client.call(
        c.CLOSE,
        x.CloseWindow(
            publisher=publisher.publisher,
            epoch=publisher.epoch,
            previous=window - 1 if previous is None else previous,
            window=window,
            manifest=tuple(manifest),
            digest=digest,
            last=last,
        ),
    )


async def stored(client: Client, partition: int = 0) -> list[bytes]:
    return [each.payload for each in (await client.poll(partition=partition)).messages()]


async def test_nothing_shows_before_the_close_and_everything_after_it() -> None:
    async with opened() as h:
        client = await h.root()
        await topic(client)
        publisher = await open_(client)
        assert publisher.last_window == -1
        spans = [
            await stage(client, publisher, 0, 0, b"a", b"b"),
            await stage(client, publisher, 0, 1, b"c"),
            await stage(client, publisher, 0, 0, b"d"),
        ]
        assert await stored(client, 0) == await stored(client, 1) == []
        closed = await close(client, publisher, 0, spans)
        assert (closed.window, closed.last_window, closed.already) == (0, 0, False)
        assert await stored(client, 0) == [b"a", b"b", b"d"]
        assert await stored(client, 1) == [b"c"]
        assert [(run.partition, run.first, run.count) for run in closed.runs] == [
            (0, 0, 3),
            (1, 0, 1),
        ]


async def test_offsets_times_and_checksums_are_those_of_a_send() -> None:
    async with opened() as h:
        client = await h.root()
        await topic(client)
        await client.send(b"before")
        publisher = await open_(client)
        await close(client, publisher, 0, [await stage(client, publisher, 0, 0, b"x", b"y")])
        await client.send(b"after")
        polled = (await client.poll()).messages()
        assert [message.offset for message in polled] == [0, 1, 2, 3]
        assert [message.payload for message in polled] == [b"before", b"x", b"y", b"after"]
        assert len({message.id for message in polled}) == 4
        assert all(message.checksum and message.timestamp_us for message in polled)


async def test_only_what_the_manifest_names_is_published() -> None:
    """Attempts that Spark gave up leave no trace."""
    async with opened() as h:
        client = await h.root()
        await topic(client)
        publisher = await open_(client)
        await stage(client, publisher, 0, 0, b"failed attempt")
        kept = await stage(client, publisher, 0, 0, b"good attempt")
        await stage(client, publisher, 0, 0, b"speculative attempt")
        await close(client, publisher, 0, [kept])
        await close(client, publisher, 1)
        assert await stored(client) == [b"good attempt"]


async def test_the_first_close_wins() -> None:
    async with opened() as h:
        client = await h.root()
        await topic(client)
        publisher = await open_(client)
        first = await stage(client, publisher, 0, 0, b"first")
        other = await stage(client, publisher, 0, 0, b"other rows")
        before = await close(client, publisher, 0, [first], digest=b"1")
        again = await close(client, publisher, 0, [other], digest=b"2")
        assert (again.already, again.runs) == (True, before.runs)
        assert await stored(client) == [b"first"]


async def test_windows_close_in_order() -> None:
    async with opened() as h:
        client = await h.root()
        await topic(client)
        publisher = await open_(client)
        span = await stage(client, publisher, 5, 0, b"x")
        assert await code_of(close(client, publisher, 5, [span])) == OUT_OF_ORDER
        await close(client, publisher, 3, previous=-1)
        assert await code_of(close(client, publisher, 5, [span], previous=4)) == OUT_OF_ORDER
        await close(client, publisher, 5, [span], previous=3)
        assert (await close(client, publisher, 3)).already
        assert (await close(client, publisher, 4)).already, "nothing to publish, nothing missed"
        late = await stage(client, publisher, 4, 0, b"late")
        assert await code_of(close(client, publisher, 4, [late])) == OUT_OF_ORDER
        assert await stored(client) == [b"x"]


async def test_a_new_run_fences_the_older_ones_for_good() -> None:
    async with opened() as h:
        client = await h.root()
        await topic(client)
        old = await open_(client, "old")
        assert await open_(client, "old") == old, "asking again changes nothing"
        span = await stage(client, old, 0, 0, b"old")
        new = await open_(client, "new")
        assert new.epoch > old.epoch
        assert await code_of(stage(client, old, 0, 0, b"x")) == FENCED
        assert await code_of(close(client, old, 0, [span])) == FENCED
        assert await code_of(open_(client, "old")) == FENCED
        await close(client, new, 0, [await stage(client, new, 0, 0, b"new")])
        assert await stored(client) == [b"new"]


async def test_a_publisher_is_its_users_own() -> None:
    async with opened() as h:
        root = await h.root()
        await topic(root)
        publisher = await open_(root)
        sends = u.Permissions(u.GlobalPermissions(send_messages=True))
        await root.call(c.CREATE_USER, u.CreateUser("eve", "secret", u.UserStatus.ACTIVE, sends))
        eve = h.connect()
        await eve.login("eve", "secret")
        assert await code_of(open_(eve, "mine")) == 41
        assert await code_of(stage(eve, publisher, 0, 0, b"x")) == 41
        assert await code_of(close(eve, publisher, 0)) == 41
        await root.call(c.UPDATE_PERMISSIONS, u.UpdatePermissions("eve", None))
        assert await code_of(open_(eve, name="eve's")) == 41, "she may not send anything"


async def test_a_manifest_that_lies_publishes_nothing() -> None:
    async with opened() as h:
        client = await h.root()
        await topic(client)
        publisher, rival = await open_(client), await open_(client, name="other")
        span = await stage(client, publisher, 0, 0, b"x")
        await stage(client, rival, 0, 0, b"theirs")
        later = await stage(client, publisher, 1, 0, b"of window 1")
        wrong = [
            [span, span],
            [later],
            [x.StagedSpan(span.staged, 2, *_place(span))],
            [x.StagedSpan(77, 1, *_place(span))],
        ]
        for manifest in wrong:
            assert await code_of(close(client, publisher, 0, manifest)) == GONE
        assert await stored(client) == []
        await close(client, publisher, 0, [span])
        await close(client, publisher, 1, [later])
        assert await stored(client) == [b"x", b"of window 1"]


def _place(span: x.StagedSpan) -> tuple[int, int, int]:
    return span.topic_uid, span.partition, span.generation


async def test_a_target_that_is_gone_counts_as_done() -> None:
    async with opened() as h:
        client = await h.root()
        await topic(client)
        publisher = await open_(client)
        span = await stage(client, publisher, 0, 0, b"x")
        await client.call(c.PURGE_TOPIC, PurgeTopic("s", "t"))
        assert (await close(client, publisher, 0, [span])).runs == ()
        assert await stored(client) == []
        span = await stage(client, publisher, 1, 0, b"y")
        await client.call(c.DELETE_TOPIC, DeleteTopic("s", "t"))
        assert (await close(client, publisher, 1, [span])).last_window == 1


async def test_windows_are_remembered_over_a_restart_and_forgotten_in_order() -> None:
    cluster = FakeCluster()
    settings = BrokerSettings(windows_kept=2)
    async with opened(cluster, settings=settings) as h:
        client = await h.root()
        await topic(client)
        publisher = await open_(client)
        for window in range(5):
            await close(
                client, publisher, window, [await stage(client, publisher, window, 0, b"x")]
            )
    async with opened(cluster, epoch=2, settings=settings) as h:
        client = await h.root()
        publisher = await open_(client)
        assert publisher.last_window == 4
        for window in range(5):
            assert (await close(client, publisher, window)).already
        assert len((await close(client, publisher, 4)).runs) == 1
        assert await stored(client) == [b"x"] * 5


async def test_staged_batches_go_when_their_window_is_closed() -> None:
    cluster = FakeCluster()
    async with opened(cluster) as h:
        client = await h.root()
        await topic(client)
        publisher = await open_(client)
        span = await stage(client, publisher, 0, 0, b"a")
        await stage(client, publisher, 0, 0, b"never named")
        ahead = await stage(client, publisher, 1, 0, b"b")
        await close(client, publisher, 0, [span])
        staging = cluster.named(f"p/staging/{publisher.publisher}")
        for _ in range(100):
            if staging.start == ahead.staged:
                break
            await asyncio.sleep(0.01)
        assert staging.start == ahead.staged
        await close(client, publisher, 1, [ahead])
        assert await stored(client) == [b"a", b"b"]


async def test_a_publisher_ends_with_its_last_window() -> None:
    cluster = FakeCluster()
    async with opened(cluster) as h:
        client = await h.root()
        await topic(client)
        publisher = await open_(client)
        span = await stage(client, publisher, 0, 0, b"x")
        name = f"p/staging/{publisher.publisher}"
        assert name in cluster.names
        await close(client, publisher, 0, [span], last=True)
        for _ in range(100):
            if name not in cluster.names:
                break
            await asyncio.sleep(0.01)
        assert name not in cluster.names, "what it staged is gone"
        assert (await close(client, publisher, 0, [span], last=True)).already
        assert await code_of(stage(client, publisher, 1, 0, b"y")) == FENCED
    async with opened(cluster, epoch=2) as h:
        client = await h.root()
        again = await open_(client)
        assert (again.publisher, again.last_window) == (publisher.publisher, 0)
        assert (await close(client, again, 0, [span], last=True)).already
        assert await stored(client) == [b"x"]


# --- stops


class DyingCluster(FakeCluster):
    """Its clients' appends stop being answered after a number of them, until it is revived; whoever
    waited then learns that another broker leads."""

    def __init__(self, appends: int, *, stored: bool) -> None:
        super().__init__()
        self.left = 10**9
        self.appends_left = appends
        self.store_the_last = stored
        self.died = asyncio.Event()
        self.revived = asyncio.Event()

    def start_counting(self) -> None:
        self.left = self.appends_left

    async def call(
        self, code: Code, message: m.Message, payload: Payload = (), *, timeout: float = 3.0
    ) -> Reply:
        if self.died.is_set() and not self.revived.is_set():
            await self.revived.wait()
            raise FencedError
        if code is Code.APPEND and not self.revived.is_set():
            self.left -= 1
            if self.left < 0:
                if self.store_the_last:
                    await super().call(code, message, payload, timeout=timeout)
                self.died.set()
                await self.revived.wait()
                raise FencedError
        return await super().call(code, message, payload, timeout=timeout)


EXPECTED = {0: [b"old", b"a", b"b", b"e"], 1: [b"c", b"d"]}


async def _publish(h: Harness, client: Client) -> None:
    publisher = await open_(client)
    spans = [
        await stage(client, publisher, 0, 0, b"a", b"b"),
        await stage(client, publisher, 0, 1, b"c"),
        await stage(client, publisher, 0, 1, b"d"),
        await stage(client, publisher, 0, 0, b"e"),
    ]
    await close(client, publisher, 0, spans)


@pytest.mark.parametrize("stored_unanswered", [False, True])
async def test_a_stop_at_any_append_leaves_the_window_whole_or_absent(
    stored_unanswered: bool,
) -> None:
    interrupted = 0
    for appends in range(30):
        cluster = DyingCluster(appends, stored=stored_unanswered)
        async with opened(cluster) as first:
            client = await first.root()
            await topic(client)
            await client.send(b"old")
            cluster.start_counting()
            publishing = asyncio.create_task(_publish(first, client))
            dying = asyncio.create_task(cluster.died.wait())
            await asyncio.wait([publishing, dying], return_when=asyncio.FIRST_COMPLETED)
            if publishing.done():
                dying.cancel()
                await publishing
                break
            interrupted += 1
            cluster.revived.set()
            async with opened(cluster, epoch=2) as second:
                client = await second.root()
                publisher = await open_(client)  # waits for what is pending
                if publisher.last_window < 0:
                    assert {n: await stored(client, n) for n in EXPECTED} == {0: [b"old"], 1: []}
                    await _publish(second, client)
                assert (await close(client, publisher, 0)).already
                assert {n: await stored(client, n) for n in EXPECTED} == EXPECTED
            await asyncio.wait([publishing])
            publishing.exception()
    assert interrupted >= 10, "every append of open, stage, intent, publish and done was hit"
