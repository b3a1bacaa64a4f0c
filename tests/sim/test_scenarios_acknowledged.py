"""A record is acknowledged when as many disks hold it as was promised, whoever dies in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.client.owned_stream import OwnedStream
from headrace.client.producer import Producer
from headrace.errors import RangeNotFoundError
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
    producer: Producer

    @classmethod
    async def open(cls, scene: Scene, replicas: int) -> Sender:
        writer = cls(scene, await scene.create(replicas=replicas))
        writer.producer = Producer(scene.client)
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
