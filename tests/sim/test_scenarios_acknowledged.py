"""A record is acknowledged when as many disks hold it as was promised, whoever dies in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.errors import (
    HeadraceError,
    InvalidArgumentError,
    LostRecordsError,
    MissingRecordsError,
    RangeNotFoundError,
)
from headrace.sbp_client.owned_stream import OwnedStream
from headrace.sbp_client.producer import StreamProducer
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.records import encode_index
from tests.log_cluster import batch
from tests.sim.ending import insist
from tests.sim.scene import Scene, failing, play


class Writer:
    """A writer of one stream, and its batches in flight."""

    def __init__(self, scene: Scene, stream_id: int) -> None:
        self.scene = scene
        self.stream_id = stream_id

    async def send(self) -> asyncio.Future[int]:
        raise NotImplementedError

    async def write(self, count: int) -> None:
        for _ in range(count):
            await (await self.send())

    def watch(self, answer: asyncio.Future[int], body: bytes) -> asyncio.Future[int]:
        """What is promised is looked for on the disks in the same moment, and read at the end."""

        def promised(done: asyncio.Future[int]) -> None:
            if not done.cancelled() and done.exception() is None:
                self.scene.cluster.history.check_held(self.stream_id, done.result() + 1)
                self.scene.written.setdefault(self.stream_id, {})[done.result()] = body

        answer.add_done_callback(promised)
        return answer


class Owner(Writer):
    owned: OwnedStream

    @classmethod
    async def open(cls, scene: Scene, replicas: int) -> Owner:
        writer = cls(scene, await scene.create(replicas=replicas, name="p/1/0/0"))
        writer.owned = await OwnedStream.open(scene.client, writer.stream_id, 1)
        return writer

    async def send(self) -> asyncio.Future[int]:
        body = self.scene.body()
        header, *rest = batch(body, base_offset=self.owned.next_offset)
        assert isinstance(header, bytearray)
        return self.watch(self.owned.append(header, rest), body)

    async def close(self) -> None:
        await self.owned.close()


class Sender(Writer):
    producer: StreamProducer

    @classmethod
    async def open(cls, scene: Scene, replicas: int) -> Sender:
        writer = cls(scene, await scene.create(replicas=replicas))
        writer.producer = StreamProducer(scene.client)
        return writer

    async def send(self) -> asyncio.Future[int]:
        body = self.scene.body()
        stored = body + encode_index([0])  # a producer's batches say where their records begin
        return self.watch(await self.producer.send(self.stream_id, [body]), stored)

    async def close(self) -> None:
        await self.producer.close()


Open = Callable[[Scene, int], Awaitable[Owner | Sender]]
KINDS: list[Open] = [Owner.open, Sender.open]


async def on_one_disk(scene: Scene, open_writer: Open, *, restarted: bool = True) -> None:
    """Replication 2: the secondary is killed, what is in flight is on the primary alone, and the
    seal takes it in. Then the primary's disk is lost."""
    writer = await open_writer(scene, 2)
    await writer.write(3)
    primary, secondary = scene.hosts(writer.stream_id)
    scene.cluster.crash(secondary)
    answer = await writer.send()
    await scene.sleep(0.1)
    assert not answer.done(), "it is on one disk"
    if restarted:  # then it does not know what it acknowledged
        scene.cluster.crash(primary, power_cut=False)
        await scene.cluster.start_node(primary)
    await answer
    assert not scene.cluster.history.complaints, scene.cluster.history.complaints[0]
    scene.cluster.wipe(primary)
    await scene.cluster.start_node(primary)
    await scene.cluster.start_node(secondary)
    await insist(lambda: scene.check_written(writer.stream_id))
    await writer.close()


async def owner_on_one_disk(scene: Scene) -> None:
    await on_one_disk(scene, Owner.open)


async def sender_on_one_disk(scene: Scene) -> None:
    await on_one_disk(scene, Sender.open)


@pytest.mark.parametrize("open_writer", KINDS)
@pytest.mark.parametrize("restarted", [False, True])
def test_what_the_seal_finds_on_one_disk_is_not_acknowledged(
    open_writer: Open, restarted: bool
) -> None:
    play(lambda scene: on_one_disk(scene, open_writer, restarted=restarted))


