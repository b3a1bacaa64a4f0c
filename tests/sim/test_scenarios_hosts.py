"""Replicas are on different machines, whatever ids a machine has had."""

from __future__ import annotations

import pytest

from headrace.placement.metadata.records import NodeRecord, RangeRecord
from tests.sim.ending import insist
from tests.sim.scene import Scene, play


def addresses_of_ids(scene: Scene) -> dict[int, str]:
    """Every address that an id ever had, from the history of the metadata."""
    found: dict[int, str] = {}
    for transaction in scene.cluster.history.transactions:
        for record in transaction.puts:
            if isinstance(record, NodeRecord) and record.address:
                found[record.node_id] = record.address
    return found


def chosen(scene: Scene) -> list[tuple[int, ...]]:
    return [
        record.replicas
        for transaction in scene.cluster.history.transactions
        for record in transaction.puts
        if isinstance(record, RangeRecord)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_replaced_disk_is_not_chosen_beside_its_successor(seed: int) -> None:
    """The old id was heard of a moment ago; with four nodes it used to be a replica of ranges whose
    other replica was the same machine under its new id."""

    async def script(scene: Scene) -> None:
        first = await scene.create(replicas=3)
        await scene.append(first, 2)
        for host in scene.cluster.nodes[:2]:
            scene.cluster.wipe(host)
            await scene.cluster.start_node(host)
            for _ in range(6):  # long before the old id is missed
                stream = await insist(lambda: scene.create(replicas=3))
                await insist(lambda stream=stream: scene.append(stream, 1))  # type: ignore[misc]
            await scene.until_replicated(first)
        where = addresses_of_ids(scene)
        for replicas in chosen(scene):
            hosts = [where[node_id] for node_id in replicas]
            if len(set(hosts)) < len(hosts):
                # A sealed range may list the dead id until its copy is whole; never a new one.
                raise AssertionError(f"{replicas} are on {hosts}")

    play(script, seed=seed)


def test_workers_of_one_machine_never_share_a_range() -> None:
    """Two nodes on each of three hosts; hosts become known when the nodes start again."""

    async def script(scene: Scene) -> None:
        cluster = scene.cluster
        streams = [await scene.create(replicas=3) for _ in range(6)]
        for stream in streams:
            await scene.append(stream, 3)
            await insist(lambda stream=stream: scene.client.seal(stream, 0))  # type: ignore[misc]
        for number, host in enumerate(cluster.nodes):
            cluster.host_ids[host] = f"host-{number // 2}"
            await cluster.stop_node(host)
            await cluster.start_node(host)

        def apart(stream: int) -> bool:
            for record in scene.ranges(stream):
                assert len(record.replicas) == 3, "nothing is given up before its copy is whole"
            return all(
                len({cluster.nodes.index(host) // 2 for host in scene.hosts(stream, position)}) == 3
                for position in range(len(scene.ranges(stream)))
            )

        for stream in streams:
            await scene.until(lambda stream=stream: apart(stream), 60)  # type: ignore[misc]
            await insist(lambda stream=stream: scene.append(stream, 1))  # type: ignore[misc]
            await scene.check_written(stream)

    play(script, nodes=6)


def test_what_a_replaced_disk_held_is_copied_at_once() -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 5)
        await scene.client.seal(stream, 0)
        lost = scene.hosts(stream, 0)[1]
        scene.cluster.wipe(lost)
        await scene.cluster.start_node(lost)
        begun = scene.simulation.time()
        await scene.until_replicated(stream)
        settings = scene.cluster._placement_settings
        assert scene.simulation.time() - begun < settings.replace_after_ms / 1000
        await scene.check_written(stream)

    play(script)
