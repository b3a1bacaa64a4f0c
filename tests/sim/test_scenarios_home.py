"""A writer whose ranges should be led by one data node, its home."""

from __future__ import annotations

import pytest

from headrace.errors import HeadraceError
from headrace.sbp_client.owned_stream import OwnedStream
from tests.log_cluster import batch
from tests.sim.scene import Scene, play


async def write(scene: Scene, owned: OwnedStream, count: int, *, length: int = 0) -> None:
    for _ in range(count):
        body = scene.body().ljust(length)
        header, *rest = batch(body, base_offset=owned.next_offset)
        assert isinstance(header, bytearray)
        offset = await owned.append(header, rest)
        scene.written.setdefault(owned.stream_id, {})[offset] = body


async def open_at(scene: Scene, home: str, *, replicas: int, epoch: int = 1) -> OwnedStream:
    scene.client.home_node = scene.cluster.history.hosts[home]
    stream = await scene.create(replicas=replicas, name="p/1/0/0")
    return await OwnedStream.open(scene.client, stream, epoch)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_ranges_open_at_home_and_come_back_to_it(replicas: int) -> None:
    async def script(scene: Scene) -> None:
        home = scene.cluster.nodes[1]
        owned = await open_at(scene, home, replicas=replicas)
        await write(scene, owned, 5)
        assert (scene.primary(owned.stream_id), owned.is_home) == (home, True)
        await scene.cluster.stop_node(home)
        await write(scene, owned, 5)
        assert (scene.primary(owned.stream_id) == home, owned.is_home) == (False, False)
        await scene.cluster.start_node(home)
        owned.go_home()
        await write(scene, owned, 5)
        assert (scene.primary(owned.stream_id), owned.is_home) == (home, True)
        count = len(scene.ranges(owned.stream_id))
        owned.go_home()
        await write(scene, owned, 1)
        assert len(scene.ranges(owned.stream_id)) == count, "it is there: nothing is sealed"
        await owned.close()
        await scene.check_written(owned.stream_id)

    play(script)


@pytest.mark.parametrize("seed", range(4))
def test_going_home_with_batches_in_flight_stores_each_once(seed: int) -> None:
    async def script(scene: Scene) -> None:
        home, other = scene.cluster.nodes[0], scene.cluster.nodes[1]
        owned = await open_at(scene, other, replicas=3)
        await write(scene, owned, 3)
        owned.home_node = scene.cluster.history.hosts[home]
        answers = []
        for number in range(40):
            body = scene.body()
            header, *rest = batch(body, base_offset=owned.next_offset)
            assert isinstance(header, bytearray)
            scene.written[owned.stream_id][owned.next_offset] = body
            answers.append(owned.append(header, rest))
            if number % 7 == 3:
                await scene.sleep(0.001)
            if number == 20:
                owned.go_home()
        for answer in answers:
            await answer
        assert scene.primary(owned.stream_id) == home
        await owned.close()
        await scene.check_written(owned.stream_id)
        assert owned.next_offset == 43

    play(script, seed=seed)


def test_a_new_leader_opens_at_its_own_home() -> None:
    async def script(scene: Scene) -> None:
        first, second = scene.cluster.nodes[0], scene.cluster.nodes[3]
        before = await open_at(scene, first, replicas=2)
        await write(scene, before, 4)
        after = await open_at(scene, second, replicas=2, epoch=2)
        assert scene.primary(after.stream_id) == second
        await write(scene, after, 4)
        with pytest.raises(HeadraceError):
            await write(scene, before, 1)
        await before.close()
        await after.close()
        await scene.check_written(after.stream_id)

    play(script)


def test_a_home_whose_disk_is_full_is_left() -> None:
    """The home would be asked for again and again otherwise, and the writer fail."""

    async def script(scene: Scene) -> None:
        home = scene.cluster.nodes[2]
        owned = await open_at(scene, home, replicas=1)
        await write(scene, owned, 2)
        disk = scene.simulation.disk(home)
        disk.free, free = 1, disk.free
        await write(scene, owned, 3, length=100_000)
        assert scene.primary(owned.stream_id) != home
        disk.free = free
        await owned.close()
        await scene.check_written(owned.stream_id)

    play(script)