@pytest.mark.parametrize("open_writer", KINDS)
@pytest.mark.parametrize("restarted", [False, True])
def test_one_of_three_has_it_and_two_answer_the_seal(open_writer: Open, restarted: bool) -> None:
    async def script(scene: Scene) -> None:
        writer = await open_writer(scene, 3)
        await writer.write(3)
        primary, back, away = scene.hosts(writer.stream_id)
        scene.cluster.crash(back)
        scene.cluster.crash(away)
        answer = await writer.send()
        await scene.sleep(0.1)
        if restarted:
            scene.cluster.crash(primary, power_cut=False)
        await scene.cluster.start_node(back)
        if restarted:
            await scene.cluster.start_node(primary)
        await answer
        scene.cluster.wipe(primary)
        await scene.cluster.start_node(primary)
        await scene.cluster.start_node(away)
        await insist(lambda: scene.check_written(writer.stream_id))
        await writer.close()

    play(script)


async def doubtful_tail(scene: Scene) -> None:
    """The copy that the seal found stays the only one for a while: nobody reads its end."""
    writer = await Owner.open(scene, 2)
    await writer.write(3)
    stream = writer.stream_id
    primary, secondary = scene.hosts(stream)
    scene.cluster.crash(secondary)
    answer = await writer.send()
    await scene.sleep(0.1)
    scene.cluster.crash(primary, power_cut=False)
    for host in scene.cluster.nodes:
        if host != primary:
            scene.simulation.partition(primary, host)
    await scene.cluster.start_node(primary)
    await scene.until(lambda: len(scene.ranges(stream)) > 1)
    await scene.sleep(1.0)
    sealed = scene.ranges(stream)[0]
    assert sealed.end == 4, "it may have been acknowledged"
    assert sealed.doubtful == 0, "the primary has forgotten how far"
    assert not answer.done()
    assert isinstance(await failing(scene.fetch_from(primary, stream, 3)), RangeNotFoundError)
    scene.simulation.heal()
    assert await answer == 3
    assert scene.ranges(stream)[0].doubtful < 0
    await insist(lambda: scene.fetch_from(primary, stream, 3))
    await writer.close()


def test_the_end_is_read_when_enough_disks_hold_it() -> None:
    play(doubtful_tail)


def test_the_writer_is_told_that_the_outcome_is_unknown() -> None:
    async def script(scene: Scene) -> None:
        writer = await Owner.open(scene, 2)
        await writer.write(3)
        primary, secondary = scene.hosts(writer.stream_id)
        scene.cluster.crash(secondary)
        answer = await writer.send()
        await scene.sleep(0.1)
        scene.cluster.crash(primary, power_cut=False)
        for host in scene.cluster.nodes:
            if host != primary:
                scene.simulation.partition(primary, host)
        await scene.cluster.start_node(primary)
        error = await failing(answer)
        assert "the outcome is unknown" in str(error)
        scene.simulation.heal()
        await writer.close()

    play(script)


def test_a_killed_primary_costs_no_wait_when_two_have_everything() -> None:
    async def script(scene: Scene) -> None:
        writer = await Owner.open(scene, 3)
        await writer.write(3)
        answers = [await writer.send() for _ in range(20)]
        await scene.sleep(0.05)
        scene.cluster.crash(scene.primary(writer.stream_id))
        killed = scene.simulation.time()
        answers += [await writer.send() for _ in range(20)]
        await asyncio.gather(*answers)
        assert scene.simulation.time() - killed < 1.0
        await writer.close()

    play(script)


async def restarted_primary(scene: Scene) -> None:
    """Acknowledged on the primary, which is started again, and on a replica that is away."""
    stream = await scene.create(replicas=3)
    await scene.append(stream, 2)
    primary, near, far = scene.hosts(stream)
    scene.simulation.partition(primary, far)
    end = await scene.append(stream, 3)
    scene.cluster.crash(near)
    scene.cluster.crash(primary, power_cut=False)
    scene.simulation.heal()
    await scene.cluster.start_node(primary)
    await insist(lambda: scene.client.seal(stream, 0))
    assert scene.ranges(stream)[0].end == end, "did not fail: the range ends too early"
    await scene.cluster.start_node(near)
    await scene.check_written(stream)


def test_a_primary_that_was_started_again_does_not_say_what_it_acknowledged() -> None:
    play(restarted_primary)


async def torn(scene: Scene) -> int:
    """A range of which one disk had the end, and is lost; returns its stream. Three of its four
    records were acknowledged, and are on the secondary."""
    writer = await Owner.open(scene, 2)
    await writer.write(3)
    stream = writer.stream_id
    primary, secondary = scene.hosts(stream)
    scene.cluster.crash(secondary)
    answer = await writer.send()
    await scene.sleep(0.1)
    scene.cluster.crash(primary, power_cut=False)
    for host in scene.cluster.nodes:
        if host != primary:
            scene.simulation.partition(primary, host)
    await scene.cluster.start_node(primary)
    await scene.until(lambda: len(scene.ranges(stream)) > 1)
    scene.cluster.wipe(primary)
    scene.simulation.heal()
    await scene.cluster.start_node(primary)
    await scene.cluster.start_node(secondary)
    assert not answer.done()
    await writer.close()
    await failing(answer)
    return stream


async def find_torn(scene: Scene, stream: int) -> m.Range:
    for _ in range(200):
        first = (await scene.client.list_ranges(stream))[0]
        if first.held_offset >= 0 and first.doubtful_offset == first.held_offset:
            return first
        await scene.sleep(0.1)
    raise AssertionError("nobody says what is missing")


def test_a_range_whose_end_is_lost_serves_what_there_is() -> None:
    async def script(scene: Scene) -> None:
        stream = await torn(scene)
        first = await find_torn(scene, stream)
        assert (first.held_offset, first.end_offset) == (3, 4)
        fetched = await insist(lambda: scene.client.fetch(stream, 0, max_bytes=1 << 20))
        assert fetched.next_offset == 3, "all that there is"
        begun = scene.simulation.time()
        error = await failing(scene.client.fetch(stream, 3, max_bytes=1 << 20))
        assert isinstance(error, MissingRecordsError)
        assert "offsets 3 to 3" in str(error)
        assert f"accept-loss {stream} {first.range_index}" in str(error)
        assert scene.simulation.time() - begun < 2.0
        described = await scene.client.describe_cluster(count_ranges=True)
        assert [(one.stream_id, one.held_offset) for one in described.ranges_torn] == [(stream, 3)]
        owned = await OwnedStream.open(scene.client, stream, 2)
        header, *rest = batch(scene.body(), base_offset=owned.next_offset)
        assert isinstance(header, bytearray)
        assert await owned.append(header, rest) == 4
        await owned.close()
        await insist(lambda: scene.client.fetch(stream, 4, max_bytes=1 << 20))

    play(script, whole=False)


def test_an_operator_accepts_the_loss() -> None:
    async def script(scene: Scene) -> None:
        stream = await torn(scene)
        index = (await find_torn(scene, stream)).range_index
        error = await failing(scene.client.accept_loss(stream, index, 2))
        assert isinstance(error, InvalidArgumentError), "others hold more than that"
        shortened = await scene.client.accept_loss(stream, index, 3)
        assert (shortened.end_offset, shortened.lost_until) == (3, 4)
        error = await failing(scene.client.fetch(stream, 3, max_bytes=1 << 20))
        assert isinstance(error, LostRecordsError)
        assert error.resumed == 4
        await scene.until_replicated(stream)
        described = await scene.client.describe_cluster(count_ranges=True)
        assert not described.ranges_torn
        assert not described.ranges_unavailable
        fetched = await insist(lambda: scene.client.fetch(stream, 0, max_bytes=1 << 20))
        assert fetched.next_offset == 3
        assert isinstance(await failing(scene.client.accept_loss(stream, index, 3)), HeadraceError)
        owned = await OwnedStream.open(scene.client, stream, 2)
        header, *rest = batch(scene.body(), base_offset=owned.next_offset)
        assert isinstance(header, bytearray)
        assert await owned.append(header, rest) == 4
        await owned.close()
        await insist(lambda: scene.client.fetch(stream, 4, max_bytes=1 << 20))

    play(script)


def test_a_node_that_comes_back_gives_up_what_was_given_up() -> None:
    async def script(scene: Scene) -> None:
        writer = await Owner.open(scene, 2)
        await writer.write(3)
        stream = writer.stream_id
        primary, secondary = scene.hosts(stream)
        scene.cluster.crash(secondary)
        answer = await writer.send()
        await scene.sleep(0.1)
        scene.cluster.crash(primary, power_cut=False)
        for host in scene.cluster.nodes:
            if host != primary:
                scene.simulation.partition(primary, host)
        await scene.cluster.start_node(primary)
        await scene.until(lambda: len(scene.ranges(stream)) > 1)
        await writer.close()
        await failing(answer)
        scene.cluster.crash(primary, power_cut=False)
        scene.simulation.heal()
        await scene.cluster.start_node(secondary)
        index = (await find_torn(scene, stream)).range_index
        await scene.client.accept_loss(stream, index, 3)
        await scene.cluster.start_node(primary)
        await scene.until_replicated(stream)

    play(script)
